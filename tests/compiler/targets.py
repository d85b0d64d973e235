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
from unstride.codegen.family import family_of
from unstride.codegen.numbers import Numbers
from unstride.plan.choose import Plan, Plans
from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.folded import plan_folded
from unstride.plan.machine import ISA, ISAS
from unstride.plan.overlap import plan_overlap
from unstride.plan.rows import plan_rows
from unstride.plan.spread import plan_spread
from unstride.problem import DATA_LAYOUTS, DTYPE_BYTES, Structure
from unstride.runtime import elf, engine

# groups, ci, co and kernel of a structure (stride 2) that takes each road
KINDS = {
    "dense": (1, 64, 64, 3),
    "narrow": (1, 64, 8, 3),
    "odd": (1, 64, 40, 3),
    "depthwise": (64, 1, 1, 3),
    "banded": (1, 64, 64, 3),
    "overlap": (1, 64, 5, 4),
    "clipped": (1, 64, 64, 3),
    "clipped_depthwise": (64, 1, 1, 3),
    "across": (1, 16, 2, 4),
    "folded": (1, 16, 3, 5),
    "spread": (64, 1, 1, 3),
    "rows": (64, 1, 1, 3),
    "winograd": (1, 64, 64, 4),
    "large": (1, 64, 64, 5),
    "whole": (1, 64, 64, 4),
    "whole_large": (1, 64, 64, 4),
    "fast": (1, 64, 64, 5),
}
_MULTIPLY_ADD = re.compile(r"^\s+(vfmadd\w+|fmla|mulps|mulpd)\s", re.MULTILINE)
# A vector register in an instruction that also names the stack pointer: x86 in AT&T syntax, then ARM.
_VECTOR_ON_STACK = re.compile(r"^.*%[xyz]mm.*\(%rsp.*$|^.*\(%rsp.*%[xyz]mm.*$|^.*\bq\d+.*\[sp.*$", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """One family on one instruction set."""

    isa: ISA
    dtype: str
    layout: str
    kind: str
    activation: str

    def __str__(self) -> str:
        return f"{self.isa.name}-{self.dtype}-{self.layout}-{self.kind}-{self.activation}"

    @property
    def exists(self) -> bool:
        """Vectors run across x in NCX only, rows of pixels in NXC."""
        return self.kind not in ("across", "folded", "spread") if self.layout == "NXC" else self.kind != "rows"

    @property
    def plan(self) -> Plan:
        groups, ci, co, kernel = KINDS[self.kind]
        head = ("scatter", self.dtype, self.layout, "GIOX", groups, ci, co)
        structure = Structure(*head, (kernel, kernel), (2, 2), (1, 1))
        by_winograd = self.kind in ("winograd", "large", "whole", "whole_large")
        accuracy = "standard" if by_winograd else "fast" if self.kind == "fast" else "strict"
        plans = Plans(structure, self.isa, accuracy)
        special: Plan | None = plans.special if self.kind in ("across", "fast") else None
        if by_winograd:
            special = plans.of(self.kind)
        planners = {"overlap": plan_overlap, "folded": plan_folded, "spread": plan_spread, "rows": plan_rows}
        if self.kind in planners:
            special = planners[self.kind](structure, self.isa)
        ways = {"clipped": self.kind.startswith("clipped"), "banded": self.kind == "banded"}
        return special or plan_direct(structure, self.isa, **ways)

    def ir(self) -> str:
        return family_of(self.plan, self.activation).build(Numbers(self.dtype, self.isa))


def every_target() -> list[Target]:
    choices = (ISAS.values(), DTYPE_BYTES, DATA_LAYOUTS, KINDS, ACTIVATIONS)
    return [target for choice in product(*choices) if (target := Target(*choice)).exists]


def a_few_targets() -> list[Target]:
    """Every ISA with every type, kind, layout and activation at least once, in few combinations."""
    chosen = []
    for shift, isa in enumerate(ISAS.values()):
        for i, kind in enumerate(KINDS):
            for j in range(2):
                dtype, activation = list(DTYPE_BYTES)[(i + 2 * j + shift) % 4], ACTIVATIONS[(i + 3 * j + shift) % 5]
                chosen.append(Target(isa, dtype, DATA_LAYOUTS[(i + j) % 2], kind, activation))
    return [target for target in chosen if target.exists]


def undefined(target: Target) -> frozenset[str]:
    """Symbols the object needs from elsewhere."""
    return frozenset(elf.undefined_symbols(engine.compile_object(target.ir(), target.isa)))


def spills(target: Target) -> tuple[int, list[str]]:
    """Multiply-adds in the hottest block of the widest tile, and the vector moves to and from the stack in it."""
    assert isinstance(target.plan, DirectPlan)
    tile = target.plan.tile
    return hottest(engine.assembly(target.ir(), target.isa), f"tile_{tile.rows}x{tile.vectors}")


def hottest(assembly: str, name: str) -> tuple[int, list[str]]:
    """Multiply-adds in the hottest block of a function, and the vector moves to and from the stack in it."""
    function = re.search(rf"^{name}:\n(.*?)^\.Lfunc_end", assembly, re.DOTALL | re.MULTILINE)
    if function is None:
        raise AssertionError(f"no function {name}")
    blocks = re.split(r"^\.L\w+:.*$", function[1], flags=re.MULTILINE)
    block = max(blocks, key=lambda block: len(_MULTIPLY_ADD.findall(block)))
    return len(_MULTIPLY_ADD.findall(block)), _VECTOR_ON_STACK.findall(block)


def _audited(target: Target) -> bool:
    """Tiles are alike for all activations."""
    return target.activation == "none" and isinstance(target.plan, DirectPlan)


def faults(targets: list[Target]) -> Iterator[str]:
    for target in targets:
        if strangers := undefined(target):
            yield f"{target} needs {', '.join(sorted(strangers))}"
        if _audited(target):
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
