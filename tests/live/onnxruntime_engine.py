"""onnxruntime's ConvTranspose."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper

from unstride.cases import Call
from unstride.dialects import onnx

VERSION = onnxruntime.__version__


def unfit(call: Call) -> str:
    """The limit of the engine that this call would meet; empty where it meets none."""
    problem = call.resolve().problem
    padding = call.operator.attributes(problem.rank).output_padding
    if any(op >= s for op, s in zip(padding, problem.stride, strict=True)):
        return "output_padding of a stride or more"
    if any(y > full + s - 1 for y, full, s in zip(problem.y, problem.full, problem.stride, strict=True)):
        return "output past full + stride - 1"
    if 0 in problem.y:
        return "empty result"
    return ""


def run(call: Call, data: npt.NDArray[Any], filter: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The engine's result."""
    op = call.operator
    assert isinstance(op, onnx.ConvTranspose)
    names = ("strides", "pads", "dilations", "group", "auto_pad", "output_padding", "output_shape", "kernel_shape")
    attributes = {name: getattr(op, name) for name in names}
    if op.auto_pad != "NOTSET":
        attributes["pads"] = None  # ONNX forbids both at once
    given = {name: list(v) if isinstance(v, tuple) else v for name, v in attributes.items() if v is not None}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **given)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", data), ("w", filter))]
    graph = helper.make_graph([node], "case", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    result: npt.NDArray[Any] = np.asarray(session.run(None, {"x": data, "w": filter})[0])
    return result
