"""Random legal calls of every dialect, held against things nobody here wrote, and against the documents' formulas.

    python -m tests.conformance --cases 3000 --dialect all --rules all

Data and weights are small integers, so that every engine must give the very same numbers: the threshold is 0.

* `spec`: each window against the formulas transcribed in tests/formulas.py, each result against brute force.
* `runtime`: each result against a live engine: OpenVINO, onnxruntime, and torch (its own operator, and oneDNN's
  operators as the gradients that they are). A call that would meet a known defect of its engine is drawn again
  and counted.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from tests import formulas
from tests.brute import brute_force
from unstride.cases import DIALECTS, Call, random_call
from unstride.errors import RuleWarning

ENGINES = {"openvino": "openvino", "onednn": "torch", "onnx": "onnxruntime", "torch": "torch"}
LIMITS = {"max_elements": 4_000, "max_macs": 40_000}

Array = npt.NDArray[Any]


def engine(dialect: str) -> ModuleType:
    """The live oracle of a dialect; ImportError where it is not installed."""
    return import_module(f"tests.live.{ENGINES[dialect]}_engine")


def calls(dialect: str, rules: str, count: int, seed: int) -> Iterator[Call]:
    """`count` random calls; the same for the same seed."""
    rng = Random(f"{dialect} {rules} {seed}")
    for _ in range(count):
        yield random_call(rng, dialect, rules, **LIMITS)


def operands(call: Call, seed: int) -> tuple[Array, Array]:
    """Small integers in f32: sums stay far below 2**24, hence exact in every order."""
    rng = np.random.default_rng(seed)
    data = rng.integers(-8, 9, call.data_shape).astype(np.float32)
    return data, rng.integers(-8, 9, call.filter_shape).astype(np.float32)


def ours(call: Call, data: Array, filter: Array) -> Array:
    """The package's result through its public call."""
    inputs = {} if call.output_shape is None else {"output_shape": call.output_shape}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuleWarning)
        result: Array = call.operator(data, filter, **inputs)  # type: ignore[operator]
    return result


def against_formulas(call: Call, seed: int) -> str:
    """What is wrong with a call under its own rules, judged by the formulas and by brute force; empty if nothing is."""
    resolution = call.resolve()
    expected = formulas.windows(call)
    if expected != [(w.begin, w.size) for w in resolution.windows]:
        return f"windows {resolution.windows}, the formulas say {expected}"
    other = formulas.windows(call, resolution.other_rules) if resolution.other_rules else expected
    if (expected != other) != (resolution.warning is not None) and "output_padding" not in str(resolution.warning):
        return f"warning {resolution.warning!r}, but the rule sets say {expected} and {other}"
    data, filter = operands(call, seed)
    return _difference(ours(call, data, filter), brute_force(resolution.problem, data, filter))


def against_engine(call: Call, seed: int, oracle: ModuleType) -> str:
    """What is wrong with a call, judged by a live engine; empty if nothing is."""
    data, filter = operands(call, seed)
    return _difference(ours(call, data, filter), oracle.run(call, data, filter))


def _difference(got: Array, expected: Array) -> str:
    if got.shape != expected.shape:
        return f"shape {got.shape}, expected {expected.shape}"
    wrong = int(np.sum(got != expected))
    return f"{wrong} of {got.size} elements differ" if wrong else ""


def check_formulas(dialect: str, rules: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Counts of outcomes and the failures, one line each."""
    counts: Counter[str] = Counter()
    failures = []
    for index, call in enumerate(calls(dialect, rules, count, seed)):
        wrong = against_formulas(call, index)
        counts["mismatch" if wrong else "equal"] += 1
        if wrong:
            failures.append(f"{call}: {wrong}")
    return counts, failures


def check_engine(dialect: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """As check_formulas, until `count` calls have met the engine."""
    oracle, counts, failures = engine(dialect), Counter[str](), []
    for index, call in enumerate(calls(dialect, "runtime", 100 * count, seed)):
        if counts["equal"] + counts["mismatch"] == count:
            break
        if reason := oracle.unfit(call):
            counts[f"drawn again: {reason}"] += 1
            continue
        wrong = against_engine(call, index, oracle)
        counts["mismatch" if wrong else "equal"] += 1
        if wrong:
            failures.append(f"{call}: {wrong}")
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dialect", choices=(*DIALECTS, "all"), default="all")
    parser.add_argument("--rules", choices=("spec", "runtime", "all"), default="all")
    options = parser.parse_args()
    failed = 0
    for dialect in DIALECTS if options.dialect == "all" else (options.dialect,):
        for rules in ("spec", "runtime") if options.rules == "all" else (options.rules,):
            start = time.perf_counter()
            if rules == "spec":
                against, (counts, failures) = "formulas", check_formulas(dialect, "spec", options.cases, options.seed)
            else:
                oracle = engine(dialect)
                against = f"{ENGINES[dialect]} {oracle.VERSION}"
                counts, failures = check_engine(dialect, options.cases, options.seed)
            seconds = time.perf_counter() - start
            print(f"{dialect:9} {rules:8} {against:26} {dict(counts)}  {seconds:.0f} s", flush=True)
            for line in failures[:20]:
                print(f"  {line}")
            failed += len(failures)
    print(f"{failed} mismatches")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
