"""What crashed others: attribute and shape combinations behind published advisories and crash reports, and their kin.

They were reported against the transposed convolutions (and convolution gradients) of TensorFlow, TensorFlow Lite,
PyTorch and onnxruntime. Each is written once, in neutral words; `tests.hard.replay` says it to every entrance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["REPORTS", "Report"]


@dataclass(frozen=True)
class Report:
    """One call: data [N, C, X...] and filter [C, M/groups, K...] as shapes; None leaves an attribute out."""

    cause: str
    name: str
    data: tuple[int, ...] = (1, 4, 5, 5)
    filter: tuple[int, ...] = (4, 2, 3, 3)
    strides: Any = (2, 2)
    pads_begin: Any = None
    pads_end: Any = None
    dilations: Any = None
    output_padding: Any = None
    groups: Any = 1
    output_shape: Any = None
    bias: int | None = None
    kernel_shape: Any = None
    auto_pad: str | None = None
    dtype: str = field(default="float32")

    def __str__(self) -> str:
        return f"{self.cause}: {self.name}"


def _divisions() -> list[Report]:
    cause = "division before a check"
    return [
        Report(cause, "stride 0", strides=(0, 0)),
        Report(cause, "stride 0 on one axis", strides=(2, 0)),
        Report(cause, "stride 0 in 1D", (1, 4, 5), (4, 2, 3), (0,)),
        Report(cause, "stride 0 in 3D", (1, 4, 3, 3, 3), (4, 2, 2, 2, 2), (1, 1, 0)),
        Report(cause, "dilation 0", dilations=(0, 1)),
        Report(cause, "dilation 0 everywhere", dilations=(0, 0)),
        Report(cause, "groups 0", groups=0),
        Report(cause, "groups negative", groups=-2),
        Report(cause, "groups do not divide", groups=3),
        Report(cause, "groups beyond the channels", groups=2**31 - 1),
        Report(cause, "channels 0", (1, 0, 5, 5), (0, 2, 3, 3)),
        Report(cause, "channels of the result 0", (1, 4, 5, 5), (4, 0, 3, 3)),
        Report(cause, "channels of the filter 0, of the data not", (1, 4, 5, 5), (0, 2, 3, 3)),
    ]


def _empties() -> list[Report]:
    cause = "empty arrays"
    return [
        Report(cause, "every size 0", (0, 0, 0, 0), (0, 0, 0, 0)),
        Report(cause, "batch 0", (0, 4, 5, 5)),
        Report(cause, "height 0", (1, 4, 0, 5)),
        Report(cause, "width 0", (1, 4, 5, 0)),
        Report(cause, "kernel 0 x 0", filter=(4, 2, 0, 0)),
        Report(cause, "kernel 5 x 0", (1, 32, 32, 3), (32, 1, 5, 0)),
        Report(cause, "filter [0, 1, 5, 0]", (1, 0, 5, 5), (0, 1, 5, 0)),
        Report(cause, "data [1, 32, 32, 0, 3]", (1, 32, 32, 0, 3), (32, 1, 2, 2, 2), (1, 1, 1)),
        Report(cause, "output_shape 0", output_shape=(0, 0)),
        Report(cause, "output_shape 0 x 7", output_shape=(0, 7)),
        Report(cause, "an output cropped to nothing", pads_begin=(5, 5), pads_end=(6, 6)),
        Report(cause, "an output cropped below nothing", pads_begin=(50, 50), pads_end=(60, 60)),
    ]


def _overflows() -> list[Report]:
    cause = "a product that overflows"
    return [
        Report(cause, "output_shape [114078056, 179835296]", output_shape=(114078056, 179835296)),
        Report(cause, "output_shape [65534, 65534]", output_shape=(65534, 65534)),
        Report(cause, "output_shape [46341, 46341]", output_shape=(46341, 46341)),
        Report(cause, "output_shape [2**31 - 1, 2**31 - 1]", output_shape=(2**31 - 1, 2**31 - 1)),
        Report(cause, "output_shape [2**55, 1]", output_shape=(2**55, 1)),
        Report(cause, "output_shape [2**63, 1]", output_shape=(2**63, 1)),
        Report(cause, "stride 2**31 - 1", strides=(2**31 - 1, 2**31 - 1)),
        Report(cause, "stride 2**31", strides=(2**31, 1)),
        Report(cause, "stride 2**40", strides=(1, 2**40)),
        Report(cause, "dilation 2**31 - 1", dilations=(2**31 - 1, 1)),
        Report(cause, "dilation 2**31", dilations=(2**31, 2**31)),
        Report(cause, "padding 2**55", pads_begin=(2**55, 0), pads_end=(2**55, 0)),
        Report(cause, "padding 2**31 - 1", pads_begin=(2**31 - 1, 0), pads_end=(0, 0)),
        Report(cause, "padding 2**63 - 1", pads_begin=(0, 2**63 - 1), pads_end=(0, 0)),
        Report(cause, "output_padding 2**31", output_padding=(2**31, 0)),
        Report(cause, "output_padding 2**31 - 1", output_padding=(2**31 - 1, 2**31 - 1)),
        Report(cause, "kernel 2**31", (1, 1, 4), (1, 1, 2**31), (1,)),
        Report(cause, "kernel 13 x 1879048192", (1, 1, 2, 2), (1, 1, 13, 1879048192), (1, 1)),
        Report(cause, "filter [1879048192, 1, 13]", (1, 1879048192, 4), (1879048192, 1, 13), (1,)),
        Report(cause, "data of 2**62 elements", (2**20, 4, 2**20, 2**20)),
        Report(cause, "batch 2**31", (2**31, 4, 2, 2)),
        Report(cause, "channels 2**31 - 1", (1, 2**31 - 1, 2, 2), (2**31 - 1, 2**31 - 1, 1, 1)),
    ]


def _negatives() -> list[Report]:
    cause = "negative numbers"
    return [
        Report(cause, "output_shape [2, -2]", output_shape=(2, -2)),
        Report(cause, "output_shape [-1, -1]", output_shape=(-1, -1)),
        Report(cause, "output_padding -1", output_padding=(-1, -1)),
        Report(cause, "stride -1", strides=(-1, 1)),
        Report(cause, "dilation -1", dilations=(-1, -1)),
        Report(cause, "padding -1", pads_begin=(-1, 0), pads_end=(-1, 0)),
        Report(cause, "padding -2**63", pads_begin=(-(2**63), 0), pads_end=(0, 0)),
    ]


def _ranks() -> list[Report]:
    cause = "a rank assumed"
    return [
        Report(cause, "data without axes", ()),
        Report(cause, "data of rank 1", (4,)),
        Report(cause, "data of rank 2", (1, 4)),
        Report(cause, "data of rank 3, filter of rank 4", (1, 4, 5)),
        Report(cause, "data of rank 5, filter of rank 4", (1, 4, 5, 5, 5)),
        Report(cause, "filter without axes", filter=()),
        Report(cause, "filter of rank 1", filter=(4,)),
        Report(cause, "filter of rank 8", filter=(4, 2, 1, 1, 1, 1, 1, 1)),
        Report(cause, "rank 30", (1,) * 30, (1,) * 30, (1,) * 28),
        Report(cause, "strides too short", strides=(2,)),
        Report(cause, "strides too long", strides=(2, 2, 2)),
        Report(cause, "strides empty", strides=()),
        Report(cause, "dilations too short", dilations=(1,)),
        Report(cause, "dilations empty", dilations=()),
        Report(cause, "pads too short", pads_begin=(1,), pads_end=(1,)),
        Report(cause, "output_padding too short", output_padding=(1,)),
        Report(cause, "output_padding too long", output_padding=(1, 1, 1)),
        Report(cause, "output_shape too short", output_shape=(7,)),
        Report(cause, "output_shape too long", output_shape=(1, 1, 1, 7, 7)),
    ]


def _disagreements() -> list[Report]:
    cause = "two sources of one truth"
    return [
        Report(cause, "kernel_shape larger than the weights", kernel_shape=(5, 5)),
        Report(cause, "kernel_shape of 2**31", kernel_shape=(2**31, 2**31)),
        Report(cause, "kernel_shape shorter than the rank", kernel_shape=(3,)),
        Report(cause, "bias of C_IN instead of C_OUT", bias=4),
        Report(cause, "bias empty", bias=0),
        Report(cause, "bias of one", bias=1),
        Report(cause, "channels of data and filter differ", (1, 3, 5, 5)),
        Report(cause, "channels differ by a factor", (1, 8, 5, 5)),
        Report(cause, "groups and filter differ", (1, 4, 5, 5), (2, 2, 3, 3), groups=4),
    ]


def _windows() -> list[Report]:
    cause = "a tap without inputs, or an output past its extent"
    return [
        Report(cause, "an output larger than everything", output_shape=(40, 40)),
        Report(cause, "an output of one element", output_shape=(1, 1)),
        Report(cause, "output_padding of a stride", output_padding=(2, 2)),
        Report(cause, "output_padding of ten strides", output_padding=(20, 20)),
        Report(cause, "padding beyond the kernel", pads_begin=(4, 4), pads_end=(4, 4)),
        Report(cause, "a kernel larger than the output", (1, 4, 1, 1), (4, 2, 9, 9), (1, 1), (4, 4), (4, 4)),
        Report(cause, "dilated taps that all miss", (1, 4, 2, 2), dilations=(7, 7), pads_begin=(8, 8), pads_end=(8, 8)),
        Report(cause, "a stride beyond the kernel", (1, 4, 3, 3), (4, 2, 1, 1), (5, 5)),
        Report(cause, "same_upper and an odd crop", auto_pad="same_upper", output_shape=(10, 10)),
        Report(cause, "same_lower and an odd crop", auto_pad="same_lower", output_shape=(10, 10)),
        Report(cause, "valid and a size", auto_pad="valid", output_shape=(11, 11)),
        Report(cause, "one pixel, one tap", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1)),
    ]


REPORTS = (
    *_divisions(),
    *_empties(),
    *_overflows(),
    *_negatives(),
    *_ranks(),
    *_disagreements(),
    *_windows(),
)
