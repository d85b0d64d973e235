"""The package from outside: its names, what importing it costs, the README's example."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import unstride

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unstride"


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


def test_all_is_what_is_public() -> None:
    public = {name for name, value in vars(unstride).items() if not name.startswith("_")}
    helpers = {"annotations", "sys", "import_module", "TYPE_CHECKING", "Any"}
    packages = {name for name in public if isinstance(getattr(unstride, name), ModuleType)}
    dialects = {"onednn", "onnx", "openvino"}
    assert set(unstride.__all__) >= public - helpers - (packages - dialects)
    for name in unstride.__all__:
        assert getattr(unstride, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unstride.nothing


@pytest.mark.parametrize("statement", ["import unstride", "import unstride.openvino, unstride.onednn, unstride.onnx"])
def test_importing_loads_no_arrays_no_llvm_and_no_framework(statement: str) -> None:
    heavy = "('numpy', 'llvmlite', 'ml_dtypes', 'torch', 'onnx', 'openvino', 'onnxruntime', 'jax', 'dask', 'rich')"
    assert run_python(f"{statement}; import sys; print([m for m in {heavy} if m in sys.modules])").strip() == "[]"


def test_shapes_and_windows_need_no_numpy() -> None:
    code = """
import sys
from unstride import openvino
op = openvino.ConvolutionBackpropData([2, 2])
op.infer_shape((1, 2, 5, 5), (2, 3, 3, 3))
op.resolve((1, 2, 5, 5), (2, 3, 3, 3), [12, 12])
print("numpy" in sys.modules)
"""
    assert run_python(code).strip() == "False"


def test_importing_is_cheap() -> None:
    """At most 1.3 times the time of `import numpy`, as the best of several fresh interpreters each."""

    def best(module: str) -> float:
        code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        return min(float(run_python(code)) for _ in range(7))

    assert best("unstride") <= 1.3 * best("numpy")


def test_only_one_file_touches_the_llvm_binding() -> None:
    def touches(path: Path) -> bool:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import) and any(a.name.startswith("llvmlite.binding") for a in node.names):
                return True
            if isinstance(node, ast.ImportFrom) and node.module == "llvmlite":
                if any(a.name == "binding" for a in node.names):
                    return True
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("llvmlite.binding"):
                return True
        return False

    assert [path.name for path in SOURCE.rglob("*.py") if touches(path)] == ["engine.py"]


def test_the_readmes_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for shown in re.findall(r"print\(.*\)  # (\(.*\))", code):
        assert shown in printed
    assert "runtime rules" in printed


def test_the_readmes_links_lead_somewhere() -> None:
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (ROOT / target).exists(), f"{page.name}: {target}"
