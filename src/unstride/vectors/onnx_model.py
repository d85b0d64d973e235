"""A call of ONNX ConvTranspose as a model of one node, the way the ONNX backend tests write theirs."""

from __future__ import annotations

from typing import Any

from unstride.dialects import Operator
from unstride.dialects.onnx import ConvTranspose
from unstride.problem import Problem

__all__ = ["onnx_model"]

_OPSET = 11
_IR_VERSION = 8
_LISTS = ("strides", "pads", "dilations", "output_padding", "output_shape", "kernel_shape")
_ELEMENT = {"f32": 1, "f16": 10, "f64": 11, "bf16": 16}


def onnx_model(operator: Operator, problem: Problem, filter_shape: tuple[int, ...], with_bias: bool) -> Any:
    """A ModelProto whose inputs are x, w and perhaps b, and whose output is y; attributes left out stay left out."""
    from onnx import helper

    assert isinstance(operator, ConvTranspose), "only ONNX's operator has ONNX's attributes"
    element = _ELEMENT[problem.dtype]
    attributes: dict[str, Any] = {
        name: list(getattr(operator, name)) for name in _LISTS if getattr(operator, name) is not None
    }
    names = ["x", "w", "b"][: 3 if with_bias else 2]
    node = helper.make_node(
        "ConvTranspose", names, ["y"], "case", auto_pad=operator.auto_pad, group=operator.group, **attributes
    )
    shapes = {"x": problem.data_shape, "w": filter_shape, "b": (problem.groups * problem.co,)}
    inputs = [helper.make_tensor_value_info(name, element, shapes[name]) for name in names]
    output = helper.make_tensor_value_info("y", element, problem.result_shape)
    graph = helper.make_graph([node], "case", inputs, [output])
    opset = 22 if problem.dtype == "bf16" else _OPSET
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION)
