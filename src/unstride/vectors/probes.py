"""What a case probes: named conditions under which implementations are known to part ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from unstride.cases import Call
from unstride.dialects import Resolution
from unstride.problem import Problem

__all__ = ["PROBES", "Facts", "Probe", "facts_of"]


@dataclass(frozen=True)
class Facts:
    """A call as the conditions below want to read it: one tuple per quantity, auto_pad in OpenVINO's words."""

    problem: Problem
    auto_pad: str
    sized: bool
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    output_padding: tuple[int, ...]

    @property
    def total_padding(self) -> tuple[int, ...]:
        p = self.problem
        return tuple(full - y + op for full, y, op in zip(p.full, p.y, self.output_padding, strict=True))

    def any_axis(self, condition: Callable[[int, int, int, int], bool]) -> bool:
        """Whether (kernel, stride, dilation, output_padding) of some axis satisfies the condition."""
        p = self.problem
        return any(map(condition, p.kernel, p.stride, p.dilation, self.output_padding))


@dataclass(frozen=True)
class Probe:
    """A condition with a name for tables and a sentence for people."""

    name: str
    words: str
    holds: Callable[[Facts], bool]


def facts_of(call: Call, resolution: Resolution) -> Facts:
    """The facts behind a resolved call."""
    given = call.operator.attributes(resolution.problem.rank)
    word = given.auto_pad.lower()
    sized = call.output_shape is not None or getattr(call.operator, "output_shape", None) is not None
    zeros = (0,) * resolution.problem.rank
    return Facts(
        problem=resolution.problem,
        auto_pad="explicit" if word in ("none", "notset") else word,
        sized=sized,
        pads_begin=given.pads_begin or zeros,
        pads_end=given.pads_end or zeros,
        output_padding=given.output_padding or zeros,
    )


def _odd(facts: Facts) -> bool:
    return facts.sized and any(total % 2 for total in facts.total_padding)


def _pads(facts: Facts) -> bool:
    return any(facts.pads_begin) or any(facts.pads_end)


def _inexact(facts: Facts) -> bool:
    p = facts.problem
    return any((y + b - e) % s for y, b, e, s in zip(p.y, p.begin, p.extent, p.stride, strict=True))


PROBES = (
    Probe(
        "explicit-pads",
        "explicit pads crop the result",
        lambda f: not f.sized and f.auto_pad == "explicit" and _pads(f),
    ),
    Probe(
        "asymmetric-pads",
        "pads_begin and pads_end differ",
        lambda f: not f.sized and f.auto_pad == "explicit" and f.pads_begin != f.pads_end,
    ),
    Probe(
        "auto-pad-alone",
        "auto_pad without output_shape: 'same' need not mean 'same size'",
        lambda f: not f.sized and f.auto_pad != "explicit",
    ),
    Probe(
        "pads-with-output-shape",
        "explicit pads and an output_shape: the document ignores the pads, engines may not",
        lambda f: f.sized and f.auto_pad == "explicit" and _pads(f),
    ),
    Probe("valid-with-output-shape", "auto_pad valid and an output_shape", lambda f: f.sized and f.auto_pad == "valid"),
    Probe("same-upper-odd", "same_upper with an odd total padding", lambda f: f.auto_pad == "same_upper" and _odd(f)),
    Probe("same-lower-odd", "same_lower with an odd total padding", lambda f: f.auto_pad == "same_lower" and _odd(f)),
    Probe(
        "negative-total-padding",
        "output_shape asks for more than there is: where do the zeros go?",
        lambda f: f.sized and min(f.total_padding) < 0,
    ),
    Probe("output-padding", "output_padding unlocks further elements", lambda f: any(f.output_padding)),
    Probe(
        "output-padding-of-a-stride", "output_padding >= stride", lambda f: f.any_axis(lambda k, s, d, op: op >= s > 0)
    ),
    Probe(
        "output-padding-with-output-shape",
        "output_padding and an output_shape",
        lambda f: f.sized and any(f.output_padding),
    ),
    Probe("begin-below-zero", "the window begins before the first product", lambda f: min(f.problem.begin) < 0),
    Probe(
        "past-the-full-extent",
        "the window ends behind the last product",
        lambda f: any(b + y > n for b, y, n in zip(f.problem.begin, f.problem.y, f.problem.full, strict=True)),
    ),
    Probe("phase-without-taps", "some positions between others receive no product", lambda f: f.any_axis(_has_hole)),
    Probe(
        "kernel-below-stride", "the kernel is smaller than the stride", lambda f: f.any_axis(lambda k, s, d, op: k < s)
    ),
    Probe(
        "common-factor", "stride and dilation share a factor", lambda f: f.any_axis(lambda k, s, d, op: gcd(s, d) > 1)
    ),
    Probe("dilation", "dilation with stride", lambda f: f.any_axis(lambda k, s, d, op: d > 1 and s > 1 and k > 1)),
    Probe("groups", "several groups", lambda f: f.problem.groups > 1),
    Probe("depthwise", "one channel per group", lambda f: f.problem.groups > 1 and f.problem.ci == f.problem.co == 1),
    Probe("one-pixel", "a single input position", lambda f: set(f.problem.x) == {1}),
    Probe("batch", "several images", lambda f: f.problem.batch > 1),
    Probe(
        "gradient-rounds-down",
        "the gradient's size is not a whole number of strides",
        lambda f: f.problem.direction == "gather" and _inexact(f),
    ),
)


def _has_hole(kernel: int, stride: int, dilation: int, output_padding: int) -> bool:
    return gcd(stride, dilation) > 1 or kernel < stride
