"""A resolved call as text: the window of each axis, the rule that gave it, the other rule set, and other spellings."""

from __future__ import annotations

from collections.abc import Sequence

from unstride.dialects import Operator, Resolution, Window
from unstride.explain.plan import explain_plan
from unstride.explain.spelling import spellings
from unstride.problem import Problem
from unstride.runtime.machine import host

__all__ = ["explain"]

_MAX_PHASES = 8
_MAX_TAPS = 4096


def explain(operator: Operator, resolution: Resolution) -> str:
    """Several lines for a person; `resolution` holds the same as values."""
    problem = resolution.problem
    sections = [
        _heading(operator, resolution),
        *(_axis(resolution, axis) for axis in range(problem.rank)),
        _other_rules(resolution),
        _cost(problem),
        explain_plan(problem, host(), host().cores).splitlines(),
        _elsewhere(problem),
    ]
    return "\n".join(line for section in sections for line in section)


def _heading(operator: Operator, resolution: Resolution) -> list[str]:
    problem = resolution.problem
    shapes = f"data {list(problem.data_shape)} -> result {list(problem.result_shape)}, {problem.dtype}"
    return [f"{operator.document}: {shapes}", f"problem  {problem}"]


def _axis(resolution: Resolution, axis: int) -> list[str]:
    problem, window = resolution.problem, resolution.windows[axis]
    begin, full, y = problem.begin[axis], problem.full[axis], problem.y[axis]
    side = "Y" if problem.direction == "scatter" else "X"
    return [
        f"axis {axis}   begin {begin}, {side} {window.size}; {_coverage(problem.direction, begin, full, y)}",
        f"         rule    {window.rule.formula}",
        f"         source  {window.rule.document}: {window.rule.when}",
        f"         phases  {_phases(problem, axis)}",
    ]


def _coverage(direction: str, begin: int, full: int, y: int) -> str:
    """What the window does with the full extent, in words."""
    end = full - begin - y
    crop, pad = ("cropped", "zeros added") if direction == "scatter" else ("zeros read", "never read")
    parts = [
        f"{abs(count)} {crop if count > 0 else pad} {where}"
        for count, where in ((begin, "before"), (end, "after"))
        if count
    ]
    return f"full extent {full}, " + (" and ".join(parts) if parts else "taken whole")


def _phases(problem: Problem, axis: int) -> str:
    """Which taps meet in the outputs o of each residue of the stride: those k with (o + begin - k*d) % s == 0."""
    if problem.direction == "gather":
        return f"one, all {problem.kernel[axis]} taps at distance {problem.dilation[axis]}"
    stride, dilation, kernel = problem.stride[axis], problem.dilation[axis], problem.kernel[axis]
    shown = min(stride, _MAX_PHASES)
    texts = []
    for phase in range(shown):
        place = phase + problem.begin[axis]
        taps = [str(k) for k in range(min(kernel, _MAX_TAPS)) if (place - k * dilation) % stride == 0]
        texts.append(f"y[{phase} mod {stride}] from " + (f"w[{_abridged(taps)}]" if taps else "nothing"))
    return "; ".join(texts) + (f"; ... {stride} in all" if stride > shown else "")


def _abridged(items: Sequence[str], limit: int = 8) -> str:
    return ", ".join(items[:limit]) + (", ..." if len(items) > limit else "")


def _other_rules(resolution: Resolution) -> list[str]:
    lines = []
    if resolution.other is not None:
        lines.append(f"{resolution.other_rules} rules  {_answer(resolution.windows, resolution.other)}")
    elif resolution.refusal is not None:
        lines.append(f"{resolution.other_rules} rules  refuse this call: {resolution.refusal}")
    if resolution.warning is not None:
        lines.append(f"warning  {resolution.warning}")
    return lines


def _answer(chosen: Sequence[Window], other: Sequence[Window]) -> str:
    if all(a.same_as(b) for a, b in zip(chosen, other, strict=True)):
        return "the same window"
    begins, sizes, rule = [w.begin for w in other], [w.size for w in other], other[0].rule
    return f"begin {begins}, size {sizes} by {rule.formula} ({rule.document}: {rule.when})"


def _cost(problem: Problem) -> list[str]:
    intensity = problem.flops / problem.bytes if problem.bytes else 0.0
    return [f"cost     {problem.flops:,} flops, {problem.bytes:,} bytes, {intensity:.1f} flops per byte"]


def _elsewhere(problem: Problem) -> list[str]:
    lines = ["the same elsewhere"]
    for spelling in spellings(problem):
        lines.append(f"  {spelling.framework:<9}{spelling.code or 'cannot say it: ' + spelling.reason}")
        if spelling.layout:
            lines.append(f"           {spelling.layout}")
    return lines
