"""Other processors: NEON under qemu, SSE2 and AVX2 by forcing the target, all of them compiled and audited.

Emulated and forced kernels must be exact on integers. Compiled ones must need no symbol from outside, and keep the
accumulators of their widest tile in registers.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.compiler import targets
from tests.hard.tally import Tally, main
from tests.isolation.neon.emulated import Emulator
from tests.isolation.neon.run import failures
from unstride.runtime.machine import _runnable, host

NEON, FORCED = (10, 500), (60, 2_000)


def neon(tally: Tally, full: bool) -> None:
    if missing := Emulator.missing():
        tally.note(f"NEON: not run, {' and '.join(missing)} not installed")
        return
    tally.add_all("NEON under qemu", NEON[full], failures(NEON[full], 41, few_kernels=not full))


def forced(tally: Tally, full: bool) -> None:
    for isa in _runnable(host().isa)[:-1] if full else _runnable(host().isa)[:1]:
        command = [sys.executable, "-m", "tests.compiler.lattice", f"--cases={FORCED[full]}", "--seed=43"]
        command += [] if full else ["--few-kernels"]
        done = subprocess.run(command, env={**os.environ, "UNSTRIDE_ISA": isa}, capture_output=True, text=True)
        said = f"{isa}: {FORCED[full]} bit for bit cases, 0 wrong" in done.stdout
        tally.add(f"{isa} forced", "" if said and done.returncode == 0 else done.stdout[-400:], runs=FORCED[full])


def audited(tally: Tally, full: bool) -> None:
    kernels = targets.every_target() if full else targets.a_few_targets()[:6]
    tally.add_all("kernels compiled and audited", len(kernels), targets.faults(kernels))


def run(tally: Tally, full: bool) -> None:
    for part in (audited, forced, neon):
        part(tally, full)


if __name__ == "__main__":
    main("targets", run, __doc__)
