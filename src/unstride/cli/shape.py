"""Result sizes and windows under every dialect and rule set, side by side.

examples:
  unstride shape --data 1,20,224,224 --filter 20,10,3,3 --strides 2,2 --pads-begin 1,1 --pads-end 1,1
  unstride shape --data 1,1,4 --filter 1,1,3 --strides 2 --output-shape 8 --auto-pad same_upper
  unstride shape model.xml
  unstride shape model.xml --layer up1
  unstride shape "scatter f32 NCX GIOX n1 g1 i1 o1 x4 k3 s2 d1 b1 y8"
"""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import Any

from unstride.cli.call import Call, add_arguments, read_calls
from unstride.cli.output import Column, heading, note, print_json, sizes, table

__all__ = ["chosen_rules", "comparison", "configure", "disagreement", "execute", "print_comparison", "window_text"]

_LEGEND = (
    "Letters: X data size, Y result size, K kernel, s stride, d dilation, ke = (K-1)*d + 1, full = s*(X-1) + ke, "
    "pb/pe pads, op output_padding, t total padding."
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)


def execute(options: argparse.Namespace) -> int:
    calls = read_calls(options)
    if options.json:
        answers = [_as_json(call) for call in calls]
        print_json(answers if len(answers) != 1 else answers[0])
    elif len(calls) == 1:
        print_call(calls[0])
    else:
        _print_list(calls)
    return 0


def print_call(call: Call) -> None:
    """The call itself in three lines, then everybody else's answer."""
    p = call.resolution.problem
    note(f"{call.label}{chosen_rules(call)}", "bold")
    note(
        f"data {sizes(p.data_shape)}, filter {sizes(call.filter_shape or p.filter_shape)} -> {sizes(p.result_shape)}",
        "",
    )
    note(f"window {window_text(p)}", "")
    if call.remark:
        note(call.remark)
    if call.operator is not None:
        print_comparison(call)


def window_text(problem: Any) -> str:
    """The window of each axis as a slice of its full extent; neighbours that are alike are said once.

    >>> from unstride.problem import Problem
    >>> window_text(Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o1 x4x5x5 k3x3x3 s2x2x2 d1x1x1 b1x1x1 y8x9x9"))
    '1:9/9 1:10/11 (2x)'
    """
    parts = [f"{b}:{b + y}/{full}" for b, y, full in zip(problem.begin, problem.y, problem.full, strict=True)]
    runs = [(part, len(list(same))) for part, same in groupby(parts)]
    return " ".join(f"{part} ({count}x)" if count > 1 else part for part, count in runs)


def comparison(call: Call) -> tuple[Any, ...]:
    """The answers of every dialect to the question behind a call."""
    from unstride.explain.compare import Question, compare

    return compare(Question.of(call.operator, call.resolution, call.output_shape))


def print_comparison(call: Call) -> None:
    """The side-by-side table and, where the answers part, one line for each camp."""
    answers = comparison(call)
    heading("The same attributes under every dialect")
    rows, styles = [], []
    for answer in answers:
        said = ["refused", "", answer.refusal] if answer.refusal else [_pair(answer), answer.group, answer.formula]
        rows.append(["*" if _is_asked(call, answer) else "", answer.operator, answer.rules, *said])
        styles.append("dim" if answer.refusal else "bold" if _is_asked(call, answer) else "")
    table(
        [Column(""), Column("operator"), Column("rules"), Column("begin -> size"), Column(""), Column("why")],
        rows,
        styles,
    )
    note(_LEGEND)
    camps = sorted({answer.group for answer in answers if answer.group})
    if len(camps) < 2:
        note("All that answer agree.", "green")
        return
    note(f"{len(camps)} different answers ({', '.join(camps)}): the formulas above say why.", "yellow")
    words = disagreement(call.resolution)
    if words:
        note(words, "yellow")


def disagreement(resolution: Any) -> str:
    """In one line, what the other rule set makes of a call; empty where both make the same of it."""
    if resolution.warning is None or not resolution.other_rules:
        return ""
    who = {"spec": "the document (spec)", "runtime": "the engine (runtime)"}
    if resolution.other is None:
        return f"{who[resolution.other_rules]} refuses this call: {resolution.refusal}"
    (begin, size), (other_begin, other_size) = (
        ([w.begin for w in windows], [w.size for w in windows]) for windows in (resolution.windows, resolution.other)
    )
    if (begin, size) == (other_begin, other_size):
        return str(resolution.warning)
    sizes_differ = f" with sizes {other_size} instead of {size}" if size != other_size else ""
    words = f"{who[resolution.other_rules]} would begin at {other_begin} instead of {begin}{sizes_differ}"
    return f"{words}; --rules {resolution.other_rules} follows it"


def chosen_rules(call: Call) -> str:
    """ ", runtime rules" where the operator has two rule sets, else nothing."""
    named = call.operator is not None and call.operator.rule_set and call.label != "problem"
    return f", {call.resolution.rules} rules" if named else ""


def _pair(answer: Any) -> str:
    return f"{','.join(map(str, answer.begin))} -> {sizes(answer.size)}"


def _is_asked(call: Call, answer: Any) -> bool:
    words = answer.operator.split()
    document = call.operator.document.replace("Graph ", "").replace("Group", "")
    return document.startswith(" ".join(words)) and answer.rules in ("", call.resolution.rules)


def _print_list(calls: list[Call]) -> None:
    rows = []
    for call in calls:
        resolution = call.resolution
        p = resolution.problem
        other = "same" if resolution.warning is None else "differs"
        rows.append([call.label, sizes(p.data_shape), sizes(call.filter_shape), sizes(p.result_shape), window_text(p)])
        rows[-1] += [resolution.rules if resolution.other_rules else "-", other if resolution.other_rules else "-"]
    names = ("layer", "data", "filter", "result", "window", "rules", "other rules")
    table([Column(name) for name in names], rows)
    note("window 4:804/808: positions 4 to 803 of the 808 that the kernel reaches")
    for call in calls:
        if call.remark:
            note(call.remark)


def _as_json(call: Call) -> dict[str, Any]:
    p = call.resolution.problem
    answers = () if call.operator is None else comparison(call)
    return {
        "layer": call.label,
        "problem": str(p),
        "rules": call.resolution.rules,
        "data": p.data_shape,
        "filter": call.filter_shape or p.filter_shape,
        "result": p.result_shape,
        "begin": p.begin,
        "size": p.y if p.direction == "scatter" else p.x,
        "warning": call.resolution.warning,
        "remark": call.remark,
        "answers": [vars(answer) for answer in answers],
    }
