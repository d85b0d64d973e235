"""The definition, in the plainest form: one kernel tap at a time, accumulated in float64.

    scatter:  y[i*s + k*d - begin] += w[k] * x[i]        for every tap k and every i that lands in [0, Y)
    gather:   x[i] += w[k] * y[i*s + k*d - begin]        for every tap k and every i that reads from [0, Y)

This file shares no code with the compiler that it checks. A zero that is only implied (a pad, a stride hole) is never
multiplied, so 0*inf cannot appear where the definition has no product.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import gcd, prod
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from unstride.problem import Problem

__all__ = ["error_bound", "filter_gradient_reference", "longest_sum", "magnitude", "reference", "rounded"]

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
# Half a unit in the last place of 1, and the smallest subnormal: what one rounding to the type may cost.
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}
TINY = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133, "f64": 2.0**-1074}


def reference(problem: Problem, data: Array, filter: Array, bias: Array | None = None) -> Float64:
    """The exact operator on these arrays, in float64 and in the shape of the result.

    `data` has problem.data_shape, `filter` as many elements as problem.filter_shape in its memory order.
    """
    scatter = problem.direction == "scatter"
    source = _channels_apart(problem, data)
    weights = _taps_first(problem, filter)
    if scatter:
        weights = weights.swapaxes(-1, -2)
    channels, sizes = (problem.co, problem.y) if scatter else (problem.ci, problem.x)
    result = np.zeros((problem.groups, channels, problem.batch, *sizes))
    with np.errstate(all="ignore"):
        for tap in product(*map(range, problem.kernel)):
            reach = [_reach(problem, axis, k) for axis, k in enumerate(tap)]
            if all(len(small) for small, _ in reach):
                small: tuple[Any, ...] = (..., *(slice(i.start, i.stop) for i, _ in reach))
                large: tuple[Any, ...] = (..., *(slice(o.start, o.stop, o.step) for _, o in reach))
                read, write = (small, large) if scatter else (large, small)
                result[write] += _mix_channels(weights[tap], source[read])
        if bias is not None:
            values = np.asarray(bias).astype(np.float64).reshape(problem.groups, channels)
            result += values.reshape(problem.groups, channels, *(1,) * (1 + problem.rank))
    return _channels_together(problem, result)


def filter_gradient_reference(problem: Problem, small: Array, large: Array) -> Float64:
    """The exact gradient by the weights, in float64 and in problem.filter_shape.

    w[k] = sum over i of small[i] * large[i*s + k*d - begin], for every i that reads from [0, Y).
    """
    apart = [_channels_apart(replace(problem, direction=d), a) for d, a in (("scatter", small), ("gather", large))]
    result = np.zeros((*problem.kernel, problem.groups, problem.ci, problem.co))
    with np.errstate(all="ignore"):
        for tap in product(*map(range, problem.kernel)):
            reach = [_reach(problem, axis, k) for axis, k in enumerate(tap)]
            if all(len(near) for near, _ in reach):
                small_side: tuple[Any, ...] = (..., *(slice(i.start, i.stop) for i, _ in reach))
                large_side: tuple[Any, ...] = (..., *(slice(o.start, o.stop, o.step) for _, o in reach))
                pair = apart[0][small_side], apart[1][large_side]
                flat = (values.reshape(*values.shape[:2], -1) for values in pair)
                result[tap] = np.einsum("gip,gop->gio", *flat)
    letters = "".join(letter if letter != "X" else "x" * problem.rank for letter in problem.filter_layout)
    kernel_axes = iter(range(problem.rank))
    order = [next(kernel_axes) if letter == "x" else problem.rank + "GIO".index(letter) for letter in letters]
    return np.ascontiguousarray(result.transpose(order))


def magnitude(problem: Problem, data: Array, filter: Array, bias: Array | None = None) -> Float64:
    """The sum of |x||w| behind each element of the result: the scale of its rounding errors."""
    absolute = None if bias is None else np.abs(np.asarray(bias).astype(np.float64))
    return reference(problem, np.abs(data.astype(np.float64)), np.abs(filter.astype(np.float64)), absolute)


def longest_sum(problem: Problem) -> int:
    """The largest number of products that any element of the result can have."""
    if problem.direction == "gather":
        return problem.co * prod(problem.kernel)
    taps = (-(-k // (s // gcd(s, d))) for k, s, d in zip(problem.kernel, problem.stride, problem.dilation, strict=True))
    return problem.ci * prod(taps)


def error_bound(problem: Problem, data: Array, filter: Array, bias: Array | None = None) -> Float64:
    """How far a correct result may be from `reference`, element by element.

    The sum is accumulated in f32 (f64 for f64) in any order and rounded once to the result's type:
    g(n+1) * sum|x||w| + u*|y| + tiny, with g(k) = k*u'/(1 - k*u').
    """
    unit = UNIT["f64" if problem.dtype == "f64" else "f32"]
    terms = longest_sum(problem) + 2
    growth = terms * unit / (1 - terms * unit)
    sums = magnitude(problem, data, filter, bias)
    exact = np.abs(reference(problem, data, filter, bias))
    # the last term: a product or partial sum may be subnormal in the accumulator
    return growth * sums + UNIT[problem.dtype] * exact * (1 + growth) + (terms + 1) * TINY[problem.dtype]


def rounded(values: Float64, dtype: str) -> Array:
    """The float64 result rounded once to an element type; what does not fit becomes infinite, as in any engine."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return values.astype(DTYPES[dtype])


def _reach(problem: Problem, axis: int, k: int) -> tuple[range, range]:
    """The small-side positions whose tap k falls inside [0, Y), and the large-side positions they meet."""
    stride, y = problem.stride[axis], problem.y[axis]
    shift = k * problem.dilation[axis] - problem.begin[axis]
    first = max(0, -(shift // stride))
    last = min(problem.x[axis] - 1, (y - 1 - shift) // stride)
    if last < first:
        return range(0), range(0)
    return range(first, last + 1), range(first * stride + shift, last * stride + shift + 1, stride)


def _mix_channels(weights: Float64, values: Float64) -> Float64:
    """One small matrix product per group: [G, out, in] with [G, in, N, positions...]."""
    groups, channels, *rest = values.shape
    mixed = weights @ values.reshape(groups, channels, prod(rest))
    return mixed.reshape(groups, weights.shape[1], *rest)


def _channels_apart(problem: Problem, data: Array) -> Float64:
    """data as [G, channels, N, positions...] in float64."""
    values = np.asarray(data).astype(np.float64).reshape(problem.data_shape)
    if problem.data_layout == "NXC":
        values = np.moveaxis(values, -1, 1)
    batch, _, *spatial = values.shape
    channels = problem.ci if problem.direction == "scatter" else problem.co
    return np.moveaxis(values.reshape(batch, problem.groups, channels, *spatial), 0, 2)


def _taps_first(problem: Problem, filter: Array) -> Float64:
    """filter as [K..., G, ci, co] in float64."""
    values = np.asarray(filter).astype(np.float64).reshape(problem.filter_shape)
    letters = "".join(letter if letter != "X" else "x" * problem.rank for letter in problem.filter_layout)
    order = [axis for axis, letter in enumerate(letters) if letter == "x"]
    return values.transpose(*order, *(letters.index(letter) for letter in "GIO"))


def _channels_together(problem: Problem, result: Float64) -> Float64:
    """[G, channels, N, positions...] in the shape that the problem promises."""
    batch_first = np.moveaxis(result, 2, 0)
    spatial = result.shape[3:]
    joined = batch_first.reshape(problem.batch, result.shape[0] * result.shape[1], *spatial)
    if problem.data_layout == "NXC":
        joined = np.moveaxis(joined, 1, -1)
    return np.ascontiguousarray(joined)
