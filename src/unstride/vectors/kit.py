"""Vectors: seeded cases, chosen so that every probe has its turn, with exact results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import isqrt
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride._lazy import lazy
from unstride.cases import Call, random_call
from unstride.dialects import Resolution, onnx
from unstride.errors import AttributeValueError
from unstride.formats.arrays import dtype_of
from unstride.problem import Problem
from unstride.reference import longest_sum, reference
from unstride.vectors.predict import Prediction, engine_limit, is_pointwise, predict
from unstride.vectors.probes import PROBES, Probe, facts_of

__all__ = ["Vector", "as_written", "integer_operands", "make_vectors"]

MAX_COUNT = 100_000
_ATTEMPTS = 300
_SKIPPED_LIMITS = 0.8  # most cases should tell something about an engine that refuses some
# Integers up to here are exact in the type (and in the f32 sums behind f16 and bf16).
_EXACT = {"f32": 2**24, "f16": 2**11, "bf16": 2**8, "f64": 2**53}
_LARGEST_VALUE = 9


@dataclass(frozen=True)
class Vector:
    """One call with its operands and its one exact result."""

    name: str
    call: Call
    resolution: Resolution
    data: NDArray[Any]
    filter: NDArray[Any]
    bias: NDArray[Any] | None
    expected: NDArray[Any]

    @property
    def problem(self) -> Problem:
        return self.resolution.problem

    @lazy
    def probes(self) -> tuple[Probe, ...]:
        """Everything this vector probes."""
        facts = facts_of(self.call, self.resolution)
        return tuple(probe for probe in PROBES if probe.holds(facts))

    @lazy
    def prediction(self) -> Prediction:
        """What the shipped engine of the dialect will make of it."""
        return predict(self.call, self.resolution, self.data, self.filter, self.bias, self.expected)


def make_vectors(
    dialect: str, rules: str = "spec", count: int = 100, seed: int = 0, dtype: str = "f32"
) -> list[Vector]:
    """`count` vectors of a dialect under a rule set; the same arguments give the same vectors."""
    if not 0 <= count <= MAX_COUNT:
        raise AttributeValueError("count", count, f"must be between 0 and {MAX_COUNT}")
    return [_vector(dialect, rules, index, seed, dtype) for index in range(count)]


def _vector(dialect: str, rules: str, index: int, seed: int, dtype: str) -> Vector:
    call, resolution = _draw(dialect, rules, index, seed, dtype)
    rng = np.random.default_rng([seed, index])
    with_bias = dialect == "onnx" and index % 3 == 2
    data, weights, bias = integer_operands(resolution.problem, call.filter_shape, rng, with_bias)
    exact = reference(resolution.problem, data, weights, bias)
    expected = exact.astype(dtype_of(dtype))
    assert (expected.astype(np.float64) == exact).all(), "integers this small are exact in every order of summation"
    return Vector(f"{dialect}-{index:04d}", call, resolution, data, weights, bias, expected)


def _draw(dialect: str, rules: str, index: int, seed: int, dtype: str) -> tuple[Call, Resolution]:
    """A case for the probe whose turn it is."""
    rng = Random(f"{dialect} {rules} {seed} {index}")
    reachable = _reachable(dialect, rules)
    wanted = reachable[index % len(reachable)]
    spare = None
    for _ in range(_ATTEMPTS):
        call = as_written(random_call(rng, dialect, rules, dtypes=(dtype,), max_elements=1500, max_macs=60_000))
        resolution = call.resolve()
        if not _is_telling(call, resolution.problem):
            continue
        if engine_limit(call, resolution) and rng.random() < _SKIPPED_LIMITS:
            continue
        spare = (call, resolution)
        if wanted.holds(facts_of(call, resolution)):
            break
    assert spare is not None, "some drawn case is never empty"
    return spare


@cache
def _reachable(dialect: str, rules: str) -> tuple[Probe, ...]:
    """The probes that random calls of a dialect can show at all."""
    rng = Random(f"{dialect} {rules}")
    calls = [random_call(rng, dialect, rules) for _ in range(_ATTEMPTS)]
    facts = [facts_of(call, call.resolve()) for call in calls]
    return tuple(probe for probe in PROBES if any(map(probe.holds, facts)))


def _is_telling(call: Call, problem: Problem) -> bool:
    """Not empty, short enough to be exact, and none of the cases for which OpenVINO reads rows of the wrong length."""
    undefined = is_pointwise(problem) and call.output_shape is not None and problem.x != problem.y
    return 0 not in problem.result_shape and _amplitude(problem) >= 1 and not undefined


def as_written(call: Call) -> Call:
    """The call as a file may hold it: ONNX forbids pads beside auto_pad, where they would be ignored anyway."""
    operator = call.operator
    if isinstance(operator, onnx.ConvTranspose) and operator.auto_pad != "NOTSET":
        return replace(call, operator=replace(operator, pads=None))
    return call


def _amplitude(problem: Problem) -> int:
    """The largest integer that data and weights may hold; below 1 for a sum too long to be exact."""
    return min(_LARGEST_VALUE, isqrt(_EXACT[problem.dtype] // (longest_sum(problem) + 1)))


def integer_operands(
    problem: Problem, filter_shape: tuple[int, ...], rng: np.random.Generator, with_bias: bool = False
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Data, filter and bias of integers that are never zero, so that a missing or a surplus product always shows."""
    largest = max(1, _amplitude(problem))

    def draw(shape: tuple[int, ...]) -> NDArray[Any]:
        values: NDArray[Any] = rng.integers(1, largest + 1, shape) * rng.choice([-1, 1], shape)
        return values.astype(dtype_of(problem.dtype))

    channels = problem.groups * (problem.co if problem.direction == "scatter" else problem.ci)
    return draw(problem.data_shape), draw(filter_shape), draw((channels,)) if with_bias else None
