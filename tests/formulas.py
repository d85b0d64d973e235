"""The windows once more, transcribed from the operator documents and from what the engines were seen to do.

Deliberately plain and separate from unstride.dialects: one function per operator, one branch per line of its document.
Each takes the attributes of one axis and returns (begin, size); it returns None where the call is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from unstride.cases import Call
from unstride.problem import Problem

Answer = tuple[int, int] | None


class Axis(NamedTuple):
    """One spatial axis of a call, in the letters of the documents."""

    size: int
    K: int
    s: int
    d: int
    pb: int
    pe: int
    op: int
    Y: int | None

    @property
    def ke(self) -> int:
        return (self.K - 1) * self.d + 1

    @property
    def full(self) -> int:
        return self.s * (self.size - 1) + self.ke


def openvino(a: Axis, auto_pad: str, rules: str) -> Answer:
    if a.Y is None:
        pads = (a.pb, a.pe) if auto_pad == "explicit" else (0, 0)
        return pads[0], a.s * (a.size - 1) + a.ke - pads[0] - pads[1] + a.op
    total = a.s * (a.size - 1) + a.ke - a.Y + a.op
    if rules == "spec":
        if auto_pad != "same_upper":
            return total // 2, a.Y
        pads_end = total // 2
        return total - pads_end, a.Y
    if auto_pad == "explicit":
        return a.pb, a.Y
    if auto_pad == "valid":
        return 0, a.Y
    total = max(total, 0)
    return (total // 2 if auto_pad == "same_lower" else total - total // 2), a.Y


def onednn_backprop(a: Axis, auto_pad: str, rules: str) -> Answer:
    assert a.Y is not None
    if auto_pad == "none":
        return (a.pb, a.Y) if (a.Y + a.pb + a.pe - a.ke) // a.s + 1 == a.size else None
    if rules == "spec":
        total = a.full - a.Y + a.op
        if auto_pad != "same_upper":
            return total // 2, a.Y
        return total - total // 2, a.Y
    if auto_pad == "valid":
        return (0, a.Y) if (a.Y - a.ke) // a.s + 1 == a.size else None
    if -(-a.Y // a.s) != a.size:
        return None
    total = max(0, a.ke - a.s if a.Y % a.s == 0 else a.ke - a.Y % a.s)
    return ((total + 1) // 2 if auto_pad == "same_lower" else total // 2), a.Y


def onednn_gradient(a: Axis, auto_pad: str, rules: str) -> Answer:
    op = a.op if rules == "spec" else 0
    if auto_pad in ("same_upper", "same_lower"):
        own = a.size - op
        X = -(-own // a.s)
        total = max(0, (X - 1) * a.s + a.ke - own)
        begin = total // 2 if auto_pad == "same_upper" else total - total // 2
        if op and (own + total - a.ke) % a.s:
            return None
        return begin, X
    pb, pe = (a.pb, a.pe) if auto_pad == "none" else (0, 0)
    if op and (a.size + pb + pe - a.ke - op) % a.s:
        return None
    return pb, (a.size + pb + pe - a.ke - op) // a.s + 1


def onednn_forward(a: Axis, auto_pad: str, rules: str) -> Answer:
    if auto_pad == "none":
        return a.pb, a.full - a.pb - a.pe + a.op
    if auto_pad == "valid":
        return 0, a.full + a.op
    total = max(0, a.ke - a.s)
    begin = total // 2 if auto_pad == "same_upper" else (total + 1) // 2
    return begin, a.full - total + a.op


def onnx(a: Axis, auto_pad: str, rules: str) -> Answer:
    if a.Y is None and auto_pad == "NOTSET":
        return a.pb, a.full - a.pb - a.pe + a.op
    if a.Y is None and auto_pad == "VALID":
        return 0, a.full + a.op
    wanted = a.size * a.s if a.Y is None else a.Y
    total = max(0, a.full + a.op - wanted)
    begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    return begin, (a.full + a.op - total if a.Y is None else a.Y)


def torch(a: Axis, auto_pad: str, rules: str) -> Answer:
    return a.pb, a.full - 2 * a.pb + a.op


def windows(call: Call, rules: str | None = None) -> list[tuple[int, int]] | None:
    """(begin, size) of each axis of a call by the formulas above; None where one axis refuses."""
    op: Any = call.operator
    problem = call.resolve().problem
    dialect, name = type(op).__module__.rpartition(".")[2], type(op).__name__
    formula = _FORMULAS[dialect, name]
    auto_pad = getattr(op, "auto_pad", "explicit")
    answers = [formula(axis, auto_pad, rules or getattr(op, "rules", "spec")) for axis in _axes(call, problem)]
    return None if None in answers else [answer for answer in answers if answer is not None]


def _axes(call: Call, p: Problem) -> list[Axis]:
    op: Any = call.operator
    spatial = call.data_shape[2:] if p.data_layout == "NCX" else call.data_shape[1:-1]
    if type(op).__module__.endswith(".onnx"):
        pads = op.pads or (0,) * (2 * p.rank)
        begin, end = pads[: p.rank], pads[p.rank :]
    else:
        begin = getattr(op, "pads_begin", None) or op.padding
        end = getattr(op, "pads_end", None) or op.padding
    wanted = call.output_shape or getattr(op, "output_shape", None)
    if wanted is None:
        sizes = (None,) * p.rank
    elif len(wanted) == p.rank + 2:
        sizes = wanted[2:] if p.data_layout == "NCX" else wanted[1:-1]
    else:
        sizes = wanted
    padding = op.output_padding or (0,) * p.rank
    columns = (spatial, p.kernel, p.stride, p.dilation, begin, end, padding, sizes)
    return [Axis(*row) for row in zip(*columns, strict=True)]


_FORMULAS = {
    ("openvino", "ConvolutionBackpropData"): openvino,
    ("openvino", "GroupConvolutionBackpropData"): openvino,
    ("onednn", "ConvolutionBackpropData"): onednn_backprop,
    ("onednn", "ConvTransposeBackpropData"): onednn_gradient,
    ("onednn", "ConvTranspose"): onednn_forward,
    ("onnx", "ConvTranspose"): onnx,
    ("functional", "ConvTranspose"): torch,
}
