"""What is not installed is not tested, and the last lines of the run say so; `--require NAME` makes it an error."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from importlib.util import find_spec

import pytest
from hypothesis import settings

OPTIONAL = {
    "torch": "needs torch, an oracle too large for everybody; .ci/run installs torch==2.13.0 and runs these",
    "jax": "needs jax",
    "dask": "needs dask",
}

# A commit is judged by the same examples everywhere; `HYPOTHESIS_PROFILE=search` looks for new ones, and for longer.
settings.register_profile("judge", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "judge"))

_not_run: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require", action="append", default=[], choices=tuple(OPTIONAL), help="fail if it is missing")


def pytest_configure(config: pytest.Config) -> None:
    # Compiled code goes to a directory of this run, shared by its workers: the user's own cache stays as it is.
    if "UNSTRIDE_CACHE_DIR" not in os.environ:
        directory = tempfile.mkdtemp(prefix="unstride-tests-")
        os.environ["UNSTRIDE_CACHE_DIR"] = directory
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    for name, why in OPTIONAL.items():
        config.addinivalue_line("markers", f"{name}: {why}")
    for name in config.getoption("--require"):
        if find_spec(name) is None:
            raise pytest.UsageError(f"--require {name}: {name} is not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = [name for name in OPTIONAL if find_spec(name) is None]
    dropped = [item for item in items if any(item.get_closest_marker(name) for name in missing)]
    for item in dropped:
        _not_run.update(name for name in missing if item.get_closest_marker(name))
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    missing = [name for name in OPTIONAL if find_spec(name) is None]
    for name in missing:
        count = f"{_not_run[name]} tests" if _not_run[name] else "the tests"
        terminalreporter.write_line(f"NOT RUN: {count} marked {name}: {OPTIONAL[name]}", yellow=True, bold=True)
