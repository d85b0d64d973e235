"""Generated code compiles for every instruction set, alone in the world and with its accumulators in registers."""

from __future__ import annotations

import pytest

from tests.compiler.targets import KINDS, Target, a_few_targets, every_target, spills, undefined
from unstride.plan.machine import AVX2, AVX512, NEON, SSE2


def test_every_kind_of_kernel_is_compiled() -> None:
    roads = {(target.kind, type(target.plan).__name__) for target in every_target()}
    special = {"across": "AcrossPlan", "folded": "FoldedPlan", "spread": "SpreadPlan", "rows": "RowsPlan"}
    special |= dict.fromkeys(("winograd", "large", "fast"), "WinogradPlan")
    special |= dict.fromkeys(("whole", "whole_large"), "WholePlan")
    assert roads == {(kind, special.get(kind, "DirectPlan")) for kind in KINDS}
    assert {target.kind for target in a_few_targets()} == set(KINDS)


@pytest.mark.parametrize("target", a_few_targets(), ids=str)
def test_compiles_without_undefined_symbols(target: Target) -> None:
    assert not undefined(target)


@pytest.mark.parametrize("isa", [AVX2, AVX512, NEON, SSE2], ids=lambda isa: isa.name)
@pytest.mark.parametrize("kind", ["dense", "narrow", "odd"])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_inner_loop_of_the_widest_tile_does_not_spill(isa, kind, layout) -> None:
    target = Target(isa, "f32", layout, kind, "none")
    found, moves = spills(target)
    assert found >= target.plan.tile.rows * target.plan.tile.vectors
    assert not moves


def test_tiles_follow_their_columns() -> None:
    tiles = {kind: Target(AVX512, "f32", "NXC", kind, "none").plan.tile for kind in ("dense", "narrow", "odd")}
    assert {kind: (tile.rows, tile.vectors) for kind, tile in tiles.items()} == {
        "dense": (14, 2),
        "narrow": (10, 1),
        "odd": (9, 3),
    }
