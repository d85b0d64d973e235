"""`accelerate`: the transposed convolutions of a torch model run here until told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from unstride.bridges import _torch_ops as ops
from unstride.bridges._family import window_size
from unstride.bridges._torch_packed import Slot, packed_scatter

__all__ = ["Accelerated", "accelerate"]

_STOCK = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_PLAIN = (Tensor, nn.Parameter)


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
            module.forward = partial(_forward, module, Slot())
            self.names.append(name)
            self._swapped.append(module)

    def undo(self) -> None:
        """Give every module its own forward back and drop the packed weights; safe to call twice."""
        for module in self._swapped:
            vars(module).pop("forward", None)
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


def _forward(module: Any, slot: Slot, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
    """Stands in for the forward of nn.ConvTransposeNd."""
    weight, bias = module.weight, module.bias
    if input.device.type != "cpu" or weight.device.type != "cpu" or input.dtype not in ops.DTYPES:
        stock: Tensor = type(module).forward(module, input, output_size)
        return stock
    output_padding = module.output_padding
    if output_size is not None:
        window = (module.stride, module.padding, module.kernel_size, len(module.kernel_size), module.dilation)
        output_padding = module._output_padding(input, list(output_size), *window)
    run = _packed_run(slot, input, weight, bias)
    if run is None:
        from unstride.bridges.torch import conv_transpose

        attributes = (module.stride, module.padding, output_padding, module.groups, module.dilation)
        return conv_transpose(input, weight, bias, *attributes)
    shape = (input.shape[2:], weight.shape[2:], module.stride, module.padding, output_padding, module.dilation)
    return run(input, weight, bias, module.stride, module.dilation, module.padding, window_size(*shape), module.groups)


def _packed_run(slot: Slot, input: Tensor, weight: Tensor, bias: Tensor | None) -> Callable[..., Tensor] | None:
    """How to run with packed weights; None where gradients, transforms, modes or types need the full operator."""
    given = [tensor for tensor in (input, weight, bias) if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return None
    if input.dim() != weight.dim() or input.dtype != weight.dtype or torch.is_autocast_enabled("cpu"):
        return None
    if torch.compiler.is_compiling():
        number = slot.number
        return None if torch.compiler.is_exporting() else lambda *call: packed_scatter(*call, number)
    watched = torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None
    if watched or torch.jit.is_tracing() or torch.autograd.forward_ad._current_level >= 0:
        return None
    return slot.run if all(type(tensor) in _PLAIN for tensor in given) else None
