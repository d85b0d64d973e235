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
    """Write "scatter", "gather" or "filters" of a scatter problem into the array `out`.

    The filter, as an argument or as the result, has the shape `[groups * ci, co, K...]` or the problem's own.
    """
    if kind == "filters":
        gradient = _filter_gradient(problem, first, second)
        out.reshape(problem.filter_shape)[...] = gradient.reshape(problem.filter_shape)
        return
    problem = _directed(problem, kind)
    weights = second.reshape(problem.filter_shape)
    execute.run(problem, first, weights, bias, out=out, threads=threads)


@lru_cache(maxsize=4096)
def _directed(problem: Problem, direction: str) -> Problem:
    return problem if problem.direction == direction else replace(problem, direction=direction)


def _filter_gradient(problem: Problem, small: Any, large: Any) -> Any:
    """The filter gradient in the problem's filter shape, one tap at a time."""
    import numpy as np

    p = problem
    wide = np.float64 if p.dtype == "f64" else np.float32
    if p.data_layout == "NXC":
        small, large = np.moveaxis(small, -1, 1), np.moveaxis(large, -1, 1)
    small = small.astype(wide).reshape(p.batch, p.groups, p.ci, *p.x)
    large = large.astype(wide).reshape(p.batch, p.groups, p.co, *p.y)
    result = np.zeros((p.groups, p.ci, p.co, *p.kernel), wide)
    for tap in np.ndindex(*p.kernel):
        src, dst = [], []
        for k, s, d, b, x, y in zip(tap, p.stride, p.dilation, p.begin, p.x, p.y, strict=True):
            shift = k * d - b
            low = max(0, -(shift // s))
            high = max(low, min(x - 1, (y - 1 - shift) // s) + 1)
            src.append(slice(low, high))
            dst.append(slice(low * s + shift, max(0, (high - 1) * s + shift + 1), s) if high > low else slice(0, 0))
        a = small[(..., *src)].reshape(p.batch, p.groups, p.ci, -1)
        c = large[(..., *dst)].reshape(p.batch, p.groups, p.co, -1)
        result[(..., *tap)] = np.einsum("ngip,ngop->gio", a, c, optimize=True)
    return result
