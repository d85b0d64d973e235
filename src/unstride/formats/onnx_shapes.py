"""Sizes that an ONNX file leaves out, inferred by the onnx package in a child process.

The inference is C++ that has crashed on malformed models before; a child with a time limit can do that harmlessly. A
model whose sizes cannot be inferred is no error: its sizes stay unknown.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from unstride.formats.layer import OptionalShape
from unstride.formats.onnx_tensors import value_shape

__all__ = ["inferred_shapes"]

_TIME_LIMIT_S = 30
_SMALL_BYTES = 1024
_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import onnx
model = onnx.ModelProto()
model.ParseFromString(sys.stdin.buffer.read())
known = onnx.shape_inference.infer_shapes(model).graph
slim = onnx.GraphProto(value_info=[*known.input, *known.value_info, *known.output])
sys.stdout.buffer.write(slim.SerializeToString())
"""


def inferred_shapes(model: Any) -> dict[str, OptionalShape]:
    """Name to sizes for every tensor of the main graph that inference reaches; empty if it fails."""
    import onnx

    try:
        # -P: a file named onnx.py in the working directory must not be imported.
        command = [sys.executable, "-P", "-c", _CHILD]
        reply = subprocess.run(
            command, input=_without_data(model), capture_output=True, timeout=_TIME_LIMIT_S, check=True
        )
        graph = onnx.GraphProto()
        graph.ParseFromString(reply.stdout)
    except Exception:
        return {}
    return {info.name: value_shape(info) for info in graph.value_info}


def _without_data(model: Any) -> bytes:
    """The model with its large tensors emptied: inference needs their sizes only."""
    import onnx

    slim = onnx.ModelProto()
    slim.CopyFrom(model)
    tensors = [*slim.graph.initializer]
    tensors += [
        a.t for node in slim.graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t")
    ]
    for tensor in tensors:
        if tensor.ByteSize() > _SMALL_BYTES:
            for field in ("raw_data", "float_data", "double_data", "int32_data", "int64_data"):
                tensor.ClearField(field)
    return bytes(slim.SerializeToString())
