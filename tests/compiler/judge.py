"""Runs a case through generated code and holds the result against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.compiler.cases import SLOPE, Case
from unstride.plan.machine import Machine
from unstride.problem import Problem
from unstride.reference import DTYPES, UNIT, reference, rounded
from unstride.runtime import program
from unstride.runtime.machine import host
from unstride.vectors.judge import allowed_error

__all__ = ["differs", "exact_operands", "outside_bound", "real_operands", "run"]

Array = npt.NDArray[Any]


def exact_operands(case: Case) -> tuple[Array, Array, Array | None]:
    """Integers so small that every partial sum is exact in the accumulator; rounding happens once, at the store."""
    rng = np.random.default_rng(case.seed)
    return _operands(case, lambda shape: _with_outliers(rng, rng.integers(-8, 9, shape), 2048))


def real_operands(case: Case) -> tuple[Array, Array, Array | None]:
    """Numbers of mixed size and sign, rounded to the case's type."""
    rng = np.random.default_rng(case.seed)

    def draw(shape: tuple[int, ...]) -> Array:
        return _with_outliers(rng, rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, shape), 150.5)

    return _operands(case, draw)


def _with_outliers(rng: np.random.Generator, values: Array, outlier: float) -> Array:
    """Now and then an element that dwarfs the others: Winograd then leaves its surroundings to the direct kernel."""
    if values.size and rng.random() < 0.25:
        values.flat[rng.integers(0, values.size)] = outlier
    return values


def _operands(case: Case, draw: Any) -> tuple[Array, Array, Array | None]:
    p, dtype = case.problem, DTYPES[case.problem.dtype]
    bias = draw((result_channels(p),)).astype(dtype) if case.bias else None
    return draw(p.data_shape).astype(dtype), draw(p.filter_shape).astype(dtype), bias


def result_channels(problem: Problem) -> int:
    return problem.groups * (problem.co if problem.direction == "scatter" else problem.ci)


def run(case: Case, data: Array, filter: Array, bias: Array | None, result: Array | None = None) -> Array:
    """The generated code's result, in an array that started as NaN."""
    problem = case.problem
    if result is None:
        result = np.full(problem.result_shape, np.nan, DTYPES[problem.dtype])
    with _split_small_work(case.l2_bytes > 0):
        packed(case, filter, bias).run(problem, data, result, case.threads)
    return result


def packed(case: Case, filter: Array, bias: Array | None) -> program.Weights:
    return program.pack(case.problem.structure, machine(case), filter, bias, case.activation, SLOPE, case.accuracy)


def algorithm(case: Case) -> str:
    """What the plan would choose for maps that are large enough."""
    p = case.problem
    return str(program.program(p.structure, machine(case), case.activation, case.accuracy).preferred.plan.algorithm)


def machine(case: Case) -> Machine:
    return replace(host(), l2_bytes=case.l2_bytes) if case.l2_bytes else host()


@contextmanager
def _split_small_work(wanted: bool) -> Iterator[None]:
    """Let even tiny work be cut for all its threads."""
    usual = program._INLINE_WORK
    program._INLINE_WORK = 0 if wanted else usual
    try:
        yield
    finally:
        program._INLINE_WORK = usual


def expected(case: Case, data: Array, filter: Array, bias: Array | None) -> Array:
    """The reference with the epilogue, in float64."""
    return activate(case.activation, reference(case.problem, data, filter, bias))


def activate(activation: str, values: Array) -> Array:
    formulas = {
        "none": lambda v: v,
        "relu": lambda v: np.where(v < 0, 0.0, v),
        "leaky_relu": lambda v: np.where(v < 0, SLOPE * v, v),
        "tanh": np.tanh,
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    }
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(formulas[activation](values))


def differs(got: Array, wanted: Array) -> str:
    """How two arrays of one type differ in their bits (any NaN equals any other); empty if they do not."""
    bits = f"u{got.dtype.itemsize}"
    wrong = (got.view(bits) != wanted.view(bits)) & ~((got != got) & (wanted != wanted))
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{count} of {got.size} elements differ, first at {at}: {got[at]} instead of {wanted[at]}"


def check_exact(case: Case) -> str:
    """What is wrong with the case on integers, threshold 0; empty if nothing is."""
    operands = exact_operands(case)
    wanted = rounded(expected(case, *operands), case.problem.dtype)
    return differs(run(case, *operands), wanted)


def check_real(case: Case) -> str:
    """What is outside the bound of a correct rounding; empty if nothing is."""
    operands = real_operands(case)
    return outside_bound(case, run(case, *operands), *operands)


def outside_bound(case: Case, got: Array, data: Array, filter: Array, bias: Array | None) -> str:
    wanted = expected(case, data, filter, bias)
    allowed = allowed_error(case.problem, data, filter, bias, by_norm=algorithm(case).startswith("winograd"))
    # No activation here is steeper than 1. Its own rounding: a few units of the accumulator and one of the result.
    unit = UNIT["f64" if case.problem.dtype == "f64" else "f32"]
    allowed = allowed + (8 * unit + UNIT[case.problem.dtype]) * np.abs(wanted) * (case.activation != "none")
    error = np.abs(got.astype(np.float64) - wanted)
    excess = ~(error <= allowed)  # a NaN is outside, too
    if not excess.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(excess)[0])
    return (
        f"{int(excess.sum())} of {got.size} outside, first at {at}: {got[at]} for {wanted[at]}, allowed {allowed[at]}"
    )
