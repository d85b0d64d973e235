"""One digest per problem over thread counts, work splits, and code that is compiled, read from disk or kept in memory.

`python -m tests.compiler.digests --problems 400` compares them all; `--print` writes the digests of this process only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

from tests.compiler import judge
from tests.compiler.cases import Case
from tests.compiler.lattice import cases
from unstride.runtime.machine import host

THREADS = (1, 2, 3, 4, 7, 16)
_L2_BYTES = (0, 700, 6000)  # the split of the work must not show, either


def digest(case: Case) -> str:
    """Of the result on real numbers, where every change in the order of a sum shows."""
    return blake2b(judge.run(case, *judge.real_operands(case)).tobytes(), digest_size=8).hexdigest()


def spread(case: Case) -> list[str]:
    """The different digests of one problem over threads and splits: one, if all is well.

    Winograd's cut follows the cache, never the threads; other kernels give the same bits for every cut. The kernel is
    the same for all: which one it is may depend on the cache, too.
    """
    variants = [replace(case, threads=t, l2_bytes=l2) for t in THREADS for l2 in _L2_BYTES]
    kind = judge.chosen_kind(case, *judge.real_operands(case)[1:])
    if kind in ("winograd", "large", "whole", "whole_large"):
        variants = [variant for variant in variants if variant.l2_bytes == 0]
    with judge.forced(kind):
        return sorted({digest(variant) for variant in variants})


def lines(count: int, seed: int) -> Iterator[str]:
    """Where the code of each case's kernel came from, and its digest."""
    for case in cases(count, seed, real=True):
        weights = judge.packed(case, *judge.real_operands(case)[1:])
        yield f"{weights.program.preferred.loaded.origin} {digest(case)}"


def printed_by_child(count: int, seed: int, cache_folder: str) -> list[list[str]]:
    """[origin, digest] of each case in a new process with this code cache."""
    command = [sys.executable, "-m", "tests.compiler.digests", "--print", f"--problems={count}", f"--seed={seed}"]
    environment = {**os.environ, "UNSTRIDE_CACHE_DIR": cache_folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print", action="store_true", help="digests of this process, one a line")
    options = parser.parse_args()
    if options.print:
        print("\n".join(lines(options.problems, options.seed)))
        return 0
    start, differing = time.perf_counter(), 0
    for case in cases(options.problems, options.seed, real=True):
        if len(found := spread(case)) > 1:
            differing += 1
            print(f"  {case}: {found}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        cold, disk = (printed_by_child(options.problems, options.seed, folder) for _ in range(2))
    origins = {origin for origin, _ in cold} | {origin for origin, _ in disk}
    changed = sum(a != b for (_, a), (_, b) in zip(cold, disk, strict=True))
    runs = options.problems * len(THREADS) * len(_L2_BYTES)
    print(
        f"{host().isa.name}: {options.problems} problems, {runs} runs: {differing} with more than one digest; "
        f"{changed} changed between {', '.join(sorted(origins))}; {time.perf_counter() - start:.0f} s"
    )
    return 1 if differing or changed or origins != {"cold", "disk", "memory"} else 0


if __name__ == "__main__":
    sys.exit(main())
