"""One layer with its arrays, and the judge that looks at every contender's result before anything is timed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from unstride._lazy import lazy
from unstride.problem import Problem

__all__ = ["NUMPY_DTYPES", "Case", "Verdict", "judge", "make_case"]

NUMPY_DTYPES: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
Array = NDArray[Any]
SAMPLES = 48
# Half a unit in the last place of the result type, and of the type sums are carried in.
_RESULT_UNIT = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}
_SUM_UNIT = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-24, "bf16": 2.0**-24}
# Random signs keep honest errors, Winograd's too, within a small multiple of unit*sum|x||w|; one wrong tap is beyond.
_SUM_SLACK = 64.0
# Engines that round partial sums to the 16-bit type are less exact, not wrong: they are timed, and the note says it.
_COARSE_SLACK = 8.0


@dataclass(frozen=True)
class Case:
    """A problem, its data in the problem's layout, and its weights as `[G, ci, co, K...]`, whatever the layout."""

    problem: Problem
    data: Array
    weights: Array
    threads: int

    @lazy
    def data_ncx(self) -> Array:
        """The data as `[N, C, spatial...]`: a view with the same memory."""
        return self.data if self.problem.data_layout == "NCX" else np.moveaxis(self.data, -1, 1)

    @property
    def dense_weights(self) -> Array:
        """The weights as `[G*ci, co, K...]`, the form torch and ONNX share."""
        groups, ci, *rest = self.weights.shape
        return self.weights.reshape(groups * ci, *rest)


@dataclass(frozen=True)
class Verdict:
    """`wrong` names the first place where a result leaves the bound, or is empty. `error` is in units of the bound.

    `coarse`: beyond the bound of one rounding at the store, within that of rounding every partial sum.
    """

    wrong: str
    error: float
    coarse: bool = False


def make_case(problem: Problem, threads: int, seed: int = 0) -> Case:
    """Seeded uniform data in [-1, 1) and weights of either sign in the problem's type."""
    rng = np.random.default_rng(seed)
    dtype = NUMPY_DTYPES[problem.dtype]
    data = _uniform(rng, problem.data_shape).astype(dtype, copy=False)
    weights = _uniform(rng, (problem.groups, problem.ci, problem.co, *problem.kernel)).astype(dtype, copy=False)
    return Case(problem, data, weights, threads)


def judge(case: Case, results: Mapping[str, Array], seed: int = 0) -> dict[str, Verdict]:
    """Hold each result against the definition in float64, where it matters.

    The definition is evaluated at the corners, at random places, and at the place where each result differs most from
    the first one: whichever of the two is wrong there is found out, and a difference anywhere cannot hide.
    """
    places = _sample_places(case.problem, seed)
    first = next(iter(results.values()))
    for result in results.values():
        if result.shape == first.shape:
            places.add(_largest_difference(result, first))
    exact = {place: _definition(case, place) for place in sorted(places)}
    return {name: _verdict(case.problem, result, exact) for name, result in results.items()}


def _verdict(problem: Problem, result: Array, exact: Mapping[tuple[int, ...], tuple[float, float]]) -> Verdict:
    shape = problem.result_shape
    if result.shape != shape:
        return Verdict(f"shape {result.shape}, expected {shape}", float("inf"))
    worst, coarse = 0.0, False
    for place, (value, magnitude) in exact.items():
        difference = abs(float(result[place]) - value)
        error = difference / _bound(problem.dtype, value, magnitude)
        if not difference <= _coarse_bound(problem.dtype, value, magnitude):
            return Verdict(f"at {list(place)}: {float(result[place]):.9g}, expected {value:.9g}", error)
        coarse |= error > 1.0
        worst = max(worst, error)
    return Verdict("", worst, coarse)


def _bound(dtype: str, value: float, magnitude: float) -> float:
    return _SUM_SLACK * _SUM_UNIT[dtype] * magnitude + 1.01 * _RESULT_UNIT[dtype] * abs(value) + 1e-30


def _coarse_bound(dtype: str, value: float, magnitude: float) -> float:
    return max(_bound(dtype, value, magnitude), _COARSE_SLACK * _RESULT_UNIT[dtype] * magnitude)


def _sample_places(problem: Problem, seed: int) -> set[tuple[int, ...]]:
    shape = problem.result_shape
    if 0 in shape:
        return set()
    rng = np.random.default_rng(seed)
    corners = itertools.islice(itertools.product(*((0, size - 1) for size in shape)), 32)
    randoms = (tuple(int(rng.integers(size)) for size in shape) for _ in range(SAMPLES))
    return {*corners, *randoms}


def _largest_difference(result: Array, first: Array) -> tuple[int, ...]:
    """Where two results differ most; a NaN counts as the largest."""
    where = np.argmax(np.nan_to_num(np.abs(np.subtract(result, first, dtype=np.float32)), nan=np.inf))
    return tuple(int(index) for index in np.unravel_index(where, first.shape))


def _definition(case: Case, place: tuple[int, ...]) -> tuple[float, float]:
    """The value at one place of the result, and the sum of the magnitudes of its products."""
    p = case.problem
    n, channel, *spatial = place if p.data_layout == "NCX" else (place[0], place[-1], *place[1:-1])
    width = p.co if p.direction == "scatter" else p.ci
    group, inner = divmod(channel, width)
    count = p.ci if p.direction == "scatter" else p.co
    channels = slice(group * count, (group + 1) * count)
    weights = case.weights[group, :, inner] if p.direction == "scatter" else case.weights[group, inner]
    positions, taps = zip(*(_sources(p, axis, at) for axis, at in enumerate(spatial)), strict=True)
    data = case.data_ncx[n, channels][(slice(None), *np.ix_(*positions))].astype(np.float64)
    products = data * weights[(slice(None), *np.ix_(*taps))].astype(np.float64)
    return float(products.sum()), float(np.abs(products).sum())


def _sources(problem: Problem, axis: int, at: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions in the data, and their taps, that reach position `at` of the result along one axis."""
    stride, begin = problem.stride[axis], problem.begin[axis]
    taps = np.arange(problem.kernel[axis], dtype=np.intp)
    if problem.direction == "gather":
        positions = at * stride + taps * problem.dilation[axis] - begin
        reached = (positions >= 0) & (positions < problem.y[axis])
    else:
        positions, rest = np.divmod(at + begin - taps * problem.dilation[axis], stride)
        reached = (rest == 0) & (positions >= 0) & (positions < problem.x[axis])
    return positions[reached], taps[reached]


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = rng.random(shape, dtype=np.float32)
    np.multiply(values, 2.0, out=values)
    return np.subtract(values, 1.0, out=values)
