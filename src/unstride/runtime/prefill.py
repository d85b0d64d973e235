"""A result that starts as what its elements without taps are: the bias, activated."""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.codegen.fill import build_fill
from unstride.codegen.numbers import Numbers
from unstride.plan.job import Fill
from unstride.plan.machine import ISA, LINE_BYTES
from unstride.runtime import buffers, engine, pool

__all__ = ["prefill"]

_SMALL, _CLEARED = 2**15, 2**20  # bytes, up to which NumPy is as fast: with pixels, and with zeros
_TINY = 2**12  # bytes that are filled while one asks whether they are zeros
_PATTERN_BYTES, _TASK_BYTES = 2**14, 2**20


def prefill(result: NDArray[Any], rest: NDArray[Any], dtype: str, isa: ISA, threads: int) -> None:
    """Fill a contiguous result with `rest`, which has its dtype and is broadcast over it."""
    if _TINY <= result.nbytes < _CLEARED and not rest.view(np.uint8).any():
        result.fill(0)
        return
    if result.nbytes < _SMALL or rest.ndim > 1:  # in NCX every channel is a stretch of its own
        result[...] = rest
        return
    # The pattern is whole pixels and whole lines, so that lines are cut at the ends of the result alone.
    whole = lcm(rest.nbytes, LINE_BYTES)
    pixels = whole * -(-_PATTERN_BYTES // whole) // rest.nbytes
    pattern = np.tile(rest, pixels)
    turns = max(1, _TASK_BYTES // pattern.nbytes)
    fields = {
        Fill.RESULT: buffers.address(result),
        Fill.COUNT: result.size,
        Fill.PATTERN: buffers.address(pattern),
        Fill.LENGTH: pattern.size,
        Fill.TURNS: turns,
    }
    job = np.array([fields[field] for field in Fill], np.int64)
    code = engine.kernel_library(f"fill {dtype}", lambda: build_fill(Numbers(dtype, isa)), isa, ("fill",))
    tasks = -(-result.size // (pattern.size * turns))
    pool.parallel(code.addresses["fill"], buffers.address(job), tasks, min(threads, tasks))
