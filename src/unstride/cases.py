"""Random legal cases: Problems, and operator calls of every dialect. One seed, one list of cases, on every machine.

The draw is not uniform: it prefers the corners where implementations differ (a kernel smaller than the stride, a
dilation that shares a factor with the stride, a begin below zero, an output past the full extent, an output_padding of
a stride or more, one pixel, one channel). All of it is plain integers.

    >>> import random
    >>> str(random_problem(random.Random(1))).split()[0] in ("scatter", "gather")
    True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

from unstride.dialects import Operator, Resolution, functional, onednn, onnx, openvino
from unstride.errors import UnstrideError
from unstride.problem import DTYPE_BYTES, FILTER_LAYOUTS, Problem

__all__ = ["DIALECTS", "Call", "random_call", "random_problem"]

_GROUPS = (1, 1, 1, 1, 2, 3, 4)
_CHANNELS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
_FEW_CHANNELS = (1, 1, 2, 3, 4, 5)
_SIZES = (1, 2, 3, 4, 5, 6, 7, 9, 12)
_KERNELS = (1, 2, 2, 3, 3, 3, 4, 5, 7)
_STRIDES = (1, 1, 2, 2, 2, 3, 4, 5)
_DILATIONS = (1, 1, 1, 2, 2, 3, 4)
_ATTEMPTS = 10_000


@dataclass(frozen=True)
class Call:
    """One operator with the shapes it is called with; `output_shape` is the input of that name, or None."""

    operator: Operator
    data_shape: tuple[int, ...]
    filter_shape: tuple[int, ...]
    output_shape: tuple[int, ...] | None
    dtype: str

    def resolve(self) -> Resolution:
        return self.operator.resolve(self.data_shape, self.filter_shape, self.output_shape, self.dtype)

    def __str__(self) -> str:
        shapes = f"data {list(self.data_shape)} filter {list(self.filter_shape)}"
        wanted = "" if self.output_shape is None else f" output_shape {list(self.output_shape)}"
        dialect = type(self.operator).__module__.rpartition(".")[2]
        return f"{dialect}.{self.operator!r} {shapes}{wanted} {self.dtype}"


def random_problem(
    rng: Random,
    *,
    directions: Sequence[str] = ("scatter", "gather"),
    dtypes: Sequence[str] = tuple(DTYPE_BYTES),
    data_layouts: Sequence[str] = ("NCX", "NXC"),
    filter_layouts: Sequence[str] = FILTER_LAYOUTS,
    channels: Sequence[int] = _CHANNELS,
    max_rank: int = 3,
    max_elements: int = 20_000,
    max_macs: int = 200_000,
) -> Problem:
    """Any legal Problem within the limits: `begin` and `Y` need not come from any dialect's rule."""
    for _ in range(_ATTEMPTS):
        rank = rng.randint(1, max_rank)
        x, kernel, stride, dilation = (_draw(rng, pool, rank) for pool in (_SIZES, _KERNELS, _STRIDES, _DILATIONS))
        full = [s * (n - 1) + (k - 1) * d + 1 for n, s, k, d in zip(x, stride, kernel, dilation, strict=True)]
        begin = tuple(_begin(rng, size) for size in full)
        y = tuple(_extent(rng, size - b) for size, b in zip(full, begin, strict=True))
        head = (rng.choice(directions), rng.choice(dtypes), rng.choice(data_layouts), rng.choice(filter_layouts))
        batch, groups = rng.choice((1, 1, 1, 2, 3)), rng.choice(_GROUPS)
        small, large = (max(1, rng.choice(channels) // groups) for _ in range(2))
        case = Problem(*head, batch, groups, small, large, x, kernel, stride, dilation, begin, y)
        if _fits(case, max_elements, max_macs):
            return case
    raise RuntimeError("no case fits these limits; allow more elements or macs")


def random_call(
    rng: Random,
    dialect: str,
    rules: str = "spec",
    *,
    dtypes: Sequence[str] = ("f32",),
    max_rank: int = 3,
    max_elements: int = 20_000,
    max_macs: int = 200_000,
) -> Call:
    """A legal call of a random operator of one dialect (see DIALECTS), under one rule set where it has two."""
    for _ in range(_ATTEMPTS):
        axes = _Axes(rng, rng.randint(1, max_rank))
        try:
            call = _DRAWERS[dialect](rng, rules, axes, rng.choice(dtypes))
            case = call.resolve().problem
        except UnstrideError:
            continue  # an illegal combination: pads beyond the result, a size without a gradient
        if _fits(case, max_elements, max_macs):
            return call
    raise RuntimeError("no call fits these limits; allow more elements or macs")


class _Axes:
    """The attributes that every dialect has, drawn for one rank."""

    def __init__(self, rng: Random, rank: int) -> None:
        self.rank = rank
        self.x, self.kernel = _draw(rng, _SIZES, rank), _draw(rng, _KERNELS, rank)
        self.strides, self.dilations = _draw(rng, _STRIDES, rank), _draw(rng, _DILATIONS, rank)
        self.pads_begin, self.pads_end = _pads(rng, rank), _pads(rng, rank)
        self.output_padding = _pads(rng, rank) if rng.random() < 0.4 else (0,) * rank
        self.extent = tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        self.full = tuple(s * (x - 1) + e for s, x, e in zip(self.strides, self.x, self.extent, strict=True))

    def small_output_padding(self, rng: Random) -> tuple[int, ...]:
        """Less than max(stride, dilation), as ONNX and torch require."""
        if rng.random() < 0.5:
            return (0,) * self.rank
        return tuple(rng.randrange(max(s, d)) for s, d in zip(self.strides, self.dilations, strict=True))


def _openvino(rng: Random, rules: str, axes: _Axes, dtype: str) -> Call:
    grouped = axes.rank > 3 or rng.random() < 0.5
    groups = rng.choice(_GROUPS) if grouped else 1
    ci, co = rng.choice(_FEW_CHANNELS), rng.choice(_FEW_CHANNELS)
    kind = openvino.GroupConvolutionBackpropData if grouped else openvino.ConvolutionBackpropData
    auto_pad = rng.choice(("explicit", "valid", "same_upper", "same_lower"))
    operator = kind(
        axes.strides, axes.pads_begin, axes.pads_end, axes.dilations, auto_pad, axes.output_padding, rules=rules
    )
    wanted = tuple(_extent(rng, size) for size in axes.full) if rng.random() < 0.5 else None
    filter_shape = ((groups,) if grouped else ()) + (ci, co, *axes.kernel)
    return Call(operator, (rng.choice((1, 2)), groups * ci, *axes.x), filter_shape, wanted, dtype)


def _onnx(rng: Random, rules: str, axes: _Axes, dtype: str) -> Call:
    group, ci, co = rng.choice(_GROUPS), rng.choice(_FEW_CHANNELS), rng.choice(_FEW_CHANNELS)
    sized = rng.random() < 0.4
    operator = onnx.ConvTranspose(
        strides=axes.strides if rng.random() < 0.9 else None,
        pads=(*axes.pads_begin, *axes.pads_end) if rng.random() < 0.8 else None,
        dilations=axes.dilations if rng.random() < 0.8 else None,
        group=group,
        auto_pad=rng.choice(("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")),
        output_padding=axes.small_output_padding(rng),
        output_shape=tuple(max(1, _extent(rng, size)) for size in axes.full) if sized else None,
        kernel_shape=axes.kernel if rng.random() < 0.5 else None,
    )
    return Call(operator, (rng.choice((1, 2)), group * ci, *axes.x), (group * ci, co, *axes.kernel), None, dtype)


def _torch(rng: Random, rules: str, axes: _Axes, dtype: str) -> Call:
    groups, ci, co = rng.choice(_GROUPS), rng.choice(_FEW_CHANNELS), rng.choice(_FEW_CHANNELS)
    padding, output_padding = axes.pads_begin, axes.small_output_padding(rng)
    operator = functional.ConvTranspose(axes.strides, padding, output_padding, groups, axes.dilations)
    return Call(operator, (rng.choice((1, 2)), groups * ci, *axes.x), (groups * ci, co, *axes.kernel), None, dtype)


def _onednn(rng: Random, rules: str, axes: _Axes, dtype: str) -> Call:
    return rng.choice((_onednn_backprop, _onednn_gradient, _onednn_forward))(rng, rules, axes, dtype)


def _onednn_backprop(rng: Random, rules: str, axes: _Axes, dtype: str) -> Call:
    groups, ci, co = rng.choice(_GROUPS), rng.choice(_FEW_CHANNELS), rng.choice(_FEW_CHANNELS)
    auto_pad = rng.choice((None, "valid", "same_upper", "same_lower"))
    data_format, filter_format = rng.choice(("NXC", "NCX")), rng.choice(("XIO", "OIX"))
    x, y = _convolution_sizes(rng, axes, auto_pad)
    wanted = _shape(data_format, 2, groups * co, y) if rng.random() < 0.5 else y
    as_attribute = rng.random() < 0.5
    operator = onednn.ConvolutionBackpropData(
        axes.strides,
        axes.pads_begin,
        axes.pads_end,
        axes.dilations,
        auto_pad,
        axes.output_padding,
        groups,
        data_format,
        filter_format,
        wanted if as_attribute else None,
        rules=rules,
    )
    channels = (groups * ci, co)
    filter_shape = (*channels, *axes.kernel) if filter_format == "OIX" else (*axes.kernel, *reversed(channels))
    data_shape = _shape(data_format, 2, groups * ci, x)
    return Call(operator, data_shape, filter_shape, None if as_attribute else wanted, dtype)


def _convolution_sizes(rng: Random, axes: _Axes, auto_pad: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(X, Y) of a forward convolution, so that the gradient exists."""
    y = tuple(_extent(rng, size) for size in axes.full)
    if auto_pad in ("same_upper", "same_lower"):
        return tuple(-(-size // s) for size, s in zip(y, axes.strides, strict=True)), y
    pads = [b + e for b, e in zip(axes.pads_begin, axes.pads_end, strict=True)] if auto_pad is None else [0] * axes.rank
    columns = zip(y, pads, axes.extent, axes.strides, strict=True)
    return tuple(max(0, (size + pad - extent) // s + 1) for size, pad, extent, s in columns), y


def _onednn_gradient(rng: Random, rules: str, axes: _Axes, dtype: str) -> Call:
    return _onednn_transpose(rng, rules, axes, dtype, onednn.ConvTransposeBackpropData)


def _onednn_forward(rng: Random, rules: str, axes: _Axes, dtype: str) -> Call:
    return _onednn_transpose(rng, rules, axes, dtype, onednn.ConvTranspose)


def _onednn_transpose(
    rng: Random,
    rules: str,
    axes: _Axes,
    dtype: str,
    kind: type[onednn.ConvTransposeBackpropData] | type[onednn.ConvTranspose],
) -> Call:
    groups, ci, co = rng.choice(_GROUPS), rng.choice(_FEW_CHANNELS), rng.choice(_FEW_CHANNELS)
    auto_pad = rng.choice((None, "valid", "same_upper", "same_lower"))
    data_format, filter_format = rng.choice(("NXC", "NCX")), rng.choice(("XIO", "OIX", "IOX", "XOI"))
    pads = (axes.pads_begin, axes.pads_end)
    operator = kind(
        axes.strides,
        *pads,
        axes.dilations,
        auto_pad,
        axes.output_padding,
        groups,
        data_format,
        filter_format,
        rules=rules,
    )
    sizes = {"I": (groups * ci,), "O": (co,), "X": axes.kernel}
    filter_shape = tuple(size for letter in filter_format for size in sizes[letter])
    forward = kind is onednn.ConvTranspose
    spatial = axes.x if forward else tuple(_extent(rng, size) for size in axes.full)
    return Call(operator, _shape(data_format, 2, groups * (ci if forward else co), spatial), filter_shape, None, dtype)


_DRAWERS: dict[str, Callable[[Random, str, _Axes, str], Call]] = {
    "openvino": _openvino,
    "onednn": _onednn,
    "onnx": _onnx,
    "torch": _torch,
}
DIALECTS = tuple(_DRAWERS)


def _draw(rng: Random, pool: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(rng.choice(pool) for _ in range(rank))


def _pads(rng: Random, rank: int) -> tuple[int, ...]:
    return _draw(rng, (0, 0, 1, 1, 2, 3, 4), rank)


def _begin(rng: Random, full: int) -> int:
    """Mostly inside the full extent, now and then before it or behind it."""
    return rng.choice((0, 0, 1, rng.randint(0, full), rng.randint(-3, 3), rng.randint(-3, full + 2)))


def _extent(rng: Random, natural: int) -> int:
    """A size around the natural one, now and then anything from 0 to well past it."""
    near = natural + rng.randint(-3, 4)
    return max(0, rng.choice((natural, near, near, rng.randint(0, max(natural, 0) + 5))))


def _shape(data_format: str, batch: int, channels: int, spatial: Sequence[int]) -> tuple[int, ...]:
    return (batch, channels, *spatial) if data_format == "NCX" else (batch, *spatial, channels)


def _fits(case: Problem, max_elements: int, max_macs: int) -> bool:
    largest = max(prod(shape) for shape in (case.data_shape, case.filter_shape, case.result_shape))
    return largest <= max_elements and case.macs <= max_macs
