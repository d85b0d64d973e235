"""Generated code compiles for every instruction set, alone in the world and with its accumulators in registers."""

from __future__ import annotations

import pytest

from tests.compiler.targets import Target, a_few_targets, spills, undefined
from unstride.plan.machine import AVX2, AVX512, NEON, SSE2


@pytest.mark.parametrize("target", a_few_targets(), ids=str)
def test_compiles_without_undefined_symbols(target: Target) -> None:
    assert not undefined(target)


@pytest.mark.parametrize(("isa", "multiply_adds"), [(AVX2, 12), (AVX512, 28), (NEON, 28), (SSE2, 12)])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_inner_loop_of_the_widest_tile_does_not_spill(isa, multiply_adds, layout) -> None:
    found, moves = spills(Target(isa, "f32", layout, False, "none"))
    assert found >= multiply_adds
    assert not moves
