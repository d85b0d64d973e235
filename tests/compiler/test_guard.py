"""Winograd's guard looks at values, not at what lies between them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.judge import widest
from unstride.problem import Problem
from unstride.runtime import program as programs
from unstride.runtime.program import pack


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("kind", ["winograd", "large", "whole"])
@pytest.mark.parametrize("channels", [16, 18, 40, 128, 131])
def test_gaps_between_pixels_are_not_seen(
    channels: int, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = "k6x6 s2x2 d1x1 b2x2" if kind == "large" else "k4x4 s2x2 d1x1 b1x1"
    line = f"scatter f32 {layout} GIOX n1 g1 i{channels} o64 x12x12 {kernel} y24x24"
    problem = Problem.parse(line)
    weights = pack(problem.structure, widest(), np.ones(problem.filter_shape, np.float32), None)
    step = weights.program.step_of(kind, problem, 2)
    launches: list[object] = []
    launch = type(weights)._launch

    def counted(self: object, step: object, *rest: object) -> None:
        launches.append(step)
        launch(self, step, *rest)

    def poisoned(size: int) -> np.ndarray:
        return np.full(size, 0xFF, np.uint8)  # NaN, wherever it is read

    monkeypatch.setattr(type(weights), "_launch", counted)
    monkeypatch.setattr(programs, "_take_scratch", poisoned)
    data, result = np.ones(problem.data_shape, np.float32), np.empty(problem.result_shape, np.float32)
    weights.launch(step, data, result)
    assert launches == [step], "nothing is left to the direct kernel"
    data.flat[-1] = 1e6  # dwarfs the others
    weights.launch(step, data, result)
    assert launches == [step, step, step.then]
