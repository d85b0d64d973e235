"""torch.library operators: scatter, gather and filters, with fake kernels, batching rules and derivatives of any order.

Arguments of all three: the two tensors, then the window in `Problem`'s words. The filter is torch's
`[C, M/groups, K...]`. A tensor that lies in memory with its channels last runs as NXC and gives such a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unstride.bridges import _family
from unstride.bridges._torch_threads import thread_count, torch_team
from unstride.errors import DTypeError, ShapeError
from unstride.problem import Problem
from unstride.runtime import buffers, pool

__all__ = [
    "DTYPES",
    "array_of",
    "channels_last",
    "empty",
    "fake_scatter",
    "filters",
    "gather",
    "layout_of",
    "scatter",
]

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}

_WINDOW = "int[] stride, int[] dilation, int[] begin, SymInt[] size, int groups"
_SCHEMAS = {
    "scatter": f"(Tensor x, Tensor w, Tensor? bias, {_WINDOW}) -> Tensor",
    "gather": f"(Tensor y, Tensor w, {_WINDOW}) -> Tensor",
    "filters": f"(Tensor x, Tensor y, {_WINDOW}) -> Tensor",
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"unstride::{_name}", _schema, tags=torch.Tag.pt2_compliant_tag)

scatter = torch.ops.unstride.scatter.default
gather = torch.ops.unstride.gather.default
filters = torch.ops.unstride.filters.default


# --- memory ----------------------------------------------------------------------------------------------------------


def channels_last(tensor: Tensor) -> bool:
    """Whether the channels lie last in memory, and not also where NCX has them.

    >>> channels_last(torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last))
    True
    """
    return not tensor.is_contiguous() and tensor.movedim(1, -1).is_contiguous()


def layout_of(data: Tensor, filter: Tensor) -> str:
    """The layout to run in: the data's; the filter's where the data has no preference, as with 1x1 maps in torch."""
    if channels_last(data):
        return "NXC"
    undecided = data.is_contiguous() and data.movedim(1, -1).is_contiguous()
    return "NXC" if undecided and channels_last(filter) else "NCX"


def empty(like: Tensor, layout: str, batch: Any, channels: Any, spatial: Sequence[Any]) -> Tensor:
    """A new tensor `[batch, channels, spatial...]` whose memory has this layout."""
    if layout == "NCX":
        return like.new_empty((batch, channels, *spatial))
    return like.new_empty((batch, *spatial, channels)).movedim(-1, 1)


def array_of(tensor: Tensor, layout: str = "NCX") -> Any:
    """A NumPy view of the tensor's memory, channels moved last for NXC."""
    if layout == "NXC":
        tensor = tensor.movedim(1, -1)
    tensor = tensor.detach().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(buffers.numpy_dtype("bf16"))
    return tensor.numpy()


# --- kernels ---------------------------------------------------------------------------------------------------------


def _problem(small: Tensor, x: Any, y: Any, filter_shape: Any, window: Sequence[Any], layout: str) -> Problem:
    stride, dilation, begin, _, groups = window
    dtype = DTYPES.get(small.dtype)
    if dtype is None:
        fix = "convert it to float32"
        raise DTypeError("x", small.dtype, "must be float32, float16, bfloat16 or float64", fix)
    head = (dtype, layout, small.shape[0], groups, tuple(filter_shape))
    return _family.family_problem(*head, tuple(x), tuple(y), tuple(stride), tuple(dilation), tuple(begin))


def _launch(kind: str, problem: Problem, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    layout = problem.data_layout
    second_layout = layout if kind == "filters" else "NCX"
    out_layout = "NCX" if kind == "filters" else layout
    arrays = array_of(first, layout), array_of(second, second_layout), None if bias is None else array_of(bias)
    with pool.borrowed(torch_team()):
        _family.compute(kind, problem, *arrays, array_of(out, out_layout), thread_count())
    return out


def _scatter(x: Tensor, w: Tensor, bias: Tensor | None, *window: Any) -> Tensor:
    _same_dtype(x=x, w=w, bias=bias)
    out = fake_scatter(x, w, bias, *window)
    problem = _problem(x, x.shape[2:], window[3], w.shape, window, layout_of(x, w))
    return _launch("scatter", problem, x, w, bias, out)


def _gather(y: Tensor, w: Tensor, *window: Any) -> Tensor:
    _same_dtype(y=y, w=w)
    out = _fake_gather(y, w, *window)
    problem = _problem(y, window[3], y.shape[2:], w.shape, window, layout_of(y, w))
    return _launch("gather", problem, y, w, None, out)


def _filters(x: Tensor, y: Tensor, *window: Any) -> Tensor:
    _same_dtype(x=x, y=y)
    out = _fake_filters(x, y, *window)
    layout = "NXC" if channels_last(x) and channels_last(y) else "NCX"
    problem = _problem(x, x.shape[2:], y.shape[2:], out.shape, window, layout)
    return _launch("filters", problem, x, y, None, out)


def _same_dtype(**tensors: Tensor | None) -> None:
    kinds = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    if len(set(kinds.values())) > 1:
        raise DTypeError(" and ".join(kinds), tuple(kinds.values()), "must have one type", "convert one of them")


def fake_scatter(x: Tensor, w: Tensor, bias: Tensor | None, *window: Any) -> Tensor:
    size, groups = window[3:]
    _check_channels("x", x, w.shape[0], w)
    channels = groups * w.shape[1]
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != channels):
        raise ShapeError(
            "bias", tuple(bias.shape), f"needs one value for each of the {channels} channels of the result"
        )
    return empty(x, layout_of(x, w), x.shape[0], channels, size)


def _fake_gather(y: Tensor, w: Tensor, *window: Any) -> Tensor:
    size, groups = window[3:]
    _check_channels("y", y, groups * w.shape[1], w)
    return empty(y, layout_of(y, w), y.shape[0], w.shape[0], size)


def _fake_filters(x: Tensor, y: Tensor, *window: Any) -> Tensor:
    size, groups = window[3:]
    return x.new_empty((x.shape[1], y.shape[1] // groups, *size))


def _check_channels(name: str, data: Tensor, channels: Any, w: Tensor) -> None:
    if data.dim() != w.dim():
        raise ShapeError(name, tuple(data.shape), f"needs rank {w.dim()} for the filter {tuple(w.shape)}")
    if data.shape[1] != channels:
        raise ShapeError(name, tuple(data.shape), f"the filter {tuple(w.shape)} needs {channels} channels")


for _name, _kernel, _fake in (
    ("scatter", _scatter, fake_scatter),
    ("gather", _gather, _fake_gather),
    ("filters", _filters, _fake_filters),
):
    torch.library.impl(f"unstride::{_name}", "cpu", _kernel)
    torch.library.register_fake(f"unstride::{_name}", _fake)


# --- derivatives -----------------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, stride, dilation, begin, _, groups = inputs
    ctx.save_for_backward(*tensors[:2])
    ctx.window = (stride, dilation, begin)
    ctx.groups = groups


def _scatter_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, w = ctx.saved_tensors
    wants_x, wants_w, wants_bias, *_ = ctx.needs_input_grad
    dx = gather(dy, w, *ctx.window, x.shape[2:], ctx.groups) if wants_x else None
    dw = filters(x, dy, *ctx.window, w.shape[2:], ctx.groups) if wants_w else None
    db = dy.sum([0, *range(2, dy.dim())]) if wants_bias else None
    return dx, dw, db, *(None,) * 5


def _gather_backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
    y, w = ctx.saved_tensors
    wants_y, wants_w, *_ = ctx.needs_input_grad
    dy = scatter(dx, w, None, *ctx.window, y.shape[2:], ctx.groups) if wants_y else None
    dw = filters(dx, y, *ctx.window, w.shape[2:], ctx.groups) if wants_w else None
    return dy, dw, *(None,) * 5


def _filters_backward(ctx: Any, dw: Tensor) -> tuple[Any, ...]:
    x, y = ctx.saved_tensors
    wants_x, wants_y, *_ = ctx.needs_input_grad
    dx = gather(y, dw, *ctx.window, x.shape[2:], ctx.groups) if wants_x else None
    dy = scatter(x, dw, None, *ctx.window, y.shape[2:], ctx.groups) if wants_y else None
    return dx, dy, *(None,) * 5


torch.library.register_autograd("unstride::scatter", _scatter_backward, setup_context=_keep)
torch.library.register_autograd("unstride::gather", _gather_backward, setup_context=_keep)
torch.library.register_autograd("unstride::filters", _filters_backward, setup_context=_keep)


# --- batching --------------------------------------------------------------------------------------------------------


def _more_groups(size: int, tensor: Tensor, batch_axis: int | None, channel_axis: int) -> Tensor:
    """A batch of tensors as one with `size` times the channels; a tensor without the batch axis is repeated."""
    whole = tensor.expand(size, *tensor.shape) if batch_axis is None else tensor.movedim(batch_axis, 0)
    return whole.movedim(0, channel_axis).flatten(channel_axis, channel_axis + 1)


def _vmap(op: Any, info: Any, in_dims: tuple[Any, ...], first: Tensor, second: Tensor, *rest: Any) -> Any:
    """More images where one filter serves all; otherwise more groups, for a group is a convolution of its own."""
    *extra, stride, dilation, begin, size, groups = rest
    window, count = (stride, dilation, begin, size), info.batch_size
    bias_axis = in_dims[2] if extra and extra[0] is not None else None
    if op is not filters and in_dims[1] is None and bias_axis is None:
        images = first.movedim(in_dims[0], 0).flatten(0, 1)
        return op(images, second, *extra, *window, groups).unflatten(0, (count, -1)), 0
    channels = 1 if op is filters else 0
    first = _more_groups(count, first, in_dims[0], 1)
    second = _more_groups(count, second, in_dims[1], channels)
    extra = [value if value is None else _more_groups(count, value, bias_axis, 0) for value in extra]
    result = op(first, second, *extra, *window, groups * count)
    axis = 0 if op is filters else 1
    return result.unflatten(axis, (count, -1)), axis


for _op in (scatter, gather, filters):
    torch.library.register_vmap(_op, partial(_vmap, _op))
