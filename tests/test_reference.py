"""The definition, against brute force that clips nothing, and what it promises about numbers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import ml_dtypes
import numpy as np
import pytest

from tests.brute import brute_force
from unstride.cases import random_problem
from unstride.problem import DTYPE_BYTES, Problem
from unstride.reference import DTYPES, error_bound, longest_sum, magnitude, reference, rounded

SMALL = {"max_elements": 2000, "max_macs": 10_000}


@pytest.mark.parametrize("direction", ["scatter", "gather"])
@pytest.mark.parametrize("dtype", tuple(DTYPE_BYTES))
def test_against_brute_force(direction: str, dtype: str) -> None:
    rng, numbers = Random(f"{direction}{dtype}"), np.random.default_rng(0)
    for _ in range(150):
        p = random_problem(rng, directions=(direction,), dtypes=(dtype,), max_rank=4, **SMALL)
        x = numbers.integers(-4, 5, p.data_shape).astype(DTYPES[dtype])
        w = numbers.integers(-4, 5, p.filter_shape).astype(DTYPES[dtype])
        got = reference(p, x, w)
        assert got.dtype == np.float64
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, brute_force(p, x, w), err_msg=str(p))


@pytest.mark.parametrize("direction", ["scatter", "gather"])
def test_a_value_that_is_not_finite_reaches_exactly_its_receptive_set(direction: str) -> None:
    rng = Random(7)
    for _ in range(60):
        p = random_problem(rng, directions=(direction,), dtypes=("f32",), max_elements=300, max_macs=2000)
        w = np.ones(p.filter_shape, np.float32)
        place = rng.randrange(int(np.prod(p.data_shape))) if np.prod(p.data_shape) else 0
        x = np.zeros(p.data_shape, np.float32)
        if not x.size:
            continue
        x.flat[place] = 1
        reached = reference(p, x, w) != 0
        x.flat[place] = np.inf
        got = reference(p, x, w)
        np.testing.assert_array_equal(np.isinf(got), reached, err_msg=str(p))
        assert not np.isnan(got).any(), f"an implied zero was multiplied: {p}"


def test_empty_batch_and_empty_window() -> None:
    p = Problem.parse("scatter f32 NCX GIOX n1 g1 i2 o3 x4 k3 s2 d1 b0 y9")
    w = np.ones(p.filter_shape, np.float32)
    assert reference(replace(p, batch=0), np.ones((0, 2, 4), np.float32), w).shape == (0, 3, 9)
    assert reference(replace(p, y=(0,)), np.ones((1, 2, 4), np.float32), w).shape == (1, 3, 0)
    back = replace(p, direction="gather", y=(0,))
    np.testing.assert_array_equal(reference(back, np.ones((1, 3, 0), np.float32), w), np.zeros((1, 2, 4)))


def test_bias_reaches_positions_without_taps() -> None:
    p = Problem.parse("scatter f32 NXC GIOX n1 g2 i1 o1 x2 k1 s3 d1 b-1 y6")
    x, w = np.ones(p.data_shape, np.float32), np.ones(p.filter_shape, np.float32)
    got = reference(p, x, w, np.array([10, 20], np.float32))
    np.testing.assert_array_equal(got[0, :, 0], [10, 11, 10, 10, 11, 10])
    np.testing.assert_array_equal(got[0, :, 1], [20, 21, 20, 20, 21, 20])


def test_longest_sum_is_reached() -> None:
    rng = Random(9)
    for _ in range(100):
        p = random_problem(rng, max_elements=1000, max_macs=5000)
        roomy = replace(p, x=tuple(20 if p.rank < 3 else 8 for _ in p.x), begin=(0,) * p.rank)
        roomy = replace(roomy, y=roomy.full)
        ones = [np.ones(shape, np.float32) for shape in (roomy.data_shape, roomy.filter_shape)]
        most = reference(roomy, *ones).max()
        assert most <= longest_sum(roomy)
        if p.rank < 3:
            assert most == longest_sum(roomy)


@pytest.mark.parametrize("dtype", tuple(DTYPE_BYTES))
def test_error_bound_holds_for_float32_sums_and_is_not_slack(dtype: str) -> None:
    numbers = np.random.default_rng(3)
    p = replace(Problem.parse("scatter f32 NCX GIOX n1 g1 i64 o4 x9 k3 s2 d1 b0 y19"), dtype=dtype)
    x, w = (numbers.standard_normal(shape).astype(DTYPES[dtype]) for shape in (p.data_shape, p.filter_shape))
    exact, bound = reference(p, x, w), error_bound(p, x, w)
    assert np.all(np.abs(rounded(exact, dtype).astype(np.float64) - exact) <= bound)
    assert np.all(bound <= 1e-2 * magnitude(p, x, w))
    spoiled = exact + 0.02 * magnitude(p, x, w)
    assert np.all(np.abs(spoiled - exact) > bound)


def test_rounding_is_to_nearest_even_and_overflow_is_infinite() -> None:
    np.testing.assert_array_equal(
        rounded(np.array([2049.0, 2051.0, 1e6]), "f16"), np.array([2048, 2052, np.inf], np.float16)
    )
    got = rounded(np.array([257.0, 259.0]), "bf16")
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float64), [256, 260])
