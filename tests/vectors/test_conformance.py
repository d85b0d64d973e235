"""`unstride check`: crashes and hangs of an engine are outcomes, and what is wrong is found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from unstride.problem import Problem
from unstride.vectors import conformance, worker

ROOT = Path(__file__).parents[2]

# A worker that passes case 0, dies in case 1, hangs in case 2, and passes case 3.
MOODY = """
import json, os, sys, time
for line in sys.stdin:
    if line.strip() == "1":
        os.abort()
    if line.strip() == "2":
        time.sleep(600)
    print(json.dumps({"outcome": "passed", "detail": "", "problem": "p", "call": "c"}), flush=True)
"""


def test_a_crash_and_a_hang_are_outcomes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "moody.py"
    script.write_text(MOODY)
    monkeypatch.setattr(conformance, "_COMMAND", [sys.executable, str(script)])
    monkeypatch.setattr(conformance, "_START_LIMIT_S", 5.0)
    findings = list(conformance.examine("unstride", 3, range(4), 5.0))
    assert [finding.outcome for finding in findings] == ["passed", "crashed", "hanging", "passed"]
    assert findings[1].detail == "signal 6"
    assert findings[2].detail.startswith("no answer within")
    for finding in findings[1:3]:
        assert Problem.parse(finding.problem)
        assert finding.reproducer == f"unstride check --against unstride --seed 3 --only {finding.index}"


@pytest.mark.parametrize("engine", ["unstride", "openvino", "onnxruntime", "torch"])
def test_engines_answer(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine != "unstride":
        pytest.importorskip(engine)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    findings = list(conformance.examine(engine, 1, range(25), 60.0))
    outcomes = {finding.outcome for finding in findings}
    assert outcomes <= ({"passed"} if engine == "unstride" else {"passed", "refused"})
    assert sum(finding.outcome == "passed" for finding in findings) >= 15


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is wrong by one unit in one element fails, with the place and both values."""
    honest = worker.run_ours

    def off_by_one(*arguments: object) -> object:
        result = honest(*arguments).copy()  # type: ignore[arg-type]
        result.flat[-1] += 1
        return result

    monkeypatch.setattr(worker, "run_ours", off_by_one)
    index = next(i for i in range(100) if i % 6 == 4 and np.prod(worker.drawn_problem("unstride", 0, i).result_shape))
    answer = worker.answer("unstride", 0, index)
    assert answer["outcome"] == "failed"
    assert answer["detail"].startswith("1 of ")


def test_an_engine_that_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("first\n  not implemented\n")

    monkeypatch.setattr(worker, "run_ours", refuse)
    answer = worker.answer("unstride", 0, 1)
    assert (answer["outcome"], answer["detail"]) == ("refused", "RuntimeError: not implemented")
