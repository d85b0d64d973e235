"""A real browser for the tests of the page.

UNSTRIDE_CHROMIUM names the browser's program; without it, `chromium` and its usual other names are looked for. Where
there is none, the tests say that they were NOT RUN; with UNSTRIDE_REQUIRE_BROWSER=1 (continuous integration) that is a
failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def _not_run(reason: str) -> NoReturn:
    words = f"THE PAGE WAS NOT TESTED IN A BROWSER: {reason}"
    if os.environ.get("UNSTRIDE_REQUIRE_BROWSER") == "1":
        pytest.fail(words)
    pytest.skip(words)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium with a fresh profile."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _not_run("the package playwright is not installed")
    program = os.environ.get("UNSTRIDE_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        _not_run("there is no chromium; install one, or name it in UNSTRIDE_CHROMIUM")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=_FLAGS)
        yield chromium
        chromium.close()
