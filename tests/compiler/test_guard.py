"""Winograd's guard looks at values, not at what lies between them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.judge import widest
from unstride.problem import Problem
from unstride.reference import reference
from unstride.runtime import program as programs
from unstride.runtime.program import pack


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Where the steps will be noted that are launched."""
    launches: list[object] = []
    launch = programs.Weights._launch

    def counted(self: object, step: object, *rest: object) -> None:
        launches.append(step)
        launch(self, step, *rest)

    monkeypatch.setattr(programs.Weights, "_launch", counted)
    return launches


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("kind", ["winograd", "large", "whole", "whole_large"])
@pytest.mark.parametrize("channels", [16, 18, 40, 128, 131])
def test_gaps_between_pixels_are_not_seen(
    channels: int, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = "k6x6 s2x2 d1x1 b2x2" if kind == "large" else "k4x4 s2x2 d1x1 b1x1"
    line = f"scatter f32 {layout} GIOX n1 g1 i{channels} o64 x12x12 {kernel} y24x24"
    problem = Problem.parse(line)
    weights = pack(problem.structure, widest(), np.ones(problem.filter_shape, np.float32), None)
    step = weights.program.step_of(kind, problem, 2)

    def poisoned(size: int) -> np.ndarray:
        return np.full(size, 0xFF, np.uint8)  # NaN, wherever it is read

    launches = _counted(monkeypatch)
    monkeypatch.setattr(programs, "_take_scratch", poisoned)
    data, result = np.ones(problem.data_shape, np.float32), np.empty(problem.result_shape, np.float32)
    weights.launch(step, data, result)
    assert launches == [step], "nothing is left to the direct kernel"
    data.flat[-1] = 1e6  # dwarfs the others
    weights.launch(step, data, result)
    assert launches == [step, step, step.then]


EXACT = [
    (
        "scatter f32 NXC XGIO n1 g1 i64 o64 x12x12 k4x4 s2x2 d1x1 b1x1 y24x24",
        ("winograd", "large", "whole", "whole_large"),
    ),
    (
        "scatter f32 NCX GIOX n2 g1 i40 o64 x9x14 k3x3 s1x1 d1x1 b1x1 y9x14",
        ("winograd", "large", "whole", "whole_large"),
    ),
    ("gather f32 NXC XGIO n1 g1 i64 o48 x12x12 k4x4 s2x2 d1x1 b1x1 y24x24", ("winograd", "large")),
    ("scatter f32 NCX GIOX n1 g1 i96 o64 x90 k4 s2 d1 b1 y180", ("winograd", "large")),
    ("scatter f64 NXC XGIO n1 g1 i32 o64 x12x12 k4x4 s2x2 d1x1 b1x1 y24x24", ("winograd", "large")),
]


@pytest.mark.parametrize(("line", "kinds"), EXACT, ids=[line for line, _ in EXACT])
def test_integers_are_exact_whatever_their_size(
    line: str, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Winograd up to a limit, and beyond it by direct sums, as long as those are. Other numbers are no matter."""
    problem, launches = Problem.parse(line), _counted(monkeypatch)
    draw, dtype = np.random.default_rng(0), np.dtype(problem.dtype.replace("f", "float"))
    filter = draw.integers(-9, 10, problem.filter_shape).astype(dtype)
    signs = draw.choice([-1, 1], problem.data_shape)
    weights = pack(problem.structure, widest(), filter, None)
    for kind in kinds:
        step = weights.program.step_of(kind, problem, 2)
        kernel = weights.program.kernel(kind).packing
        weights._constants_of(kernel)
        limit = programs._exact_limit(kernel.plan, filter)
        assert 1 < limit < 2.0**40
        for most, left in ((int(limit), False), (int(limit) + 1, True), (int(limit) + 0.5, False)):
            # Whole magnitudes near the limit, where sums come near the last bit.
            data = (signs * (most - draw.integers(0, 2, signs.shape))).astype(dtype)
            data.flat[0] = most
            expected, result = reference(problem, data, filter), np.full(problem.result_shape, np.nan, dtype)
            launches.clear()
            weights.launch(step, data, result)
            assert (step.then in launches) == left, (kind, most)
            if most == int(most):
                np.testing.assert_array_equal(result, expected, err_msg=f"{kind} {most}")


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_weights_that_are_no_integers_ask_for_no_such_care(factor: float) -> None:
    problem = Problem.parse(EXACT[0][0])
    filter = np.ones(problem.filter_shape, np.float32)
    filter.flat[-1] = factor
    plan = pack(problem.structure, widest(), filter, None).program.plans.winograd
    assert plan is not None
    assert np.isinf(programs._exact_limit(plan, filter)) == (factor != 1)
