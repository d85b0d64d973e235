"""Other processors: NEON under qemu, SSE2 and AVX2 by forcing the target, all of them compiled and audited.

Emulated and forced kernels must be exact on integers. Compiled ones must need no symbol from outside, and keep the
accumulators of their widest tile in registers; on AVX-512, those of every inner loop of every algorithm.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.compiler import targets
from tests.hard.tally import Tally, main
from tests.isolation.neon.emulated import Emulator
from tests.isolation.neon.run import failures
from unstride.codegen.gradient import GradientFamily
from unstride.codegen.numbers import Numbers
from unstride.plan.gradient import plan_gradient
from unstride.plan.machine import AVX512, Machine
from unstride.problem import DATA_LAYOUTS, DTYPE_BYTES, Problem
from unstride.runtime import engine
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


def modules(full: bool) -> Iterator[tuple[str, str]]:
    """The AVX-512 IR of every algorithm: forward, and gradients with respect to the weights."""
    for dtype in DTYPE_BYTES if full else ("f32",):
        for layout in DATA_LAYOUTS if full else ("NXC",):
            for kind in targets.KINDS:
                target = targets.Target(AVX512, dtype, layout, kind, "none")
                if target.exists:
                    yield str(target), target.ir()
            for channels in ("g1 i64 o64", "g64 i1 o1"):
                case = Problem.parse(f"scatter {dtype} {layout} GIOX n1 {channels} x9x9 k3x3 s2x2 d1x1 b1x1 y17x17")
                plan = plan_gradient(case, Machine(AVX512, 2))
                shape = (layout == "NCX", plan.depthwise, plan.tile.height, plan.tile.width)
                yield f"gradient {case}", GradientFamily(dtype, *shape).build(Numbers(dtype, AVX512))


def inner_loops(tally: Tally, full: bool) -> None:
    """No inner loop for AVX-512 moves a vector to or from the stack."""
    for name, text in modules(full):
        assembly = engine.assembly(text, AVX512)
        for function in re.findall(r"^((?:tile|line|sum)_\d\w*):", assembly, re.MULTILINE):
            products, moves = targets.hottest(assembly, function)
            fault = "no multiply-add" if not products else f"spills: {moves[0].strip()}" if moves else ""
            tally.add("inner loops for AVX-512", fault and f"{name} {function}: {fault}")


def run(tally: Tally, full: bool) -> None:
    for part in (audited, inner_loops, forced, neon):
        part(tally, full)


if __name__ == "__main__":
    main("targets", run, __doc__)
