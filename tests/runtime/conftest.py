"""A cache directory of their own for these tests, and children that must end in time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unstride.runtime import cache

_HERE = Path(__file__).parent
_SOURCES = _HERE.parent.parent / "src"

Child = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One code cache for the whole run, so that the children do not compile the pool again and again."""
    path = tmp_path_factory.mktemp("cache") / "unstride"
    before = os.environ.get("UNSTRIDE_CACHE_DIR")
    os.environ["UNSTRIDE_CACHE_DIR"] = str(path)
    yield path
    if before is None:
        del os.environ["UNSTRIDE_CACHE_DIR"]
    else:
        os.environ["UNSTRIDE_CACHE_DIR"] = before


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty code cache nobody has used: no counters, no doubts, nothing in memory."""
    path = tmp_path / "fresh"
    monkeypatch.setenv("UNSTRIDE_CACHE_DIR", str(path))
    monkeypatch.setattr(cache, "_state", cache._State())
    kept = dict(cache.memory)
    cache.memory.clear()
    yield path
    cache.memory.clear()
    cache.memory.update(kept)


@pytest.fixture
def child(cache_directory: Path) -> Child:
    """Run a program in another interpreter and return what it prints; it must end well, and in time."""

    def run(program: str, timeout: float = 60.0, **environment: str) -> str:
        paths = os.pathsep.join((str(_SOURCES), str(_HERE)))
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    return run
