"""One spatial axis as the matrix it is: a row per input, a column per position, the tap that joins them in the cell."""

from __future__ import annotations

from unstride.explain.axis import Axis, Gap, visible
from unstride.explain.drawing import Drawing, Track, crop_cell, fit, heat_cell, phase_class
from unstride.explain.notes import border_words, equation
from unstride.problem import Problem

__all__ = ["LINE_POSITIONS", "draw_line"]

LINE_POSITIONS = 30
_LABELS, _CELL, _ROWS = 128, 34, 14  # width of the row labels, size of a cell, most rows


def draw_line(pen: Drawing, problem: Problem, axis: Axis, top: int) -> int:
    landmarks = (0, axis.begin, axis.full - 1, axis.stop - 1)
    columns = Track(visible(axis.low, axis.high, landmarks, LINE_POSITIONS), _CELL, _LABELS)
    gather = problem.direction == "gather"
    top = _kernel_row(pen, axis, top)
    rows = Track(_touching(axis, columns), _CELL - 4, top + 26)
    chosen: int | None = _middle_input(rows) if gather else _busiest(axis, columns)
    _matrix_frame(pen, problem, columns, rows)
    if chosen is not None:
        _band(pen, axis, columns, rows, chosen, gather)
    for i, y in rows.places():
        _stamp_row(pen, axis, columns, i, y, rows.cell)
    for at, count in rows.gaps():
        pen.text(_LABELS / 2, at + 19, f"⋮ {count}", "us-mid us-soft us-small")
    bottom = _overlap_row(pen, axis, columns, rows.end + 14)
    bottom = _window_row(pen, problem, axis, columns, bottom + 8)
    bottom += 20
    if chosen is not None:
        place = columns.offset(axis.begin + chosen)
        if not gather and place is not None:
            pen.rect(place + 1, bottom - 20 - _CELL, _CELL - 2, _CELL - 2, "us-pick")
        pen.text(0, bottom + 24, equation(problem, (axis,), (chosen,)), "us-mono us-pick-ink")
        bottom += 24
    return bottom


def _kernel_row(pen: Drawing, axis: Axis, top: int) -> int:
    track = Track(visible(0, axis.extent, (0, axis.extent - 1), LINE_POSITIONS), _CELL, _LABELS)
    pen.text(0, top + 21, "kernel w", "us-head us-ink")
    pen.line(track.start, top + 15, track.end, top + 15)
    for place, x in track.places():
        tap, hole = divmod(place, axis.dilation)
        if not hole:
            _tap(pen, axis, tap, x, top, 30)
    for x, _ in track.gaps():
        pen.text(x + 17, top + 20, "⋯", "us-mid us-soft")
    return top + 44


def _tap(pen: Drawing, axis: Axis, tap: int, x: float, y: float, height: int) -> None:
    name = phase_class(tap * axis.dilation % axis.stride)
    pen.rect(x + 2, y + 2, _CELL - 4, height - 4, name)
    pen.text(x + _CELL / 2, y + height / 2 + 4, fit(f"w{tap}", 4), "us-mid us-mono us-on")


def _touching(axis: Axis, columns: Track) -> list[int | Gap]:
    """The inputs that reach a drawn position, as rows to draw."""
    touched = {axis.source(f, k) for f, _ in columns.places() for k in axis.taps(f)[:_ROWS]}
    ends = (min(touched, default=0), max(touched, default=0))
    return visible(0, axis.x, (0, axis.x - 1, *ends), _ROWS)


def _busiest(axis: Axis, columns: Track) -> int | None:
    """The output to explain: drawn, most taps, nearest to the middle of the first stretch."""
    inside = [f for f, _ in columns.places() if axis.begin <= f < axis.stop]
    if not inside:
        return None
    middle = inside[len(inside) // 2] if not columns.gaps() else inside[min(6, len(inside) - 1)]
    return max(inside, key=lambda f: (len(axis.taps(f)), -abs(f - middle))) - axis.begin


def _middle_input(rows: Track) -> int:
    places = rows.places()
    return places[len(places) // 2 if not rows.gaps() else 1][0]


def _matrix_frame(pen: Drawing, problem: Problem, columns: Track, rows: Track) -> None:
    role = "result" if problem.direction == "gather" else "input"
    pen.text(0, rows.start - 8, f"{role} x", "us-head us-ink")
    for f, x in columns.places():
        pen.text(x + columns.cell / 2, rows.start - 8, fit(str(f), 5), "us-mid us-mono us-tiny us-soft")
    for x, _ in columns.gaps():
        pen.text(x + columns.cell / 2, rows.start - 8, "⋯", "us-mid us-soft")
    for i, y in rows.places():
        pen.rect(46, y + 2, 44, rows.cell - 4, "us-cell")
        pen.text(68, y + rows.cell / 2 + 4, fit(f"x{i}", 6), "us-mid us-mono us-ink")


def _band(pen: Drawing, axis: Axis, columns: Track, rows: Track, chosen: int, gather: bool) -> None:
    if gather:
        at = rows.offset(chosen)
        if at is not None:
            pen.rect(columns.start - 6, at, columns.length + 12, rows.cell, "us-band")
            pen.rect(46, at + 2, 44, rows.cell - 4, "us-pick")
        return
    at = columns.offset(axis.begin + chosen)
    if at is not None:
        pen.rect(at, rows.start - 4, columns.cell, rows.length + 14 + 30 + 10, "us-band")


def _stamp_row(pen: Drawing, axis: Axis, columns: Track, i: int, y: int, height: int) -> None:
    first = i * axis.stride
    span = columns.span(first, first + axis.extent)
    if span:
        pen.line(span[0] + 8, y + height / 2, span[1] - 8, y + height / 2)
    for f, x in columns.places():
        tap, hole = divmod(f - first, axis.dilation)
        if not hole and 0 <= tap < axis.kernel:
            _tap(pen, axis, tap, x, y, height)


def _overlap_row(pen: Drawing, axis: Axis, columns: Track, top: int) -> int:
    pen.text(0, top + 19, "taps meeting", "us-head us-ink")
    most = max((len(axis.taps(f)) for f, _ in columns.places()), default=1) or 1
    for f, x in columns.places():
        if 0 <= f < axis.full:
            heat_cell(pen, x, top, columns.cell, 28, len(axis.taps(f)), most, f"position {f}")
    return top + 28


def _window_row(pen: Drawing, problem: Problem, axis: Axis, columns: Track, top: int) -> int:
    role = "data" if problem.direction == "gather" else "output"
    pen.text(0, top + 21, f"{role} y", "us-head us-ink")
    for f, x in columns.places():
        _window_cell(pen, axis, f, x, top)
    for x, _ in columns.gaps():
        pen.text(x + columns.cell / 2, top + 21, "⋯", "us-mid us-soft")
    span = columns.span(axis.begin, axis.stop)
    if span:
        pen.rect(span[0] - 1, top - 3, span[1] - span[0] + 2, columns.cell + 6, "us-window", round_=6)
    _border_words(pen, problem, axis, columns, top + columns.cell + 20)
    return top + columns.cell


def _window_cell(pen: Drawing, axis: Axis, f: int, x: float, top: float) -> None:
    size, inside = _CELL - 4, axis.begin <= f < axis.stop
    if not inside:
        if 0 <= f < axis.full:
            crop_cell(pen, x + 2, top + 2, size)
        return
    empty = not axis.taps(f)
    pen.rect(x + 2, top + 2, size, size, "us-zero" if empty else "us-cell", tip=f"y[{f - axis.begin}]")
    pen.text(x + 17, top + 21, fit(f"y{f - axis.begin}", 4), f"us-mid us-mono {'us-soft' if empty else 'us-ink'}")


def _border_words(pen: Drawing, problem: Problem, axis: Axis, columns: Track, y: float) -> None:
    """What lies between the window's two borders and the reach of the taps."""
    cut, fill = border_words(problem)
    if axis.begin:
        words = f"{axis.begin} {cut}" if axis.begin > 0 else f"{-axis.begin} {fill}"
        pen.text(columns.start, y, words, "us-small us-soft")
    over = axis.full - axis.stop
    if over:
        words = f"{over} {cut}" if over > 0 else f"{-over} {fill}"
        pen.text(columns.end, y, words, "us-small us-soft us-end")
