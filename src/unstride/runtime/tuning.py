"""Choosing a kernel by trial: `compile(..., tune=True)`.

The models of `plan/` price every kernel that can compute a size; here those that come near the cheapest are timed
instead, once, when a tuned layer first meets the size. The winner is remembered in the code cache, so that the next
process need not ask again, and for every number of threads, since kernels round differently.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from unstride.plan.choose import KINDS
from unstride.problem import Problem
from unstride.runtime import buffers, engine
from unstride.runtime import cache as store
from unstride.runtime.program import Program, Weights

__all__ = ["tune"]

_WORTH_TRYING = 3.0  # times the cheapest price
_SECONDS = 0.3  # for all candidates together
_ROUNDS = 20


def tune(weights: Weights, problem: Problem, threads: int) -> str:
    """The kind of kernel that computes `problem` fastest here; from now on the program of `weights` uses it.

    Of threads that try at the same time the first one decides, for a result must not change from call to call.
    """
    program = weights.program
    kinds = _candidates(program, problem)
    key = f"tuned {engine.fingerprint()} {program.machine} {program.activation} {program.accuracy} {problem}"
    remembered = _remembered(key, kinds)
    fastest = remembered or (kinds[0] if len(kinds) == 1 else _fastest(weights, problem, threads, kinds))
    kind = program.kinds.setdefault(problem, fastest)
    if remembered is None:
        store.store(key, kind.encode())
    return kind


def _candidates(program: Program, problem: Problem) -> list[str]:
    if program.only_clipped:
        return ["clipped"]
    prices = program.plans.prices(problem, program.machine)
    return [kind for kind in prices if prices[kind] <= _WORTH_TRYING * min(prices.values())]


def _remembered(key: str, kinds: list[str]) -> str | None:
    found = store.load(key)
    kind = "" if found is None else found.decode("ascii", "replace")
    return kind if kind in KINDS and kind in kinds else None


def _fastest(weights: Weights, problem: Problem, threads: int, kinds: list[str]) -> str:
    """Time the kernels in turns; the least time of each counts."""
    draw = np.random.default_rng(0)
    data = draw.standard_normal(problem.data_shape).astype(buffers.numpy_dtype(problem.dtype))
    result = buffers.allocated(problem.result_shape, problem.dtype)
    steps = {kind: weights.program.step_of(kind, problem, threads) for kind in kinds}
    for step in steps.values():
        weights.launch(step, data, result)  # compiled, packed, and warm
    times = dict.fromkeys(kinds, float("inf"))
    end = perf_counter() + _SECONDS
    for _ in range(_ROUNDS):
        for kind, step in steps.items():
            start = perf_counter()
            weights.launch(step, data, result)
            times[kind] = min(times[kind], perf_counter() - start)
        if perf_counter() > end:
            break
    return min(times, key=lambda kind: times[kind])
