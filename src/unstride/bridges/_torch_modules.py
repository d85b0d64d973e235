"""`accelerate`: the transposed convolutions of a torch model run here until told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unstride.bridges import _torch_ops as ops
from unstride.bridges._family import family_problem, window_size
from unstride.problem import Problem
from unstride.runtime import pool
from unstride.runtime.execute import Layer

__all__ = ["Accelerated", "accelerate"]

_STOCK = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_PLAIN = (Tensor, nn.Parameter)
_SAMPLES = 64


class Accelerated:
    """What `accelerate` has done to a model, and the way back; also a context manager.

    `names` are the modules that run here, `skipped` says why others do not.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names: list[str] = []
        self.skipped: dict[str, str] = {}
        self._swapped: list[nn.Module] = []
        for name, module in model.named_modules():
            if isinstance(module, _STOCK):
                self._swap(name, module)

    def _swap(self, name: str, module: nn.Module) -> None:
        if "forward" in vars(module):
            self.skipped[name] = "its forward was replaced already"
        elif type(module).forward not in [stock.forward for stock in _STOCK]:
            self.skipped[name] = f"its class {type(module).__name__} has a forward of its own"
        else:
            # On the instance, not the class: parametrizations, hooks, copies and pickles of the module keep working.
            module.forward = partial(_forward, module)
            self.names.append(name)
            self._swapped.append(module)

    def undo(self) -> None:
        """Give every module its own forward back and drop the packed weights; safe to call twice."""
        for module in self._swapped:
            vars(module).pop("forward", None)
            _packed.pop(module, None)
        self._swapped.clear()

    def __enter__(self) -> Accelerated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = f"{len(self._swapped)} transposed convolutions" if self._swapped else "undone"
        return f"<Accelerated {type(self.model).__name__}: {state}, {len(self.skipped)} skipped>"


def accelerate(model: nn.Module) -> Accelerated:
    """Run every `nn.ConvTranspose1d/2d/3d` of `model` here, in place; parameters and state_dict stay as they are.

    Without gradients the weights are packed once, and again when they change. Inputs this package does not compute (on
    another device, complex) still go to torch. The returned handle undoes it all:

    >>> model = nn.Sequential(nn.ConvTranspose1d(1, 1, 2, stride=2), nn.Tanh())
    >>> handle = accelerate(model)
    >>> handle.names
    ['0']
    >>> handle.undo()
    """
    return Accelerated(model)


def _forward(module: Any, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
    """Stands in for the forward of nn.ConvTransposeNd."""
    weight, bias = module.weight, module.bias
    if input.device.type != "cpu" or weight.device.type != "cpu" or input.dtype not in ops.DTYPES:
        stock: Tensor = type(module).forward(module, input, output_size)
        return stock
    output_padding = module.output_padding
    if output_size is not None:
        window = (module.stride, module.padding, module.kernel_size, len(module.kernel_size), module.dilation)
        output_padding = module._output_padding(input, list(output_size), *window)
    if input.dim() == weight.dim() and input.dtype is weight.dtype and _unobserved(input, weight, bias):
        return _run_packed(module, input, weight, bias, output_padding)
    from unstride.bridges.torch import conv_transpose

    attributes = (module.stride, module.padding, output_padding, module.groups, module.dilation)
    return conv_transpose(input, weight, bias, *attributes)


def _unobserved(*tensors: Tensor | None) -> bool:
    """Whether nothing but the numbers matters: no gradient, no tracer, no transform, no mode, no autocast."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or torch.jit.is_tracing():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch.autograd.forward_ad._current_level >= 0:
        return False
    recording = torch.is_grad_enabled()
    given = [tensor for tensor in tensors if tensor is not None]
    return all(type(tensor) in _PLAIN and not (recording and tensor.requires_grad) for tensor in given)


# --- packed weights --------------------------------------------------------------------------------------------------


class _Packed:
    """A layer for one state of one module's parameters."""

    def __init__(self, module: Any, weight: Tensor, bias: Tensor | None, layout: str) -> None:
        self.layout = layout
        self._states = [_State(tensor) for tensor in (weight, bias) if tensor is not None]
        self._window = (tuple(module.stride), tuple(module.dilation), tuple(module.padding))
        self._head = (ops.DTYPES[weight.dtype], layout)
        self._filter_shape, self._groups = tuple(weight.shape), module.groups
        spatial = (1,) * (weight.dim() - 2)
        structure = self._problem((1, *spatial), spatial).structure
        weights = ops.array_of(weight).reshape(structure.filter_shape)
        self.layer = Layer(structure, self._resolve, weights, None if bias is None else ops.array_of(bias).copy())

    def fits(self, weight: Tensor, bias: Tensor | None, layout: str) -> bool:
        tensors = [tensor for tensor in (weight, bias) if tensor is not None]
        return (
            layout == self.layout
            and len(tensors) == len(self._states)
            and all(state.unchanged(tensor) for state, tensor in zip(self._states, tensors, strict=True))
        )

    def _resolve(self, shape: tuple[int, ...], size: tuple[int, ...]) -> tuple[Problem, None]:
        spatial = shape[1:-1] if self.layout == "NXC" else shape[2:]
        return self._problem((shape[0], *spatial), size), None

    def _problem(self, x: tuple[int, ...], y: tuple[int, ...]) -> Problem:
        return family_problem(*self._head, x[0], self._groups, self._filter_shape, x[1:], tuple(y), *self._window)


class _State:
    """What tells whether a parameter still holds the values it held.

    torch counts its own writes (`_version`), but not those through `.data` or a NumPy view: so a sample of the values
    is compared as well. The sample is a view, which keeps the memory from being given to another tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.address = tensor.data_ptr()
        self.version = _version(tensor)
        dense = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis)))
        values = ops.array_of(dense).reshape(-1) if dense.is_contiguous() else None
        self.sample = None if values is None else values[:: max(1, values.size // _SAMPLES)]
        self.bytes = b"" if self.sample is None else self.sample.tobytes()

    def unchanged(self, tensor: Tensor) -> bool:
        if self.sample is None or self.version is None:
            return False
        known = tensor.data_ptr() == self.address and _version(tensor) == self.version
        return known and self.sample.tobytes() == self.bytes


def _version(tensor: Tensor) -> int | None:
    """None for a tensor made in inference mode, whose changes torch does not count."""
    return None if tensor.is_inference() else int(tensor._version)


_packed: WeakKeyDictionary[nn.Module, _Packed] = WeakKeyDictionary()


def _run_packed(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None, output_padding: Any) -> Tensor:
    layout = ops.layout_of(x, weight)
    packed = _packed.get(module)
    if packed is None or not packed.fits(weight, bias, layout):
        packed = _packed[module] = _Packed(module, weight, bias, layout)
    window = (module.stride, module.padding, output_padding, module.dilation)
    size = window_size(x.shape[2:], weight.shape[2:], *window)
    y = ops.empty(x, layout, x.shape[0], module.out_channels, size)
    with pool.threads(ops.thread_count()):
        packed.layer(ops.array_of(x, layout), tuple(size), ops.array_of(y, layout))
    return y
