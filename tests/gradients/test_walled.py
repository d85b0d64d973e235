"""Not one element is read or written outside the arrays. The runs are in child processes, since they may die."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


def _survey(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gradients.walled", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_outside_the_arrays(seed: int) -> None:
    done = _survey("--problems", "150", "--seed", str(seed))
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} {done.stderr[-500:]}"
    assert len(done.stdout.splitlines()) == 150


@pytest.mark.parametrize("shift", ["1", "-1"])
def test_one_element_too_far_is_seen(shift: str) -> None:
    done = _survey("--problems", "20", f"--plant={shift}")
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS), done.stderr[-500:]
