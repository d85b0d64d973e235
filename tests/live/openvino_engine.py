"""OpenVINO, through IR text: its Python helper for groups drops the pads when an output_shape is given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from unstride.cases import Call

VERSION = ov.__version__.split("-")[0]


def unfit(call: Call) -> str:
    """The defect of the engine that this call would meet; empty where it meets none."""
    if type(call.operator).__name__ == "GroupConvolutionBackpropData" and call.filter_shape[0] == 1:
        return "one group does not compile"
    if len(call.data_shape) > 5:
        return "more than three spatial axes"
    problem = call.resolve().problem
    if set(problem.kernel + problem.stride) == {1} and problem.y == problem.x and any(problem.begin):
        return "a 1x1 kernel whose begin is dropped"
    return ""


def run(call: Call, data: npt.NDArray[Any], filter: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The engine's result."""
    sizes = None if call.output_shape is None else np.array(call.output_shape, np.int64)
    blob = filter.tobytes() + (b"" if sizes is None else sizes.tobytes())
    model = _core().read_model(_document(call, filter.nbytes).encode(), ov.Tensor(np.frombuffer(blob, np.uint8)))
    compiled = _core().compile_model(model, "CPU")
    result: npt.NDArray[Any] = compiled([data])[0].copy()
    return result


@cache
def _core() -> Any:
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
    return core


def _document(call: Call, filter_bytes: int) -> str:
    op: Any = call.operator
    attributes = {
        name: getattr(op, name) for name in ("strides", "pads_begin", "pads_end", "dilations", "output_padding")
    }
    text = "".join(f' {name}="{",".join(map(str, values))}"' for name, values in attributes.items())
    sized = call.output_shape is not None
    rank = len(call.data_shape)
    ports = _port(0, call.data_shape) + _port(1, call.filter_shape)
    edges = _edge(0, 0, 3, 0) + _edge(1, 0, 3, 1) + _edge(3, 3, 4, 0)
    third = ""
    if sized:
        third = _constant(2, "output_shape", "i64", (rank - 2,), filter_bytes, 8 * (rank - 2))
        ports += _port(2, (rank - 2,), "I64")
        edges += _edge(2, 0, 3, 2)
    parameter = (
        f'<layer id="0" name="x" type="Parameter" version="opset1"><data shape="{_list(call.data_shape)}" '
        f'element_type="f32"/><output>{_port(0, call.data_shape)}</output></layer>'
    )
    layer = (
        f'<layer id="3" name="y" type="{type(op).__name__}" version="opset1"><data{text} auto_pad="{op.auto_pad}"/>'
        f"<input>{ports}</input><output>{_port(3, [-1] * rank)}</output></layer>"
    )
    result = f'<layer id="4" name="r" type="Result" version="opset1"><input>{_port(0, [-1] * rank)}</input></layer>'
    weights = _constant(1, "w", "f32", call.filter_shape, 0, filter_bytes)
    layers = parameter + weights + third + layer + result
    return f'<?xml version="1.0"?><net name="case" version="11"><layers>{layers}</layers><edges>{edges}</edges></net>'


def _constant(layer: int, name: str, kind: str, shape: Sequence[int], offset: int, size: int) -> str:
    data = f'<data element_type="{kind}" shape="{_list(shape)}" offset="{offset}" size="{size}"/>'
    output = _port(0, shape, "FP32" if kind == "f32" else "I64")
    return f'<layer id="{layer}" name="{name}" type="Const" version="opset1">{data}<output>{output}</output></layer>'


def _port(number: int, shape: Sequence[int], precision: str = "FP32") -> str:
    return f'<port id="{number}" precision="{precision}">' + "".join(f"<dim>{n}</dim>" for n in shape) + "</port>"


def _edge(source: int, source_port: int, target: int, target_port: int) -> str:
    return f'<edge from-layer="{source}" from-port="{source_port}" to-layer="{target}" to-port="{target_port}"/>'


def _list(values: Sequence[int]) -> str:
    return ",".join(map(str, values))
