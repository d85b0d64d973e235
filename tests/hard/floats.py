"""Numbers: half-precision patterns, ties, subnormals under callers that flush them, non-finite values, equal bits.

* all 65 536 patterns of f16 and bf16 as data, as weights, and as sums on a tie or next to one, on the widest
  instruction set and in software (sse2);
* subnormals on 1, 2, 3, 4, 7 and 16 threads of a caller that flushes them to zero;
* a NaN or an infinity at each position of data, filter and bias of small problems, and at drawn positions of larger
  ones for every other algorithm: the results that are not finite are the receptive set, all others are exact;
* one digest per problem over thread counts, splits, and code that is cold, from disk and from memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from random import Random

import numpy as np

from tests.compiler import digests, judge, nonfinite, patterns
from tests.compiler.cases import Case
from tests.compiler.lattice import cases
from tests.compiler.test_numbers import _X86, test_subnormals_survive_a_caller_that_flushes_them
from tests.hard.tally import Tally, main
from unstride.problem import Problem
from unstride.reference import rounded

NONFINITE, SPECIALS, DIGESTS = (4, 300), (1, 40), (4, 300)
_PATTERNS = 65_536
_POSITIONS = 24  # of each problem that is too large to try all


def half_patterns(tally: Tally, full: bool) -> None:
    for what, fault in patterns.failures():
        tally.add("half-precision patterns", fault and f"{what}: {fault}", runs=_PATTERNS)
    if not (full and _X86):
        return
    command = [sys.executable, "-m", "tests.compiler.patterns"]
    done = subprocess.run(command, env={**os.environ, "UNSTRIDE_ISA": "sse2"}, capture_output=True, text=True)
    ways = int(done.stdout.split(" in ")[-1].split()[0]) if done.returncode == 0 else 1
    tally.add("half-precision patterns", done.stdout[-300:] if done.returncode else "", runs=_PATTERNS * ways)


def subnormals(tally: Tally, full: bool) -> None:
    if not _X86:
        tally.note("subnormals: not run, MXCSR is a register of x86")
        return
    for dtype, power in (("f32", -149), ("f64", -1074), ("f16", -24)):
        for layout in ("NXC", "NCX"):
            for threads in digests.THREADS if full else (1, 2):
                try:
                    test_subnormals_survive_a_caller_that_flushes_them(dtype, power, layout, threads)
                    fault = ""
                except AssertionError as error:
                    fault = f"{dtype} {layout} {threads} threads: {error}"[:300]
                tally.add("subnormals", fault)


def receptive_sets(tally: Tally, full: bool) -> None:
    for case in nonfinite.problems(NONFINITE[full], 23, few_kernels=not full):
        for runs, fault in nonfinite.failures(case):
            tally.add("non-finite values, every position", fault, runs=runs)
    for name in SPECIAL:
        for case in special_cases(name, SPECIALS[full]):
            for fault in special_faults(case, full):
                tally.add(f"non-finite values, {name}", fault)


SPECIAL = ("winograd", "winograd F(4,3;i)", "whole maps", "across", "folded", "spread", "depthwise")


def algorithm(case: Case) -> str:
    """The kernel that computes a case."""
    weights = judge.packed(case, *judge.exact_operands(case)[1:])
    return str(weights.program.step(case.problem, case.threads).kernel.plan.algorithm)


def special_cases(name: str, count: int) -> Iterator[Case]:
    """Problems that a kernel other than the direct one takes, too large to try every position."""
    rng, found = Random(name), 0
    channels = {
        "winograd": ("g1 i16 o64", "g1 i32 o80"),
        "winograd F(4,3;i)": ("g1 i16 o64", "g1 i32 o80"),
        "whole maps": ("g1 i16 o64", "g1 i32 o80"),
        "across": ("g1 i2 o3", "g3 i5 o1"),
        "folded": ("g1 i64 o1", "g1 i17 o3"),
        "spread": ("g6 i1 o1", "g2 i2 o1"),
        "depthwise": ("g20 i1 o1",),
    }
    for _ in range(50 * count):
        kernel, stride = rng.choice(((3, 1), (4, 2), (5, 2), (6, 2), (3, 2), (5, 1)))
        size, layout = rng.choice((7, 12, 19, 33)), rng.choice(("NXC", "NCX"))
        y = stride * (size - 1) + kernel - 2
        head = f"scatter {rng.choice(('f32', 'f32', 'f16', 'bf16'))} {layout} GIOX n{rng.choice((1, 2))}"
        axes = f"x{size}x{size} k{kernel}x{kernel} s{stride}x{stride} d1x1 b1x1 y{y}x{y}"
        problem = Problem.parse(f"{head} {rng.choice(channels[name])} {axes}")
        case = Case(problem, "none", rng.random() < 0.5, rng.choice((1, 2, 7)), rng.choice((0, 40_000)), found)
        found_name = algorithm(case)
        if "whole maps" in found_name if name == "whole maps" else found_name.startswith(name):
            found += 1
            yield case
        if found == count:
            return
    raise AssertionError(f"no kernel {name} among the problems drawn")


def special_faults(case: Case, full: bool) -> Iterator[str]:
    """One NaN or infinity at drawn positions; "" or what is wrong, for each."""
    originals, rng = judge.exact_operands(case), Random(case.seed)
    for turn in range(_POSITIONS if full else 6):
        which = turn % (3 if originals[2] is not None else 2)
        operands = list(originals)
        changed = operands[which] = originals[which].copy()  # type: ignore[union-attr]
        at, value = rng.randrange(changed.size), nonfinite.SPECIALS[turn % 3]
        changed.flat[at] = value
        with np.errstate(all="ignore"):
            wanted = rounded(judge.expected(case, *operands), case.problem.dtype)
        fault = judge.differs(judge.run(case, *operands), wanted)
        yield fault and f"{case} {value} at {at} of {('data', 'filter', 'bias')[which]}: {fault}"


def equal_bits(tally: Tally, full: bool) -> None:
    for case in cases(DIGESTS[full], 31, real=True, few_kernels=not full):
        found = digests.spread(case)
        runs = len(digests.THREADS)
        tally.add("digests over threads and splits", f"{case}: {found}" if len(found) > 1 else "", runs=runs)
    count = max(8, DIGESTS[full] // 2)
    with tempfile.TemporaryDirectory() as folder:
        cold, disk = (digests.printed_by_child(count, 31, folder + "/cache") for _ in range(2))
    for (first, a), (second, b) in zip(cold, disk, strict=True):
        tally.add("digests cold, disk, memory", f"{a} {first}, {b} {second}" if a != b else "")
    origins = {origin for origin, _ in cold} | {origin for origin, _ in disk}
    missing = {"cold", "disk", *(("memory",) if full else ())} - origins  # a slice may not meet one kernel twice
    tally.add("set of origins", f"never {missing}" if missing else "")


def run(tally: Tally, full: bool) -> None:
    for part in (half_patterns, subnormals, receptive_sets, equal_bits):
        part(tally, full)


if __name__ == "__main__":
    main("floats", run, __doc__)
