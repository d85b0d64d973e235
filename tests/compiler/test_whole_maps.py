"""Winograd by tiles of the source: the algebra, what it saves, and where it is not used."""

from __future__ import annotations

import numpy as np
import pytest

from unstride.plan.choose import Plans, choose
from unstride.plan.machine import AVX2, AVX512, Machine
from unstride.plan.winograd import Transform
from unstride.plan.winograd_whole import WholeLaunch, WholePlan, result_matrix, source_matrix, whole_maps
from unstride.problem import Problem

MACHINE = Machine(AVX2, 2)
TRANSFORMS = [Transform(3, 2), Transform(2, 3), Transform(4, 3), Transform(1, 1)]
SMALL = "scatter f32 NCX GIOX n4 g1 i64 o64 x12x12 k4x4 s2x2 d1x1 b1x1 y24x24"


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_a_tile_is_a_product_of_polynomials(transform: Transform) -> None:
    draw = np.random.default_rng(0)
    pixels, taps = draw.integers(-9, 10, transform.outputs), draw.integers(-9, 10, transform.taps)
    products = (np.array(transform.kernel) @ taps) * (np.array(source_matrix(transform)) @ pixels)
    results = np.array(result_matrix(transform)) @ products
    np.testing.assert_allclose(results, np.convolve(pixels, taps[::-1]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_the_first_point_is_the_last_pixel(transform: Transform) -> None:
    """So it is zero in a tile that is not full, and its product can be left out."""
    first = source_matrix(transform)[0]
    assert first == (*(0.0,) * (transform.outputs - 1), 1.0)


def test_the_bound_that_a_layer_states_holds_for_both_forms() -> None:
    for line in (SMALL, SMALL.replace("k4x4 s2x2", "k3x3 s1x1"), SMALL.replace("k4x4", "k6x6")):
        for accuracy in ("standard", "fast"):
            plan = Plans(Problem.parse(line).structure, AVX2, accuracy).winograd
            whole = whole_maps(plan)
            assert plan is not None
            assert whole is not None
            assert whole.growth <= plan.growth


def test_small_maps_have_fewer_tiles() -> None:
    problem = Problem.parse(SMALL)
    plans = Plans(problem.structure, AVX2, "standard")
    assert isinstance(plans.whole, WholePlan)
    assert WholeLaunch(plans.whole, problem, MACHINE, 2)._tiles_by_axis() == (4, 4)
    assert choose(problem, MACHINE, 2)[0].algorithm == "winograd F(3,2)xF(3,2) of whole maps"


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (SMALL, {"winograd", "whole"}),
        (SMALL.replace("x12x12", "x90x90").replace("y24x24", "y180x180"), {"winograd"}),  # too many tiles for a unit
        (SMALL.replace("y24x24", "y24x29"), {"winograd"}),  # results that no pixel reaches
        (SMALL.replace("y24x24", "y24x0"), set()),
        (SMALL.replace("scatter", "gather"), {"winograd"}),
        (SMALL.replace("k4x4 s2x2", "k5x5 s1x1").replace("y24x24", "y14x14"), {"winograd"}),  # taps in two parts
    ],
)
def test_where_it_can_be_used(line: str, kinds: set[str]) -> None:
    problem = Problem.parse(line)
    found = Plans(problem.structure, AVX512, "standard").prices(problem, Machine(AVX512, 2))
    assert found.keys() & {"winograd", "whole"} == kinds
