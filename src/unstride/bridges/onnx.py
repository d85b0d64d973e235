"""ONNX: ConvTranspose for the reference evaluator, and a backend whose ConvTranspose runs here.

from onnx.reference import ReferenceEvaluator
from unstride.bridges.onnx import Backend, ConvTranspose

ReferenceEvaluator(model, new_ops=[ConvTranspose])       # repairs groups with bias, output_shape, f16, bf16
Backend.prepare(model).run([x])                          # onnx.backend.base; every other operator is ONNX's own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, checker, defs
from onnx.backend import base
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from unstride.dialects import onnx as dialect
from unstride.errors import AttributeValueError

__all__ = ["Backend", "ConvTranspose", "PreparedModel"]


class ConvTranspose(OpRun):
    """ConvTranspose for `ReferenceEvaluator(model, new_ops=[ConvTranspose])`, of every opset and float type."""

    op_domain = ""

    def _run(self, x: Any, w: Any, b: Any = None, **attributes: Any) -> tuple[Any]:
        given = {name: value for name, value in attributes.items() if value is not None}
        return (dialect.ConvTranspose(**given)(x, w, b),)


class PreparedModel(base.BackendRep):
    """A model ready to run: `run(inputs)` takes a sequence in the graph's order, one array, or a mapping by name."""

    def __init__(self, model: ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(model, new_ops=[ConvTranspose])

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        return tuple(self._evaluator.run(None, self._named(inputs)))

    def _named(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values: Sequence[Any] = [inputs] if isinstance(inputs, np.ndarray) else inputs
        names = self._evaluator.input_names
        if len(values) > len(names):
            raise AttributeValueError("inputs", len(values), f"the model has {len(names)} inputs: {', '.join(names)}")
        return dict(zip(names, values, strict=False))


class Backend(base.Backend):
    """onnx.backend.base.Backend on the CPU.

    >>> from onnx import helper
    >>> node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2])
    >>> Backend.run_node(node, [np.ones((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32)])
    (array([[[1., 1., 1., 1.]]], dtype=float32),)
    """

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> PreparedModel:
        """Check the model and make it ready to run."""
        cls._check_device(device)
        checker.check_model(model)
        return PreparedModel(model)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **options: Any
    ) -> tuple[Any, ...]:
        """Run one operator on arrays, in the order of its inputs; `opset_version` is an option."""
        cls._check_device(device)
        super().run_node(node, inputs, device, outputs_info, **options)  # checks the node
        names = [name for name in node.input if name]
        version = options.get("opset_version", defs.onnx_opset_version())
        evaluator = ReferenceEvaluator(node, opsets={node.domain: version}, new_ops=[ConvTranspose])
        return tuple(evaluator.run(None, dict(zip(names, inputs, strict=True))))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.upper().split(":")[0] == "CPU"

    @classmethod
    def _check_device(cls, device: str) -> None:
        if not cls.supports_device(device):
            raise AttributeValueError("device", device, "this backend runs on the CPU", "pass device='CPU'")
