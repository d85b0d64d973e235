"""The three bilinear maps of a transposed convolution, which differentiation turns into one another.

    y = scatter(x, w)      x = gather(y, w)      w = filters(x, y)

Each is linear in both arguments, and for every x, y and w: <scatter(x, w), y> = <x, gather(y, w)> = <w, filters(x, y)>.
So the derivative of each one is the other two, to any order. All three belong to one `Problem`; frameworks differ only
in how they hand over arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from unstride.errors import AttributeValueError, ShapeError
from unstride.problem import Problem
from unstride.runtime import execute
from unstride.runtime.gradients import filter_gradient

__all__ = ["compute", "family_problem", "per_axis", "window_size"]


def per_axis(name: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One integer for each of `rank` axes; a list of one integer counts for all axes, as torch reads it.

    >>> per_axis("stride", 2, 3)
    (2, 2, 2)
    """
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(values) == 1:
        values *= rank
    if len(values) != rank:
        raise AttributeValueError(name, value, f"needs one integer, or one for each of the {rank} spatial axes")
    return values


def window_size(
    x: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Spatial sizes of the result by torch's rule. Nothing but arithmetic, so that sizes may be symbols of a tracer.

    >>> window_size([8], [4], [2], [1], [0], [1])
    [16]
    """
    rows = zip(x, kernel, stride, padding, output_padding, dilation, strict=True)
    return [(n - 1) * s + (k - 1) * d + 1 - 2 * p + extra for n, k, s, p, extra, d in rows]


@lru_cache(maxsize=4096)
def family_problem(
    dtype: str,
    layout: str,
    batch: int,
    groups: int,
    filter_shape: tuple[int, ...],
    x: tuple[int, ...],
    y: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    begin: tuple[int, ...],
) -> Problem:
    """The scatter of a filter `[groups * ci, co, K...]` between spatial sizes x and y."""
    channels, co, *kernel = filter_shape
    if channels % groups:
        raise ShapeError("groups", groups, f"must divide the {channels} input channels of the filter {filter_shape}")
    sizes = (batch, groups, channels // groups, co)
    return Problem("scatter", dtype, layout, "GIOX", *sizes, x, tuple(kernel), stride, dilation, begin, y)


def compute(kind: str, problem: Problem, first: Any, second: Any, bias: Any, out: Any, threads: int | None) -> None:
    """Write "scatter", "gather" or "filters" of a scatter problem into the contiguous array `out`.

    The filter, as an argument or as the result, has the shape `[groups * ci, co, K...]` or the problem's own.
    """
    if kind == "filters":
        filter_gradient(problem, first, second, threads=threads, out=out.reshape(problem.filter_shape))
        return
    problem = _directed(problem, kind)
    weights = second.reshape(problem.filter_shape)
    execute.run(problem, first, weights, bias, out=out, threads=threads)


@lru_cache(maxsize=4096)
def _directed(problem: Problem, direction: str) -> Problem:
    return problem if problem.direction == direction else replace(problem, direction=direction)
