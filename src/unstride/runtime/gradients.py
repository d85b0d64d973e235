"""Gradients with respect to the weights and the bias of any Problem.

    >>> import numpy as np
    >>> from unstride.problem import Problem
    >>> p = Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o1 x3 k2 s2 d1 b0 y6")
    >>> x, dy = np.array([[[1, 2, 3]]], np.float32), np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    >>> filter_gradient(p, x, dy)
    array([[[[16., 22.]]]], dtype=float32)
    >>> bias_gradient(p, dy)
    array([15.], dtype=float32)

Sums over positions are cut in the same way for every number of threads: so are the results, bit by bit.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.codegen.gradient import GradientFamily
from unstride.codegen.gradient_bias import SYMBOLS as BIAS_SYMBOLS
from unstride.codegen.gradient_bias import bias_ir
from unstride.codegen.numbers import Numbers
from unstride.errors import DTypeError, ShapeError, SizeLimitError
from unstride.plan.gradient import GradientPlan, plan_gradient
from unstride.plan.gradient_job import GradientJob
from unstride.plan.machine import Machine
from unstride.problem import Problem
from unstride.runtime import buffers, engine, pool
from unstride.runtime.machine import host

__all__ = ["bias_gradient", "filter_gradient"]

_SCRATCH_BYTES = 16 << 20
_INLINE_WORK = 400_000  # multiply-adds (and quarter bytes) below which a second thread costs more than it gives
_SHORT_WORK = 2_000_000  # the interpreter's lock is kept below this
_SCRATCHES_KEPT = 2
_BIAS_LINE = 4096  # elements of a channel that are summed before a wider type takes over
_BIAS_TASK = 1 << 16  # elements of one task
_ADDRESSES = struct.Struct("5q")  # the first fields of GradientJob

_free_scratch: list[NDArray[np.uint8]] = []


def filter_gradient(
    problem: Problem, small: Any, large: Any, *, threads: int | None = None, out: Any = None
) -> NDArray[Any]:
    """The gradient of <A(data; w), delta> by w, in the shape and order of problem.filter_shape.

    `small` has problem.small_shape, `large` problem.large_shape; which of them is data and which is delta depends on
    the direction, the formula does not. f16 and bf16 are summed in f32 and rounded once.
    """
    try:
        pair = _operand(problem, small, "small"), _operand(problem, large, "large")
        result = buffers.result_buffer(problem.filter_shape, problem.dtype, out, pair)
        if not problem.macs:
            result[...] = 0
            return result
        dense = result if buffers.is_plain(result) else buffers.allocated(result.shape, problem.dtype)
        _ready(problem, host()).run(*pair, dense, threads or pool.current_threads())
        if dense is not result:
            result[...] = dense
        return result
    except MemoryError as error:
        raise buffers.size_error(error, "filter gradient", problem.filter_shape) from None


def bias_gradient(problem: Problem, delta: Any) -> NDArray[Any]:
    """The gradient by the bias: `delta`, which has problem.result_shape, summed over all but its channels."""
    values = buffers.as_input(delta, "delta")
    if values.shape != problem.result_shape:
        raise ShapeError("delta", values.shape, f"the problem's result is {problem.result_shape}")
    if buffers.dtype_name(values, "delta") != problem.dtype:
        raise DTypeError("delta", values.dtype, f"the problem is {problem.dtype}", "convert the array")
    try:
        return _summed(problem, buffers.contiguous(values))
    except MemoryError as error:
        raise buffers.size_error(error, "bias gradient", values.shape) from None


def _summed(problem: Problem, values: NDArray[Any]) -> NDArray[Any]:
    if not values.size:
        return np.zeros(values.shape[1 if problem.data_layout == "NCX" else -1], values.dtype)
    wide = np.dtype(np.float64 if problem.dtype == "f64" else np.float32)
    sums = _channel_sums if problem.data_layout == "NCX" else _pixel_sums
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, as in the kernels
        return sums(problem, values, wide).astype(wide).astype(values.dtype)


def _channel_sums(problem: Problem, delta: NDArray[Any], wide: np.dtype[Any]) -> NDArray[np.float64]:
    """Channel-major: every segment of a channel becomes one number."""
    images, channels = delta.shape[:2]
    pixels = delta.size // (images * channels)
    segments = -(-pixels // _BIAS_LINE)
    count = images * channels * segments
    lines = max(1, _BIAS_TASK // min(pixels, _BIAS_LINE))
    partial = np.empty(count, wide)
    _bias_tasks(problem, delta, partial, "reduce", _BIAS_LINE, lines, pixels, count, segments)
    total: NDArray[np.float64] = partial.reshape(images, channels, segments).sum(axis=(0, 2), dtype=np.float64)
    return total


def _pixel_sums(problem: Problem, delta: NDArray[Any], wide: np.dtype[Any]) -> NDArray[np.float64]:
    """Pixel-major: lines of whole vectors and whole pixels are added element by element; a rest is left to NumPy."""
    channels, lanes = delta.shape[-1], host().isa.lanes(wide.itemsize)
    line = channels * lanes // gcd(channels, lanes)
    total = delta.size // line
    lines = max(1, _BIAS_TASK // line, -(-total * line * wide.itemsize // _SCRATCH_BYTES))
    tasks = -(-total // lines)
    partial = np.empty((tasks, line), wide)
    _bias_tasks(problem, delta, partial, "fold", line, lines, total, total, 1)
    rest = delta.reshape(-1)[total * line :].astype(np.float64).reshape(-1, channels).sum(axis=0)
    folded: NDArray[np.float64] = partial.reshape(-1, channels).sum(axis=0, dtype=np.float64) + rest
    return folded


def _bias_tasks(
    problem: Problem,
    delta: NDArray[Any],
    partial: NDArray[Any],
    function: str,
    line: int,
    lines: int,
    total: int,
    count: int,
    segments: int,
) -> None:
    isa = host().isa
    numbers = Numbers(problem.dtype, isa)
    code = engine.kernel_library(f"bias {problem.dtype}", lambda: bias_ir(numbers), isa, BIAS_SYMBOLS).addresses
    job = np.array([buffers.address(delta), buffers.address(partial), line, lines, total, count, segments], np.int64)
    tasks = -(-count // lines)
    threads = 1 if delta.size < _INLINE_WORK else min(pool.current_threads(), max(1, tasks))
    pool.parallel(code[function], buffers.address(job), tasks, threads, delta.size < _SHORT_WORK)


def _operand(problem: Problem, array: Any, field: str) -> NDArray[Any]:
    values = buffers.as_input(array, field)
    expected = problem.small_shape if field == "small" else problem.large_shape
    if values.shape != expected:
        raise ShapeError(field, values.shape, f"the problem needs {expected}")
    if buffers.dtype_name(values, field) != problem.dtype:
        raise DTypeError(field, values.dtype, f"the problem is {problem.dtype}", "convert the array")
    return buffers.contiguous(values)


@dataclass(frozen=True)
class _Ready:
    """One problem with its code and tables."""

    plan: GradientPlan
    tables: NDArray[np.int64]
    job: bytes
    code: dict[str, int]
    threads: int  # the most that are worth it, within the bound on scratch
    short: bool

    def run(self, small: NDArray[Any], large: NDArray[Any], result: NDArray[Any], threads: int) -> None:
        plan = self.plan
        used = max(1, min(threads, self.threads, plan.tasks))
        scratch = _take_scratch(plan.partial_bytes + plan.slot_bytes * used)
        try:
            self._launch(scratch, small, large, result, threads, used)
        finally:
            if len(_free_scratch) < _SCRATCHES_KEPT:
                _free_scratch.append(scratch)

    def _launch(
        self,
        scratch: NDArray[np.uint8],
        small: NDArray[Any],
        large: NDArray[Any],
        result: NDArray[Any],
        threads: int,
        used: int,
    ) -> None:
        plan = self.plan
        job = ctypes.create_string_buffer(self.job, len(self.job))
        start = -(-buffers.address(scratch) // 64) * 64
        arrays = (buffers.address(array) for array in (small, large, result))
        _ADDRESSES.pack_into(job, 0, *arrays, start, buffers.address(self.tables))
        block = ctypes.addressof(job)
        pool.parallel(self.code["run"], block, plan.tasks, used, self.short)
        if plan.finish_tasks:
            used = max(1, min(threads, self.threads, plan.finish_tasks))
            pool.parallel(self.code["finish"], block, plan.finish_tasks, used, self.short)


@lru_cache(maxsize=256)
def _ready(problem: Problem, machine: Machine) -> _Ready:
    plan = plan_gradient(problem, machine)
    tile = plan.tile
    family = GradientFamily(problem.dtype, problem.data_layout == "NCX", plan.depthwise, tile.height, tile.width)
    numbers = Numbers(problem.dtype, machine.isa)
    loaded = engine.kernel_library(family.key, lambda: family.build(numbers), machine.isa, family.symbols)
    work = problem.macs + 4 * problem.bytes
    most = 1 if work < _INLINE_WORK else max(1, (_SCRATCH_BYTES - plan.partial_bytes) // plan.slot_bytes)
    job = struct.pack(f"{len(GradientJob)}q", *plan.fields)
    return _Ready(plan, np.array(plan.tables, np.int64), job, loaded.addresses, most, work < _SHORT_WORK)


def _take_scratch(count: int) -> NDArray[np.uint8]:
    """Work space of at least `count` bytes: a used one if it is large enough, for its pages are warm."""
    try:
        kept = _free_scratch.pop()
        if kept.size >= count + 64:
            return kept
    except IndexError:
        pass
    try:
        return np.empty(count + 64, np.uint8)
    except MemoryError:
        raise SizeLimitError("scratch", count, "not enough memory for the work space") from None
