"""How far from the reference a correct result may be, by the kind of kernel that made it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.problem import Problem
from unstride.reference import UNIT, error_bound, longest_sum, magnitude

__all__ = ["allowed_error"]

# What the transforms of a Winograd tile of four points per axis can add, as a multiple of the plain sum's bound.
_WINOGRAD_GROWTH = 8.0


def allowed_error(
    problem: Problem, data: NDArray[Any], filter: NDArray[Any], bias: NDArray[Any] | None, *, by_norm: bool
) -> NDArray[np.float64]:
    """The largest error of each element.

    Direct kernels answer for every element by itself. A Winograd kernel mixes the elements of a tile, so its error is
    bounded by the largest sum of |x||w| in the result (`by_norm`) and not by that of each element.
    """
    bound = error_bound(problem, data, filter, bias)
    if not by_norm or problem.dtype == "f64" or not bound.size:
        return bound
    terms = longest_sum(problem) + 2
    largest = magnitude(problem, data, filter, bias).max()
    return np.asarray(bound + _WINOGRAD_GROWTH * terms * UNIT["f32"] * largest)
