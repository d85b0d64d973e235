"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pkgutil import walk_packages

import pytest

import unstride

# needs what is not installed everywhere, or runs when it is imported
_APART = ("unstride.bridges", "unstride.cli.__main__", "unstride.bench.__main__", "unstride.examples.__main__")
MODULES = [m.name for m in walk_packages(unstride.__path__, "unstride.") if not m.name.startswith(_APART)]


@pytest.mark.parametrize("name", ["unstride", *MODULES])
def test_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0
