"""The picture of one problem as an SVG document: who reaches whom, what is cropped, what is zero, how taps overlap.

One spatial axis is drawn as the matrix it is; two or more as the plane of the last two. Large layers are abridged
around the borders that matter, and the picture says so.
"""

from __future__ import annotations

from itertools import product
from typing import Protocol

from unstride.explain.axis import Axis, axes_of
from unstride.explain.drawing import Drawing, phase_class
from unstride.explain.notes import diagnosis, shown_part, summary, window_line
from unstride.explain.picture_line import LINE_POSITIONS, draw_line
from unstride.explain.picture_plane import PLANE_POSITIONS, draw_plane
from unstride.problem import Problem

__all__ = ["HasProblem", "problem_of", "svg"]

_PHASES_PER_AXIS, _TAPS_PER_PHASE, _GROUPS = 4, 7, 6  # most of each in the panels below the picture
_DOT = 13


class HasProblem(Protocol):
    """What an operator's `resolve` returns: something that holds a problem."""

    @property
    def problem(self) -> Problem: ...


def problem_of(source: Problem | HasProblem) -> Problem:
    """The problem itself, or the one a resolution holds."""
    return source if isinstance(source, Problem) else source.problem


def svg(source: Problem | HasProblem) -> str:
    """The picture of a problem or of a resolved call, bounded in size whatever the layer's size is.

    >>> from unstride.problem import Problem
    >>> svg(Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o1 x5 k3 s2 d1 b1 y9")).startswith("<svg ")
    True
    """
    problem = problem_of(source)
    axes = axes_of(problem)
    pen = Drawing()
    title, description = summary(problem)
    pen.text(0, 14, title, "us-title us-ink")
    pen.text(0, 38, window_line(problem), "us-mono us-soft")
    bottom: float
    bottom = draw_line(pen, problem, axes[0], 64) if len(axes) == 1 else draw_plane(pen, problem, axes[-2:], 64)
    bottom = _phase_panel(pen, problem, axes[-2:], bottom + 34)
    bottom = _channel_panel(pen, problem, bottom + 30)
    bottom = _legend(pen, problem, bottom + 22)
    for n, note in enumerate(shown_part(problem, LINE_POSITIONS if len(axes) == 1 else PLANE_POSITIONS)):
        pen.text(0, bottom + 26 + 18 * n, note, "us-small us-soft")
    return pen.render(title, description)


def _legend(pen: Drawing, problem: Problem, top: float) -> float:
    """What the marks mean, in one line."""
    gather = problem.direction == "gather"
    marks = (
        ("us-crop", "outside the data, read as zero" if gather else "reached by taps, cropped"),
        ("us-zero", "data that no tap reads" if gather else "no tap reaches it: zero"),
        ("us-pick", "one result and its products" if gather else "one output and its products"),
        *(
            (("us-pick us-stamp", "what one result covers" if gather else "what one input covers"),)
            * (problem.rank > 1)
        ),
    )
    x = 0.0
    for name, words in marks:
        pen.rect(x + 1, top, 13, 13, name, round_=3)
        pen.text(x + 22, top + 11, words, "us-small us-soft")
        x += 46 + 6.3 * len(words)
    return top + 16


def _phase_panel(pen: Drawing, problem: Problem, axes: tuple[Axis, ...], top: float) -> float:
    """Each phase of the output with the taps that serve it, and what their numbers mean for the result."""
    verdict, words = diagnosis(problem)
    pen.text(0, top, "phases", "us-head us-ink")
    pen.text(128, top, words, f"us-small us-head {'us-good' if verdict == 'even' else 'us-warn'}")
    rows = axes[0] if len(axes) == 2 else Axis(1, 1, 1, 1, 0, 1)
    columns = axes[-1]
    width = min(columns.kernel, _TAPS_PER_PHASE) * _DOT + 24
    height = min(rows.kernel, _TAPS_PER_PHASE) * _DOT + 30
    shown = (min(rows.stride, _PHASES_PER_AXIS), min(columns.stride, _PHASES_PER_AXIS))
    per_line = max(1, 900 // max(width, 92))
    for n, (ph, pw) in enumerate(product(range(shown[0]), range(shown[1]))):
        x, y = n % per_line * max(width, 92), top + 16 + n // per_line * height
        name = f"{ph},{pw}" if len(axes) == 2 else f"{pw}"
        count = len(rows.phase_taps(ph)) * len(columns.phase_taps(pw))
        pen.text(x, y + 12, f"{name}: {count} tap{'s' * (count != 1)}", "us-small us-soft")
        _phase_taps(pen, rows, columns, (ph, pw), x, y + 18)
    lines = -(-shown[0] * shown[1] // per_line)
    return top + 16 + lines * height


def _phase_taps(pen: Drawing, rows: Axis, columns: Axis, phase: tuple[int, int], x: float, y: float) -> None:
    used = set(rows.phase_taps(phase[0])[:_TAPS_PER_PHASE]), set(columns.phase_taps(phase[1])[:_TAPS_PER_PHASE])
    colour = phase_class(phase[0] * columns.stride + phase[1])
    for kh, kw in product(range(min(rows.kernel, _TAPS_PER_PHASE)), range(min(columns.kernel, _TAPS_PER_PHASE))):
        name = colour if kh in used[0] and kw in used[1] else "us-cell"
        pen.rect(x + kw * _DOT, y + kh * _DOT, _DOT - 2, _DOT - 2, name, round_=2)


def _channel_panel(pen: Drawing, problem: Problem, top: float) -> float:
    """The channel blocks: which input channels an output channel can see."""
    gather = problem.direction == "gather"
    reads, writes = (problem.co, problem.ci) if gather else (problem.ci, problem.co)
    pen.text(0, top, "channels", "us-head us-ink")
    total = f"{problem.groups * reads} in, {problem.groups * writes} out"
    per = "" if problem.groups == 1 else f" in {problem.groups} groups, each {reads} to {writes}"
    pen.text(128, top, total + per, "us-small us-soft")
    if problem.groups == 1:
        return top
    for g in range(min(problem.groups, _GROUPS)):
        x, y = g * 150.0, top + 16
        pen.line(x + 58, y + 12, x + 78, y + 12, "us-window")
        for offset, channels in ((0, reads), (78, writes)):
            first, last = g * channels, (g + 1) * channels - 1
            pen.rect(x + offset, y, 58, 24, phase_class(g))
            span = f"{first}" if first == last else f"{first}-{last}"
            pen.text(x + offset + 29, y + 16, span, "us-mid us-mono us-on")
    if problem.groups > _GROUPS:
        pen.text(_GROUPS * 150, top + 32, "⋯", "us-soft")
    return top + 40
