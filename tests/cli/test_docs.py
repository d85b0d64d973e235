"""The documentation is run: commands in order, in a folder of their own; what they print is compared where shown."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(page: str) -> list[tuple[str, str]]:
    """("python", code) and ("console", one command with what it prints), in the order of the page."""
    found: list[tuple[str, str]] = []
    for kind, body in BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        pieces = re.split(r"^(?=\$ )", body, flags=re.MULTILINE) if kind == "console" else [body]
        found += [(kind, piece) for piece in pieces if piece.strip()]
    return found


def command(line: str) -> str:
    """Run `unstride ...` in this process or `python ...` in another; the answer is its stdout."""
    program, *arguments = shlex.split(line.removeprefix("$ "))
    if program == "python":
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
        return done.stdout
    from unstride.cli import main

    assert program == "unstride"
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        assert main(arguments) == 0, line
    return stream.getvalue()


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines are the same, where `...` stands for any number of lines."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(matches(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and shown[0].rstrip() == printed[0].rstrip() and matches(shown[1:], printed[1:])


@pytest.mark.parametrize("page", ["tutorial.md", "operators.md"])
def test_every_example_on_the_page_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    found = steps(page)
    assert len(found) >= 2
    for kind, text in found:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, page, "exec"), {})
            continue
        line, *shown = text.rstrip("\n").split("\n")
        printed = command(line)
        if shown:
            lines = printed.rstrip("\n").split("\n")
            assert matches(shown, lines), f"{line}\nshown:\n{text}\nprinted:\n{printed}"


def test_the_rules_page_is_what_the_code_says() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from make_operators import page  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    written = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert written == page(), "run python docs/make_operators.py"


def test_the_bundled_example_is_what_its_script_writes(tmp_path: Path) -> None:
    from unstride.examples import example_path, write_example

    path = write_example(tmp_path)
    for suffix in (".xml", ".bin"):
        assert path.with_suffix(suffix).read_bytes() == example_path().with_suffix(suffix).read_bytes()
