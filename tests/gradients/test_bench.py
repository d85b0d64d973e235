"""The comparison with torch runs and refuses to time two different gradients."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from unstride.problem import Problem

pytestmark = pytest.mark.torch


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from unstride.bench import gradients

    arguments = ["--every", "20", "--max-gflop", "0.002", "--seconds", "0", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["gradients", *arguments])
    gradients.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if "geometric mean" in line] == ["NXC", "NCX"]
    assert sum("GFLOP/s" in line for line in lines) >= 4


def test_different_gradients_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from unstride.bench import gradients

    problem = Problem.parse("scatter f32 NCX GIOX n1 g1 i4 o3 x5 k3 s2 d1 b1 y9")
    monkeypatch.setattr(gradients, "filter_gradient", lambda *_, **__: np.zeros(problem.filter_shape, np.float32))
    with pytest.raises(RuntimeError, match="two different gradients"):
        gradients._contenders(problem, 1)
