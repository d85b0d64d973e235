"""The attributes that all oneDNN Graph operators of this family share, and how they read a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from unstride.dialects import _attributes as read
from unstride.dialects._operator import Attributes, Operator
from unstride.errors import ShapeError

__all__ = ["CONVOLUTION_LAYOUTS", "TRANSPOSE_LAYOUTS", "OneDNN"]

# filter_format -> the order of the filter in memory, in the letters of Problem
CONVOLUTION_LAYOUTS: Mapping[str, str] = MappingProxyType({"XIO": "XOGI", "OIX": "GIOX"})
TRANSPOSE_LAYOUTS: Mapping[str, str] = MappingProxyType({"XIO": "XGIO", "OIX": "OGIX", "IOX": "GIOX", "XOI": "XOGI"})

_AUTO_PADS = {"": "none", "none": "none", "valid": "valid", "same_upper": "same_upper", "same_lower": "same_lower"}
_RULE_SETS = {"spec": "spec", "runtime": "runtime"}
_DATA_FORMATS = {"nxc": "NXC", "ncx": "NCX"}


@dataclass(frozen=True)
class OneDNN(Operator):
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
