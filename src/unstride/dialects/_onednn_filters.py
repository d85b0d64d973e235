"""oneDNN Graph ConvolutionBackpropFilters-1 and ConvTransposeBackpropFilters-1: gradients with respect to the filter.

Later documents call them ConvolutionBackwardWeights and ConvTransposeBackwardWeights. Each takes the data and the
gradient of the result of a forward operator, so each case is that operator's own Problem: its rules say where a tap
reads, and what shape the gradient of the result must have.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from unstride.dialects import _attributes as read
from unstride.dialects._named import named_attributes
from unstride.dialects._onednn_base import CONVOLUTION_LAYOUTS, TRANSPOSE_LAYOUTS, OneDNN
from unstride.dialects._onednn_rules import FORWARD_TABLE, GRADIENT_TABLE
from unstride.dialects._operator import Resolution
from unstride.errors import AttributeValueError, DTypeError, RuleWarning, ShapeError
from unstride.problem import Problem

__all__ = ["ConvTransposeBackpropFilters", "ConvolutionBackpropFilters"]


class _Forward(OneDNN):
    """The operator whose filter the gradient is for. It is resolved, never run."""

    _data_name = "input_forward"

    def _wanted(self, given: object, batch: int, channels: int, rank: int) -> None:
        self._refuse_output_shape(given)


class _Convolution(_Forward):
    """An ordinary convolution: what ConvTransposeBackpropData computes, with the filter of ConvolutionBackpropData."""

    document = "oneDNN Graph Convolution-1"
    _direction = "gather"
    _table = GRADIENT_TABLE
    _filter_layouts = CONVOLUTION_LAYOUTS


class _ConvTranspose(_Forward):
    document = "oneDNN Graph ConvTranspose-1"
    _table = FORWARD_TABLE
    _filter_layouts = TRANSPOSE_LAYOUTS


class _FilterGradient:
    """What both operators do; the attributes are theirs."""

    document: ClassVar[str]
    _kind: ClassVar[type[_Forward]]
    _own: ClassVar[tuple[str, ...]]

    filter_shape: Sequence[int] | None
    forward: OneDNN

    def __post_init__(self) -> None:
        forward = self._kind(**{name: getattr(self, name) for name in self._own})
        values: dict[str, object] = {name: getattr(forward, name) for name in self._own}
        if self.filter_shape is not None:
            sizes, rank = read.integers("filter_shape", self.filter_shape, 1), len(forward.strides)
            if len(sizes) != rank + 2:
                rule = f"needs {rank + 2} sizes, in the order {forward.filter_format}, for {rank} strides"
                raise AttributeValueError("filter_shape", self.filter_shape, rule)
            values["filter_shape"] = sizes
        for name, value in (*values.items(), ("forward", forward)):
            object.__setattr__(self, name, value)

    # -- pure integers

    def resolve(
        self,
        input_shape: Sequence[int],
        output_delta_shape: Sequence[int],
        filter_shape: Sequence[int] | None = None,
        dtype: str = "f32",
    ) -> Resolution:
        """The forward operator's windows for these shapes; ShapeError if its result has not output_delta's shape."""
        resolution = self.forward.resolve(input_shape, self._filter_shape(filter_shape), None, dtype)
        given, expected = read.shape("output_delta", output_delta_shape), resolution.problem.result_shape
        if given != expected:
            rule = f"the forward operator's result has shape {expected}"
            raise ShapeError("output_delta", given, rule, "check strides, pads and filter_shape")
        return resolution

    def problem(
        self,
        input_shape: Sequence[int],
        output_delta_shape: Sequence[int],
        filter_shape: Sequence[int] | None = None,
        dtype: str = "f32",
    ) -> Problem:
        """The forward operator's case, whose filter the gradient is for."""
        return self.resolve(input_shape, output_delta_shape, filter_shape, dtype).problem

    def infer_shape(
        self, input_shape: Sequence[int], output_delta_shape: Sequence[int], filter_shape: Sequence[int] | None = None
    ) -> tuple[int, ...]:
        """The filter's shape, after checking that all shapes belong together."""
        self.resolve(input_shape, output_delta_shape, filter_shape)
        return self._filter_shape(filter_shape)

    def explain(
        self,
        input_shape: Sequence[int],
        output_delta_shape: Sequence[int],
        filter_shape: Sequence[int] | None = None,
        dtype: str = "f32",
    ) -> str:
        """The windows of the forward operator, the rules that gave them, and how the sums are cut on this machine."""
        from unstride.plan.gradient import plan_gradient
        from unstride.runtime.machine import host

        resolution = self.resolve(input_shape, output_delta_shape, filter_shape, dtype)
        plan = plan_gradient(resolution.problem, host())
        shapes = f"input {list(input_shape)}, delta {list(output_delta_shape)}"
        lines = [f"{self.document}: {shapes} -> filter {list(self._filter_shape(filter_shape))}, {dtype}"]
        lines.append(f"problem  {resolution.problem}")
        for index, window in enumerate(resolution.windows):
            lines.append(f"axis {index}   begin {window.begin}, forward result {window.size}; {window.rule.formula}")
        side = "one channel per group" if plan.depthwise else f"channels of the {plan.vectors_over} side"
        tile = f"{plan.tile.height} rows x {plan.tile.columns} columns"
        lines.append(f"plan     vectors along {side}, tiles of up to {tile}, {plan.tasks} tasks")
        lines.append(f"scratch  {plan.slot_bytes:,} bytes a thread, {plan.partial_bytes:,} for partial sums")
        return "\n".join(lines)

    def _filter_shape(self, given: Sequence[int] | None) -> tuple[int, ...]:
        value = self.filter_shape if given is None else given
        if value is None:
            fix = "give filter_shape to the operator or to the call"
            raise ShapeError("filter_shape", None, "is required: the kernel's size is not in the other shapes", fix)
        return read.shape("filter_shape", value)

    # -- arrays

    def __call__(self, input_forward: Any, output_delta: Any, filter_shape: Any = None, *, out: Any = None) -> Any:
        """The gradient, in filter_format. `filter_shape` is the document's third input and wins over the attribute."""
        from unstride.runtime import buffers, gradients

        data, delta, resolution = self._arrays(input_forward, output_delta, filter_shape)
        problem = resolution.problem
        pair = (data, delta) if problem.direction == "scatter" else (delta, data)
        result = buffers.result_buffer(self._filter_shape(filter_shape), problem.dtype, out, pair)
        if result.flags.c_contiguous:
            gradients.filter_gradient(problem, *pair, out=result.reshape(problem.filter_shape))
        else:
            result[...] = gradients.filter_gradient(problem, *pair).reshape(result.shape)
        return result

    def bias_gradient(self, input_forward: Any, output_delta: Any, filter_shape: Any = None) -> Any:
        """The gradient with respect to the forward operator's bias: `output_delta` summed over all but its channels."""
        from unstride.runtime import gradients

        _, delta, resolution = self._arrays(input_forward, output_delta, filter_shape)
        return gradients.bias_gradient(resolution.problem, delta)

    def _arrays(self, input_forward: Any, output_delta: Any, filter_shape: Any) -> tuple[Any, Any, Resolution]:
        from unstride.runtime import buffers

        data = buffers.as_input(input_forward, "input_forward")
        delta = buffers.as_input(output_delta, "output_delta")
        dtype = buffers.dtype_name(data, "input_forward")
        if buffers.dtype_name(delta, "output_delta") != dtype:
            given = (dtype, buffers.dtype_name(delta, "output_delta"))
            rule = "input_forward and output_delta must have one type"
            raise DTypeError("output_delta", given, rule, "convert one of them")
        resolution = self.resolve(data.shape, delta.shape, filter_shape, dtype)
        if resolution.warning:
            warnings.warn(resolution.warning, RuleWarning, stacklevel=3)
        return data, delta, resolution


@named_attributes
@dataclass(frozen=True)
class ConvolutionBackpropFilters(_FilterGradient):
    """The gradient of a convolution with respect to its filter: input_forward has IC channels, output_delta OC.

    The filter is `OIX (OC, IC/groups, K...)` or `XIO (K..., IC/groups, OC)`; its shape comes from the attribute or from
    the call, which wins.

    >>> op = ConvolutionBackpropFilters([2], [1], [1], [1], data_format="NCX", filter_format="OIX")
    >>> op.infer_shape((1, 4, 9), (1, 8, 5), filter_shape=[8, 4, 3])
    (8, 4, 3)
    """

    strides: Sequence[int]
    pads_begin: Sequence[int]
    pads_end: Sequence[int]
    dilations: Sequence[int]
    auto_pad: str | None = None
    groups: int = 1
    data_format: str = "NXC"
    filter_format: str = "XIO"
    filter_shape: Sequence[int] | None = None
    forward: OneDNN = field(init=False, repr=False, compare=False)

    document = "oneDNN Graph ConvolutionBackpropFilters-1"
    _kind = _Convolution
    _own = (
        "strides",
        "pads_begin",
        "pads_end",
        "dilations",
        "auto_pad",
        "groups",
        "data_format",
        "filter_format",
    )


@named_attributes
@dataclass(frozen=True)
class ConvTransposeBackpropFilters(_FilterGradient):
    """The gradient of ConvTranspose with respect to its filter: input_forward has IC channels, output_delta OC.

    The filter has ConvTranspose's formats: `OIX (OC/groups, IC, K...)`, `XIO (K..., IC, OC/groups)`, and by their later
    names `IOX (IC, OC/groups, K...)`, `XOI (K..., OC/groups, IC)`. Its shape comes from the attribute or from the call,
    which wins.

    >>> op = ConvTransposeBackpropFilters([2], [1], [1], [1], data_format="NCX", filter_format="IOX")
    >>> op.infer_shape((1, 8, 5), (1, 4, 9), filter_shape=[8, 4, 3])
    (8, 4, 3)
    """

    strides: Sequence[int]
    pads_begin: Sequence[int]
    pads_end: Sequence[int]
    dilations: Sequence[int]
    auto_pad: str | None = None
    output_padding: Sequence[int] | None = None
    groups: int = 1
    data_format: str = "NXC"
    filter_format: str = "XIO"
    filter_shape: Sequence[int] | None = None
    forward: OneDNN = field(init=False, repr=False, compare=False)

    document = "oneDNN Graph ConvTransposeBackpropFilters-1"
    _kind = _ConvTranspose
    _own = (*ConvolutionBackpropFilters._own, "output_padding")
