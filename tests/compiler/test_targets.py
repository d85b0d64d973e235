"""Generated code compiles for every instruction set, alone in the world and with its accumulators in registers."""

from __future__ import annotations

import pytest

from tests.compiler.targets import KINDS, Target, a_few_targets, every_target, spills, undefined
from unstride.plan.machine import AVX2, AVX512, NEON, SSE2


def test_every_kind_of_kernel_is_compiled() -> None:
    roads = {(target.kind, type(target.plan).__name__) for target in every_target()}
    special = {"across": "AcrossPlan", "winograd": "WinogradPlan", "fast": "WinogradPlan"}
    assert roads == {(kind, special.get(kind, "DirectPlan")) for kind in KINDS}
    assert {target.kind for target in a_few_targets()} == set(KINDS)


@pytest.mark.parametrize("target", a_few_targets(), ids=str)
def test_compiles_without_undefined_symbols(target: Target) -> None:
    assert not undefined(target)


@pytest.mark.parametrize(("isa", "multiply_adds"), [(AVX2, 12), (AVX512, 28), (NEON, 24), (SSE2, 10)])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_inner_loop_of_the_widest_tile_does_not_spill(isa, multiply_adds, layout) -> None:
    found, moves = spills(Target(isa, "f32", layout, "dense", "none"))
    assert found >= multiply_adds
    assert not moves
