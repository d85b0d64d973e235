"""Hypothesis strategies: legal Problems that shrink towards one pixel, and integer arrays for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from unstride.problem import FILTER_LAYOUTS, Problem
from unstride.reference import DTYPES
from unstride.runtime import execute

Array = npt.NDArray[Any]


@st.composite
def problems(
    draw: st.DrawFn,
    direction: str = "scatter",
    dtype: str = "f32",
    data_layouts: tuple[str, ...] = ("NCX", "NXC"),
    filter_layouts: tuple[str, ...] = FILTER_LAYOUTS,
    max_rank: int = 3,
) -> Problem:
    """Any window: begin may be negative, Y may reach past the full extent."""
    rank = draw(st.integers(1, max_rank))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    x, kernel, stride, dilation = each(1, 5), each(1, 4), each(1, 4), each(1, 3)
    begin, y = each(-3, 8), each(0, 14 if rank < 3 else 7)
    sizes = [draw(st.integers(low, high)) for low, high in ((1, 2), (1, 3), (1, 4), (1, 4))]
    layouts = draw(st.sampled_from(data_layouts)), draw(st.sampled_from(filter_layouts))
    return Problem(direction, dtype, *layouts, *sizes, x, kernel, stride, dilation, begin, y)


def integers(shape: tuple[int, ...], seed: int, dtype: str = "f32") -> Array:
    """Integers so small that every sum of the property tests is exact in f32."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(DTYPES[dtype])


def operands(problem: Problem, seed: int) -> tuple[Array, Array]:
    """Data and filter."""
    data = integers(problem.data_shape, seed, problem.dtype)
    return data, integers(problem.filter_shape, seed + 1, problem.dtype)


def compute(problem: Problem, data: Array, filter: Array, **options: Any) -> Array:
    """The package's own result, by whatever kernel it chooses; unwritten elements would show as NaN."""
    out = np.full(problem.result_shape, np.nan, DTYPES[problem.dtype])
    result: Array = execute.run(problem, data, filter, out=out, **options)
    return result
