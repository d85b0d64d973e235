"""One NaN or infinity at each position of data, filter or bias: `python -m tests.compiler.nonfinite --problems 300`.

The reference never multiplies a zero that is only implied, so the set of non-finite results is the receptive set of
that position. The kernels must give the same set, and every other element exactly.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from math import prod
from random import Random

import numpy as np

from tests.compiler import judge
from tests.compiler.cases import Case, draw
from unstride.reference import rounded

SPECIALS = (np.nan, np.inf, -np.inf)
_MOST = 150  # elements of data and filter together


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


def failures(case: Case) -> Iterator[tuple[int, str]]:
    """(1, "" or what is wrong) for each position."""
    originals = judge.exact_operands(case)
    for which, original in enumerate(originals):
        for at in range(original.size if original is not None else 0):
            operands = list(originals)
            changed = operands[which] = original.copy()
            changed.flat[at] = SPECIALS[at % 3]
            wanted = rounded(judge.expected(case, *operands), case.problem.dtype)
            wrong = judge.differs(judge.run(case, *operands), wanted)
            name = ("data", "filter", "bias")[which]
            yield 1, f"{case} {SPECIALS[at % 3]} at {at} of {name}: {wrong}" if wrong else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, runs, wrong = time.perf_counter(), 0, 0
    for case in problems(options.problems, options.seed):
        for count, line in failures(case):
            runs += count
            wrong += bool(line)
            if line:
                print(f"  {line}", flush=True)
    print(f"{options.problems} problems, {runs} positions: {wrong} wrong, {time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
