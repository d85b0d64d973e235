"""Layers shared by threads: what several threads find out about a layer at the same moment.

A layer plans, packs and remembers when a call first needs it. So every round has a fresh layer of a fresh program, and
threads that wait at a barrier and then call it with shapes of several kernels, each in its own order. The interpreter
changes threads a thousand times as often as usual, packed weights that are given up become NaN, one thread may forget
all loaded code meanwhile, and every result must be exact.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from tests.gradients.arrays import integers
from tests.poison import given_up_weights_are_nan
from unstride.problem import Problem
from unstride.reference import DTYPES, filter_gradient_reference, reference, rounded
from unstride.runtime import cache as store
from unstride.runtime import gradients, tuning
from unstride.runtime.execute import Layer
from unstride.runtime.program import program

__all__ = ["storm"]

Array = NDArray[Any]
Call = Callable[[], Array]

_THREADS = (4, 8)
_TURNS = 2  # of every thread through all shapes
_SWITCH_SECONDS = 1e-5


@dataclass(frozen=True)
class Shared:
    """A structure, as one of its problems, and sizes that are computed by different kernels."""

    problem: str
    sizes: tuple[tuple[int, ...], ...]
    accuracy: str = "standard"
    tune: bool = False

    def problems(self) -> list[Problem]:
        first = Problem.parse(self.problem)
        return [_resized(first, x) for x in self.sizes]


_SQUARES = ((16, 16), (2, 2), (1, 12), (6, 6), (1, 1))
_LINES = ((3, 40), (2, 5), (1, 70), (4, 4), (12, 12))
_SMALL = ((2, 2), (1, 5), (3, 3), (40, 2), (1, 1))
LAYERS = (
    Shared("scatter f32 NCX GIOX n1 g1 i64 o64 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", _SQUARES),
    Shared("scatter f32 NXC GIOX n1 g1 i64 o64 x8x8 k3x3 s1x1 d1x1 b1x1 y8x8", _SQUARES),
    Shared("scatter f32 NCX GIOX n1 g1 i6 o3 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", _LINES),
    Shared("scatter f32 NCX GIOX n1 g1 i128 o40 x2x2 k5x5 s1x1 d1x1 b2x2 y2x2", _SMALL, "strict"),
    Shared("scatter f32 NXC GIOX n1 g40 i1 o1 x8x8 k3x3 s2x2 d1x1 b1x1 y16x16", _SQUARES),
    Shared("scatter f32 NXC GIOX n1 g1 i64 o64 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", _SQUARES, tune=True),
    Shared("scatter bf16 NCX GIOX n1 g1 i64 o64 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", _SQUARES),
    Shared("scatter f16 NCX GIOX n2 g1 i6 o3 x8x8 k3x3 s2x2 d1x1 b0x0 y17x17", _LINES, "strict"),
    Shared("scatter f16 NXC GIOX n1 g1 i96 o64 x2x2 k5x5 s1x1 d1x1 b2x2 y2x2", _SMALL, "strict"),
    Shared("scatter bf16 NCX GIOX n1 g16 i1 o1 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", _LINES),
    Shared("gather f32 NXC GIOX n1 g1 i32 o32 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", _SQUARES),
    Shared("scatter f64 NCX GIOX n1 g2 i8 o12 x8 k4 s2 d1 b1 y16", ((40,), (3,), (1,), (5,), (16,))),
    Shared("scatter f32 NCX GIOX n1 g1 i6 o3 x8x8 k3x3 s2x2 d1x1 b1x1 y16x16", _LINES, tune=True),
)
GRADIENTS = (
    Shared("scatter f32 NXC GIOX n2 g1 i17 o9 x8x8 k3x3 s2x2 d1x1 b1x1 y16x16", _SQUARES),
    Shared("scatter f16 NCX GIOX n1 g1 i8 o12 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", _SQUARES),
    Shared("scatter f64 NXC GIOX n1 g24 i1 o1 x8x8 k3x3 s1x1 d1x1 b1x1 y8x8", _SQUARES),
)


def _resized(problem: Problem, x: tuple[int, ...]) -> Problem:
    rows = zip(problem.y, problem.stride, x, problem.x, strict=True)
    return replace(problem, x=x, y=tuple(y + s * (new - old) for y, s, new, old in rows))


def storm(rounds: int) -> tuple[int, list[str]]:
    """How many calls were made, and what was wrong with them."""
    rng, calls, faults, packings = Random(0), 0, list[str](), 0
    with _hasty(), given_up_weights_are_nan():
        for index in range(rounds):
            subject = (*LAYERS, *GRADIENTS)[index % len(LAYERS + GRADIENTS)]
            program.cache_clear()
            gradients._ready.cache_clear()
            layer = None if subject in GRADIENTS else _layer(subject, rng.choice((1, 2, None)))
            work = _gradient_calls(subject) if layer is None else _layer_calls(subject, layer)
            made, wrong = _together(work, rng, forgetful=rng.random() < 0.3)
            calls, faults = calls + made, faults + [f"round {index}, {subject.problem}: {fault}" for fault in wrong]
            packings += layer is not None and len(layer._weights._packed) > 1
    if not packings:
        faults.append("no layer was packed for a second kernel")
    return calls, faults


@contextmanager
def _hasty() -> Iterator[None]:
    """Threads change often; tuning times its kernels in every round, if only for a moment."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with (
            mock.patch.object(tuning, "_remembered", return_value=None),
            mock.patch.object(tuning, "_SECONDS", 0.002),
        ):
            yield
    finally:
        sys.setswitchinterval(usual)


def _together(calls: list[tuple[str, Call, Array]], rng: Random, *, forgetful: bool) -> tuple[int, list[str]]:
    """Several threads make all the calls, each in an order of its own; `forgetful`: one forgets the code meanwhile."""
    faults: list[str] = []
    count = rng.randint(*_THREADS)
    start = threading.Barrier(count)

    def work(seed: int) -> None:
        order = Random(seed).sample(calls * _TURNS, _TURNS * len(calls))
        start.wait()
        for turn, (name, call, wanted) in enumerate(order):
            if forgetful and seed == seeds[0] and turn % 2:
                store.memory.clear()  # what `clear_cache` does in this process; the disk keeps the rounds short
            try:
                if not np.array_equal(call(), wanted):
                    faults.append(f"{name} is wrong")
            except Exception as error:
                faults.append(f"{name}: {type(error).__name__}: {error}")

    seeds = [rng.randrange(2**32) for _ in range(count)]
    workers = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count * _TURNS * len(calls), faults


# --- layers ---------------------------------------------------------------------------------------------------------


@cache
def _operands(subject: Shared) -> tuple[Array, Array, list[tuple[Array, Array]]]:
    """Weights, bias, and for each size the data and the result. An outlier makes Winograd leave units to another."""
    rng, problems = np.random.default_rng(0), subject.problems()
    dtype = DTYPES[problems[0].dtype]
    weights = rng.integers(-2, 3, problems[0].filter_shape).astype(dtype)
    channels = problems[0].groups * (problems[0].co if problems[0].direction == "scatter" else problems[0].ci)
    bias = rng.integers(-2, 3, channels).astype(dtype)
    pairs = []
    for problem in problems:
        data = rng.integers(-2, 3, problem.data_shape).astype(dtype)
        data.flat[rng.integers(data.size)] = 64
        pairs.append((data, rounded(reference(problem, data, weights, bias), problem.dtype)))
    return weights, bias, pairs


def _layer(subject: Shared, threads: int | None) -> Layer:
    known = {problem.data_shape: problem for problem in subject.problems()}
    weights, bias, _ = _operands(subject)
    structure = next(iter(known.values())).structure
    options: dict[str, Any] = {"accuracy": subject.accuracy, "tune": subject.tune, "threads": threads}
    return Layer(structure, lambda shape, _: (known[shape], None), weights, bias, **options)


def _layer_calls(subject: Shared, layer: Layer) -> list[tuple[str, Call, Array]]:
    def call(data: Array, wanted: Array) -> Call:
        return lambda: np.asarray(layer(data, out=np.full(wanted.shape, np.nan, wanted.dtype)))

    return [(str(data.shape), call(data, wanted), wanted) for data, wanted in _operands(subject)[2]]


# --- gradients ------------------------------------------------------------------------------------------------------


@cache
def _gradient_calls(subject: Shared) -> list[tuple[str, Call, Array]]:
    return [call for problem in subject.problems() for call in _gradients_of(problem)]


def _gradients_of(problem: Problem) -> Iterator[tuple[str, Call, Array]]:
    small, large = integers(problem, 0, limit=1)
    wanted = rounded(filter_gradient_reference(problem, small, large), problem.dtype)
    yield f"weight gradient {problem.x}", lambda: gradients.filter_gradient(problem, small, large), wanted
    axes = (0, *range(2, large.ndim)) if problem.data_layout == "NCX" else tuple(range(large.ndim - 1))
    sums = rounded(large.astype(np.float64).sum(axis=axes), problem.dtype)
    yield f"bias gradient {problem.x}", lambda: gradients.bias_gradient(problem, large), sums
