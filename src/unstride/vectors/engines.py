"""Other people's engines, asked for one case each; imported only when asked for.

A model is built and compiled afresh for every case: an engine that keeps state between cases cannot blur the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.cases import Call
from unstride.dialects import Resolution
from unstride.problem import Problem

__all__ = ["ENGINE_DIALECTS", "RUNNERS", "installed_engines"]

# engine -> the dialect whose operators it implements
ENGINE_DIALECTS = {"openvino": "openvino", "onnxruntime": "onnx", "torch": "torch"}

Array = NDArray[Any]


def installed_engines() -> list[str]:
    """The engines that can be imported here."""
    return [name for name in ENGINE_DIALECTS if find_spec(name) is not None]


def run_openvino(call: Call, resolution: Resolution, data: Array, filter: Array, bias: Array | None) -> Array:
    """The case as OpenVINO IR on its CPU device, in full precision."""
    import openvino

    from unstride.formats.ir_writer import IrLayer, openvino_ir

    problem = resolution.problem
    layer = IrLayer("case", call.operator, problem.data_shape, filter, problem.result_shape, call.output_shape)
    text, blob = openvino_ir("case", [layer])
    core = openvino.Core()
    model = core.read_model(text.encode(), openvino.Tensor(np.frombuffer(blob, np.uint8)))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"})
    if problem.dtype != "bf16":
        return np.array(compiled([data])[0])
    # NumPy has no name for bf16 that the engine knows: its bits go in and come out
    request = compiled.create_infer_request()
    request.infer([openvino.Tensor(data.view(np.uint16), list(data.shape), openvino.Type.bf16)])
    return np.array(request.get_output_tensor().data).view(data.dtype).reshape(problem.result_shape)


def run_onnxruntime(call: Call, resolution: Resolution, data: Array, filter: Array, bias: Array | None) -> Array:
    """The case as an ONNX model on the CPU provider, without graph rewriting."""
    import onnxruntime

    from unstride.vectors.onnx_model import onnx_model

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = onnx_model(call.operator, resolution.problem, filter.shape, bias is not None)
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    feeds = {"x": data, "w": filter} | ({} if bias is None else {"b": bias})
    return np.asarray(session.run(None, feeds)[0])


def run_torch(call: Call, resolution: Resolution, data: Array, filter: Array, bias: Array | None) -> Array:
    """torch's conv_transposeNd with the call's own attributes."""
    import torch

    torch.set_num_threads(1)
    given = call.operator.attributes(resolution.problem.rank)
    function = getattr(torch.nn.functional, f"conv_transpose{resolution.problem.rank}d")

    def tensor(array: Array) -> Any:
        if resolution.problem.dtype != "bf16":
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

    result = function(
        tensor(data),
        tensor(filter),
        None if bias is None else tensor(bias),
        stride=given.strides,
        padding=given.pads_begin,
        output_padding=given.output_padding,
        groups=resolution.problem.groups,
        dilation=given.dilations,
    )
    if resolution.problem.dtype != "bf16":
        return np.asarray(result.numpy())
    return np.asarray(result.view(torch.int16).numpy()).view(data.dtype)


def run_ours(problem: Problem, data: Array, filter: Array, accuracy: str = "standard") -> Array:
    """This package's kernels on a bare problem."""
    from unstride.runtime.execute import run

    return np.asarray(run(problem, data, filter.reshape(problem.filter_shape), accuracy=accuracy))


RUNNERS: dict[str, Callable[[Call, Resolution, Array, Array, Array | None], Array]] = {
    "openvino": run_openvino,
    "onnxruntime": run_onnxruntime,
    "torch": run_torch,
}
