"""A process that answers cases of one engine, so that a crash or a hang takes nothing else with it.

    python -m unstride.vectors.worker ENGINE SEED

Each line on stdin is the index of a case; each line of the answer is one JSON object. Whatever the engine itself prints
goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from random import Random
from typing import Any

import numpy as np

from unstride.cases import DIALECTS, Call, random_call, random_problem
from unstride.dialects import Resolution
from unstride.problem import Problem
from unstride.reference import reference
from unstride.vectors.engines import ENGINE_DIALECTS, RUNNERS, run_ours
from unstride.vectors.judge import allowed_error
from unstride.vectors.kit import as_written, integer_operands

__all__ = ["answer", "drawn_problem"]


def answer(engine: str, seed: int, index: int) -> dict[str, Any]:
    """The outcome of one case: passed, failed or refused, with the case as text."""
    case = _drawn(engine, seed, index)
    if isinstance(case, Problem):
        return _judge_problem(case, index)
    return _judge_call(engine, case, case.resolve(), index)


def drawn_problem(engine: str, seed: int, index: int) -> Problem:
    """The problem of a case, without running anything."""
    case = _drawn(engine, seed, index)
    return case if isinstance(case, Problem) else case.resolve().problem


def _drawn(engine: str, seed: int, index: int) -> Call | Problem:
    """An engine gets calls of its dialect; this package gets calls of every dialect, and bare problems."""
    rng = Random(f"{engine} {seed} {index}")
    if engine != "unstride":
        return as_written(random_call(rng, ENGINE_DIALECTS[engine], "runtime", max_elements=4000))
    if index % 3 == 0:
        return random_call(rng, DIALECTS[index // 3 % len(DIALECTS)], rng.choice(("spec", "runtime")))
    return random_problem(rng)


def _judge_call(engine: str, call: Call, resolution: Resolution, index: int) -> dict[str, Any]:
    """Integers, so that the answer is one exact array."""
    problem = resolution.problem
    data, weights, _ = integer_operands(problem, call.filter_shape, np.random.default_rng(index))
    case = {"problem": str(problem), "call": str(call)}
    try:
        if engine == "unstride":
            result = _run_call(call, data, weights)
        else:
            result = RUNNERS[engine](call, resolution, data, weights, None)
    except Exception as error:
        return case | {"outcome": "refused", "detail": _first_line(error)}
    return case | _verdict(result, reference(problem, data, weights), 0.0)


def _run_call(call: Call, data: Any, weights: Any) -> Any:
    arguments = {} if call.output_shape is None else {"output_shape": call.output_shape}
    return call.operator.compile(weights, accuracy="strict")(data, **arguments)


def _judge_problem(problem: Problem, index: int) -> dict[str, Any]:
    """Integers with threshold 0 for strict kernels, real numbers within the error bound for the default ones."""
    rng = np.random.default_rng(index)
    data, weights, _ = integer_operands(problem, problem.filter_shape, rng)
    exact_case = index % 2 == 0
    if not exact_case:
        data = rng.standard_normal(data.shape).astype(data.dtype)
        weights = rng.standard_normal(weights.shape).astype(weights.dtype)
    case = {"problem": str(problem), "call": "exact integers" if exact_case else "real numbers"}
    try:
        result = run_ours(problem, data, weights, "strict" if exact_case else "standard")
    except Exception as error:
        return case | {"outcome": "refused", "detail": _first_line(error)}
    bound = 0.0 if exact_case else allowed_error(problem, data, weights, None, by_norm=True)
    return case | _verdict(result, reference(problem, data, weights), bound)


def _verdict(result: Any, exact: Any, bound: Any) -> dict[str, Any]:
    if result.shape != exact.shape:
        return {"outcome": "failed", "detail": f"shape {result.shape} instead of {exact.shape}"}
    error = np.abs(result.astype(np.float64) - exact)
    wrong = ~(error <= bound)
    if not wrong.any():
        return {"outcome": "passed", "detail": ""}
    where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    values = f"{float(result[where])!r} instead of {float(exact[where])!r}"
    detail = f"{int(wrong.sum())} of {wrong.size} wrong; first at {[int(i) for i in where]}: {values}"
    return {"outcome": "failed", "detail": detail}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def _main() -> None:
    engine, seed = sys.argv[1], int(sys.argv[2])
    # The protocol keeps the real stdout; engines that print do so on stderr.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        channel.write(json.dumps(answer(engine, seed, int(line))) + "\n")
        channel.flush()


if __name__ == "__main__":
    _main()
