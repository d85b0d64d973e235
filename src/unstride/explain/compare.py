"""One call under every dialect and rule set, side by side: the same attributes, the answers, and where they part.

The attributes keep their names and values; only the filter is laid out as each dialect wants it. A dialect that has no
such attribute, or refuses the value, says so instead of answering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unstride.dialects import functional, onednn, onnx, openvino
from unstride.dialects._operator import Operator, Resolution
from unstride.errors import AttributeValueError, UnstrideError

__all__ = ["Answer", "Question", "compare"]

_ONNX_AUTO_PAD = {"explicit": "NOTSET", "valid": "VALID", "same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER"}


@dataclass(frozen=True)
class Question:
    """A call without a dialect: what its author wrote, axis by axis."""

    direction: str
    dtype: str
    batch: int
    groups: int
    ci: int
    co: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output_padding: tuple[int, ...]
    auto_pad: str
    output_shape: tuple[int, ...] | None

    @classmethod
    def of(cls, operator: Operator, resolution: Resolution, output_shape: Sequence[int] | None) -> Question:
        """The question that `operator`, resolved for some shapes, answers."""
        p = resolution.problem
        given = operator.attributes(p.rank)
        wanted = getattr(operator, "output_shape", None) if output_shape is None else output_shape
        spatial = None if wanted is None else tuple(wanted)
        if spatial is not None and len(spatial) == p.rank + 2:
            spatial = spatial[2:] if p.data_layout == "NCX" else spatial[1:-1]
        return cls(
            direction=p.direction,
            dtype=p.dtype,
            batch=p.batch,
            groups=p.groups,
            ci=p.ci,
            co=p.co,
            size=p.x if p.direction == "scatter" else p.y,
            kernel=p.kernel,
            strides=p.stride,
            dilations=p.dilation,
            pads_begin=given.pads_begin or (0,) * p.rank,
            pads_end=given.pads_end or (0,) * p.rank,
            output_padding=given.output_padding or (0,) * p.rank,
            auto_pad={"none": "explicit", "notset": "explicit"}.get(given.auto_pad.lower(), given.auto_pad.lower()),
            output_shape=spatial,
        )


@dataclass(frozen=True)
class Answer:
    """What one operator under one rule set makes of a question; `refusal` is empty unless it makes nothing of it.

    `group` is a letter shared by all answers with the same windows, "A" for those that agree with the first answer.
    """

    operator: str
    rules: str
    begin: tuple[int, ...]
    size: tuple[int, ...]
    formula: str
    document: str
    refusal: str
    group: str


def compare(question: Question) -> tuple[Answer, ...]:
    """Every dialect's answer, in a fixed order."""
    makers = _GATHER if question.direction == "gather" else _SCATTER
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
    answers = []
    for name, rules, make in makers:
        try:
            windows = make(question, rules).windows
        except UnstrideError as error:
            answers.append(Answer(name, rules, (), (), "", "", f"{error.field}: {error.rule}", ""))
            continue
        begin, size = tuple(w.begin for w in windows), tuple(w.size for w in windows)
        letter = groups.setdefault((begin, size), chr(ord("A") + len(groups)))
        rule = windows[0].rule
        answers.append(Answer(name, rules, begin, size, rule.formula, rule.document, "", letter))
    return tuple(answers)


def _openvino(q: Question, rules: str) -> Resolution:
    grouped = q.groups > 1 or len(q.kernel) > 3
    kind: Any = openvino.GroupConvolutionBackpropData if grouped else openvino.ConvolutionBackpropData
    operator = kind(q.strides, q.pads_begin, q.pads_end, q.dilations, q.auto_pad, q.output_padding, rules=rules)
    shape = (q.groups, q.ci, q.co, *q.kernel) if grouped else (q.ci, q.co, *q.kernel)
    return _resolve(operator, q, shape)


def _onednn(kind: Any, co_first: bool) -> Callable[[Question, str], Resolution]:
    def resolve(q: Question, rules: str) -> Resolution:
        auto_pad = "none" if q.auto_pad == "explicit" else q.auto_pad
        formats = {"data_format": "NCX", "filter_format": "OIX"}
        lists = (q.strides, q.pads_begin, q.pads_end, q.dilations, auto_pad, q.output_padding, q.groups)
        shape = (q.co, q.groups * q.ci, *q.kernel) if co_first else (q.groups * q.ci, q.co, *q.kernel)
        return _resolve(kind(*lists, **formats, rules=rules or "spec"), q, shape)

    return resolve


def _onnx(q: Question, rules: str) -> Resolution:
    operator = onnx.ConvTranspose(
        strides=q.strides,
        pads=(*q.pads_begin, *q.pads_end),
        dilations=q.dilations,
        group=q.groups,
        auto_pad=_ONNX_AUTO_PAD[q.auto_pad],
        output_padding=q.output_padding,
        output_shape=q.output_shape,
    )
    return operator.resolve(_data_shape(q), (q.groups * q.ci, q.co, *q.kernel), dtype=q.dtype)


def _torch(q: Question, rules: str) -> Resolution:
    if q.output_shape is not None or q.auto_pad != "explicit" or q.pads_begin != q.pads_end:
        rule = "torch has one symmetric padding per axis, no auto_pad and no output_shape"
        raise AttributeValueError("padding", (q.auto_pad, q.pads_begin, q.pads_end), rule)
    operator = functional.ConvTranspose(q.strides, q.pads_begin, q.output_padding, q.groups, q.dilations)
    return operator.resolve(_data_shape(q), (q.groups * q.ci, q.co, *q.kernel), dtype=q.dtype)


def _resolve(operator: Operator, q: Question, filter_shape: tuple[int, ...]) -> Resolution:
    return operator.resolve(_data_shape(q), filter_shape, q.output_shape, dtype=q.dtype)


def _data_shape(q: Question) -> tuple[int, ...]:
    return (q.batch, q.groups * (q.ci if q.direction == "scatter" else q.co), *q.size)


_SCATTER: tuple[tuple[str, str, Callable[[Question, str], Resolution]], ...] = (
    ("OpenVINO ConvolutionBackpropData", "spec", _openvino),
    ("OpenVINO ConvolutionBackpropData", "runtime", _openvino),
    ("oneDNN ConvolutionBackpropData", "spec", _onednn(onednn.ConvolutionBackpropData, False)),
    ("oneDNN ConvolutionBackpropData", "runtime", _onednn(onednn.ConvolutionBackpropData, False)),
    ("oneDNN ConvTranspose", "", _onednn(onednn.ConvTranspose, True)),
    ("ONNX ConvTranspose", "", _onnx),
    ("torch conv_transpose", "", _torch),
)
_GATHER: tuple[tuple[str, str, Callable[[Question, str], Resolution]], ...] = (
    ("oneDNN ConvTransposeBackpropData", "spec", _onednn(onednn.ConvTransposeBackpropData, True)),
    ("oneDNN ConvTransposeBackpropData", "runtime", _onednn(onednn.ConvTransposeBackpropData, True)),
)
