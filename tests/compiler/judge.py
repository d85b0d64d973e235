"""Runs a case through generated code and holds the result against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from tests.compiler.cases import SLOPE, Case
from unstride.plan.choose import Plans, fitting
from unstride.plan.machine import Machine
from unstride.plan.winograd import WinogradPlan
from unstride.problem import Problem
from unstride.reference import DTYPES, UNIT, error_bound, longest_sum, magnitude, reference, rounded
from unstride.runtime import program
from unstride.runtime.machine import host

__all__ = ["differs", "exact_operands", "outside_bound", "real_operands", "run", "widest"]

Array = npt.NDArray[Any]
draws_kernels = True
_MANY = 512  # source channels times result channels


def exact_operands(case: Case) -> tuple[Array, Array, Array | None]:
    """Integers so small that every partial sum is exact in the accumulator; rounding happens once, at the store.

    Smaller ones where channels are many: Winograd would leave those that it might round to direct sums.
    """
    rng, most = np.random.default_rng(case.seed), 8 if case.problem.ci * case.problem.co < _MANY else 2
    return _operands(case, lambda shape: _with_outliers(rng, rng.integers(-most, most + 1, shape), 2048))


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


def widest() -> Machine:
    """This machine, with its widest vectors for every structure: tests of their kernels want no others."""
    return replace(host(), narrower=None)


def run(case: Case, data: Array, filter: Array, bias: Array | None, result: Array | None = None) -> Array:
    """The generated code's result, in an array that started as NaN."""
    problem = case.problem
    if result is None:
        result = allocated(problem.result_shape, problem.dtype, on_a_line=case.seed % 4 != 1)
        result[...] = np.nan
    with _split_small_work(case.l2_bytes > 0):
        packed(case, filter, bias).run(problem, data, result, case.threads)
    return result


def packed(case: Case, filter: Array, bias: Array | None) -> program.Weights:
    """Packed weights. On small maps most kernels never are the cheapest: in half of the cases one is drawn."""
    problem = case.problem
    weights = program.pack(problem.structure, machine(case), filter, bias, case.activation, SLOPE, case.accuracy)
    chosen = weights.program
    if draws_kernels and case.l2_bytes and case.seed % 4 > 1 and not chosen.only_clipped:
        kinds = list(chosen.plans.prices(problem, chosen.machine))
        chosen.kinds.setdefault(problem, kinds[case.seed // 4 % len(kinds)])
    return weights


@contextmanager
def forced(kind: str) -> Iterator[None]:
    """Inside, problems are computed by this kind of kernel wherever it can, whatever it costs."""
    usual = Plans.cheapest

    def cheapest(plans: Plans, problem: Problem, machine: Machine) -> str:
        return kind if kind in plans.prices(problem, machine) else usual(plans, problem, machine)

    program.program.cache_clear()  # which remembers what it chose
    with mock.patch.object(Plans, "cheapest", cheapest), mock.patch(f"{__name__}.draws_kernels", False):
        yield
    program.program.cache_clear()


def chosen_kind(case: Case, filter: Array, bias: Array | None) -> str:
    """The kind of kernel that computes a case."""
    made = packed(case, filter, bias).program
    made.step(case.problem, case.threads)
    return made.kinds[case.problem]


def algorithm(case: Case) -> str:
    """What the plan chooses for maps that are large enough."""
    return str(_preferred(case).algorithm)


def _preferred(case: Case) -> Any:
    _, plans = fitting(case.problem.structure, machine(case), case.accuracy)
    return plans.special or plans.direct


def machine(case: Case) -> Machine:
    """The machine the plan is told: every second one has so small a cache that any result is streamed past it."""
    last_bytes = 0 if case.seed % 2 else host().last_bytes
    return replace(host(), l2_bytes=case.l2_bytes or host().l2_bytes, last_bytes=last_bytes)


def allocated(shape: tuple[int, ...], dtype: str, *, on_a_line: bool) -> Array:
    """An array that starts on a cache line, as large ones do, or right behind the start of one."""
    kind = np.dtype(DTYPES[dtype])
    room = np.empty(prod(shape) * kind.itemsize + 128, np.uint8)
    first = -room.ctypes.data % 64 + (0 if on_a_line else kind.itemsize)
    return room[first : first + prod(shape) * kind.itemsize].view(kind).reshape(shape)


@contextmanager
def _split_small_work(wanted: bool) -> Iterator[None]:
    """Let even tiny work be cut for all its threads."""
    usual = program._ALONE_PRICE
    program._ALONE_PRICE = 0 if wanted else usual
    try:
        yield
    finally:
        program._ALONE_PRICE = usual


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
    """What is wrong with the case on integers, threshold 0; empty if nothing is.

    Where "fast" would not keep integers exact, "standard" is held against the reference instead.
    """
    if _inexact(case):
        case = replace(case, accuracy="standard")
    operands = exact_operands(case)
    return fault(case, run(case, *operands), *operands)


def fault(case: Case, got: Array, data: Array, filter: Array, bias: Array | None) -> str:
    """What is wrong with a result of integers, some of which may have become infinite or NaN; empty if nothing is."""
    if _inexact(case):
        return outside_bound(case, got, data, filter, bias)
    return differs(got, rounded(expected(case, data, filter, bias), case.problem.dtype))


def _inexact(case: Case) -> bool:
    """Whether integers do not stay integers: the coefficients of F(4,3) hold thirds."""
    return case.accuracy == "fast" and "F(4,3)" in algorithm(case)


def check_real(case: Case) -> str:
    """What is outside the bound of a correct rounding; empty if nothing is."""
    operands = real_operands(case)
    return outside_bound(case, run(case, *operands), *operands)


def transform_error(case: Case, data: Array, filter: Array) -> float:
    """What Winograd may add: growth * g(n + 8) * max|x| * sum|w|, at the result element where that is largest."""
    plan = _preferred(case)
    if not isinstance(plan, WinogradPlan) or not data.size or not case.problem.macs:
        return 0.0
    terms = (longest_sum(case.problem) + 8) * UNIT["f32"]
    sizes = np.abs(data.astype(np.float64))
    level = np.full(data.shape, sizes[np.isfinite(sizes)].max(initial=0))
    sums = magnitude(case.problem, level, filter)
    return float(plan.growth * terms / (1 - terms) * sums[np.isfinite(sums)].max(initial=0))


def outside_bound(case: Case, got: Array, data: Array, filter: Array, bias: Array | None) -> str:
    wanted = expected(case, data, filter, bias)
    unit = UNIT["f64" if case.problem.dtype == "f64" else "f32"]
    with np.errstate(invalid="ignore"):
        allowed = error_bound(case.problem, data, filter, bias) + transform_error(case, data, filter)
        if case.activation != "none":
            # None is steeper than 1. Its own rounding: a few units of the accumulator and one of the result.
            allowed += (8 * unit + UNIT[case.problem.dtype]) * np.abs(wanted)
        error = np.abs(got.astype(np.float64) - wanted)
    special = ~np.isfinite(rounded(wanted, case.problem.dtype))
    same = (got == rounded(wanted, case.problem.dtype)) | ((got != got) & (wanted != wanted))
    excess = np.where(special, ~same, ~(error <= allowed))
    if not excess.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(excess)[0])
    return (
        f"{int(excess.sum())} of {got.size} outside, first at {at}: {got[at]} for {wanted[at]}, allowed {allowed[at]}"
    )
