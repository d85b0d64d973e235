"""Every example of the bridges' pages runs as it stands, and so does the Zarr example, made small."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "jax", "dask")]


@pytest.mark.parametrize("name", [*PAGES, "onnx"])
def test_the_examples_of_a_page(name):
    text = (ROOT / "docs" / "bridges" / f"{name}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), names)


@pytest.mark.parametrize("name", [*PAGES, "onnx"])
def test_docstrings(name):
    import doctest
    from importlib import import_module

    files = {"torch": ["torch", "_torch_ops", "_torch_modules"], "jax": ["jax"]}.get(name, [name])
    for file in [*files, "_family"]:
        result = doctest.testmod(import_module(f"unstride.bridges.{file}"), raise_on_error=True)
        assert result.attempted


@pytest.mark.dask
def test_the_zarr_example(tmp_path):
    pytest.importorskip("zarr", reason="examples/upsample_zarr.py was NOT run: zarr is not installed")
    program = [sys.executable, str(ROOT / "examples" / "upsample_zarr.py")]
    options = ["--size", "60", "--chunk", "25", "--output", str(tmp_path / "big.zarr"), "--scaling", "1", "2"]
    done = subprocess.run([*program, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal bit by bit") == 2
