"""`conv_transpose` with torch's conventions, for any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unstride.dialects import _attributes as read
from unstride.dialects._named import named_arguments, named_attributes
from unstride.dialects._operator import Attributes, Operator, RuleTable
from unstride.dialects._rules import Axis, Rule
from unstride.dialects.onnx import check_output_padding
from unstride.errors import ShapeError

__all__ = ["RULES", "ConvTranspose", "conv_transpose"]


def _symmetric(a: Axis) -> tuple[int, int]:
    return a.pad_begin, a.full - 2 * a.pad_begin + a.output_padding


_RULE = Rule(
    "torch.conv_transpose",
    "torch conv_transpose1d/2d/3d",
    "always",
    "begin = pb; Y = full - 2*pb + op",
    _symmetric,
)
RULES = (_RULE,)
_TABLE: RuleTable = {("spec", "explicit", False): _RULE}


@named_attributes
@dataclass(frozen=True)
class ConvTranspose(Operator):
    """torch's conv_transposeNd as an operator object: data `[N, C, X...]`, filter `[C, M/groups, K...]`.

    Each attribute is one integer for all axes or a list with one for each.
    """

    stride: int | Sequence[int] = 1
    padding: int | Sequence[int] = 0
    output_padding: int | Sequence[int] = 0
    groups: int = 1
    dilation: int | Sequence[int] = 1

    document = "torch conv_transposeNd"
    _table = _TABLE

    def __post_init__(self) -> None:
        for name, least in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1)):
            object.__setattr__(self, name, read.broadcast(name, getattr(self, name), least))
        object.__setattr__(self, "groups", read.integer("groups", self.groups, 1))

    def __call__(self, data: Any, filter: Any, bias: Any = None, *, out: Any = None) -> Any:
        """Run on arrays; `bias` has one value per output channel."""
        return self._run(data, filter, bias, None, out)

    def attributes(self, rank: int) -> Attributes:
        found = Attributes.per_axis(
            rank,
            "explicit",
            strides=self.stride,
            pads_begin=self.padding,
            pads_end=self.padding,
            dilations=self.dilation,
            output_padding=self.output_padding,
        )
        check_output_padding(found)
        return found

    def _read_filter(self, shape: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...], str]:
        if shape[0] % self.groups:
            raise ShapeError("groups", self.groups, f"must divide the {shape[0]} input channels of the filter {shape}")
        return self.groups, shape[0] // self.groups, shape[1], shape[2:], "GIOX"

    def _wanted(self, given: tuple[int, ...] | None, batch: int, channels: int, rank: int) -> None:
        self._refuse_output_shape(given)


@named_arguments
def conv_transpose(
    data: Any,
    filter: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Any:
    """Transposed convolution as torch.nn.functional defines it, of data `[N, C, X...]` with any number of axes.

    >>> import numpy as np
    >>> conv_transpose(np.ones((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32), stride=2)
    array([[[1., 1., 1., 1.]]], dtype=float32)
    """
    return ConvTranspose(stride, padding, output_padding, groups, dilation)(data, filter, bias)
