"""One self-contained page: the picture of a call, with every attribute, dialect and rule set at hand.

The page is `assets/` inlined into one file; it needs no network and forbids itself any. Its arithmetic,
`assets/window.js`, is tested equal to the dialects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from unstride.dialects import Operator, Resolution, all_rules, functional, onednn, onnx, openvino
from unstride.explain.compare import Question
from unstride.explain.drawing import STYLE
from unstride.explain.sample import sample_resolution
from unstride.explain.svg import HasProblem, problem_of, svg
from unstride.problem import Problem

__all__ = ["html", "operator_html"]

_SCRIPTS = ("window.js", "code.js", "picture.js", "panels.js", "page.js")
_DIALECTS: tuple[tuple[type[Operator], str], ...] = (
    (openvino.ConvolutionBackpropData, "openvino"),
    (openvino.GroupConvolutionBackpropData, "openvino"),
    (onednn.ConvolutionBackpropData, "onednn.ConvolutionBackpropData"),
    (onednn.ConvTranspose, "onednn.ConvTranspose"),
    (onednn.ConvTransposeBackpropData, "onednn.ConvTransposeBackpropData"),
    (onnx.ConvTranspose, "onnx"),
    (functional.ConvTranspose, "torch"),
)


def html(
    source: Problem | HasProblem | None = None,
    *,
    operator: Operator | None = None,
    output_shape: Sequence[int] | None = None,
) -> str:
    """The page that opens on a problem or on a resolved call; without either, on an example.

    A resolution says which window a call has, not how it was asked for: give the `operator` (and the `output_shape` of
    the call, if it had one) too, and the page starts from the very attributes. Of more than two spatial axes it shows
    the last two.

    >>> from unstride.problem import Problem
    >>> "<script" in html(Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o1 x5 k3 s2 d1 b1 y9"))
    True
    """
    if source is None:
        operator = openvino.ConvolutionBackpropData(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1])
        source = operator.resolve((1, 1, 5, 5), (1, 1, 3, 3))
    problem = problem_of(source)
    if operator is not None and isinstance(source, Resolution):
        return _render(_call_of(operator, source, output_shape), problem)
    return _render(_window_call(problem), problem)


def operator_html(operator: Operator) -> str:
    """What a notebook shows of an operator: its attributes, and the picture of a small call of it.

    An operator fixes neither data nor kernel, so the picture says for which sizes it is drawn.
    """
    head = f"<code>{escape(repr(operator))}</code>"
    resolution = sample_resolution(operator)
    if resolution is None:
        return f"<div>{head}</div>"
    note = "Drawn for a small input and kernel; the operator itself fixes neither."
    return f'<div>{head}<p style="margin:.4em 0;opacity:.75">{note}</p>{svg(resolution)}</div>'


def _call_of(operator: Operator, resolution: Resolution, output_shape: Sequence[int] | None) -> dict[str, Any]:
    """The call as its author wrote it, in the words of the page."""
    question = Question.of(operator, resolution, output_shape)
    dialect = next(name for kind, name in _DIALECTS if isinstance(operator, kind))
    lists = ("size", "kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding")
    shape = question.output_shape
    return {
        "dialect": dialect,
        "rules": resolution.rules,
        **{name: _last_two(getattr(question, name)) for name in lists},
        "auto_pad": question.auto_pad,
        "output_shape": None if shape is None else _last_two(shape),
        **_channels(resolution.problem),
    }


def _window_call(problem: Problem) -> dict[str, Any]:
    """A problem without its author's words: the window itself."""
    gather = problem.direction == "gather"
    size, result = (problem.y, problem.x) if gather else (problem.x, problem.y)
    zeros = _last_two((0,) * problem.rank)
    return {
        "dialect": "window.gather" if gather else "window",
        "rules": "spec",
        "size": _last_two(size),
        "kernel": _last_two(problem.kernel),
        "strides": _last_two(problem.stride),
        "dilations": _last_two(problem.dilation),
        "pads_begin": zeros,
        "pads_end": zeros,
        "output_padding": zeros,
        "auto_pad": "explicit",
        "begin": _last_two(problem.begin),
        "output_shape": _last_two(result),
        **_channels(problem),
    }


def _last_two(values: Sequence[int]) -> list[int]:
    return list(values[-2:])


def _channels(problem: Problem) -> dict[str, int]:
    return {"groups": problem.groups, "ci": problem.ci, "co": problem.co}


def _render(call: dict[str, Any], problem: Problem) -> str:
    assets = files("unstride.explain") / "assets"
    read = {name: (assets / name).read_text(encoding="utf-8") for name in (*_SCRIPTS, "page.css", "page.html")}
    rules = {r.name: {"document": r.document, "when": r.when, "formula": r.formula} for r in all_rules()}
    footer = "Made by unstride; the page needs no network."
    if problem.rank > 2:
        footer = f"The call has {problem.rank} spatial axes; the page shows the last two. {footer}"
    parts = {
        "style": read["page.css"] + STYLE,
        "footer": escape(footer),
        "picture": svg(problem),
        "start": json.dumps({"call": call, "rules": rules}).replace("<", "\\u003c"),
        "script": "\n".join(read[name] for name in _SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read["page.html"])
