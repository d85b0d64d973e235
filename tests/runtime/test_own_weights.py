"""A layer keeps the weights it was compiled with, whatever its caller does with his array afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.judge import widest

from unstride.plan.choose import KINDS, Plans
from unstride.problem import Problem
from unstride.reference import reference
from unstride.runtime.machine import host
from unstride.runtime.program import pack

PADDED = "x5x6 k3x3 s1x1 d2x2 b1x1 y7x8"
LAYERS = [
    f"scatter f32 NXC GIOX n2 g1 i9 o70 {PADDED}",
    f"scatter f32 NCX GIOX n2 g1 i9 o70 {PADDED}",
    f"scatter f32 NCX GIOX n2 g1 i9 o5 {PADDED}",
    f"gather f32 NXC GIOX n2 g1 i70 o9 {PADDED}",
    "scatter f32 NXC GIOX n2 g1 i64 o64 x12x13 k4x4 s2x2 d1x1 b1x1 y24x26",
    "scatter f32 NCX GIOX n2 g1 i24 o64 x12x13 k3x3 s1x1 d1x1 b1x1 y12x13",
    "scatter f32 NCX GIOX n2 g1 i5 o3 x12x40 k4x4 s2x2 d1x1 b1x1 y24x80",
    "scatter f32 NCX GIOX n2 g3 i1 o1 x7x19 k4x4 s2x2 d1x1 b1x1 y14x38",
    "scatter f32 NXC GIOX n2 g20 i1 o1 x7x19 k4x4 s2x2 d1x1 b1x1 y14x38",
]


def test_the_layers_meet_every_kernel_of_their_type() -> None:
    problems = [Problem.parse(line) for line in LAYERS]
    met = {kind for p in problems for kind in Plans(p.structure, host().isa, "standard").prices(p, widest())}
    assert met == {*KINDS} - {"matrix"}


@pytest.mark.parametrize("accuracy", ["standard", "strict"])
@pytest.mark.parametrize("line", LAYERS)
def test_weights_may_change_after_compilation(line: str, accuracy: str) -> None:
    problem, draw = Problem.parse(line), np.random.default_rng(0)
    data = draw.integers(-2, 3, problem.data_shape).astype(np.float32)
    filter = draw.integers(-2, 3, problem.filter_shape).astype(np.float32)
    expected = reference(problem, data, filter)
    weights = pack(problem.structure, widest(), filter, None, accuracy=accuracy)
    filter[...] = 100
    for kind in weights.program.plans.prices(problem, widest()):
        result = np.full(problem.result_shape, np.nan, np.float32)
        weights.launch(weights.program.step_of(kind, problem, 2), data, result)
        np.testing.assert_array_equal(result, expected, err_msg=kind)
