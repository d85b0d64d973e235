"""One adapter for each peer: prepare a layer once, weights constant, and hand back a call that takes nothing.

Every peer gets the same thread count and its own best settings: torch in inference mode, OpenVINO compiled for latency
with one stream and a reused request, onnxruntime with buffers bound once, JAX under jit. What a peer cannot express is
refused with the reason, never approximated; where it computes more and crops (a view), the note says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.bench.case import Case
from unstride.bench.contender import Contender, Prepared, Unsupported, crops, gather_pads, split_crops
from unstride.bench.torch_peer import TorchFrozen, TorchNCX, TorchNXC
from unstride.runtime.machine import usable_cores

__all__ = ["DEFAULT_PEERS", "PEERS", "installed"]


class OpenVINO:
    """A one-operator model compiled for the CPU plugin with static shapes."""

    name = "openvino"
    layouts = ("NCX",)
    _core: Any = None

    def prepare(self, case: Case) -> Prepared:
        if case.problem.dtype == "f64":
            raise Unsupported("computes f64 in f32")
        if case.problem.rank > 3:
            raise Unsupported("more than three spatial axes")
        request = self._compile(case).create_infer_request()
        y = np.empty(case.problem.result_shape, case.data.dtype)
        tensors = (self._tensor(case.data), self._tensor(y))
        request.set_input_tensor(tensors[0])
        request.set_output_tensor(tensors[1])

        def result() -> NDArray[Any]:
            request.infer(None, share_inputs=True, share_outputs=True)
            return y.copy()

        return Prepared(lambda: request.infer(None, share_inputs=True, share_outputs=True), result)

    def _compile(self, case: Case) -> Any:
        import openvino

        if OpenVINO._core is None:
            OpenVINO._core = openvino.Core()
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": case.threads,
        }
        if case.problem.dtype == "f32":
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        return OpenVINO._core.compile_model(self._model(case), "CPU", settings)

    def _model(self, case: Case) -> Any:
        import openvino
        from openvino import opset1

        p = case.problem
        element = getattr(openvino.Type, p.dtype)
        data = opset1.parameter(list(p.data_shape), element)
        # the CPU plugin never compiles a grouped operator with one group
        weights = case.weights if p.groups > 1 else case.weights[0]
        filters = openvino.op.Constant(self._tensor(np.ascontiguousarray(weights)))
        lists = {"strides": list(p.stride), "dilations": list(p.dilation)}
        if p.direction == "scatter":
            begin, end, extra = split_crops(p)
            build = opset1.group_convolution_backprop_data if p.groups > 1 else opset1.convolution_backprop_data
            node = build(data, filters, pads_begin=begin, pads_end=end, output_padding=extra, **lists)
        else:
            begin, end = gather_pads(p)
            build = opset1.group_convolution if p.groups > 1 else opset1.convolution
            node = build(data, filters, pads_begin=begin, pads_end=end, **lists)
        return openvino.Model([node], [data], "layer")

    def _tensor(self, array: NDArray[Any]) -> Any:
        import openvino

        if array.dtype.name == "bfloat16":
            return openvino.Tensor(array.view(np.uint16), array.shape, openvino.Type.bf16)
        return openvino.Tensor(array, shared_memory=True)


class OnnxRuntime:
    """A one-node session on the CPU provider with inputs and outputs bound once."""

    name = "onnxruntime"
    layouts = ("NCX",)

    def prepare(self, case: Case) -> Prepared:
        import onnxruntime

        if case.problem.dtype == "bf16":
            raise Unsupported("no bf16 on the CPU")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = case.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        model = self._model(case)
        try:
            session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise Unsupported(str(error).splitlines()[0]) from None
        x = onnxruntime.OrtValue.ortvalue_from_numpy(case.data)
        y = onnxruntime.OrtValue.ortvalue_from_shape_and_type(case.problem.result_shape, case.data.dtype, "cpu", 0)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", y)

        def result() -> NDArray[Any]:
            session.run_with_iobinding(binding)
            values: NDArray[Any] = y.numpy().copy()
            return values

        return Prepared(lambda: session.run_with_iobinding(binding), result)

    def _model(self, case: Case) -> bytes:
        from onnx import TensorProto, helper, numpy_helper

        p = case.problem
        lists: dict[str, Any] = {
            "strides": p.stride,
            "dilations": p.dilation,
            "group": p.groups,
            "kernel_shape": p.kernel,
        }
        if p.direction == "scatter":
            begin, end, extra = split_crops(p)
            if any(add >= s for add, s in zip(extra, p.stride, strict=True)):
                raise Unsupported("output_padding of a whole stride or more")
            node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], pads=begin + end, output_padding=extra, **lists)
        else:
            begin, end = gather_pads(p)
            node = helper.make_node("Conv", ["x", "w"], ["y"], pads=begin + end, **lists)
        element = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "f64": TensorProto.DOUBLE}[p.dtype]
        graph = helper.make_graph(
            [node],
            "layer",
            [helper.make_tensor_value_info("x", element, p.data_shape)],
            [helper.make_tensor_value_info("y", element, p.result_shape)],
            [numpy_helper.from_array(case.dense_weights, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        text: bytes = model.SerializeToString()
        return text


class Jax:
    """`lax.conv_general_dilated` under jit, weights closed over as constants."""

    name = "jax"
    layouts = ("NCX", "NXC")

    def prepare(self, case: Case) -> Prepared:
        import jax

        if case.problem.dtype == "f64":
            raise Unsupported("f64 only after a setting for the whole process")
        if case.threads != usable_cores():
            raise Unsupported("always takes every core of the process")
        compute = jax.jit(self._operator(case))
        x = jax.device_put(case.data)

        def call() -> Any:
            return compute(x).block_until_ready()

        return Prepared(call, lambda: np.asarray(call()))

    def _operator(self, case: Case) -> Callable[[Any], Any]:
        from jax import lax, numpy

        p = case.problem
        letters = "DHW"[-p.rank :] if p.rank <= 3 else "".join(chr(ord("a") + axis) for axis in range(p.rank))
        data_spec = f"NC{letters}" if p.data_layout == "NCX" else f"N{letters}C"
        numbers = (data_spec, f"OI{letters}", data_spec)
        common: dict[str, Any] = {
            "dimension_numbers": numbers,
            "rhs_dilation": p.dilation,
            "feature_group_count": p.groups,
        }
        if p.direction == "gather":
            begin, end = gather_pads(p)
            pads = list(zip(begin, end, strict=True))
            weights = numpy.asarray(case.dense_weights)
            return lambda x: lax.conv_general_dilated(x, weights, p.stride, pads, **common)
        # scatter as a convolution of the stride-spread data with the flipped filter
        pads = [(ke - 1 - b, ke - 1 - e) for ke, (b, e) in zip(p.extent, crops(p), strict=True)]
        spatial = tuple(range(3, 3 + p.rank))
        turned = np.flip(np.swapaxes(case.weights, 1, 2), spatial).reshape(p.groups * p.co, p.ci, *p.kernel)
        flipped = numpy.asarray(turned)
        ones = (1,) * p.rank
        return lambda x: lax.conv_general_dilated(x, flipped, ones, pads, lhs_dilation=p.stride, **common)


PEERS: dict[str, tuple[Contender, ...]] = {
    "torch": (TorchNCX(), TorchNXC()),
    "torch-frozen": (TorchFrozen(),),
    "openvino": (OpenVINO(),),
    "onnxruntime": (OnnxRuntime(),),
    "jax": (Jax(),),
}
DEFAULT_PEERS = ("torch", "openvino", "onnxruntime")
_MODULES = {
    "torch": ("torch",),
    "torch-frozen": ("torch",),
    "openvino": ("openvino",),
    "onnxruntime": ("onnxruntime", "onnx"),
    "jax": ("jax",),
}


def installed(names: tuple[str, ...] = DEFAULT_PEERS) -> tuple[str, ...]:
    """Those of the named peers that can be imported, in the given order."""
    return tuple(name for name in names if all(importlib.util.find_spec(module) for module in _MODULES[name]))
