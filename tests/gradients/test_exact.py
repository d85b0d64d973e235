"""Weight gradients are exact on integers, whatever the shape, the layout, the type and the number of threads."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.gradients.arrays import by_position, integers, reals
from unstride.cases import random_problem
from unstride.errors import DTypeError, ShapeError
from unstride.problem import Problem
from unstride.reference import DTYPES, UNIT, filter_gradient_reference, reference
from unstride.runtime import gradients, pool

# One line for each way the work is cut: many boxes, chunks, blocks of channels and of taps, joined taps, single pixels.
SHAPES = (
    "scatter f32 NXC XGIO n3 g1 i40 o33 x37x29 k3x3 s2x2 d1x1 b1x1 y73x57",
    "scatter f32 NCX GIOX n3 g1 i40 o33 x37x29 k3x3 s2x2 d1x1 b1x1 y73x57",
    "scatter f32 NCX GIOX n2 g1 i200 o130 x4x4 k4x4 s2x2 d1x1 b1x1 y8x8",
    "scatter f32 NXC XOGI n2 g1 i200 o130 x4x4 k4x4 s2x2 d1x1 b1x1 y8x8",
    "scatter f32 NCX GIOX n1 g1 i70 o3 x60x61 k7x7 s1x1 d1x1 b3x3 y60x61",
    "scatter f32 NXC XGIO n1 g1 i70 o3 x60x61 k7x7 s1x1 d1x1 b3x3 y60x61",
    "scatter f32 NCX OGIX n2 g1 i96 o2 x900 k16 s8 d1 b4 y7200",
    "scatter f32 NXC XGOI n2 g1 i16 o24 x3000 k3 s1 d5 b5 y3000",
    "scatter f32 NCX GIOX n2 g3 i20 o5 x20x20 k3x3 s1x1 d2x2 b2x2 y20x20",
    "scatter f32 NCX GIOX n2 g70 i1 o1 x30x31 k4x4 s2x2 d1x1 b1x1 y60x62",
    "scatter f32 NXC XGIO n2 g70 i1 o1 x30x31 k5x5 s2x2 d1x1 b1x1 y60x62",
    "scatter f32 NXC GOIX n1 g21 i1 o1 x9x9 k16x16 s8x8 d1x1 b4x4 y72x72",
    "scatter f32 NCX GIOX n1 g1 i24 o20 x8x8x8 k4x4x4 s2x2x2 d1x1x1 b1x1x1 y16x16x16",
    "scatter f32 NXC XGIO n1 g1 i8 o8 x3 k60000 s2 d1 b3 y60001",
    "scatter f32 NCX GIOX n1 g1 i8 o8 x40 k3 s1 d1000000 b1000000 y40",
    "scatter f32 NXC XGIO n2 g2 i100 o29 x12x12 k3x3 s1x1 d1x1 b1x1 y12x12",
    "gather f64 NXC XGIO n2 g1 i33 o20 x20x20 k3x3 s2x2 d1x1 b1x1 y40x40",
)


def _result(problem: Problem, small: np.ndarray, large: np.ndarray, threads: int | None = None) -> np.ndarray:
    """Into a buffer of NaN, so that an element nobody writes shows."""
    out = np.full(problem.filter_shape, np.nan, DTYPES[problem.dtype])
    return gradients.filter_gradient(problem, small, large, threads=threads, out=out)


@pytest.mark.parametrize("seed", range(20))
def test_random_problems(seed: int) -> None:
    """120 problems of any kind for each seed."""
    rng = Random(f"gradients {seed}")
    for index in range(120):
        problem = random_problem(rng, max_rank=4 if index % 8 == 0 else 3)
        small, large = integers(problem, index)
        expected = filter_gradient_reference(problem, small, large).astype(DTYPES[problem.dtype])
        assert np.array_equal(_result(problem, small, large), expected), problem


@pytest.mark.parametrize("text", SHAPES)
def test_every_way_to_cut(text: str) -> None:
    problem = Problem.parse(text)
    small, large = integers(problem, 1, 4)
    assert np.array_equal(_result(problem, small, large), filter_gradient_reference(problem, small, large))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("text", SHAPES[:3] + SHAPES[9:11])
def test_half_types_are_rounded_once(text: str, layout: str, dtype: str) -> None:
    """Sums far beyond the exact range of the type: the float32 sum is exact, so one rounding gives one answer."""
    problem = replace(Problem.parse(text), dtype=dtype, data_layout=layout)
    small, large = integers(problem, 2, 4)
    expected = filter_gradient_reference(problem, small, large).astype(DTYPES[dtype])
    assert np.array_equal(_result(problem, small, large), expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_reference_against_positions(seed: int) -> None:
    rng = Random(f"positions {seed}")
    for index in range(15):
        problem = random_problem(rng, max_macs=4000, max_elements=2000)
        small, large = integers(problem, index)
        assert np.array_equal(filter_gradient_reference(problem, small, large), by_position(problem, small, large))


@pytest.mark.parametrize("text", SHAPES)
def test_threads_do_not_change_a_bit(text: str) -> None:
    problem = Problem.parse(text)
    small, large = reals(problem, 3)
    alone = _result(problem, small, large, threads=1)
    for threads in (2, 3, 7):
        assert np.array_equal(_result(problem, small, large, threads=threads).view(np.uint8), alone.view(np.uint8))


@pytest.mark.parametrize("text", SHAPES)
def test_errors_stay_within_the_bound(text: str) -> None:
    problem = Problem.parse(text)
    small, large = reals(problem, 4)
    positions = problem.batch * int(np.prod(problem.x))
    unit = UNIT["f64" if problem.dtype == "f64" else "f32"]
    growth = (positions + 2) * unit / (1 - (positions + 2) * unit)
    bound = growth * filter_gradient_reference(problem, abs(small), abs(large)) + 1e-40
    error = abs(_result(problem, small, large) - filter_gradient_reference(problem, small, large))
    assert (error <= bound).all()


@pytest.mark.parametrize("seed", range(6))
def test_adjoint_of_the_operator(seed: int) -> None:
    """<A(data; w), delta> = <w, gradient>, exact on integers: the operator is linear in its weights."""
    rng = Random(f"adjoint {seed}")
    for index in range(40):
        problem = random_problem(rng, dtypes=("f64",))
        small, large = integers(problem, index)
        weights = np.random.default_rng(index).integers(-9, 10, problem.filter_shape).astype(np.float64)
        data, delta = (small, large) if problem.direction == "scatter" else (large, small)
        forward = np.sum(reference(problem, data, weights) * delta)
        assert forward == np.sum(weights * gradients.filter_gradient(problem, small, large)), problem


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("side", ["small", "large"])
def test_one_value_that_is_not_finite(side: str, value: float) -> None:
    """It reaches exactly the weights that multiply it: an implied zero is never multiplied."""
    rng = Random(f"finite {side} {value}")
    for index in range(60):
        problem = random_problem(rng, dtypes=("f32",))
        small, large = (abs(array) + 1 for array in integers(problem, index, 3))
        spoilt = small if side == "small" else large
        if spoilt.size:
            spoilt.reshape(-1)[rng.randrange(spoilt.size)] = value
        expected = filter_gradient_reference(problem, small, large).astype(np.float32)
        assert np.array_equal(gradients.filter_gradient(problem, small, large), expected, equal_nan=True), problem


def test_nothing_to_sum() -> None:
    for text in (
        "scatter f32 NCX GIOX n0 g1 i2 o3 x4 k3 s1 d1 b0 y6",
        "scatter f32 NCX GIOX n1 g1 i2 o3 x4 k3 s1 d1 b0 y0",
    ):
        problem = Problem.parse(text)
        small, large = integers(problem, 0)
        assert not _result(problem, small, large).any()


def test_arrays_of_any_strides() -> None:
    problem = Problem.parse("scatter f32 NCX GIOX n2 g1 i5 o4 x7x6 k3x2 s2x1 d1x1 b1x0 y13x7")
    small, large = integers(problem, 5)
    out = np.full((*problem.filter_shape, 2), np.nan, np.float32)[..., 0]
    spread = np.repeat(large, 2, axis=-1)[..., ::2]
    spread.flags.writeable = False
    result = gradients.filter_gradient(problem, small[:, ::-1][:, ::-1], spread, out=out)
    assert result is out
    assert np.array_equal(out, filter_gradient_reference(problem, small, large))


def test_operands_that_do_not_fit() -> None:
    problem = Problem.parse("scatter f32 NCX GIOX n2 g1 i5 o4 x7 k3 s2 d1 b1 y13")
    small, large = integers(problem, 6)
    with pytest.raises(ShapeError, match="small"):
        gradients.filter_gradient(problem, small[:, :4], large)
    with pytest.raises(DTypeError, match="large"):
        gradients.filter_gradient(problem, small, large.astype(np.float64))
    with pytest.raises(ShapeError, match="out"):
        gradients.filter_gradient(problem, small, large, out=np.empty((5, 4, 3), np.float32))
    with pytest.raises(ShapeError, match="delta"):
        gradients.bias_gradient(problem, small)


@pytest.mark.parametrize("seed", range(4))
def test_bias(seed: int) -> None:
    rng = Random(f"bias {seed}")
    for index in range(40):
        problem = random_problem(rng)
        small, large = integers(problem, index)
        delta = large if problem.direction == "scatter" else small
        axis = 1 if problem.data_layout == "NCX" else delta.ndim - 1
        others = tuple(i for i in range(delta.ndim) if i != axis)
        expected = delta.astype(np.float64).sum(axis=others).astype(delta.dtype)
        assert np.array_equal(gradients.bias_gradient(problem, delta), expected), problem


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("sizes", ["o1 x700x601", "o3 x400x301", "o70 x61x51", "o512 x20x7"])
def test_bias_of_many_pixels(sizes: str, layout: str, dtype: str) -> None:
    """Several tasks and a rest: exact in one rounding, the same for every number of threads, and no NaN is lost."""
    channels, x = sizes.split()
    text = f"scatter {dtype} {layout} GIOX n3 g1 i1 {channels} {x} k1x1 s1x1 d1x1 b0x0 y{x[1:]}"
    problem = Problem.parse(text)
    _, delta = integers(problem, 7, 4)
    axes = tuple(i for i in range(4) if i != (1 if layout == "NCX" else 3))
    expected = delta.astype(np.float64).sum(axis=axes).astype(delta.dtype)
    for threads in (1, 2, 3):
        with pool.threads(threads):
            assert np.array_equal(gradients.bias_gradient(problem, delta), expected)
    delta.reshape(-1)[-1] = np.nan
    assert np.isnan(gradients.bias_gradient(problem, delta)).tolist() == [False] * (problem.co - 1) + [True]


def test_scratch_is_bounded() -> None:
    """For every shape here and for a hundred threads."""
    from unstride.runtime.machine import host

    for text in SHAPES:
        ready = gradients._ready(Problem.parse(text), host())
        threads = min(100, ready.threads, ready.plan.tasks)
        assert ready.plan.partial_bytes + threads * ready.plan.slot_bytes <= 16 << 20, text
