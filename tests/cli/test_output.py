"""Plain text everywhere, rich on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from unstride.cli.output import Column, progress, sizes, table

ROOT = Path(__file__).parents[2]


def test_a_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    table([Column("name"), Column("ms", number=True)], [["a", "1.5"], ["longer", "10.25"]])
    assert capsys.readouterr().out == "name       ms\n------  -----\na         1.5\nlonger  10.25\n"


def test_sizes() -> None:
    assert sizes((1, None, 3)) == "1x?x3"


def test_progress_is_silent_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(iter([1, 2, 3]), 3, "counting")) == [1, 2, 3]
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("with_rich", [True, False])
def test_on_a_terminal(with_rich: bool, tmp_path: Path) -> None:
    """A real terminal: colours with rich, plain text without it."""
    if with_rich:
        pytest.importorskip("rich")
    else:
        (tmp_path / "rich").mkdir()
        (tmp_path / "rich" / "__init__.py").write_text("raise ImportError('not here')")
    leader, follower = pty.openpty()
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "TERM": "xterm-256color", "COLUMNS": "160"}
    environment.pop("NO_COLOR", None)
    arguments = ["explain", "scatter f32 NCX GIOX n1 g1 i1 o1 x5 k3 s2 d1 b1 y10"]
    command = [sys.executable, "-m", "unstride.cli", *arguments]
    child = subprocess.Popen(command, stdout=follower, stderr=follower, env=environment, close_fds=True)
    os.close(follower)
    seen = b""
    try:
        while piece := os.read(leader, 1 << 16):
            seen += piece
    except OSError:  # the other side of a terminal that was closed
        pass
    os.close(leader)
    assert child.wait(60) == 0
    assert "conv_transpose1d" in seen.decode()
    assert (b"\x1b[" in seen) == with_rich
