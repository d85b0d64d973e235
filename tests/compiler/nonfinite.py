"""One NaN or infinity at each position of data, filter or bias: `python -m tests.compiler.nonfinite --problems 300`.

The reference never multiplies a zero that is only implied, so the set of non-finite results is the receptive set of
that position. The kernels must give the same set, and every other element exactly.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import chain, repeat
from math import prod
from random import Random

import numpy as np

from tests.compiler import judge
from tests.compiler.cases import WINOGRAD, Case, draw
from unstride.plan.choose import choose
from unstride.plan.winograd import WinogradPlan

SPECIALS = (np.nan, np.inf, -np.inf)
_MOST = 150  # elements of data and filter together
_SAMPLE = 12  # positions of each operand of a larger case


def problems(count: int, seed: int, *, few_kernels: bool = False) -> Iterator[Case]:
    """Cases small enough to try every position."""
    rng = Random(f"nonfinite {seed}")
    found = 0
    while found < count:
        case = draw(rng, few_kernels=few_kernels)
        p = case.problem
        if 0 < prod(p.data_shape) + prod(p.filter_shape) <= _MOST and 0 < prod(p.result_shape) <= 400:
            found += 1
            yield case


def transformed(count: int, seed: int) -> Iterator[Case]:
    """Cases that Winograd computes: larger, so that only some positions are tried."""
    rng = Random(f"nonfinite winograd {seed}")
    found = 0
    while found < count:
        case = draw(rng, style=WINOGRAD)
        plan, _ = choose(case.problem, judge.machine(case), case.threads, case.accuracy)
        if case.problem.macs and isinstance(plan, WinogradPlan):
            found += 1
            yield case


def failures(case: Case, most: int = _MOST) -> Iterator[tuple[int, str]]:
    """(1, "" or what is wrong) for each position of each operand, or for `most` of them at random."""
    originals = judge.exact_operands(case)
    rng = Random(case.seed)
    for which, original in enumerate(originals):
        size = original.size if original is not None else 0
        for at in range(size) if size <= most else rng.sample(range(size), most):
            operands = list(originals)
            changed = operands[which] = original.copy()
            changed.flat[at] = SPECIALS[at % 3]
            wrong = judge.fault(case, judge.run(case, *operands), *operands)
            name = ("data", "filter", "bias")[which]
            yield 1, f"{case} {SPECIALS[at % 3]} at {at} of {name}: {wrong}" if wrong else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, runs, wrong = time.perf_counter(), 0, 0
    small, large = problems(options.problems, options.seed), transformed(options.problems // 10, options.seed)
    for case, most in chain(zip(small, repeat(_MOST)), zip(large, repeat(_SAMPLE))):
        for count, line in failures(case, most):
            runs += count
            wrong += bool(line)
            if line:
                print(f"  {line}", flush=True)
    seconds = time.perf_counter() - start
    kinds = f"{options.problems} small problems and {options.problems // 10} by Winograd"
    print(f"{kinds}, {runs} positions: {wrong} wrong, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
