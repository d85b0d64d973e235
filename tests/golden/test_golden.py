"""Plans and generated IR are what the golden files say; `python -m tests.golden.golden --write` accepts a change."""

from __future__ import annotations

from tests.golden import golden


def test_nothing_changed() -> None:
    found = golden.differences()
    assert not found, "\n".join(f"{path}\n{text}" for path, text in found.items())


def test_names_are_unique() -> None:
    names = [case.name for case in golden.cases()]
    assert len(names) == len(set(names)) >= 36
