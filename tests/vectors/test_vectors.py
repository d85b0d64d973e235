"""The kit: exact, repeatable, complete, and right about what the engines make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import brute
from unstride import openvino
from unstride.cases import DIALECTS
from unstride.cli import main
from unstride.formats import read
from unstride.formats.arrays import load_npy
from unstride.vectors import make_vectors
from unstride.vectors.engines import ENGINE_DIALECTS, RUNNERS
from unstride.vectors.kit import Vector
from unstride.vectors.probes import PROBES


def same(a: Vector, b: Vector) -> bool:
    arrays = [(a.data, b.data), (a.filter, b.filter), (a.expected, b.expected)]
    return a.call == b.call and all(np.array_equal(*pair) for pair in arrays)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_seed_gives_the_same_vectors(dialect: str) -> None:
    first, again = (make_vectors(dialect, "spec", 8, seed=3) for _ in range(2))
    assert all(map(same, first, again))
    assert not all(map(same, first, make_vectors(dialect, "spec", 8, seed=4)))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_vectors_are_exact(dialect: str, dtype: str) -> None:
    """Against loops that share nothing with the package, in whole numbers."""
    for vector in make_vectors(dialect, "spec", 12, seed=1, dtype=dtype):
        exact = brute_force(vector)
        assert np.array_equal(vector.expected.astype(np.float64), exact), vector.call
        assert np.abs(exact).max(initial=0) < 2**24


def brute_force(vector: Vector) -> Any:
    result = brute.brute_force(vector.problem, vector.data, vector.filter)
    if vector.bias is not None:
        result = result + vector.bias.astype(np.float64).reshape(1, -1, *(1,) * vector.problem.rank)
    return result


@pytest.mark.parametrize(("dialect", "rules"), [("openvino", "spec"), ("openvino", "runtime"), ("onednn", "spec")])
def test_every_probe_of_a_dialect_has_a_case(dialect: str, rules: str) -> None:
    """Only what the rules of a dialect cannot produce may be missing."""
    impossible = {"gradient-rounds-down"} if dialect == "openvino" else set()
    impossible |= {"begin-below-zero"} if rules == "runtime" else set()
    shown = {probe.name for vector in make_vectors(dialect, rules, 66, seed=0) for probe in vector.probes}
    assert shown == {probe.name for probe in PROBES} - impossible


def test_this_package_passes_its_own_kit() -> None:
    for dialect in DIALECTS:
        for rules in ("spec", "runtime"):
            for vector in make_vectors(dialect, rules, 22, seed=2):
                wanted = {} if vector.call.output_shape is None else {"output_shape": vector.call.output_shape}
                layer = vector.call.operator.compile(vector.filter, bias=vector.bias, accuracy="strict")
                assert np.array_equal(quiet(layer, vector.data, **wanted), vector.expected), vector.call


def quiet(layer: Any, data: Any, **arguments: Any) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return layer(data, **arguments)


# -- on disk, in the engines -----------------------------------------------------------------------------------------


def written(folder: Path, *arguments: str) -> dict[str, Any]:
    assert main(["vectors", *arguments, "-o", str(folder)]) == 0
    index: dict[str, Any] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return index


@pytest.mark.parametrize("rules", ["spec", "runtime"])
def test_openvino_does_with_the_files_what_the_index_says(rules: str, tmp_path: Path) -> None:
    ov = pytest.importorskip("openvino")
    index = written(tmp_path, "--dialect", "openvino", "--rules", rules, "--count", "66", "--seed", "11")
    core, verdicts = ov.Core(), {}
    for case in index["cases"]:
        files = case["files"]
        data, expected = load_npy(tmp_path / files["data"]), load_npy(tmp_path / files["expected"])
        try:
            model = core.read_model(tmp_path / files["model"])
            result = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([data])[0]
        except RuntimeError:
            verdicts[case["name"]] = "refuses"
            continue
        agrees = result.shape == expected.shape and np.array_equal(result, expected)
        verdicts[case["name"]] = "agrees" if agrees else "differs"
    assert verdicts == {case["name"]: case["engine"]["verdict"] for case in index["cases"]}
    told = set(verdicts.values())
    assert told >= ({"agrees", "differs", "refuses"} if rules == "spec" else {"agrees", "refuses"})


def test_onnxruntime_does_with_the_files_what_the_index_says(tmp_path: Path) -> None:
    engine, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    index = written(tmp_path, "--dialect", "onnx", "--count", "88", "--seed", "11")
    options = engine.SessionOptions()
    options.log_severity_level = 4

    def tensor(name: str) -> Any:
        return onnx.numpy_helper.to_array(onnx.load_tensor(str(tmp_path / name)))

    verdicts = {}
    for case in index["cases"]:
        files = case["files"]
        feeds = dict(zip("xwb", map(tensor, files["inputs"]), strict=False))
        try:
            session = engine.InferenceSession(str(tmp_path / files["model"]), options, ["CPUExecutionProvider"])
            (result,) = session.run(None, feeds)
        except Exception:
            verdicts[case["name"]] = "refuses"
            continue
        verdicts[case["name"]] = "agrees" if np.array_equal(result, tensor(files["expected"])) else "differs"
    assert verdicts == {case["name"]: case["engine"]["verdict"] for case in index["cases"]}
    assert set(verdicts.values()) == {"agrees", "refuses"}


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torch"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
def test_predictions_hold_for_other_types(engine: str, dtype: str) -> None:
    pytest.importorskip(engine)
    for vector in make_vectors(ENGINE_DIALECTS[engine], "spec", 11, seed=6, dtype=dtype):
        operands = (vector.data, vector.filter, vector.bias)
        try:
            result = RUNNERS[engine](vector.call, vector.resolution, *operands)
        except Exception:
            verdict = "refuses"
        else:
            verdict = "agrees" if np.array_equal(result, vector.expected) else "differs"
        assert verdict == vector.prediction.verdict, vector.call


def test_written_models_pass_the_onnx_checker(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    index = written(tmp_path, "--dialect", "onnx", "--count", "22")
    for case in index["cases"]:
        onnx.checker.check_model(str(tmp_path / case["files"]["model"]), full_check=False)


def test_written_ir_is_read_back_as_the_same_call(tmp_path: Path) -> None:
    index = written(tmp_path, "--dialect", "openvino", "--rules", "spec", "--count", "22", "--seed", "9")
    vectors = make_vectors("openvino", "spec", 22, seed=9)
    for case, vector in zip(index["cases"], vectors, strict=True):
        (layer,) = read(tmp_path / case["files"]["model"], rules="spec")
        assert layer.operator == vector.call.operator
        assert layer.output_shape == vector.call.output_shape
        assert np.array_equal(layer.weights(), vector.filter)


def test_json_can_be_replayed_without_this_package(tmp_path: Path) -> None:
    index = written(tmp_path, "--dialect", "openvino", "--rules", "runtime", "--count", "12", "--format", "json")
    for case in index["cases"]:
        told = json.loads((tmp_path / case["files"]["case"]).read_text(encoding="utf-8"))
        arrays = {name: np.array(item["values"]).reshape(item["shape"]) for name, item in told["arrays"].items()}
        kind = getattr(openvino, told["operator"].split()[-1].removesuffix("-1"))
        operator = kind(**told["attributes"])
        data, weights = (arrays[name].astype(np.float32) for name in ("data", "filter"))
        result = quiet(operator, data, filter=weights, output_shape=told["output_shape"])
        assert np.array_equal(result, arrays["expected"])


def test_the_index_says_what_each_case_probes(tmp_path: Path) -> None:
    index = written(tmp_path, "--count", "44", "--seed", "1")
    listed = {probe["name"]: set(probe["cases"]) for probe in index["probes"]}
    for case in index["cases"]:
        assert case["probes"] == [name for name in listed if case["name"] in listed[name]]
        assert case["problem"]
        assert case["formula"]
        assert case["engine"]["why"] or case["engine"]["verdict"] == "agrees"
