"""Transposed convolution for torch on the CPU: a function with gradients, and a switch for whole models.

    import torch
    from unstride.bridges.torch import accelerate, conv_transpose

    y = conv_transpose(x, w, bias, stride=2, padding=1)      # like torch.nn.functional.conv_transposeNd
    with accelerate(model):                                  # every nn.ConvTransposeNd inside runs here
        image = model(noise)

Tensors are neither copied in nor out; gradients of every order, `torch.compile`, `inference_mode`, autocast and
`torch.vmap` work; channels_last tensors run as NXC and stay channels_last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from unstride.bridges import _torch_ops as ops
from unstride.bridges._family import per_axis, window_size
from unstride.bridges._torch_modules import Accelerated, accelerate
from unstride.dialects.functional import ConvTranspose
from unstride.errors import DTypeError, ShapeError

__all__ = ["Accelerated", "accelerate", "conv_transpose"]

Axes = int | Sequence[int]


def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Axes = 1,
    padding: Axes = 0,
    output_padding: Axes = 0,
    groups: int = 1,
    dilation: Axes = 1,
) -> Tensor:
    """`torch.nn.functional.conv_transposeNd` for any number of axes: x `[N, C, X...]` or `[C, X...]`.

    >>> conv_transpose(torch.ones(1, 1, 2), torch.ones(1, 1, 2), stride=2)
    tensor([[[1., 1., 1., 1.]]])
    """
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        x, w, bias = x.to(low), w.to(low), None if bias is None else bias.to(low)
    rank = w.dim() - 2
    if x.dim() == rank + 1 and rank >= 1:  # one image without a batch axis
        attributes = (stride, padding, output_padding, groups, dilation)
        return conv_transpose(x.unsqueeze(0), w, bias, *attributes).squeeze(0)
    stride, padding = per_axis("stride", stride, rank), per_axis("padding", padding, rank)
    output_padding, dilation = per_axis("output_padding", output_padding, rank), per_axis("dilation", dilation, rank)
    if not torch.compiler.is_compiling():  # while tracing, sizes may be symbols; the kernel checks them later
        _check_device(x=x, w=w, bias=bias)
        _check_shapes(tuple(x.shape), tuple(w.shape), stride, padding, output_padding, groups, dilation)
    size = window_size(x.shape[2:], w.shape[2:], stride, padding, output_padding, dilation)
    y: Tensor = ops.scatter(x, w, bias, stride, dilation, padding, size, groups)
    return y


def _check_device(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device.type not in ("cpu", "meta"):
            raise DTypeError(
                name, str(tensor.device), "must be on the CPU", f"use {name}.cpu(), or torch's own operator"
            )


@lru_cache(maxsize=4096)
def _check_shapes(
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> None:
    """The errors of the plain operator, before torch wraps them in its own."""
    if len(w) < 3:
        raise ShapeError("w", w, "needs [C, M/groups, K...] with at least one kernel axis")
    ConvTranspose(stride, padding, output_padding, groups, dilation).infer_shape(x, w)
