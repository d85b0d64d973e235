"""Transposed convolution for JAX on the CPU: under jit, vmap, and differentiation of both modes and any order.

    from unstride.bridges.jax import conv_transpose

    y = conv_transpose(x, w, bias, stride=2, padding=1)      # x [N, C, X...], w [C, M/groups, K...]

Three JAX primitives, each linear in both operands, whose derivatives are one another; XLA calls the kernels through its
foreign function interface and hands over its buffers without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from unstride.bridges import _xla_ffi
from unstride.bridges._family import family_problem, per_axis, window_size
from unstride.dialects import _attributes as read
from unstride.dialects.functional import ConvTranspose
from unstride.errors import DTypeError, ShapeError
from unstride.problem import DATA_LAYOUTS

__all__ = ["conv_transpose"]

Axes = int | Sequence[int]
Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # stride, dilation, begin
_STATIC = ("window", "size", "groups", "layout")
_TARGET = "unstride_family"
_LAYOUTS = {name.lower(): name for name in DATA_LAYOUTS}


def conv_transpose(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Axes = 1,
    padding: Axes = 0,
    output_padding: Axes = 0,
    groups: int = 1,
    dilation: Axes = 1,
    *,
    layout: str = "NCX",
) -> Any:
    """Transposed convolution by torch's conventions; `layout="NXC"` takes and gives `[N, X..., C]`.

    >>> conv_transpose(jnp.ones((1, 1, 2)), jnp.ones((1, 1, 2)), stride=2)
    Array([[[1., 1., 1., 1.]]], dtype=float32)
    """
    x, w, bias = jnp.asarray(x), jnp.asarray(w), None if bias is None else jnp.asarray(bias)
    layout = read.choice("layout", layout, _LAYOUTS)
    _check(x, w, bias, layout, ConvTranspose(stride, padding, output_padding, groups, dilation))
    rank = w.ndim - 2
    stride, padding = per_axis("stride", stride, rank), per_axis("padding", padding, rank)
    output_padding, dilation = per_axis("output_padding", output_padding, rank), per_axis("dilation", dilation, rank)
    size = window_size(_spatial(x.shape, layout), w.shape[2:], stride, padding, output_padding, dilation)
    params = {"window": (stride, dilation, padding), "size": tuple(size), "groups": groups, "layout": layout}
    operands = (x, w) if bias is None else (x, w, bias)
    return (_scatter if bias is None else _scatter_bias).bind(*operands, **params)


def _check(x: Any, w: Any, bias: Any, layout: str, operator: ConvTranspose) -> None:
    kinds = {array.dtype.name for array in (x, w, bias) if array is not None}
    if len(kinds) > 1:
        raise DTypeError("x, w and bias", sorted(kinds), "must have one type", "convert them")
    shape = x.shape if layout == "NCX" else (*x.shape[:1], *x.shape[-1:], *x.shape[1:-1])
    result = operator.problem(shape, w.shape, dtype=read.dtype(x.dtype)).result_shape
    if bias is not None and bias.shape != (result[1],):
        raise ShapeError("bias", bias.shape, f"needs one value for each of the {result[1]} channels of the result")


def _spatial(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return shape[2:] if layout == "NCX" else shape[1:-1]


def _data_shape(batch: int, channels: int, spatial: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return (batch, channels, *spatial) if layout == "NCX" else (batch, *spatial, channels)


def _channel_axis(layout: str) -> int:
    return 1 if layout == "NCX" else -1


# --- the primitives --------------------------------------------------------------------------------------------------

_scatter, _gather, _filters = Primitive("unstride_scatter"), Primitive("unstride_gather"), Primitive("unstride_filters")
_scatter_bias = Primitive("unstride_scatter_bias")
_KINDS = {_scatter: "scatter", _gather: "gather", _filters: "filters", _scatter_bias: "scatter"}


def _result_shape(prim: Primitive, first: Any, second: Any, params: dict[str, Any]) -> tuple[int, ...]:
    groups, layout, size = params["groups"], params["layout"], params["size"]
    axis = _channel_axis(layout)
    if prim is _filters:
        return (first.shape[axis], second.shape[axis] // groups, *size)
    channels = second.shape[0] if prim is _gather else groups * second.shape[1]
    return _data_shape(first.shape[0], channels, size, layout)


def _abstract(prim: Primitive, first: Any, second: Any, *bias: Any, **params: Any) -> Any:
    return jax.core.ShapedArray(_result_shape(prim, first, second, params), first.dtype)


def _problem(prim: Primitive, first: Any, second: Any, params: dict[str, Any]) -> str:
    """The case of one call as its one-line text, which is how XLA carries it to the handler."""
    layout, size = params["layout"], params["size"]
    spatial = _spatial(first.shape, layout)
    if prim is _filters:
        filter_shape, x, y = _result_shape(prim, first, second, params), spatial, _spatial(second.shape, layout)
    else:
        filter_shape = second.shape
        x, y = (size, spatial) if prim is _gather else (spatial, size)
    head = (read.dtype(first.dtype), layout, first.shape[0], params["groups"], tuple(filter_shape))
    return str(family_problem(*head, tuple(x), tuple(y), *params["window"]))


def _lower(prim: Primitive, context: Any, *operands: Any, **params: Any) -> Any:
    first, second, *_ = context.avals_in
    attributes = {"kind": _KINDS[prim], "problem": _problem(prim, first, second, params)}
    return jax.ffi.ffi_lowering(_TARGET)(context, *operands, **attributes)


# --- derivatives -----------------------------------------------------------------------------------------------------


def _with(prim: Primitive, first: Any, second: Any, size: tuple[int, ...], params: dict[str, Any]) -> Any:
    return prim.bind(first, second, **{**params, "size": tuple(size)})


def _data_size(operand: Any, params: dict[str, Any]) -> tuple[int, ...]:
    return _spatial(operand.aval.shape, params["layout"])


ad.defbilinear(
    _scatter,
    lambda dy, x, w, **params: _with(_gather, dy, w, _data_size(x, params), params),
    lambda dy, x, w, **params: _with(_filters, x, dy, w.aval.shape[2:], params),
)
ad.defbilinear(
    _gather,
    lambda dx, y, w, **params: _with(_scatter, dx, w, _data_size(y, params), params),
    lambda dx, y, w, **params: _with(_filters, dx, y, w.aval.shape[2:], params),
)
ad.defbilinear(
    _filters,
    lambda dw, x, y, **params: _with(_gather, y, dw, _data_size(x, params), params),
    lambda dw, x, y, **params: _with(_scatter, x, dw, _data_size(y, params), params),
)


def _affine_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    """Linear in data, filter and bias each; the bias is fused only where nothing is differentiated."""
    (x, w, _), (dx, dw, db) = primals, tangents
    result = _scatter_bias.bind(*primals, **params)
    terms = []
    if type(dx) is not ad.Zero:
        terms.append(_scatter.bind(dx, w, **params))
    if type(dw) is not ad.Zero:
        terms.append(_scatter.bind(x, dw, **params))
    if type(db) is not ad.Zero:
        terms.append(jnp.broadcast_to(_along_channels(db, result.ndim, params["layout"]), result.shape))
    return result, sum(terms[1:], terms[0])


def _along_channels(bias: Any, rank: int, layout: str) -> Any:
    return bias.reshape(-1, *(1,) * (rank - 2)) if layout == "NCX" else bias


ad.primitive_jvps[_scatter_bias] = _affine_jvp


# --- batching --------------------------------------------------------------------------------------------------------


def _batched(prim: Primitive, operands: tuple[Any, ...], axes: tuple[Any, ...], **params: Any) -> tuple[Any, int]:
    """More images where one filter serves all; otherwise more groups, for a group is a convolution of its own."""
    count = next(operand.shape[axis] for operand, axis in zip(operands, axes, strict=True) if axis is not None)
    if prim is not _filters and all(axis is None for axis in axes[1:]):
        images = jnp.moveaxis(operands[0], axes[0], 0)
        merged = prim.bind(images.reshape(-1, *images.shape[2:]), *operands[1:], **params)
        return merged.reshape(count, -1, *merged.shape[1:]), 0
    channel = _channel_axis(params["layout"])
    where = [channel, channel if prim is _filters else 0, 0]
    rows = zip(operands, axes, where, strict=False)
    joined = [_more_channels(count, operand, axis, at) for operand, axis, at in rows]
    result = prim.bind(*joined, **{**params, "groups": count * params["groups"]})
    at = 0 if prim is _filters else channel % result.ndim
    return result.reshape(*result.shape[:at], count, -1, *result.shape[at + 1 :]), at


def _more_channels(count: int, operand: Any, axis: int | None, channel: int) -> Any:
    """A batch of arrays as one with `count` times the channels; an array without the batch axis is repeated."""
    if axis is None:
        operand, axis = jnp.broadcast_to(operand, (count, *operand.shape)), 0
    at = channel % (operand.ndim - 1)
    moved = jnp.moveaxis(operand, axis, at)
    return moved.reshape(*moved.shape[:at], -1, *moved.shape[at + 2 :])


for _prim in _KINDS:
    _prim.def_impl(jax.jit(_prim.bind, static_argnames=_STATIC))
    _prim.def_abstract_eval(partial(_abstract, _prim))
    mlir.register_lowering(_prim, partial(_lower, _prim), platform="cpu")
    batching.primitive_batchers[_prim] = partial(_batched, _prim)
_xla_ffi.register(_TARGET)
