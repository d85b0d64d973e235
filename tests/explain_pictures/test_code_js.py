"""The code that the page offers for copying is run, and its numbers are compared with the reference."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from unstride.errors import UnstrideError
from unstride.problem import Problem
from unstride.reference import reference

from .calls import Call, ask, random_call, resolution_of
from .test_window_js import ASSETS

_TEXTS = """calls => calls.map(call => Object.fromEntries(Code.texts(call, Unstride.resolve(call))))"""
_COUNTS = {"unstride": 36, "torch": 150, "JAX": 20, "ONNX": 120, "OpenVINO": 40, "Keras": 150}


@pytest.fixture(scope="module")
def page(browser: Any) -> Any:
    page = browser.new_page()
    for name in ("window.js", "code.js"):
        page.add_script_tag(content=(ASSETS / name).read_text())
    yield page
    page.close()


def _windows(count: int) -> list[tuple[Call, Problem]]:
    """Calls with an answer that holds at least one element; some are bare windows, negative begins included."""
    rng = random.Random(22)
    found: list[tuple[Call, Problem]] = []
    while len(found) < count:
        call = random_call(rng)
        try:
            problem = resolution_of(call).problem
        except UnstrideError:
            continue
        if problem.rank > 2 or 0 in problem.y:
            continue
        if rng.random() < 0.3:
            call, problem = _as_window(call, problem, rng)
        found.append((call, problem))
    return found


def _as_window(call: Call, problem: Problem, rng: random.Random) -> tuple[Call, Problem]:
    begin = tuple(rng.randint(-2, 3) for _ in problem.begin)
    gather = problem.direction == "gather"
    sizes = problem.x if gather else problem.y
    name = "window.gather" if gather else "window"
    changed = call | {"dialect": name, "begin": list(begin), "output_shape": list(sizes), "auto_pad": "explicit"}
    head = (problem.direction, "f32", "NCX", "GIOX", 1, problem.groups, problem.ci, problem.co)
    axes = (problem.x, problem.kernel, problem.stride, problem.dilation, begin, problem.y)
    return changed, Problem(*head, *axes)


def _arrays(problem: Problem) -> tuple[Any, Any, Any]:
    """Small integers, so that every library's sums are exact: data, filter [G*ci, co, K...], result."""
    rng = np.random.default_rng(23)
    data = rng.integers(-4, 5, (1, *problem.data_shape[1:])).astype(np.float32)
    plain = Problem.parse(_plain(problem))
    weights = rng.integers(-4, 5, plain.filter_shape).astype(np.float32)
    result = reference(plain, data, weights).astype(np.float32)
    return data, weights.reshape(problem.groups * problem.ci, problem.co, *problem.kernel), result


def _plain(problem: Problem) -> str:
    words = str(problem).split()
    return " ".join([words[0], "f32", "NCX", "GIOX", "n1", *words[5:]])


def _run_torch(text: str, names: dict[str, Any]) -> Any:
    import torch

    values = {name: torch.from_numpy(array) for name, array in names.items()}
    exec(text, values)
    return values.get("y", values.get("dx")).numpy()


def _run_plain(text: str, names: dict[str, Any]) -> Any:
    exec(text, names)
    return np.asarray(names.get("y", names.get("dx")))


def _run_onnx(text: str, names: dict[str, Any]) -> Any:
    import onnxruntime as runtime

    values = dict(names)
    exec(text, values)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(values["model"].SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, names)[0]


def _run_keras(text: str, names: dict[str, Any]) -> Any:
    weights = names.pop("w")
    data = next(iter(names))
    values = {data: np.moveaxis(names[data], 1, -1)}
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if "= layer(" in line)
    exec("\n".join(lines[:at]), values)
    values["layer"].build(values[data].shape)
    values["layer"].set_weights([np.moveaxis(weights, (0, 1), (-1, -2))])
    exec("\n".join(lines[at:]), values)
    result = values.get("dx", values.get("y"))
    return np.moveaxis(np.asarray(result), -1, 1)


_MODULES = {"torch": "torch", "JAX": "jax", "ONNX": "onnxruntime", "OpenVINO": "openvino", "Keras": "keras"}
_RUNNERS = {"torch": _run_torch, "ONNX": _run_onnx, "Keras": _run_keras}


def _refused_by_engine(library: str, call: Call, problem: Problem) -> bool:
    """What onnxruntime refuses although the document allows it: output_padding from the stride on, and sizes alike."""
    if library != "ONNX" or call["dialect"] != "onnx":
        return False
    sizes = zip(problem.y, problem.full, call["strides"], call["output_padding"], strict=True)
    return any(op >= s or y >= full + s for y, full, s, op in sizes)


@pytest.mark.parametrize("library", list(_COUNTS))
@pytest.mark.filterwarnings("ignore")
def test_copied_code_computes_the_picture(page: Any, library: str) -> None:
    if library in _MODULES:
        pytest.importorskip(_MODULES[library], reason=f"the code for {library} was NOT RUN: it is not installed")
    cases = _windows(_COUNTS[library])
    ran = 0
    for (call, problem), texts in zip(cases, ask(page, _TEXTS, [call for call, _ in cases]), strict=True):
        text = texts[library]
        if all(line.startswith("#") for line in text.splitlines()) or _refused_by_engine(library, call, problem):
            continue
        data, weights, expected = _arrays(problem)
        names = {"x" if problem.direction == "scatter" else "dy": data, "w": weights}
        found = _RUNNERS.get(library, _run_plain)(text, names)
        assert np.array_equal(found, expected), f"{problem}\n{call}\n{text}"
        ran += 1
    assert ran >= _COUNTS[library] // 8


def test_every_call_has_a_text_for_every_library(page: Any) -> None:
    calls = [call for call, _ in _windows(50)]
    for texts in ask(page, _TEXTS, calls):
        assert list(texts) == ["unstride", "OpenVINO", "oneDNN", "ONNX", "torch", "Keras", "JAX"]
        assert all(texts.values())
        assert "undefined" not in "".join(texts.values())
        assert "NaN" not in "".join(texts.values())
