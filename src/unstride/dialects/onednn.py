"""oneDNN Graph ConvolutionBackpropData-1, ConvTransposeBackpropData-1 and ConvTranspose-1; weight gradients.

Later oneDNN documents call the first two ConvolutionBackwardData and ConvTransposeBackwardData. The letters of the
documents name the channels of the *forward* operator: ConvolutionBackpropData reads OC channels and writes IC.

    >>> op = ConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1], data_format="NCX", filter_format="OIX")
    >>> op.infer_shape((1, 20, 5, 5), (20, 10, 3, 3), output_shape=[10, 10])
    (1, 10, 10, 10)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unstride.dialects import _attributes as read
from unstride.dialects._named import named_attributes
from unstride.dialects._onednn_base import CONVOLUTION_LAYOUTS, TRANSPOSE_LAYOUTS, OneDNN
from unstride.dialects._onednn_filters import ConvolutionBackpropFilters, ConvTransposeBackpropFilters
from unstride.dialects._onednn_rules import BACKPROP_TABLE, FORWARD_TABLE, GRADIENT_TABLE, RULES
from unstride.dialects._rules import Axis, Window
from unstride.errors import AttributeValueError, ShapeError

__all__ = [
    "RULES",
    "ConvTranspose",
    "ConvTransposeBackpropData",
    "ConvTransposeBackpropFilters",
    "ConvolutionBackpropData",
    "ConvolutionBackpropFilters",
]


@named_attributes
@dataclass(frozen=True)
class ConvolutionBackpropData(OneDNN):
    """The gradient of a convolution with respect to its input: data has OC channels, the result IC.

    Filter `OIX (OC, IC/groups, K...)` or `XIO (K..., IC/groups, OC)`. The output shape comes from the attribute or from
    the call, which wins; it is the full shape in data_format order or its spatial part.
    """

    output_shape: Sequence[int] | None = None

    document = "oneDNN Graph ConvolutionBackpropData-1"
    _table = BACKPROP_TABLE
    _filter_layouts = CONVOLUTION_LAYOUTS

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

    def _wanted(self, given: tuple[int, ...] | None, batch: int, channels: int, rank: int) -> tuple[int, ...]:
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


@named_attributes
@dataclass(frozen=True)
class ConvTransposeBackpropData(OneDNN):
    """The gradient of ConvTranspose with respect to its input: a strided convolution of `output_delta [N, OC, Y...]`.

    Filter `OIX (OC/groups, IC, K...)` or `XIO (K..., IC, OC/groups)`; the later names `IOX (IC, OC/groups, K...)` and
    `XOI (K..., OC/groups, IC)` are read too.
    """

    document = "oneDNN Graph ConvTransposeBackpropData-1"
    _direction = "gather"
    _data_name = "output_delta"
    _table = GRADIENT_TABLE
    _filter_layouts = TRANSPOSE_LAYOUTS

    def __call__(self, output_delta: Any, filter: Any, *, out: Any = None) -> Any:
        """Run on arrays."""
        return self._run(output_delta, filter, None, None, out)

    def _wanted(self, given: tuple[int, ...] | None, batch: int, channels: int, rank: int) -> None:
        self._refuse_output_shape(given)


@named_attributes
@dataclass(frozen=True)
class ConvTranspose(OneDNN):
    """oneDNN Graph ConvTranspose-1, whose gradient ConvTransposeBackpropData is; the same filter formats."""

    document = "oneDNN Graph ConvTranspose-1"
    _table = FORWARD_TABLE
    _filter_layouts = TRANSPOSE_LAYOUTS

    def __call__(self, data: Any, filter: Any, bias: Any = None, *, out: Any = None) -> Any:
        """Run on arrays; `bias` has one value per output channel."""
        return self._run(data, filter, bias, None, out)

    def _wanted(self, given: tuple[int, ...] | None, batch: int, channels: int, rank: int) -> None:
        self._refuse_output_shape(given)
