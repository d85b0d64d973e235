"""The NEON kernels on random integer cases, exact: `python -m tests.isolation.neon.run --cases 500 --seed 0`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.compiler import judge
from tests.compiler.lattice import cases
from tests.isolation.neon.emulated import MACHINE, Emulator


def failures(count: int, seed: int, *, few_kernels: bool = False) -> Iterator[str]:
    """One line for each case whose emulated result is not the reference's, bit for bit."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Emulator(Path(folder)).installed(),
        mock.patch.object(judge, "host", return_value=MACHINE),
    ):
        for case in cases(count, seed, few_kernels=few_kernels):
            if wrong := judge.check_exact(case):
                yield f"{case}: {wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if missing := Emulator.missing():
        print(f"not run: {', '.join(missing)} not installed")
        return 1
    start, wrong = time.perf_counter(), 0
    for line in failures(options.cases, options.seed):
        wrong += 1
        print(f"  {line}", flush=True)
    print(f"neon under qemu: {options.cases} cases, {wrong} wrong, {time.perf_counter() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
