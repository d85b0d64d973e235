"""The bound that a result is held against: wide enough for a correct kernel, narrow enough to find a wrong one."""

from __future__ import annotations

import numpy as np
import pytest

from unstride.problem import Problem
from unstride.reference import reference
from unstride.runtime.execute import run
from unstride.vectors.judge import allowed_error

CASES = [
    "scatter f32 NXC GIOX n1 g1 i32 o16 x12x12 k4x4 s2x2 d1x1 b1x1 y24x24",
    "scatter f32 NCX GIOX n1 g1 i16 o8 x9x9 k3x3 s1x1 d1x1 b1x1 y9x9",
    "scatter f32 NXC GIOX n1 g1 i8 o8 x8x8 k5x5 s2x2 d1x1 b2x2 y16x16",
]


@pytest.mark.parametrize("line", CASES)
@pytest.mark.parametrize("density", [1.0, 0.05])
def test_correct_results_are_inside_and_small_faults_outside(line: str, density: float) -> None:
    problem, rng = Problem.parse(line), np.random.default_rng(4)
    data = rng.standard_normal(problem.data_shape).astype(np.float32)
    data[rng.random(data.shape) >= density] = 0
    weights = rng.standard_normal(problem.filter_shape).astype(np.float32)
    exact = reference(problem, data, weights)
    for accuracy in ("strict", "standard"):
        bound = allowed_error(problem, data, weights, None, by_norm=accuracy != "strict")
        assert (np.abs(run(problem, data, weights, accuracy=accuracy) - exact) <= bound).all()
    dropped = weights.copy()
    dropped.flat[int(np.argmax(np.abs(weights)))] = 0
    assert (np.abs(reference(problem, data, dropped) - exact) > bound).any(), "one missing product must show"
