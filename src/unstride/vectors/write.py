"""Vectors on disk: OpenVINO IR with `.npy` arrays, ONNX backend-test folders, or plain JSON; always with an index.

DIR/index.json                        what every case probes, its problem line, what the engine will make of it
DIR/<case>/model.xml model.bin data.npy expected.npy                                         --format ir
DIR/<case>/model.onnx test_data_set_0/input_*.pb output_0.pb                                 --format onnx
DIR/<case>.json                                                                              --format json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unstride.errors import AttributeValueError, FormatError
from unstride.vectors.kit import Vector
from unstride.vectors.probes import PROBES

__all__ = ["FORMATS", "write_vectors"]

_INDEX = "index.json"


def write_vectors(vectors: Sequence[Vector], folder: str | Path, format: str, **about: Any) -> Path:
    """Write every vector and the index; `about` goes into the index. The answer is the path of the index."""
    folder = Path(folder)
    if format not in FORMATS:
        raise AttributeValueError("format", format, f"must be one of {', '.join(FORMATS)}")
    if format != "json" and any(vector.name.split("-")[0] != _DIALECT[format] for vector in vectors):
        rule = f"holds {_DIALECT[format]} operators only"
        raise AttributeValueError("format", format, rule, "write this dialect with --format json")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [FORMATS[format](vector, folder) for vector in vectors]
        index = {**about, "format": format, "probes": _by_probe(vectors)}
        index["cases"] = [_entry(vector, names) for vector, names in zip(vectors, files, strict=True)]
        path = folder / _INDEX
        path.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise FormatError("output", str(folder), f"cannot be written ({error.strerror})") from None
    return path


def _by_probe(vectors: Sequence[Vector]) -> list[dict[str, Any]]:
    found = []
    for probe in PROBES:
        names = [vector.name for vector in vectors if probe in vector.probes]
        if names:
            found.append({"name": probe.name, "probes": probe.words, "cases": names})
    return found


def _entry(vector: Vector, files: dict[str, Any]) -> dict[str, Any]:
    prediction = vector.prediction
    return {
        "name": vector.name,
        "operator": vector.call.operator.document,
        "call": str(vector.call),
        "problem": str(vector.problem),
        "probes": [probe.name for probe in vector.probes],
        "rules": vector.resolution.rules if vector.resolution.other_rules else None,
        "rule": vector.resolution.windows[0].rule.name,
        "formula": vector.resolution.windows[0].rule.formula,
        "engine": {"name": prediction.engine, "verdict": prediction.verdict, "why": prediction.why},
        "files": files,
    }


def _write_ir(vector: Vector, folder: Path) -> dict[str, Any]:
    from unstride.formats.arrays import save_npy
    from unstride.formats.ir_writer import IrLayer, write_openvino_ir

    home = folder / vector.name
    home.mkdir(exist_ok=True)
    problem, call = vector.problem, vector.call
    shapes = (problem.data_shape, vector.filter, problem.result_shape, call.output_shape)
    write_openvino_ir(home / "model.xml", [IrLayer("case", call.operator, *shapes)])
    save_npy(home / "data.npy", vector.data)
    save_npy(home / "expected.npy", vector.expected)
    names = {"model": "model.xml", "data": "data.npy", "expected": "expected.npy"}
    return {key: f"{vector.name}/{name}" for key, name in names.items()}


def _write_onnx(vector: Vector, folder: Path) -> dict[str, Any]:
    from unstride.vectors.onnx_model import onnx_model

    try:
        from onnx import numpy_helper
    except ImportError:
        fix = 'pip install "unstride[onnx]"'
        raise FormatError("format", "onnx", "ONNX files are written through the onnx package", fix) from None
    home = folder / vector.name
    data_set = home / "test_data_set_0"
    data_set.mkdir(parents=True, exist_ok=True)
    operands = [("x", vector.data), ("w", vector.filter)] + ([] if vector.bias is None else [("b", vector.bias)])
    model: Any = onnx_model(vector.call.operator, vector.problem, vector.filter.shape, vector.bias is not None)
    (home / "model.onnx").write_bytes(model.SerializeToString())
    for index, (name, array) in enumerate(operands):
        (data_set / f"input_{index}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())
    (data_set / "output_0.pb").write_bytes(numpy_helper.from_array(vector.expected, "y").SerializeToString())
    inputs = [f"{vector.name}/test_data_set_0/input_{index}.pb" for index in range(len(operands))]
    expected = f"{vector.name}/test_data_set_0/output_0.pb"
    return {"model": f"{vector.name}/model.onnx", "inputs": inputs, "expected": expected}


def _write_json(vector: Vector, folder: Path) -> dict[str, Any]:
    """Arrays as flat lists of integers in C order: every language can read them and none can round them."""
    operator = vector.call.operator
    attributes = {name: value for name, value in vars(operator).items() if not name.startswith("_")}
    arrays = {"data": vector.data, "filter": vector.filter, "bias": vector.bias, "expected": vector.expected}
    case = {
        "name": vector.name,
        "operator": operator.document,
        "attributes": attributes,
        "output_shape": vector.call.output_shape,
        "dtype": vector.call.dtype,
        "problem": str(vector.problem),
        "arrays": {
            name: {"shape": array.shape, "values": [int(value) for value in array.ravel()]}
            for name, array in arrays.items()
            if array is not None
        },
    }
    name = f"{vector.name}.json"
    (folder / name).write_text(json.dumps(case) + "\n", encoding="utf-8")
    return {"case": name}


FORMATS: dict[str, Callable[[Vector, Path], dict[str, Any]]] = {
    "ir": _write_ir,
    "onnx": _write_onnx,
    "json": _write_json,
}
_DIALECT = {"ir": "openvino", "onnx": "onnx"}
