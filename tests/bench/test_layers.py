"""Layers and their choice: the bundled file says what it says, and the rules that pick from it hold."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib.resources import files

import pytest

from unstride.bench.layers import Layer, as_variant, kind, size_class, unseen, workloads
from unstride.bench.selection import REPRESENTATIVE_MAX_MACS, matching, representative, shortest
from unstride.errors import AttributeValueError
from unstride.problem import Problem


def problem(text: str) -> Problem:
    return Problem.parse(f"scatter f32 NCX GIOX n1 {text}")


def test_every_bundled_layer_has_the_work_its_source_states() -> None:
    rows = json.loads(files("unstride.bench").joinpath("workloads.json").read_text(encoding="utf-8"))
    assert [layer.problem.macs for layer in workloads()] == [row["macs"] for row in rows]


def test_names_are_unique() -> None:
    assert max(Counter(layer.name for layer in workloads()).values()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g8 i1 o1 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", "depthwise"),
        ("g2 i4 o4 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", "grouped"),
        ("g1 i8 o8 x8x8 k3x3 s1x1 d2x2 b2x2 y8x8", "dilated"),
        ("g1 i8 o8 x8x8 k1x1 s1x1 d2x2 b0x0 y8x8", "k1"),
        ("g1 i8 o8 x8x8 k2x2 s2x2 d1x1 b0x0 y16x16", "k=s"),
        ("g1 i8 o3 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", "few outputs"),
        ("g1 i3 o8 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", "few inputs"),
        ("g1 i8 o8 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16", "k4s2"),
        ("g1 i8 o8 x8 k16 s8 d1 b4 y64", "k=2s"),
        ("g1 i8 o8 x8x8 k8x1 s4x1 d1x1 b2x0 y32x8", "uneven"),
        ("g1 i8 o8 x8 k7 s3 d1 b2 y24", "other"),
    ],
)
def test_kind(text: str, expected: str) -> None:
    assert kind(problem(text)) == expected


def test_size_classes_part_at_their_limits() -> None:
    assert size_class(problem("g1 i1 o1 x4 k1 s1 d1 b0 y4")) == "under 10 MFLOP"
    assert size_class(problem("g1 i1000 o1000 x5 k1 s1 d1 b0 y5")) == "10 to 100 MFLOP"
    assert size_class(problem("g1 i1000 o1000 x500 k1 s1 d1 b0 y500")) == "over 1 GFLOP"


def test_representative_sees_every_kind_and_is_deterministic() -> None:
    layers = workloads()
    chosen = representative(layers)
    small = [layer for layer in layers if layer.problem.macs <= REPRESENTATIVE_MAX_MACS]
    strata = {(layer.problem.rank, kind(layer.problem)) for layer in small}
    assert len(chosen) == len({layer.name for layer in chosen}) == 60
    assert {(layer.problem.rank, kind(layer.problem)) for layer in chosen} == strata
    assert max(layer.problem.macs for layer in chosen) <= REPRESENTATIVE_MAX_MACS
    assert representative(list(reversed(layers))) == list(reversed(chosen))


def test_larger_strata_get_more_seats_and_their_sizes_are_spread() -> None:
    dense = problem("g1 i8 o8 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16")
    layers = [Layer(f"many{n}", replace(dense, batch=n)) for n in range(1, 50)]
    layers.append(Layer("one", problem("g8 i1 o1 x8 k4 s2 d1 b1 y16")))
    chosen = representative(layers, 6)
    batches = [layer.problem.batch for layer in chosen if layer.name != "one"]
    assert len(batches) == 5
    assert "one" in {layer.name for layer in chosen}
    assert batches == [5, 15, 25, 35, 45]


def test_no_more_seats_than_layers() -> None:
    layers = workloads()[:7]
    assert representative(layers, 60) == layers
    assert shortest(layers, 3) == representative(layers, 3)


def test_filter_finds_names_kinds_and_problem_lines() -> None:
    layers = workloads()
    assert {layer.name for layer in matching(layers, "^dcgan/")} == {f"dcgan/g{n}" for n in range(5)}
    assert all(kind(layer.problem) == "depthwise" for layer in matching(layers, "^depthwise$"))
    assert all("k1024 s256" in str(layer.problem) for layer in matching(layers, "k1024 s256"))
    with pytest.raises(AttributeValueError, match="regular expression"):
        matching(layers, "(")


def test_variant_changes_only_what_it_says() -> None:
    layer = workloads()[0]
    other = as_variant(layer, direction="gather", dtype="f16", layout="NXC")
    assert as_variant(other, direction="scatter", dtype="f32", layout="NCX") == layer
    assert (other.problem.macs, other.problem.data_layout) == (layer.problem.macs, "NXC")
    assert as_variant(layer, direction="scatter", dtype="f32", layout="NCX", batch=5).problem.batch == 5


def test_unseen_layers_are_new_legal_and_repeatable() -> None:
    layers = unseen(60, 7)
    known = {replace(layer.problem, batch=1) for layer in workloads()}
    assert len({layer.problem for layer in layers}) == 60
    assert not known & {replace(layer.problem, batch=1) for layer in layers}
    assert unseen(60, 7) == layers != unseen(60, 8)
    assert {layer.problem.rank for layer in layers} == {1, 2, 3}
    assert all(begin >= 0 for layer in layers for begin in layer.problem.begin)
