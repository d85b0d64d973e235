"""Winograd by tiles of the source: the algebra, what it saves, and where it is not used."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.judge import allocated, widest
from unstride.plan.choose import Plans, choose
from unstride.plan.job import Job
from unstride.plan.machine import AVX2, AVX512, Machine
from unstride.plan.winograd import Transform
from unstride.plan.winograd_whole import WholeLaunch, WholePlan, result_matrix, source_matrix, whole_maps
from unstride.problem import Problem
from unstride.reference import reference
from unstride.runtime.program import pack

MACHINE = Machine(AVX2, 2)
CIRCLE = [Transform(4, 3, circle=True), Transform(3, 4, circle=True)]
TRANSFORMS = [*(Transform(*sizes) for sizes in ((3, 2), (2, 3), (4, 2), (4, 3), (1, 1))), *CIRCLE]
SMALL = "scatter f32 NCX GIOX n4 g1 i64 o64 x12x12 k4x4 s2x2 d1x1 b1x1 y24x24"


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_a_tile_is_a_product_of_polynomials(transform: Transform) -> None:
    draw = np.random.default_rng(0)
    pixels, taps = draw.integers(-9, 10, transform.outputs), draw.integers(-9, 10, transform.taps)
    products = (np.array(transform.kernel) @ taps) * (np.array(source_matrix(transform)) @ pixels)
    results = np.array(result_matrix(transform)) @ products / transform.divisor
    np.testing.assert_allclose(results, np.convolve(pixels, taps[::-1]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_the_first_point_is_the_last_pixel(transform: Transform) -> None:
    """So it is zero in a tile that is not full, and its product can be left out."""
    first = source_matrix(transform)[0]
    assert first == (*(0.0,) * (transform.outputs - 1), 1.0)


@pytest.mark.parametrize("transform", CIRCLE, ids=str)
def test_on_the_circle_integers_stay_exact(transform: Transform) -> None:
    """Sums and differences on the way in and out, quarters in the weights: no thirds, and hardly a larger error."""
    for steps in (transform.source_steps, transform.result_steps):
        assert {factor for step in steps for row in step for factor in row} == {-1, 0, 1}
    assert {abs(factor) for row in transform.kernel for factor in row} == {0, 0.25, 0.5, 1}
    assert (transform.reach, transform.size) == (6, 7)
    assert transform.growth < Transform(4, 3).growth / 2


@pytest.mark.parametrize(
    ("kernel", "most"),
    [
        ("k3x3 s1x1 d1x1 b1x1 y24x24", 1.0),  # on the circle
        ("k8x8 s2x2 d1x1 b3x3 y48x48", 1.0),
        ("k4x4 s2x2 d1x1 b1x1 y48x48", 1.6),  # F(4,2) along x
    ],
)
def test_errors_are_near_those_of_direct_sums(kernel: str, most: float) -> None:
    problem = Problem.parse(f"scatter f32 NXC XGIO n1 g1 i128 o64 x24x24 {kernel}")
    draw = np.random.default_rng(0)
    data = draw.standard_normal(problem.data_shape, np.float32)
    filter = draw.standard_normal(problem.filter_shape, np.float32)
    exact, errors = reference(problem, data, filter), {}
    weights = pack(problem.structure, widest(), filter, None)
    for kind in ("direct", "large", "whole_large"):
        result = np.empty(problem.result_shape, np.float32)
        weights.launch(weights.program.step_of(kind, problem, 2), data, result)
        errors[kind] = np.linalg.norm(result - exact) / np.linalg.norm(exact)
    assert max(errors["large"], errors["whole_large"]) < most * errors["direct"]


def test_a_pixel_that_is_alone_needs_the_first_and_the_last_point() -> None:
    transform, pixel, taps = Transform(3, 2), 7, np.array([5, -3])
    products = (np.array(transform.kernel) @ taps) * (np.array(source_matrix(transform)) @ [pixel, 0, -pixel])
    products[1:3] = 0
    results = np.array(result_matrix(transform)) @ products
    np.testing.assert_array_equal(results[:2], pixel * taps[::-1])


ALONE = [
    ("n3 g1 i20 o40 x7x10 k4x4 s2x2 d1x1 b1x1 y14x20", (1, 1)),
    ("n1 g1 i32 o40 x13x6 k3x3 s2x2 d1x1 b0x0 y27x13", (1, 0)),  # phases without a first tap
    ("n1 g1 i32 o48 x6x16 k3x4 s2x2 d1x1 b0x1 y13x32", (0, 1)),
    ("n2 g1 i32 o48 x4x4 k4x4 s2x2 d1x1 b0x0 y10x10", (1, 1)),
    ("n2 g1 i32 o48 x4x4 k4x4 s2x2 d1x1 b0x0 y11x12", (0, 0)),  # results beyond the last pixel's
    ("n2 g1 i32 o48 x1x7 k4x4 s2x2 d1x1 b0x0 y4x16", (1, 1)),
    ("n1 g1 i32 o48 x7x7 k3x4 s1x2 d1x1 b1x1 y7x14", (0, 1)),  # two outputs to a tile along v
    ("n1 g1 i128 o48 x34 k4 s2 d1 b1 y68", (0, 1)),
    ("n1 g1 i32 o48 x3x7x7 k3x4x4 s2x2x2 d1x1x1 b1x1x1 y6x14x14", (1, 1)),
    ("n1 g1 i32 o48 x10x10 k2x2 s1x1 d2x2 b1x1 y10x10", (0, 0)),  # two residues of positions
]


@pytest.mark.parametrize("layout", ["NCX GIOX", "NXC XGIO"])
@pytest.mark.parametrize(("sizes", "alone"), ALONE, ids=[sizes for sizes, _ in ALONE])
def test_maps_that_end_with_one_pixel_are_exact(sizes: str, alone: tuple[int, int], layout: str) -> None:
    fields = _run_exactly(f"scatter f32 {layout} {sizes}", "whole")
    assert (fields[Job.ALONE_V], fields[Job.ALONE_X]) == alone


def _run_exactly(line: str, kind: str) -> tuple[int, ...]:
    """Hold one kind of kernel against the reference, on integers; the fields of its launch."""
    problem = Problem.parse(line)
    draw = np.random.default_rng(0)
    data = draw.integers(-3, 4, problem.data_shape).astype(np.float32)
    filter = draw.integers(-3, 4, problem.filter_shape).astype(np.float32)
    weights = pack(problem.structure, widest(), filter, None)
    step = weights.program.step_of(kind, problem, 2)
    result = allocated(problem.result_shape, "f32", on_a_line=True)
    result[...] = np.nan
    weights.launch(step, data, result)
    np.testing.assert_array_equal(result, reference(problem, data, filter))
    return step.launch.fields


def test_half_of_the_phases_need_one_product_of_a_pixel_that_is_alone() -> None:
    problem = Problem.parse("scatter f32 NXC XGIO n1 g1 i64 o64 x16x16 k4x4 s2x2 d1x1 b1x1 y32x32")
    plan = Plans(problem.structure, AVX2, "standard").whole
    assert plan is not None
    launch = WholeLaunch(plan, problem, MACHINE, 2)
    cropped = [launch._cropped(panel) for panel in plan.panels]
    assert [sum(axis) for axis in zip(*cropped, strict=True)] == [len(cropped) // 2] * 2


@pytest.mark.parametrize("layout", ["NCX GIOX", "NXC XGIO"])
@pytest.mark.parametrize(
    "sizes",
    [
        "n2 g1 i32 o48 x9x12 k4x4 s2x2 d1x1 b1x1 y18x24",  # 10 x 13 positions: the last tiles serve one phase
        "n1 g1 i32 o48 x12x10 k3x3 s2x2 d1x1 b1x1 y24x20",
        "n1 g1 i128 o48 x33 k4 s2 d1 b1 y66",
    ],
)
def test_phases_without_a_result_in_the_last_tile_leave_it_out(sizes: str, layout: str) -> None:
    """By tiles of results, exactly."""
    _run_exactly(f"scatter f32 {layout} {sizes}", "winograd")


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
    assert choose(problem, MACHINE, 2)[0].algorithm == "winograd F(3,2)xF(4,2) of whole maps"


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
