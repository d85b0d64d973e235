"""Operands of weight gradients, and a definition of their own that shares nothing with the package."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from unstride.problem import Problem
from unstride.reference import DTYPES

Array = npt.NDArray[Any]

# The largest integers whose products stay exact in the accumulator, and their sums in the result's type.
LIMITS = {"f32": 16, "f64": 1000, "f16": 1, "bf16": 1}


def integers(problem: Problem, seed: int, limit: int | None = None) -> tuple[Array, Array]:
    """Small integers of the problem's type, for the small and the large side."""
    rng = np.random.default_rng(seed)
    most = LIMITS[problem.dtype] if limit is None else limit
    shapes = (problem.small_shape, problem.large_shape)
    small, large = (rng.integers(-most, most + 1, shape).astype(DTYPES[problem.dtype]) for shape in shapes)
    return small, large


def reals(problem: Problem, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    shapes = (problem.small_shape, problem.large_shape)
    small, large = (rng.standard_normal(shape).astype(DTYPES[problem.dtype]) for shape in shapes)
    return small, large


def by_position(p: Problem, small: Array, large: Array) -> Array:
    """float64: every position adds the outer product of its pixel and its patch. Nothing is clipped but single taps."""
    x, y = (a.astype(np.float64) for a in (small, large))
    if p.data_layout == "NXC":
        x, y = np.moveaxis(x, -1, 1), np.moveaxis(y, -1, 1)
    x, y = x.reshape(p.batch, p.groups, p.ci, *p.x), y.reshape(p.batch, p.groups, p.co, *p.y)
    w = np.zeros((p.groups, p.ci, p.co, *p.kernel))
    for i in product(*map(range, p.x)):
        for k in product(*map(range, p.kernel)):
            at = [n * s + t * d - b for n, s, t, d, b in zip(i, p.stride, k, p.dilation, p.begin, strict=True)]
            if all(0 <= a < size for a, size in zip(at, p.y, strict=True)):
                w[(..., *k)] += np.einsum("ngi,ngo->gio", x[(..., *i)], y[(..., *at)])
    axes = "abcdefghijkl"[: p.rank]
    return np.einsum(f"GIO{axes}->{p.filter_layout.replace('X', axes)}", w)
