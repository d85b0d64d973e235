"""Running a Problem on arrays, and layers with their weights packed once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unstride.errors import DTypeError, RuleWarning, ShapeError
from unstride.plan.winograd import WinogradPlan
from unstride.problem import Problem, Structure
from unstride.runtime import buffers, pool, tuning
from unstride.runtime.machine import host
from unstride.runtime.program import QuickLaunch, Step, Weights, pack

__all__ = ["Layer", "LayerInfo", "run"]

Resolve = Callable[[tuple[int, ...], Any], tuple[Problem, str | None]]
Activation = str | tuple[str, float] | None

_SHAPES_KEPT = 512


def run(
    problem: Problem,
    data: Any,
    filter: Any,
    bias: Any = None,
    *,
    activation: Activation = None,
    threads: int | None = None,
    accuracy: str = "standard",
    out: Any = None,
) -> Any:
    """The result of one case; every operand is a NumPy array that fits the problem. Weights are packed at each call."""
    inputs = [array for array in (data, filter, bias) if array is not None]
    result = buffers.result_buffer(problem.result_shape, problem.dtype, out, inputs)
    threads = threads or pool.current_threads()
    weights = _packed(problem.structure, filter, bias, activation, accuracy, once=(problem, threads))
    _compute(weights, problem, data, result, threads)
    return result


@dataclass(frozen=True)
class LayerInfo:
    """How a layer runs."""

    algorithm: str
    reason: str
    compiled: str  # where its code came from: "cold" (compiled now), "disk" or "memory"
    compile_ms: float
    threads: int | None
    accuracy: str
    tile: tuple[int, int]  # rows and columns of the register block
    phases: int
    packed_bytes: int
    error_bound: str  # with g(k) = k*u / (1 - k*u), u = 2**-24 (f64: 2**-53), n products per result element


class Layer:
    """An operator with its weights: `layer(x)` takes any batch and any spatial size.

    >>> import numpy as np, unstride
    >>> layer = unstride.openvino.ConvolutionBackpropData([2]).compile(np.ones((1, 1, 2), np.float32))
    >>> layer(np.array([[[1, 2, 3]]], np.float32))
    array([[[1., 1., 2., 2., 3., 3.]]], dtype=float32)
    """

    def __init__(
        self,
        structure: Structure,
        resolve: Resolve,
        filter: Any,
        bias: Any = None,
        *,
        activation: Activation = None,
        threads: int | None = None,
        accuracy: str = "standard",
        tune: bool = False,
    ) -> None:
        self._tune = tune
        self._structure = structure
        self._resolve = resolve
        self._threads = threads
        self._dtype = buffers.numpy_dtype(structure.dtype)
        self._weights = _packed(structure, filter, bias, activation, accuracy, tuned=tune)
        self._known: dict[Any, _Known] = {}
        self._quick: dict[tuple[int, ...], QuickLaunch] = {}
        program = self._weights.program
        kernel, plan = program.preferred, program.preferred.base
        chosen = kernel.plan
        self.info = LayerInfo(
            algorithm=chosen.algorithm,
            reason=chosen.reason,
            compiled=kernel.loaded.origin,
            compile_ms=kernel.loaded.milliseconds,
            threads=threads,
            accuracy=accuracy,
            tile=(plan.tile.rows, plan.tile.columns),
            phases=plan.phase_count,
            packed_bytes=self._weights.packed_bytes,
            error_bound=_error_bound(chosen),
        )

    def __call__(self, data: Any, output_shape: Any = None, out: Any = None) -> Any:
        """Run on one array; a RuleWarning is issued where the rule sets disagree for this call."""
        if output_shape is None and type(data) is np.ndarray:
            quick = self._quick.get(data.shape)
            if quick is not None and (result := self._computed_quickly(quick, data, out)) is not None:
                return result
        if type(data) is not np.ndarray or data.dtype is not self._dtype:
            data = self._accepted(data)
        key = data.shape if output_shape is None else _key(data.shape, output_shape)
        known = self._known.get(key)
        if known is None:
            known = self._meet(key, data.shape, output_shape)
        if known.warning:
            warnings.warn(known.warning, RuleWarning, stacklevel=2)
        try:
            return self._computed(known, data, out)
        except MemoryError as error:
            raise buffers.size_error(error, "data", data.shape) from None

    def _computed_quickly(self, quick: QuickLaunch, data: Any, out: Any) -> Any:
        """The result of a prepared call, if both arrays are as plain as can be; None if they need a closer look."""
        kind = self._dtype
        if quick.threads and not self._uses(quick.threads):
            return None
        if data.dtype is not kind or data.flags.num & buffers.PLAIN != buffers.PLAIN:
            return None
        source = buffers.address(data)
        if out is None:
            out = (
                np.empty(quick.shape, kind)
                if quick.step.short
                else buffers.allocated(quick.shape, self._structure.dtype)
            )
            target = buffers.address(out)
        elif type(out) is np.ndarray and out.dtype is kind and out.shape == quick.shape:
            target = buffers.address(out)
            apart = target - source >= quick.source_bytes or source - target >= quick.result_bytes
            if not apart or out.flags.num & buffers.PLAIN_OUT != buffers.PLAIN_OUT:
                return None
        else:
            return None
        quick.run(source, target)
        return out

    def _uses(self, threads: int) -> bool:
        """Whether a call made here and now runs on so many threads of the pool."""
        own = pool.own_threads()
        return own > 0 and (self._threads or own) == threads

    def _computed(self, known: _Known, data: Any, out: Any) -> Any:
        threads = self._threads or pool.current_threads()
        step = known.steps.get(threads)
        if step is None:
            step = known.steps[threads] = self._step(known.problem, threads)
            if not known.warning and known.plain and QuickLaunch.fits(step):
                self._quick[known.problem.data_shape] = QuickLaunch(self._weights, step, known.shape)
        data = buffers.contiguous(data)
        if out is None:
            result = buffers.allocated(known.shape, self._structure.dtype)
        else:
            result = buffers.result_buffer(known.shape, self._structure.dtype, out, (data,))
            if not buffers.is_plain(result):
                dense = buffers.allocated(known.shape, self._structure.dtype)
                self._weights.launch(step, data, dense)
                result[...] = dense
                return result
        self._weights.launch(step, data, result)
        return result

    def _step(self, problem: Problem, threads: int) -> Step:
        if self._tune and problem not in self._weights.program.kinds:
            tuning.tune(self._weights, problem, threads)
        return self._weights.program.step(problem, threads)

    def algorithm(self, data_shape: Sequence[int], output_shape: Any = None) -> str:
        """What computes data of this shape; `info.algorithm` is what large maps use. A tuned layer finds it out now.

        >>> import numpy as np, unstride
        >>> layer = unstride.openvino.ConvolutionBackpropData([2, 2]).compile(np.ones((64, 64, 4, 4), np.float32))
        >>> layer.algorithm((1, 64, 64, 64))
        'winograd F(3,2)xF(4,2)'
        """
        problem, _ = self._resolve(tuple(data_shape), output_shape)
        return self._step(problem, self._threads or pool.current_threads()).kernel.plan.algorithm

    def _accepted(self, data: Any) -> Any:
        values = buffers.as_input(data, "data")
        if buffers.dtype_name(values) != self._structure.dtype:
            rule = f"the layer was compiled for {self._structure.dtype}"
            raise DTypeError("data", buffers.dtype_name(values), rule, "convert the data or compile again")
        return values

    def _meet(self, key: Any, shape: tuple[int, ...], output_shape: Any) -> _Known:
        problem, warning = self._resolve(shape, output_shape)
        # Sizes are checked a second time, from the real array, before native code ever sees its address.
        if shape != problem.data_shape:
            raise ShapeError("data", shape, f"the problem is {problem}")
        if len(self._known) >= _SHAPES_KEPT:
            self._known.clear()
            self._quick.clear()
        known = _Known(problem, warning, problem.result_shape, output_shape is None)
        if key is not None:
            self._known[key] = known
        return known


def _key(shape: tuple[int, ...], output_shape: Any) -> Any:
    """What a call is remembered by; None for sizes that are not plain integers: they are read afresh, or refused."""
    plain = type(output_shape) in (tuple, list) and all(type(size) is int for size in output_shape)
    return (shape, *output_shape) if plain else None


@dataclass(frozen=True)
class _Known:
    """What a layer remembers of a shape it has met."""

    problem: Problem
    warning: str | None
    shape: tuple[int, ...]
    plain: bool  # the shape of the data said everything
    steps: dict[int, Step] = field(default_factory=dict)


def _error_bound(plan: Any) -> str:
    if isinstance(plan, WinogradPlan):
        return f"|y - exact| <= {plan.growth:g} * g(n + 8) * max|x| * sum|w| + rounding of the result"
    return "|y - exact| <= g(n + 1) * sum|x||w| + rounding of the result"


def _packed(
    structure: Structure,
    filter: Any,
    bias: Any,
    activation: Activation,
    accuracy: str,
    once: tuple[Problem, int] | None = None,
    tuned: bool = False,
) -> Weights:
    kind, slope = activation if isinstance(activation, tuple) else (activation or "none", 0.0)
    try:
        weights = buffers.contiguous(filter)
        return pack(structure, host(), weights, bias, kind, float(slope), accuracy, once=once, tuned=tuned)
    except MemoryError as error:
        raise buffers.size_error(error, "filter", structure.filter_shape) from None


def _compute(weights: Weights, problem: Problem, data: Any, result: Any, threads: int) -> None:
    # Sizes are checked a second time, from the real buffers, right before native code sees their addresses.
    if data.shape != problem.data_shape or result.shape != problem.result_shape:
        raise ShapeError("data", (data.shape, result.shape), f"the problem is {problem}")
    try:
        values = buffers.contiguous(data)
        if buffers.is_plain(result):
            weights.run(problem, values, result, threads)
            return
        dense = buffers.allocated(problem.result_shape, problem.dtype)
        weights.run(problem, values, dense, threads)
        result[...] = dense
    except MemoryError as error:
        raise buffers.size_error(error, "data", data.shape) from None
