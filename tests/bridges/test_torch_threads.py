"""torch's own threads do our work, and only where they can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from unstride.bridges import _torch_threads  # noqa: E402
from unstride.bridges.torch import conv_transpose  # noqa: E402
from unstride.runtime import pool  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jobs(monkeypatch):
    """Jobs given to torch's threads, as (tasks, threads)."""
    seen = []
    team = _torch_threads._openmp_team()
    assert team is not None, "torch's OpenMP library was not found"

    def spy(task, arg, tasks, threads, short):
        seen.append((tasks, threads))
        team(task, arg, tasks, threads, short)

    monkeypatch.setattr(_torch_threads, "_openmp_team", lambda: spy)
    return seen


def layer():
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (4, 32, 24, 24)), rng.integers(-3, 4, (32, 32, 4, 4))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(w, dtype=torch.float32)


def with_threads(count, x, w):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        with pool.threads(count):
            return conv_transpose(x, w, stride=2, padding=1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_same_bits_on_any_number_of_torchs_threads(jobs, count):
    x, w = layer()
    alone = with_threads(1, x, w)
    assert not jobs
    assert torch.equal(with_threads(count, x, w), alone)
    assert jobs
    assert all(1 < threads <= count for _, threads in jobs)
    assert torch.equal(alone, torch.conv_transpose2d(x, w, stride=2, padding=1))


def test_subnormals_survive_torchs_flush_mode(jobs):
    x, w = torch.full((4, 32, 24, 24), 2.0**-130), torch.ones(32, 32, 4, 4)
    torch.set_flush_denormal(True)
    try:
        found = with_threads(2, x, w)
    finally:
        torch.set_flush_denormal(False)
    assert jobs
    assert torch.equal(found, with_threads(1, x, w))
    assert (found > 0).all()


FORK = """
import os
import numpy as np, torch
from tests.bridges.test_torch_threads import layer, with_threads
from unstride.bridges import _torch_threads
x, w = layer()
expected = with_threads(2, x, w).numpy()
child = os.fork()
if child == 0:  # NumPy compares: torch's own operators may wait for threads that did not come along
    found = with_threads(2, x, w).numpy()
    os._exit(0 if _torch_threads.torch_team() is None and np.array_equal(found, expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_uses_threads_of_its_own():
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_borrowed_team_is_given_back():
    given = []
    with pool.borrowed(lambda *job: given.append(job)):
        pool.parallel(0, 0, 2, 2)
        with pool.borrowed(None):
            assert pool._team.get() is None
    assert given == [(0, 0, 2, 2, False)]
    assert pool._team.get() is None
