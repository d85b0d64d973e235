"""ONNX ConvTranspose.

>>> ConvTranspose(strides=[2, 2], auto_pad="SAME_UPPER").infer_shape((1, 8, 5, 5), (8, 4, 3, 3))
(1, 4, 10, 10)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unstride.dialects import _attributes as read
from unstride.dialects._named import named_attributes
from unstride.dialects._operator import Attributes, Operator, RuleTable
from unstride.dialects._rules import Axis, Rule
from unstride.errors import AttributeValueError, ShapeError

__all__ = ["RULES", "ConvTranspose"]

_AUTO_PADS = {"": "NOTSET"} | {name.lower(): name for name in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}


def _explicit(a: Axis) -> tuple[int, int]:
    return a.pad_begin, a.full - a.pad_begin - a.pad_end + a.output_padding


def _valid(a: Axis) -> tuple[int, int]:
    return 0, a.full + a.output_padding


def _crop_to(a: Axis, size: int) -> int:
    """The total padding that leaves `size`; there is no negative padding."""
    return max(0, a.full + a.output_padding - size)


def _same_upper(a: Axis) -> tuple[int, int]:
    total = _crop_to(a, a.size * a.stride)
    return total // 2, a.full + a.output_padding - total


def _same_lower(a: Axis) -> tuple[int, int]:
    total = _crop_to(a, a.size * a.stride)
    return total - total // 2, a.full + a.output_padding - total


def _sized_upper(a: Axis) -> tuple[int, int]:
    assert a.wanted is not None
    return _crop_to(a, a.wanted) // 2, a.wanted


def _sized_other(a: Axis) -> tuple[int, int]:
    assert a.wanted is not None
    total = _crop_to(a, a.wanted)
    return total - total // 2, a.wanted


_DOCUMENT = "ONNX ConvTranspose-11"
_SIZED, _SAME = "t = max(0, full + op - Y)", "t = max(0, full + op - X*s); Y = full + op - t"
_LOWER, _UPPER = "begin = t - t // 2", "begin = t // 2"

_NOTSET = Rule("onnx.notset", _DOCUMENT, "no output_shape, NOTSET", "begin = pb; Y = full - pb - pe + op", _explicit)
_VALID = Rule("onnx.valid", _DOCUMENT, "no output_shape, VALID", "begin = 0; Y = full + op", _valid)
_SAME_UPPER = Rule("onnx.same_upper", _DOCUMENT, "no output_shape, SAME_UPPER", f"{_SAME}; {_UPPER}", _same_upper)
_SAME_LOWER = Rule("onnx.same_lower", _DOCUMENT, "no output_shape, SAME_LOWER", f"{_SAME}; {_LOWER}", _same_lower)
_SIZED_UPPER = Rule(
    "onnx.sized.same_upper", _DOCUMENT, "output_shape given, SAME_UPPER", f"{_SIZED}; {_UPPER}", _sized_upper
)
_SIZED_OTHER = Rule(
    "onnx.sized",
    _DOCUMENT,
    "output_shape given, any other auto_pad (pads ignored)",
    f"{_SIZED}; {_LOWER}",
    _sized_other,
)

RULES = (_NOTSET, _VALID, _SAME_UPPER, _SAME_LOWER, _SIZED_UPPER, _SIZED_OTHER)

_TABLE: RuleTable = {
    ("spec", "NOTSET", False): _NOTSET,
    ("spec", "VALID", False): _VALID,
    ("spec", "SAME_UPPER", False): _SAME_UPPER,
    ("spec", "SAME_LOWER", False): _SAME_LOWER,
    ("spec", "NOTSET", True): _SIZED_OTHER,
    ("spec", "VALID", True): _SIZED_OTHER,
    ("spec", "SAME_UPPER", True): _SIZED_UPPER,
    ("spec", "SAME_LOWER", True): _SIZED_OTHER,
}


@named_attributes
@dataclass(frozen=True)
class ConvTranspose(Operator):
    """ONNX ConvTranspose: x `[N, C, X...]`, w `[C, M/group, K...]`, optional b `[M]`.

    `output_shape` holds the spatial sizes; the full shape is read too when batch and channels agree.
    """

    strides: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    group: int = 1
    auto_pad: str | None = "NOTSET"
    output_padding: Sequence[int] | None = None
    output_shape: Sequence[int] | None = None
    kernel_shape: Sequence[int] | None = None

    document = "ONNX ConvTranspose"
    _table = _TABLE
    _data_name = "x"

    def __post_init__(self) -> None:
        values: dict[str, object] = {}
        lower = {"strides": 1, "pads": 0, "dilations": 1, "output_padding": 0, "output_shape": 0, "kernel_shape": 1}
        for name, least in lower.items():
            given = getattr(self, name)
            values[name] = None if given is None else read.integers(name, given, least)
        values["group"] = read.integer("group", self.group, 1)
        values["auto_pad"] = read.choice("auto_pad", self.auto_pad, _AUTO_PADS)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.pads is not None and len(self.pads) % 2:
            raise AttributeValueError("pads", self.pads, "needs all beginnings, then all ends: an even number")
        self._check_lengths()

    def _check_lengths(self) -> None:
        """Attributes that are given must speak of one number of axes."""
        lists = ("strides", "dilations", "output_padding", "kernel_shape")
        lengths = {name: len(getattr(self, name)) for name in lists if getattr(self, name) is not None}
        if self.pads is not None:
            lengths["pads"] = len(self.pads) // 2
        if len(set(lengths.values())) > 1:
            first = next(iter(lengths))
            name = next(name for name in lengths if lengths[name] != lengths[first])
            rule = f"speaks of {lengths[name]} spatial axes, {first} of {lengths[first]}"
            raise AttributeValueError(name, getattr(self, name), rule)

    def __call__(self, x: Any, w: Any, b: Any = None, *, out: Any = None) -> Any:
        """Run on arrays; `b` has one value per output channel."""
        return self._run(x, w, b, None, out)

    def attributes(self, rank: int) -> Attributes:
        half = 0 if self.pads is None else len(self.pads) // 2
        begin, end = (None, None) if self.pads is None else (self.pads[:half], self.pads[half:])
        found = Attributes.per_axis(
            rank,
            self.auto_pad,
            strides=self.strides,
            pads_begin=begin,
            pads_end=end,
            dilations=self.dilations,
            output_padding=self.output_padding,
        )
        check_output_padding(found)
        return found

    def _read_filter(self, shape: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...], str]:
        channels, co, *kernel = shape
        if channels % self.group:
            raise ShapeError("group", self.group, f"must divide the {channels} input channels of the filter {shape}")
        if self.kernel_shape is not None and tuple(self.kernel_shape) != tuple(kernel):
            fix = "leave kernel_shape out"
            raise ShapeError("kernel_shape", self.kernel_shape, f"differs from the filter's {tuple(kernel)}", fix)
        return self.group, channels // self.group, co, tuple(kernel), "GIOX"

    def _wanted(self, given: tuple[int, ...] | None, batch: int, channels: int, rank: int) -> tuple[int, ...] | None:
        self._refuse_output_shape(given)
        if self.output_shape is None:
            return None
        sizes = tuple(self.output_shape)
        if len(sizes) == rank + 2 and sizes[:2] == (batch, channels):
            return sizes[2:]
        if len(sizes) != rank:
            fix = f"pass {rank} sizes"
            raise ShapeError("output_shape", sizes, f"holds the {rank} spatial sizes of the result", fix)
        return sizes


def check_output_padding(attributes: Attributes) -> None:
    """ONNX and torch allow less output_padding than the larger of stride and dilation."""
    columns = zip(attributes.output_padding, attributes.strides, attributes.dilations, strict=True)
    for axis, (padding, stride, dilation) in enumerate(columns):
        if padding >= max(stride, dilation):
            rule = f"must be below max(stride, dilation) = {max(stride, dilation)} on spatial axis {axis}"
            raise AttributeValueError("output_padding", attributes.output_padding, rule)
