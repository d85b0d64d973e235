"""The IR of every kernel family compiled for every instruction set: `python -m tests.compiler.targets`.

An object must need no symbol from outside, and the inner loop of the widest tile must keep its accumulators in
registers.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from unstride.codegen.activation import ACTIVATIONS
from unstride.codegen.direct import DirectFamily
from unstride.codegen.numbers import Numbers
from unstride.plan.direct import plan_direct
from unstride.plan.machine import ISA, ISAS
from unstride.problem import DATA_LAYOUTS, DTYPE_BYTES, Structure
from unstride.runtime import elf, engine

_MULTIPLY_ADD = re.compile(r"^\s+(vfmadd\w+|fmla|mulps|mulpd)\s", re.MULTILINE)
# A vector register in an instruction that also names the stack pointer: x86 in AT&T syntax, then ARM.
_VECTOR_ON_STACK = re.compile(r"^.*%[xyz]mm.*\(%rsp.*$|^.*\(%rsp.*%[xyz]mm.*$|^.*\bq\d+.*\[sp.*$", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """One family on one instruction set."""

    isa: ISA
    dtype: str
    layout: str
    depthwise: bool
    activation: str

    def __str__(self) -> str:
        kind = "depthwise" if self.depthwise else "dense"
        return f"{self.isa.name}-{self.dtype}-{self.layout}-{kind}-{self.activation}"

    @property
    def structure(self) -> Structure:
        groups, channels = (64, 1) if self.depthwise else (1, 64)
        head = ("scatter", self.dtype, self.layout, "GIOX", groups, channels, channels)
        return Structure(*head, (3, 3), (2, 2), (1, 1))

    def ir(self) -> str:
        family = DirectFamily.of(plan_direct(self.structure, self.isa), self.activation)
        return family.build(Numbers(self.dtype, self.isa))


def every_target() -> list[Target]:
    choices = (ISAS.values(), DTYPE_BYTES, DATA_LAYOUTS, (False, True), ACTIVATIONS)
    return [Target(*choice) for choice in product(*choices)]


def a_few_targets() -> list[Target]:
    """Every pair of (ISA, dtype), (ISA, layout and kind) and (ISA, activation) at least once."""
    kinds = list(product(DATA_LAYOUTS, (False, True)))
    return [
        Target(isa, dtype, *kinds[(i + j) % 4], ACTIVATIONS[(i + j + shift) % 5])
        for shift, isa in enumerate(ISAS.values())
        for i, dtype in enumerate(DTYPE_BYTES)
        for j in range(2)
    ]


def undefined(target: Target) -> frozenset[str]:
    """Symbols the object needs from elsewhere."""
    return frozenset(elf.undefined_symbols(engine.compile_object(target.ir(), target.isa)))


def spills(target: Target) -> tuple[int, list[str]]:
    """Multiply-adds in the hottest block of the widest tile, and the vector moves to and from the stack in it."""
    tile = plan_direct(target.structure, target.isa).tile
    text = engine.assembly(target.ir(), target.isa)
    function = re.search(rf"^tile_{tile.rows}x{tile.vectors}:\n(.*?)^\.Lfunc_end", text, re.DOTALL | re.MULTILINE)
    if function is None:
        raise AssertionError(f"{target} has no tile of {tile.rows} rows and {tile.vectors} vectors")
    blocks = re.split(r"^\.L\w+:.*$", function[1], flags=re.MULTILINE)
    hottest = max(blocks, key=lambda block: len(_MULTIPLY_ADD.findall(block)))
    return len(_MULTIPLY_ADD.findall(hottest)), _VECTOR_ON_STACK.findall(hottest)


def faults(targets: list[Target]) -> Iterator[str]:
    for target in targets:
        if strangers := undefined(target):
            yield f"{target} needs {', '.join(sorted(strangers))}"
        if target.activation == "none":
            _, moves = spills(target)
            if moves:
                yield f"{target} spills: {moves[0].strip()} and {len(moves) - 1} more"


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    start, found, targets = time.perf_counter(), 0, every_target()
    for line in faults(targets):
        found += 1
        print(f"  {line}", flush=True)
    print(f"{len(targets)} kernels compiled for {', '.join(ISAS)}: {found} faults, {time.perf_counter() - start:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
