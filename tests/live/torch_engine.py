"""torch, in two roles: its own conv_transposeNd, and oneDNN's operators as the gradients they are defined to be.

ConvolutionBackpropData is asked from torch's autograd: the gradient of a convolution with respect to its input.
ConvTransposeBackpropData is that convolution. Pads come from tests.formulas, never from the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tests import formulas
from unstride.cases import Call
from unstride.dialects import functional, onednn

VERSION = torch.__version__

Array = npt.NDArray[Any]
_FORWARD = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def unfit(call: Call) -> str:
    """The limit of torch that this call would meet; empty where it meets none."""
    if len(call.data_shape) > 5:
        return "more than three spatial axes"
    problem = call.resolve().problem
    if 0 in (*problem.x, *problem.y):
        return "empty result"
    return ""


def run(call: Call, data: Array, filter: Array) -> Array:
    """torch's result."""
    op = call.operator
    if isinstance(op, functional.ConvTranspose):
        return _own(op, torch.tensor(data), torch.tensor(filter)).numpy()
    assert isinstance(op, onednn.ConvolutionBackpropData | onednn.ConvTransposeBackpropData | onednn.ConvTranspose)
    x = torch.tensor(data if op.data_format == "NCX" else np.moveaxis(data, -1, 1))
    w = torch.tensor(_small_side_first(op, filter))
    windows = formulas.windows(call)
    assert windows is not None
    begin, sizes = [w[0] for w in windows], [w[1] for w in windows]
    if isinstance(op, onednn.ConvTransposeBackpropData):
        result = _convolution(op, x, w, begin, list(x.shape[2:]), sizes)
    else:
        result = _gradient(op, x, w, begin, sizes)
    array: Array = result.numpy()
    return array if op.data_format == "NCX" else np.moveaxis(array, 1, -1)


def _own(op: functional.ConvTranspose, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    call = _TRANSPOSED[x.dim() - 2]
    return call(x, w, None, op.stride, op.padding, op.output_padding, op.groups, op.dilation)


def _small_side_first(op: Any, filter: Array) -> Array:
    """The filter as torch's convolution wants it: [small-side channels, large-side channels / G, K...]."""
    if isinstance(op, onednn.ConvolutionBackpropData):
        order = {"OIX": "SLX", "XIO": "XLS"}[op.filter_format]
    else:
        order = {"OIX": "LSX", "XIO": "XSL", "IOX": "SLX", "XOI": "XLS"}[op.filter_format]
    if order.startswith("X"):
        filter = np.moveaxis(filter, (-2, -1), (0, 1))
        order = order[1:] + "X"
    return filter if order == "SLX" else np.swapaxes(filter, 0, 1)


def _convolution(
    op: Any, y: torch.Tensor, w: torch.Tensor, begin: list[int], large: list[int], small: list[int]
) -> torch.Tensor:
    """An ordinary convolution that reads y with `begin` zeros before it and gives `small` outputs."""
    pads, crop = [], [slice(None), slice(None)]
    for axis, size in enumerate(large):
        extent = (w.shape[2 + axis] - 1) * op.dilations[axis] + 1
        length = op.strides[axis] * (small[axis] - 1) + extent
        after = length - begin[axis] - size
        pads[:0] = [max(0, begin[axis]), max(0, after)]  # torch lists the last axis first
        crop.append(slice(max(0, -begin[axis]), max(0, -begin[axis]) + length))
    return _FORWARD[len(large)](F.pad(y, pads)[tuple(crop)], w, None, op.strides, 0, op.dilations, op.groups)


def _gradient(op: Any, x: torch.Tensor, w: torch.Tensor, begin: list[int], large: list[int]) -> torch.Tensor:
    """The gradient of that convolution with respect to y, for the gradient x of its result."""
    channels = w.shape[1] * op.groups
    y = torch.zeros(x.shape[0], channels, *large, requires_grad=True)
    _convolution(op, y, w, begin, large, list(x.shape[2:])).backward(x)
    assert y.grad is not None
    return y.grad
