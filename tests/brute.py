"""The operators by brute force: build the whole extent, then cut the window out of it. Nothing is clipped or skipped.

The reference of the package walks over taps and clips ranges; this walks over positions and clips nothing, so that the
two can be held against each other.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from unstride.problem import Problem

Array = npt.NDArray[Any]


def brute_force(problem: Problem, data: Array, filter: Array) -> Array:
    """float64, in the shape of the result."""
    source = data.astype(np.float64)
    if problem.data_layout == "NXC":
        source = np.moveaxis(source, -1, 1)
    weights = _weights(problem, filter)
    result = _scatter(problem, source, weights) if problem.direction == "scatter" else _gather(problem, source, weights)
    return result if problem.data_layout == "NCX" else np.moveaxis(result, 1, -1)


def _weights(problem: Problem, filter: Array) -> Array:
    """[G, ci, co, K...]."""
    axes = "abcdefghijkl"[: problem.rank]
    order = problem.filter_layout.replace("X", axes)
    return np.einsum(f"{order}->GIO{axes}", filter.astype(np.float64).reshape(problem.filter_shape))


def _scatter(p: Problem, x: Array, w: Array) -> Array:
    """Every input adds its scaled kernel to the full extent; then the window is cut out."""
    full = np.zeros((p.batch, p.groups * p.co, *p.full))
    for group in range(p.groups):
        mine = x[:, group * p.ci : (group + 1) * p.ci]
        target = full[:, group * p.co : (group + 1) * p.co]
        for i in product(*map(range, p.x)):
            stamp = np.tensordot(mine[(..., *i)], w[group], axes=(1, 0))
            places = [slice(n * s, n * s + e, d) for n, s, e, d in zip(i, p.stride, p.extent, p.dilation, strict=True)]
            target[(..., *places)] += stamp
    return window(full, p.begin, p.y)


def _gather(p: Problem, y: Array, w: Array) -> Array:
    """Lay the data into the full extent; then every output reads its dilated patch."""
    full = window(y, tuple(-b for b in p.begin), p.full)
    result = np.zeros((p.batch, p.groups * p.ci, *p.x))
    for group in range(p.groups):
        mine = full[:, group * p.co : (group + 1) * p.co]
        for i in product(*map(range, p.x)):
            places = [slice(n * s, n * s + e, d) for n, s, e, d in zip(i, p.stride, p.extent, p.dilation, strict=True)]
            patch = mine[(..., *places)]
            axes = list(range(1, patch.ndim))
            value = np.tensordot(patch, w[group], axes=(axes, axes))
            result[(slice(None), slice(group * p.ci, (group + 1) * p.ci), *i)] = value
    return result


def window(array: Array, begin: tuple[int, ...], size: tuple[int, ...]) -> Array:
    """`array[..., begin : begin + size]` on the last axes, with zeros wherever that reaches outside."""
    for axis, (b, n) in enumerate(zip(begin, size, strict=True), start=array.ndim - len(begin)):
        before, after = max(0, -b), max(0, b + n - array.shape[axis])
        pads = [(0, 0)] * array.ndim
        pads[axis] = (before, after)
        padded = np.pad(array, pads)
        array = np.take(padded, range(b + before, b + before + n), axis=axis)
    return array
