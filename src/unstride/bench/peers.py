"""One adapter for each peer: prepare a layer once, weights constant, and hand back a call that takes nothing.

Every peer gets the same thread count and its own best settings: torch in inference mode, OpenVINO compiled for latency
with one stream and a reused request, onnxruntime with buffers bound once, JAX under jit. What a peer cannot express is
refused with the reason, never approximated; where it computes a larger result that is cropped (a view), the note says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unstride.bench.case import Case
from unstride.problem import Problem

__all__ = ["DEFAULT_PEERS", "PEERS", "Contender", "Prepared", "Unsupported", "crops", "installed"]


class Unsupported(Exception):
    """This contender cannot express or run the case; the message is the reason."""


@dataclass(frozen=True)
class Prepared:
    """`call` computes the layer once; `result` computes it and returns the array in the problem's layout."""

    call: Callable[[], object]
    result: Callable[[], NDArray[Any]]
    note: str = ""


class Contender(Protocol):
    """Anything that can be timed beside the others."""

    name: str
    layouts: tuple[str, ...]

    def prepare(self, case: Case) -> Prepared:
        """Everything that is paid once. Raises `Unsupported` with a reason."""
        ...


def crops(problem: Problem) -> list[tuple[int, int]]:
    """Per axis, how much of the full extent the window cuts at the beginning and the end; negative: it adds zeros."""
    return [(b, full - b - y) for full, b, y in zip(problem.full, problem.begin, problem.y, strict=True)]


def split_crops(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """pads_begin, pads_end and output_padding of OpenVINO and ONNX."""
    cut = crops(problem)
    if any(begin < 0 for begin, _ in cut):
        raise Unsupported("zeros before the first output")
    return [b for b, _ in cut], [max(e, 0) for _, e in cut], [max(-e, 0) for _, e in cut]


def gather_pads(problem: Problem) -> tuple[list[int], list[int]]:
    """pads_begin and pads_end of the strided convolution that is the gather direction.

    A negative end of less than a stride is what rounding down drops anyway.
    """
    cut = crops(problem)
    if any(begin < 0 or end <= -s for (begin, end), s in zip(cut, problem.stride, strict=True)):
        raise Unsupported("a window that leaves data unread")
    return [b for b, _ in cut], [max(e, 0) for _, e in cut]


class TorchNCX:
    """torch, plain contiguous tensors."""

    name = "torch"
    layouts: tuple[str, ...] = ("NCX",)

    def prepare(self, case: Case) -> Prepared:
        import torch

        torch.set_num_threads(case.threads)
        if case.problem.rank > 3:
            raise Unsupported("more than three spatial axes")
        x, w = self._tensors(case)
        compute, note = self._operator(case.problem, len(x.shape) - 2)

        def call() -> Any:
            with torch.inference_mode():
                return compute(x, w)

        return Prepared(call, lambda: self._result(case, call()), note)

    def _tensors(self, case: Case) -> tuple[Any, Any]:
        return to_torch(case.data), to_torch(case.dense_weights)

    def _result(self, case: Case, y: Any) -> NDArray[Any]:
        return from_torch(y)

    def _operator(self, problem: Problem, rank: int) -> tuple[Callable[[Any, Any], Any], str]:
        import torch.nn.functional as functional

        plan = _torch_scatter(problem) if problem.direction == "scatter" else _torch_gather(problem)
        name = f"conv_transpose{rank}d" if problem.direction == "scatter" else f"conv{rank}d"
        operator = getattr(functional, name)
        keywords = {key: _lift(value, rank, key) for key, value in plan.keywords.items()}
        keywords["groups"] = problem.groups
        where = (slice(None), slice(None)) + (slice(None),) * (rank - problem.rank) + plan.window
        if not plan.cropped:
            return (lambda x, w: operator(x, w, **keywords)), ""
        return (lambda x, w: operator(x, w, **keywords)[where]), "torch computes a larger extent, then crops (a view)"


class TorchNXC(TorchNCX):
    """torch, channels_last memory; 1D runs as 2D of height one, the only channels-last form torch has."""

    name = "torch"
    layouts = ("NXC",)

    def _tensors(self, case: Case) -> tuple[Any, Any]:
        import torch

        rank = case.problem.rank
        x, w = to_torch(case.data).movedim(-1, 1), to_torch(case.dense_weights)
        if rank == 1:
            x, w = x.unsqueeze(2), w.unsqueeze(2)
        memory_format = torch.channels_last_3d if rank == 3 else torch.channels_last
        return x.contiguous(memory_format=memory_format), w.contiguous(memory_format=memory_format)

    def _result(self, case: Case, y: Any) -> NDArray[Any]:
        y = y.squeeze(2) if case.problem.rank == 1 else y
        return from_torch(y.movedim(1, -1))


@dataclass(frozen=True)
class _TorchPlan:
    """torch pads both ends alike, so a lopsided window becomes a larger symmetric one and a crop."""

    keywords: dict[str, list[int]]
    window: tuple[slice, ...]
    cropped: bool


def _torch_scatter(problem: Problem) -> _TorchPlan:
    padding, extra, window, cropped = [], [], [], False
    for (begin, end), s, d, y in zip(crops(problem), problem.stride, problem.dilation, problem.y, strict=True):
        if begin < 0:
            raise Unsupported("zeros before the first output")
        add = begin - end
        pad = begin
        if add >= max(s, d):
            pad, add = max(end, 0), max(-end, 0)
        if add >= max(s, d):
            raise Unsupported("output_padding of a whole stride or more")
        padding.append(pad)
        extra.append(max(add, 0))
        window.append(slice(begin - pad, begin - pad + y))
        cropped |= pad != begin or add < 0
    lists = {"stride": list(problem.stride), "dilation": list(problem.dilation)}
    return _TorchPlan({**lists, "padding": padding, "output_padding": extra}, tuple(window), cropped)


def _torch_gather(problem: Problem) -> _TorchPlan:
    begins, ends = gather_pads(problem)
    padding, window, cropped = [], [], False
    for begin, end, s, x, y, ke in zip(begins, ends, problem.stride, problem.x, problem.y, problem.extent, strict=True):
        skip = max(0, -((begin - end) // s))
        pad = begin + skip * s
        padding.append(pad)
        window.append(slice(skip, skip + x))
        cropped |= (y + 2 * pad - ke) // s + 1 != x
    lists = {"stride": list(problem.stride), "dilation": list(problem.dilation)}
    return _TorchPlan({**lists, "padding": padding}, tuple(window), cropped)


def _lift(values: list[int], rank: int, key: str) -> list[int]:
    """A 1D attribute for the 2D operator: the added axis has size one and does nothing."""
    neutral = 1 if key in ("stride", "dilation") else 0
    return [neutral] * (rank - len(values)) + values


def to_torch(array: NDArray[Any]) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> NDArray[Any]:
    import torch

    wide = tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor
    values: NDArray[Any] = wide.numpy()
    return values


class OpenVINO:
    """A one-operator model compiled for the CPU plugin with static shapes."""

    name = "openvino"
    layouts = ("NCX",)
    _core: Any = None

    def prepare(self, case: Case) -> Prepared:
        import openvino

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
        try:
            session = onnxruntime.InferenceSession(self._model(case), options, providers=["CPUExecutionProvider"])
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
        lists = {"strides": p.stride, "dilations": p.dilation, "group": p.groups, "kernel_shape": p.kernel}
        if p.direction == "scatter":
            begin, end, extra = split_crops(p)
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
    """`lax.conv_general_dilated` under jit, weights closed over as constants. Slow enough on some layers to need a probe."""

    name = "jax"
    layouts = ("NCX", "NXC")

    def prepare(self, case: Case) -> Prepared:
        import jax

        if case.problem.dtype == "f64" and not jax.config.jax_enable_x64:
            jax.config.update("jax_enable_x64", True)
        compute = jax.jit(self._operator(case))
        x = jax.device_put(case.data)

        def call() -> Any:
            return compute(x).block_until_ready()

        return Prepared(call, lambda: np.asarray(call()))

    def _operator(self, case: Case) -> Callable[[Any], Any]:
        from jax import lax

        p = case.problem
        letters = "DHW"[-p.rank :] if p.rank <= 3 else "".join(chr(ord("a") + axis) for axis in range(p.rank))
        data_spec = f"NC{letters}" if p.data_layout == "NCX" else f"N{letters}C"
        numbers = (data_spec, f"OI{letters}", data_spec)
        common = {"dimension_numbers": numbers, "rhs_dilation": p.dilation, "feature_group_count": p.groups}
        if p.direction == "gather":
            begin, end = gather_pads(p)
            pads = list(zip(begin, end, strict=True))
            weights = case.dense_weights
            return lambda x: lax.conv_general_dilated(x, weights, p.stride, pads, **common)
        # scatter as a convolution of the stride-spread data with the flipped filter
        pads = [(ke - 1 - b, ke - 1 - e) for ke, (b, e) in zip(p.extent, crops(p), strict=True)]
        spatial = tuple(range(3, 3 + p.rank))
        turned = np.flip(np.swapaxes(case.weights, 1, 2), spatial).reshape(p.groups * p.co, p.ci, *p.kernel)
        flipped = np.ascontiguousarray(turned)
        ones = (1,) * p.rank
        return lambda x: lax.conv_general_dilated(x, flipped, ones, pads, lhs_dilation=p.stride, **common)


PEERS: dict[str, tuple[Contender, ...]] = {
    "torch": (TorchNCX(), TorchNXC()),
    "openvino": (OpenVINO(),),
    "onnxruntime": (OnnxRuntime(),),
    "jax": (Jax(),),
}
DEFAULT_PEERS = ("torch", "openvino", "onnxruntime")
_MODULES = {"torch": ("torch",), "openvino": ("openvino",), "onnxruntime": ("onnxruntime", "onnx"), "jax": ("jax",)}


def installed(names: tuple[str, ...] = DEFAULT_PEERS) -> tuple[str, ...]:
    """Those of the named peers that can be imported, in the given order."""
    return tuple(name for name in names if all(importlib.util.find_spec(module) for module in _MODULES[name]))
