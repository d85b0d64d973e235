"""One call taken apart: its window and the rule behind it, phases and taps, overlap, every dialect's answer, spellings.

examples:
  unstride explain --data 1,1,5,5 --filter 1,1,3,3 --strides 2,2 --pads-begin 1,1 --pads-end 1,1
  unstride explain model.xml --layer up1 --svg up1.svg
  unstride explain "scatter f32 NCX GIOX n1 g1 i1 o1 x5 k3 s2 d1 b1 y10" --html picture.html
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from unstride.cli.call import Call, add_arguments, only_one, read_calls
from unstride.cli.output import Column, heading, note, print_json, sizes, table
from unstride.cli.shape import chosen_rules, comparison, print_comparison
from unstride.errors import FormatError
from unstride.explain.axis import Axis, axes_of

__all__ = ["configure", "execute", "write_text"]

_MAX_PHASES = 12
_MAX_TAPS = 10
_SHOWN_POSITIONS = 24


def configure(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--svg", metavar="FILE", help="write the picture of this call")
    parser.add_argument("--html", metavar="FILE", help="write the interactive page, one file that needs no network")


def execute(options: argparse.Namespace) -> int:
    call = only_one(read_calls(options))
    if options.json:
        print_json(_as_json(call))
    else:
        _print(call)
    if options.svg:
        from unstride.explain.svg import svg

        write_text(options.svg, svg(call.resolution), quiet=options.json)
    if options.html:
        from unstride.explain.page import html

        write_text(
            options.html,
            html(call.resolution, operator=call.operator, output_shape=call.output_shape),
            quiet=options.json,
        )
    return 0


def write_text(path: str, text: str, quiet: bool = False) -> None:
    """Write a picture or a page, and say so."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FormatError("file", path, f"cannot be written ({error.strerror})") from None
    if not quiet:
        note(f"wrote {path}", "green")


def _print(call: Call) -> None:
    from unstride.explain.notes import diagnosis

    p = call.resolution.problem
    shapes = (p.data_shape, call.filter_shape or p.filter_shape, p.result_shape)
    note(f"{call.label}{chosen_rules(call)}", "bold")
    note("data {}, filter {} -> {}".format(*map(sizes, shapes)), "")
    note(str(p))
    if call.remark:
        note(call.remark)
    scatter = p.direction == "scatter"
    heading("Window: y[o] = F[o + begin], o in [0, Y)" if scatter else "Window: x[i] reads y[i*s + k*d - begin]")
    _print_axes(call)
    heading("Phases: which taps meet in an output")
    _print_phases(call)
    if scatter:
        verdict, words = diagnosis(p)
        note(words, "green" if verdict == "even" else "yellow")
    if call.operator is not None:
        print_comparison(call)
    heading("The same call elsewhere")
    _print_spellings(p)
    heading("Plan on this machine")
    note(f"{p.flops:,} flops, {p.bytes:,} bytes, {p.flops / max(p.bytes, 1):.1f} flops per byte", "")
    for line in _plan(p):
        note(line, "")


def _plan(problem: Any) -> list[str]:
    from unstride.explain.plan import explain_plan
    from unstride.runtime.machine import host

    return explain_plan(problem, host(), host().cores).splitlines()


def _print_axes(call: Call) -> None:
    p = call.resolution.problem
    crop, pad = ("cropped", "zeros") if p.direction == "scatter" else ("read as 0", "unread")
    rows = []
    for index, axis in enumerate(axes_of(p)):
        edges = (axis.begin, axis.full - axis.stop)
        borders = [f"{abs(count)} {crop if count > 0 else pad}" if count else "-" for count in edges]
        numbers = (axis.x, axis.kernel, axis.stride, axis.dilation, axis.full, axis.begin, axis.y)
        rule = call.resolution.windows[index].rule.formula if call.resolution.windows else ""
        rows.append([str(index), *map(str, numbers), *borders, rule])
    names = ("axis", "X", "K", "s", "d", "full", "begin", "Y")
    columns = [Column(name, number=True) for name in names] + [Column("before"), Column("after"), Column("rule")]
    table(columns, rows)


def _print_phases(call: Call) -> None:
    p = call.resolution.problem
    if p.direction == "gather":
        note(f"one phase: every result reads all {sizes(p.kernel)} taps of the kernel", "")
        return
    rows = []
    for index, axis in enumerate(axes_of(p)):
        if index and axis == axes_of(p)[index - 1]:
            rows.append([str(index), "", f"as axis {index - 1}", ""])
            continue
        for residue in range(min(axis.stride, _MAX_PHASES)):
            taps = axis.phase_taps((residue + axis.begin) % axis.stride)
            rows.append([str(index), _outputs(residue, axis.stride), _tap_list(taps), str(len(taps))])
        if axis.stride > _MAX_PHASES:
            rows.append([str(index), "...", f"{axis.stride} phases in all", ""])
    table([Column("axis", number=True), Column("outputs"), Column("taps"), Column("count", number=True)], rows)
    for index, axis in enumerate(axes_of(p)):
        if axis.y and (index == 0 or axis != axes_of(p)[index - 1]):
            note(f"products per output on axis {index}: {_overlap_row(axis)}", "")


def _outputs(residue: int, stride: int) -> str:
    return "all" if stride == 1 else f"{residue}, {residue + stride}, {residue + 2 * stride} ..."


def _tap_list(taps: range) -> str:
    if not len(taps):
        return "none: always zero"
    shown = " ".join(map(str, taps[:_MAX_TAPS]))
    return f"{shown} ..." if len(taps) > _MAX_TAPS else shown


def _overlap_row(axis: Axis) -> str:
    counts = [len(axis.taps(axis.begin + o)) for o in range(min(axis.y, _SHOWN_POSITIONS))]
    return " ".join(map(str, counts)) + (" ..." if axis.y > _SHOWN_POSITIONS else "")


def _print_spellings(problem: Any) -> None:
    from unstride.explain.spelling import spellings

    for spelling in spellings(problem):
        note(f"  {spelling.framework:<9} {spelling.code or 'cannot say it: ' + spelling.reason}", "")
        if spelling.layout:
            note(f"            {spelling.layout}")


def _as_json(call: Call) -> dict[str, Any]:
    from unstride.explain.notes import diagnosis
    from unstride.explain.spelling import spellings

    p = call.resolution.problem
    verdict, words = diagnosis(p)
    windows = call.resolution.windows
    return {
        "layer": call.label,
        "problem": str(p),
        "rules": call.resolution.rules,
        "data": p.data_shape,
        "result": p.result_shape,
        "axes": [
            vars(axis) | {"full": axis.full, "rule": windows[index].rule.name if windows else None}
            for index, axis in enumerate(axes_of(p))
        ],
        "overlap": {"verdict": verdict, "words": words},
        "answers": [] if call.operator is None else [vars(answer) for answer in comparison(call)],
        "spellings": [vars(spelling) for spelling in spellings(p)],
        "plan": _plan(p),
        "flops": p.flops,
        "bytes": p.bytes,
        "warning": call.resolution.warning,
    }
