"""Random cases over the whole lattice against the reference: `python -m tests.compiler.lattice --cases 20000 --seed 0`.

Exact cases hold integers and must agree bit for bit in an array that started as NaN; `--real` cases must stay inside
the componentwise bound. A failing case is one line, and `--case "LINE"` runs it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

from tests.compiler.cases import ALL_ACTIVATIONS, EXACT_ACTIVATIONS, Case, draw
from tests.compiler.judge import check_exact, check_real
from unstride.runtime.machine import host


def cases(count: int, seed: int, *, real: bool = False, few_kernels: bool = False) -> Iterator[Case]:
    """`count` cases, the same for the same seed."""
    rng = Random(f"{'real' if real else 'exact'} {seed}")
    activations = ALL_ACTIVATIONS if real else EXACT_ACTIVATIONS
    for _ in range(count):
        yield draw(rng, activations=activations, few_kernels=few_kernels)


def failures(
    count: int, seed: int, *, real: bool = False, few_kernels: bool = False, kinds: Counter[str] | None = None
) -> Iterator[str]:
    """One line for each case that fails."""
    check = check_real if real else check_exact
    for case in cases(count, seed, real=real, few_kernels=few_kernels):
        if kinds is not None:
            kinds[f"{case.problem.direction} {case.problem.data_layout} {case.problem.dtype}"] += 1
        try:
            wrong = check(case)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            yield f"{case}: {wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="integer-valued cases, threshold 0")
    parser.add_argument("--real", type=int, default=0, help="real-valued cases, inside the bound")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--few-kernels", action="store_true", help="tie the activation to type and layout")
    parser.add_argument("--case", help="one line that failed")
    options = parser.parse_args()
    if options.case:
        case = Case.parse(options.case)
        wrong = (check_real if options.real else check_exact)(case)
        print(f"{case}: {wrong or 'right'}")
        return 1 if wrong else 0
    failed = 0
    for real, count in ((False, options.cases), (True, options.real)):
        start, kinds = time.perf_counter(), Counter[str]()
        for line in failures(count, options.seed, real=real, few_kernels=options.few_kernels, kinds=kinds):
            failed += 1
            print(f"  {line}", flush=True)
        seconds = time.perf_counter() - start
        name = "inside the bound" if real else "bit for bit"
        print(
            f"{host().isa.name}: {count} {name} cases, {failed} wrong, {len(kinds)} kinds, {seconds:.0f} s", flush=True
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
