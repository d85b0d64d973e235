"""OpenVINO ConvolutionBackpropData-1 and GroupConvolutionBackpropData-1.

>>> op = ConvolutionBackpropData(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])
>>> op.infer_shape((1, 20, 224, 224), (20, 10, 3, 3))
(1, 10, 447, 447)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unstride.dialects import _attributes as read
from unstride.dialects._named import named_attributes
from unstride.dialects._operator import Attributes, Operator, RuleTable
from unstride.dialects._rules import Axis, Rule
from unstride.errors import ShapeError

__all__ = ["RULES", "ConvolutionBackpropData", "GroupConvolutionBackpropData"]

_AUTO_PADS = {"": "explicit", "none": "explicit", "notset": "explicit"}
_AUTO_PADS |= {name: name for name in ("explicit", "valid", "same_upper", "same_lower")}
_RULE_SETS = {"spec": "spec", "runtime": "runtime"}


# -- rules: (begin, Y) of one axis; a.wanted is the third input, output_shape ------------------------------------------


def _explicit(a: Axis) -> tuple[int, int]:
    return a.pad_begin, a.full - a.pad_begin - a.pad_end + a.output_padding


def _no_pads(a: Axis) -> tuple[int, int]:
    return 0, a.full + a.output_padding


def _total_padding(a: Axis) -> tuple[int, int]:
    """(total, Y) for a given output_shape."""
    assert a.wanted is not None
    return a.full - a.wanted + a.output_padding, a.wanted


def _odd_one_at_the_end(a: Axis) -> tuple[int, int]:
    total, y = _total_padding(a)
    return total // 2, y


def _odd_one_at_the_beginning(a: Axis) -> tuple[int, int]:
    total, y = _total_padding(a)
    return total - total // 2, y


def _pads_begin_kept(a: Axis) -> tuple[int, int]:
    return a.pad_begin, _total_padding(a)[1]


def _from_the_start(a: Axis) -> tuple[int, int]:
    return 0, _total_padding(a)[1]


def _clamped_lower(a: Axis) -> tuple[int, int]:
    total, y = _total_padding(a)
    return max(total, 0) // 2, y


def _clamped_upper(a: Axis) -> tuple[int, int]:
    total, y = _total_padding(a)
    return max(total, 0) - max(total, 0) // 2, y


_DOCUMENT = "OpenVINO ConvolutionBackpropData-1 and GroupConvolutionBackpropData-1"
_ENGINE = "OpenVINO 2026.4.1, CPU"
_HALVES = "t = full - Y + op; begin = t // 2"
_UPPER = "t = full - Y + op; end = t // 2; begin = t - end"

_EXPLICIT = Rule(
    "openvino.explicit",
    _DOCUMENT,
    "no output_shape, auto_pad explicit",
    "begin = pb; Y = full - pb - pe + op",
    _explicit,
)
_NO_PADS = Rule("openvino.auto", _DOCUMENT, "no output_shape, any other auto_pad", "begin = 0; Y = full + op", _no_pads)
_SPEC_HALVES = Rule(
    "openvino.spec.halves",
    _DOCUMENT,
    "output_shape given, auto_pad not same_upper (pads ignored)",
    _HALVES,
    _odd_one_at_the_end,
)
_SPEC_UPPER = Rule(
    "openvino.spec.same_upper", _DOCUMENT, "output_shape given, auto_pad same_upper", _UPPER, _odd_one_at_the_beginning
)
_RUN_EXPLICIT = Rule(
    "openvino.runtime.explicit",
    _ENGINE,
    "output_shape given, auto_pad explicit (pads_end and output_padding ignored)",
    "begin = pb",
    _pads_begin_kept,
)
_RUN_VALID = Rule("openvino.runtime.valid", _ENGINE, "output_shape given, auto_pad valid", "begin = 0", _from_the_start)
_RUN_LOWER = Rule(
    "openvino.runtime.same_lower",
    _ENGINE,
    "output_shape given, auto_pad same_lower",
    "t = max(0, full - Y + op); begin = t // 2",
    _clamped_lower,
)
_RUN_UPPER = Rule(
    "openvino.runtime.same_upper",
    _ENGINE,
    "output_shape given, auto_pad same_upper",
    "t = max(0, full - Y + op); begin = t - t // 2",
    _clamped_upper,
)

RULES = (_EXPLICIT, _NO_PADS, _SPEC_HALVES, _SPEC_UPPER, _RUN_EXPLICIT, _RUN_VALID, _RUN_LOWER, _RUN_UPPER)

_TABLE: RuleTable = {
    ("spec", "explicit", False): _EXPLICIT,
    ("spec", "valid", False): _NO_PADS,
    ("spec", "same_lower", False): _NO_PADS,
    ("spec", "same_upper", False): _NO_PADS,
    ("spec", "explicit", True): _SPEC_HALVES,
    ("spec", "valid", True): _SPEC_HALVES,
    ("spec", "same_lower", True): _SPEC_HALVES,
    ("spec", "same_upper", True): _SPEC_UPPER,
    ("runtime", "explicit", False): _EXPLICIT,
    ("runtime", "valid", False): _NO_PADS,
    ("runtime", "same_lower", False): _NO_PADS,
    ("runtime", "same_upper", False): _NO_PADS,
    ("runtime", "explicit", True): _RUN_EXPLICIT,
    ("runtime", "valid", True): _RUN_VALID,
    ("runtime", "same_lower", True): _RUN_LOWER,
    ("runtime", "same_upper", True): _RUN_UPPER,
}


# -- operators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BackpropData(Operator):
    strides: Sequence[int]
    pads_begin: Sequence[int] | None = None
    pads_end: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    auto_pad: str | None = "explicit"
    output_padding: Sequence[int] | None = None
    rules: str = field(default="spec", kw_only=True)

    _table = _TABLE

    def __post_init__(self) -> None:
        strides = read.integers("strides", self.strides, 1)
        rank = len(strides)
        values: dict[str, object] = {"strides": strides}
        for name, least in (("pads_begin", 0), ("pads_end", 0), ("dilations", 1), ("output_padding", 0)):
            given = getattr(self, name)
            values[name] = (least,) * rank if given is None else read.integers(name, given, least, rank)
        values["auto_pad"] = read.choice("auto_pad", self.auto_pad, _AUTO_PADS)
        values["rules"] = read.choice("rules", self.rules, _RULE_SETS)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __call__(self, data: Any, filter: Any, output_shape: Any = None, *, out: Any = None) -> Any:
        """Run on arrays. `output_shape` is the document's third input, `out` a buffer for the result."""
        return self._run(data, filter, None, output_shape, out)

    def attributes(self, rank: int) -> Attributes:
        return Attributes.per_axis(
            rank,
            self.auto_pad,
            strides=self.strides,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
            dilations=self.dilations,
            output_padding=self.output_padding,
        )


@named_attributes
@dataclass(frozen=True)
class ConvolutionBackpropData(_BackpropData):
    """OpenVINO ConvolutionBackpropData-1: data `[N, C_IN, X...]`, filter `[C_IN, C_OUT, K...]`, 1D, 2D or 3D.

    `output_shape`, the third input, is given to the call. `rules="spec"` follows the document to the letter,
    `rules="runtime"` the shipped engine.
    """

    document = "OpenVINO ConvolutionBackpropData-1"

    def _read_filter(self, shape: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...], str]:
        if not 3 <= len(shape) <= 5:
            fix = "use GroupConvolutionBackpropData for groups or for more axes"
            raise ShapeError("filter", shape, "needs rank 3, 4 or 5: [C_IN, C_OUT, 1 to 3 spatial sizes]", fix)
        return 1, shape[0], shape[1], shape[2:], "GIOX"


@named_attributes
@dataclass(frozen=True)
class GroupConvolutionBackpropData(_BackpropData):
    """OpenVINO GroupConvolutionBackpropData-1: data `[N, G*C_IN, X...]`, filter `[G, C_IN, C_OUT, K...]`.

    >>> op = GroupConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1])
    >>> op.infer_shape((1, 20, 224, 224), (4, 5, 2, 3, 3))
    (1, 8, 447, 447)
    """

    document = "OpenVINO GroupConvolutionBackpropData-1"

    def _read_filter(self, shape: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...], str]:
        if len(shape) < 4:
            fix = "add the group axis in front"
            raise ShapeError("filter", shape, "needs rank 4 or more: [GROUPS, C_IN, C_OUT, spatial sizes]", fix)
        return shape[0], shape[1], shape[2], shape[3:], "GIOX"
