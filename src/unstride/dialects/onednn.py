"""oneDNN Graph ConvolutionBackpropData-1, ConvTransposeBackpropData-1 and ConvTranspose-1.

Later oneDNN documents call the first two ConvolutionBackwardData and ConvTransposeBackwardData. The letters of the
documents name the channels of the *forward* operator: ConvolutionBackpropData reads OC channels and writes IC.

    >>> op = ConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1], data_format="NCX", filter_format="OIX")
    >>> op.infer_shape((1, 20, 5, 5), (20, 10, 3, 3), output_shape=[10, 10])
    (1, 10, 10, 10)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from unstride.dialects import _attributes as read
from unstride.dialects._onednn_rules import BACKPROP_TABLE, FORWARD_TABLE, GRADIENT_TABLE, RULES
from unstride.dialects._operator import Attributes, Operator
from unstride.dialects._rules import Axis, Window
from unstride.errors import AttributeValueError, ShapeError

__all__ = ["RULES", "ConvTranspose", "ConvTransposeBackpropData", "ConvolutionBackpropData"]

_AUTO_PADS = {"": "none", "none": "none", "valid": "valid", "same_upper": "same_upper", "same_lower": "same_lower"}
_RULE_SETS = {"spec": "spec", "runtime": "runtime"}
_DATA_FORMATS = {"nxc": "NXC", "ncx": "NCX"}


@dataclass(frozen=True)
class _OneDNN(Operator):
    strides: Sequence[int]
    pads_begin: Sequence[int]
    pads_end: Sequence[int]
    dilations: Sequence[int]
    auto_pad: str | None = None
    output_padding: Sequence[int] | None = None
    groups: int = 1
    data_format: str = "NXC"
    filter_format: str = "XIO"
    rules: str = field(default="spec", kw_only=True)

    # filter_format -> the order of the filter in memory, in the letters of Problem
    _filter_layouts: ClassVar[Mapping[str, str]]

    def __post_init__(self) -> None:
        strides = read.integers("strides", self.strides, 1)
        rank = len(strides)
        values: dict[str, object] = {"strides": strides}
        for name, least in (("pads_begin", 0), ("pads_end", 0), ("dilations", 1)):
            values[name] = read.integers(name, getattr(self, name), least, rank)
        given = self.output_padding
        values["output_padding"] = (0,) * rank if given is None else read.integers("output_padding", given, 0, rank)
        values["auto_pad"] = read.choice("auto_pad", self.auto_pad, _AUTO_PADS)
        values["groups"] = read.integer("groups", self.groups, 1)
        values["data_format"] = read.choice("data_format", self.data_format, _DATA_FORMATS)
        formats = {name.lower(): name for name in self._filter_layouts}
        values["filter_format"] = read.choice("filter_format", self.filter_format, formats)
        values["rules"] = read.choice("rules", self.rules, _RULE_SETS)
        for name, value in values.items():
            object.__setattr__(self, name, value)

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

    def _data_layout(self) -> str:
        return self.data_format

    def _read_filter(self, shape: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...], str]:
        layout = self._filter_layouts[self.filter_format]
        letters = layout.replace("G", "")  # the group axis is part of the channel axis I in every oneDNN format
        first, second, kernel = _split(shape, letters)
        small, co = (first, second) if letters.replace("X", "") == "IO" else (second, first)
        if small % self.groups:
            rule = f"groups={self.groups} does not divide the {small} channels in front of the groups"
            raise ShapeError("groups", shape, rule, f"filter_format {self.filter_format} may not be the filter's order")
        return self.groups, small // self.groups, co, kernel, layout


def _split(shape: tuple[int, ...], letters: str) -> tuple[int, int, tuple[int, ...]]:
    """(first channel axis, second channel axis, kernel) of a filter whose X axes come first or last."""
    if letters.startswith("X"):
        return shape[-2], shape[-1], shape[:-2]
    return shape[0], shape[1], shape[2:]


@dataclass(frozen=True)
class ConvolutionBackpropData(_OneDNN):
    """The gradient of a convolution with respect to its input: data has OC channels, the result IC.

    Filter `OIX (OC, IC/groups, K...)` or `XIO (K..., IC/groups, OC)`. The output shape comes from the attribute or from
    the call, which wins; it is the full shape in data_format order or its spatial part.
    """

    output_shape: Sequence[int] | None = None

    document = "oneDNN Graph ConvolutionBackpropData-1"
    _table = BACKPROP_TABLE
    _filter_layouts = MappingProxyType({"XIO": "XOGI", "OIX": "GIOX"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output_shape is None:
            return
        sizes, rank = read.integers("output_shape", self.output_shape, 0), len(self.strides)
        if len(sizes) not in (rank, rank + 2):
            rule = f"needs {rank} spatial sizes, or {rank + 2} with batch and channels"
            raise AttributeValueError("output_shape", self.output_shape, rule)
        object.__setattr__(self, "output_shape", sizes)

    def __call__(self, data: Any, filter: Any, output_shape: Any = None, *, out: Any = None) -> Any:
        """Run on arrays. `output_shape` is the document's third input and wins over the attribute."""
        return self._run(data, filter, None, output_shape, out)

    def _wanted(self, given: object, batch: int, channels: int, rank: int) -> tuple[int, ...]:
        value = self.output_shape if given is None else given
        if value is None:
            raise ShapeError("output_shape", None, "is required", "give it to the operator or to the call")
        sizes = read.shape("output_shape", value)
        if len(sizes) == rank:
            return sizes
        if len(sizes) != rank + 2:
            rule = f"needs {rank} spatial sizes, or {rank + 2} with batch and channels"
            raise ShapeError("output_shape", value, rule)
        n, *rest = sizes
        c, spatial = (rest[0], rest[1:]) if self.data_format == "NCX" else (rest[-1], rest[:-1])
        if (n, c) != (batch, channels):
            rule = f"batch and channels ({n}, {c}) must be those of the result, ({batch}, {channels})"
            raise ShapeError("output_shape", value, rule, f"order it as {self.data_format}, or pass the spatial sizes")
        return tuple(spatial)

    def _remarks(self, axes: Sequence[Axis], windows: Sequence[Window]) -> list[str]:
        """A nonzero output_padding that the rule does not read and that disagrees with the size asked for."""
        if self.auto_pad != "none" and not (self.auto_pad == "valid" and self.rules == "runtime"):
            return []
        remarks = []
        for axis, window in zip(axes, windows, strict=True):
            pads = axis.pad_begin + axis.pad_end if self.auto_pad == "none" else 0
            padded = axis.full - pads + axis.output_padding
            if axis.output_padding and padded != window.size:
                text = f"output_padding {axis.output_padding} on spatial axis {axis.index} means size {padded}"
                remarks.append(f"{text}, but output_shape says {window.size}, which is followed")
        return remarks


_TRANSPOSE_LAYOUTS = {"XIO": "XGIO", "OIX": "OGIX", "IOX": "GIOX", "XOI": "XOGI"}


@dataclass(frozen=True)
class ConvTransposeBackpropData(_OneDNN):
    """The gradient of ConvTranspose with respect to its input: a strided convolution of `output_delta [N, OC, Y...]`.

    Filter `OIX (OC/groups, IC, K...)` or `XIO (K..., IC, OC/groups)`; the later names `IOX (IC, OC/groups, K...)` and
    `XOI (K..., OC/groups, IC)` are read too.
    """

    document = "oneDNN Graph ConvTransposeBackpropData-1"
    _direction = "gather"
    _data_name = "output_delta"
    _table = GRADIENT_TABLE
    _filter_layouts = _TRANSPOSE_LAYOUTS

    def __call__(self, output_delta: Any, filter: Any, *, out: Any = None) -> Any:
        """Run on arrays."""
        return self._run(output_delta, filter, None, None, out)

    def _wanted(self, given: object, batch: int, channels: int, rank: int) -> None:
        self._refuse_output_shape(given)


@dataclass(frozen=True)
class ConvTranspose(_OneDNN):
    """oneDNN Graph ConvTranspose-1, whose gradient ConvTransposeBackpropData is; the same filter formats."""

    document = "oneDNN Graph ConvTranspose-1"
    _table = FORWARD_TABLE
    _filter_layouts = _TRANSPOSE_LAYOUTS

    def __call__(self, data: Any, filter: Any, bias: Any = None, *, out: Any = None) -> Any:
        """Run on arrays; `bias` has one value per output channel."""
        return self._run(data, filter, bias, None, out)

    def _wanted(self, given: object, batch: int, channels: int, rank: int) -> None:
        self._refuse_output_shape(given)
