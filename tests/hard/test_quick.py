"""A slice of every program of this folder; `make hard` runs the whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hard import card, forks
from tests.hard.__main__ import PROGRAMS
from tests.hard.tally import Tally

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "mutants"])
def test_a_slice_finds_nothing(name: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, "-m", f"tests.hard.{name}", "--quick", f"--json={record}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    counted = json.loads(record.read_text())
    assert done.stdout.splitlines()[-1] == f"{name}: {counted['runs']} runs, 0 failures"
    assert counted["runs"] > 10


def test_failures_are_counted_and_end_in_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally("guard")
    tally.add("fine", runs=5)
    tally.add("bad", "it broke")
    tally.add_all("many", 10, ["one", "two"])
    assert str(tally) == "guard: 16 runs, 3 failures"
    record = {"name": "guard", "kinds": tally.kinds, "runs": 16, "failures": 3, "notes": ["a note"]}
    text = card.written(f"before\n{card.BEGIN}\n{card.END}\nafter", [record], "avx2, 2 cores", 1)
    assert "| Arrays between inaccessible pages | 5 fine; 1 bad; 10 many | 3 |" in text
    assert "* a note" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    assert "it broke" in capsys.readouterr().out


def test_a_child_that_dies_or_hangs_is_named_and_the_rest_still_run() -> None:
    def check(index: int) -> str:
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 2:
            while True:
                pass
        if index == 3:
            raise KeyError("three")
        if index == 4:
            os._exit(7)
        return "" if index != 5 else "wrong"

    answers = dict(forks.survey(7, check, seconds=1))
    assert answers[0] == answers[6] == ""
    assert answers[1] == "died of SIGKILL"
    assert answers[2] == "hung"
    assert "KeyError" in answers[3]
    assert answers[4] == "ended with 7 and without an answer"
    assert answers[5] == "wrong"


def test_the_readme_has_room_for_the_card() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count(card.BEGIN) == readme.count(card.END) == 1
