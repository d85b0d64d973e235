"""What the shipped engines will make of a case: agree, differ or refuse, and why.

The engine's window comes from the `runtime` rules; with it the engine's numbers are computed and compared, so that a
window that differs without changing a number does not count. Refusals are the engines' known limits, found by running
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unstride.cases import Call
from unstride.dialects import Resolution, onednn, openvino
from unstride.dialects import onnx as onnx_dialect
from unstride.problem import Problem
from unstride.reference import reference

__all__ = ["ENGINES", "Prediction", "engine_limit", "is_pointwise", "predict"]

ENGINES = {"openvino": "OpenVINO CPU", "onnx": "onnxruntime CPU", "onednn": "oneDNN Graph CPU", "torch": "torch CPU"}


@dataclass(frozen=True)
class Prediction:
    """`verdict` is "agrees", "differs" or "refuses"."""

    engine: str
    verdict: str
    why: str


def predict(call: Call, resolution: Resolution, data: Any, filter: Any, bias: Any, expected: Any) -> Prediction:
    """The engine's verdict on one case with these operands."""
    engine = ENGINES[_dialect(call)]
    limit = engine_limit(call, resolution)
    if limit:
        return Prediction(engine, "refuses", limit)
    windows = resolution.windows if resolution.rules == "runtime" or not resolution.other_rules else resolution.other
    if windows is None:
        return Prediction(engine, "refuses", resolution.refusal or "")
    begin, sizes = tuple(w.begin for w in windows), tuple(w.size for w in windows)
    why = f"the engine begins at {list(begin)} with sizes {list(sizes)}: {windows[0].rule.formula}"
    if _dialect(call) == "openvino" and is_pointwise(resolution.problem) and sizes == resolution.problem.x:
        begin, why = (0,) * len(begin), "kernel 1, stride 1 and Y == X: the engine ignores the pads"
    if (begin, sizes) == tuple(zip(*((w.begin, w.size) for w in resolution.windows), strict=True)):
        return Prediction(engine, "agrees", "")
    scatter = resolution.problem.direction == "scatter"
    moved = replace(resolution.problem, begin=begin)
    theirs = replace(moved, y=sizes) if scatter else replace(moved, x=sizes)
    if theirs.result_shape != expected.shape:
        return Prediction(engine, "differs", why)
    same = np.array_equal(reference(theirs, data, filter, bias), expected.astype(np.float64))
    return (
        Prediction(engine, "agrees", "another window, the same numbers") if same else Prediction(engine, "differs", why)
    )


def is_pointwise(problem: Problem) -> bool:
    """Kernel 1 and stride 1 on every axis, for which engines have a path of its own."""
    return set(problem.kernel) == set(problem.stride) == {1}


def _dialect(call: Call) -> str:
    return type(call.operator).__module__.rsplit(".", 1)[-1].replace("functional", "torch")


def engine_limit(call: Call, resolution: Resolution) -> str:
    """The engine's known limit that this case meets, or nothing."""
    operator, p = call.operator, resolution.problem
    if isinstance(operator, openvino.GroupConvolutionBackpropData) and p.groups == 1 < max(p.ci, p.co):
        return "GroupConvolutionBackpropData with one group does not compile"
    if isinstance(operator, onnx_dialect.ConvTranspose):
        return _onnxruntime_limit(operator, p)
    if isinstance(operator, onednn.ConvolutionBackpropData) and p.groups > 1:
        return "ConvolutionBackwardData has no groups"
    if isinstance(operator, onednn.ConvTransposeBackpropData) and max(p.dilation) > 1:
        return "ConvTransposeBackwardData has no dilation"
    return ""


def _onnxruntime_limit(operator: onnx_dialect.ConvTranspose, problem: Problem) -> str:
    if problem.dtype in ("f64", "bf16"):
        return f"ConvTranspose is not implemented for {problem.dtype}"
    given = operator.attributes(problem.rank)
    for padding, stride in zip(given.output_padding or (), problem.stride, strict=False):
        if padding >= stride:
            return "output_padding must be below the stride"
    if operator.output_shape is not None:
        for y, full, stride in zip(problem.y, problem.full, problem.stride, strict=True):
            if y > full + stride - 1:
                return "output_shape may be at most full + stride - 1"
    return ""
