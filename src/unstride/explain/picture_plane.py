"""Two spatial axes as three planes: the inputs, the kernel as dilated, and the positions with the window on them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

from unstride.explain.axis import Axis, Gap, visible
from unstride.explain.drawing import Drawing, Track, crop_cell, fit, heat_cell, phase_class
from unstride.explain.notes import border_words, equation, sizes
from unstride.problem import Problem

__all__ = ["PLANE_POSITIONS", "draw_plane"]

PLANE_POSITIONS = 18
_CELL, _INPUTS, _TAPS = 26, 9, 9
_LEFT, _HEADING = 24, 36  # room for the row numbers, and for a panel's heading


class _Plane(NamedTuple):
    rows: Track
    columns: Track

    def at(self, row: int, column: int) -> tuple[int, int] | None:
        """The corner (x, y) of a cell, None where it is not drawn."""
        x, y = self.columns.offset(column), self.rows.offset(row)
        return None if x is None or y is None else (x, y)


def draw_plane(pen: Drawing, problem: Problem, axes: tuple[Axis, ...], top: int) -> int:
    """Draws below `top` and returns where it ended."""
    inputs = _plane([visible(0, a.x, (0, a.x - 1), _INPUTS) for a in axes], _LEFT, top + _HEADING)
    taps = _plane(
        [visible(0, a.extent, (0, a.extent - 1), _TAPS) for a in axes], _LEFT, inputs.rows.end + 26 + _HEADING
    )
    field_left = max(inputs.columns.end, taps.columns.end, _LEFT + 190) + 60
    field = _plane([_positions(axis) for axis in axes], field_left, top + _HEADING)
    gather = problem.direction == "gather"
    chosen = _middle_input(inputs) if gather else _central_output(axes, field)
    _draw_inputs(pen, problem, axes, inputs, chosen)
    _draw_kernel(pen, axes, taps, None if gather else chosen)
    _draw_field(pen, problem, axes, field, chosen)
    bottom = max(taps.rows.end, field.rows.end + 22)
    if chosen:
        pen.text(0, bottom + 34, equation(problem, axes, chosen), "us-mono us-pick-ink")
        bottom += 34
    return bottom


def _plane(entries: list[list[int | Gap]], left: int, top: int) -> _Plane:
    return _Plane(Track(entries[0], _CELL, top), Track(entries[1], _CELL, left))


def _positions(axis: Axis) -> list[int | Gap]:
    return visible(axis.low, axis.high, (0, axis.begin, axis.full - 1, axis.stop - 1), PLANE_POSITIONS)


def _middle_input(inputs: _Plane) -> tuple[int, ...]:
    drawn = [[index for index, _ in track.places()] for track in inputs]
    return tuple(indices[min(len(indices) // 2, 2)] for indices in drawn)


def _central_output(axes: tuple[Axis, ...], field: _Plane) -> tuple[int, ...] | None:
    """An output near the corner's middle, with as many taps as outputs get; None if the window is empty."""
    chosen = [_busiest(axis, track) for axis, track in zip(axes, field, strict=True)]
    return None if None in chosen else tuple(o for o in chosen if o is not None)


def _busiest(axis: Axis, track: Track) -> int | None:
    inside = [f for f, _ in track.places() if axis.begin <= f < axis.stop]
    if not inside:
        return None
    middle = inside[min(len(inside) // 2, 5)]
    return max(inside, key=lambda f: (len(axis.taps(f)), -abs(f - middle))) - axis.begin


def _grid_numbers(pen: Drawing, plane: _Plane, number: Callable[[int, int], int | None]) -> None:
    """`number(axis, index)` along the top and the left border, and dots where indices are missing."""
    for axis, track in enumerate(plane):
        for index, at in track.places():
            shown = number(axis, index)
            if shown is not None:
                x, y = (plane.columns.start - 12, at + 17) if axis == 0 else (at + _CELL / 2, plane.rows.start - 7)
                pen.text(x, y, fit(str(shown), 4), "us-mid us-mono us-tiny us-soft")
        for at, _ in track.gaps():
            for _, other in (plane.columns if axis == 0 else plane.rows).places():
                x, y = (other, at) if axis == 0 else (at, other)
                pen.text(x + _CELL / 2, y + 17, "⋮" if axis == 0 else "⋯", "us-mid us-soft us-tiny")


def _tap_number(axis: Axis, place: int) -> int | None:
    return None if place % axis.dilation else place // axis.dilation


def _output_number(axis: Axis, position: int) -> int | None:
    return position - axis.begin if axis.begin <= position < axis.stop else None


def _heading(pen: Drawing, plane: _Plane, name: str, detail: str) -> None:
    pen.text(plane.columns.start, plane.rows.start - 22, name, "us-head us-ink")
    pen.text(plane.columns.start + 9 + 7.6 * len(name), plane.rows.start - 22, detail, "us-small us-soft")


def _draw_inputs(
    pen: Drawing, problem: Problem, axes: tuple[Axis, ...], plane: _Plane, chosen: tuple[int, ...] | None
) -> None:
    gather = problem.direction == "gather"
    _heading(pen, plane, "result x" if gather else "input x", sizes(axis.x for axis in axes))
    _grid_numbers(pen, plane, lambda _, index: index)
    used = set() if gather or not chosen else _sources(axes, chosen)
    colour = _phase_of(axes, chosen) if used and chosen else ""
    for (r, y), (c, x) in product(plane.rows.places(), plane.columns.places()):
        pen.rect(x + 2, y + 2, _CELL - 4, _CELL - 4, colour if (r, c) in used else "us-cell", tip=f"x[{r},{c}]")
    corner = plane.at(*chosen) if gather and chosen else None
    if corner:
        pen.rect(corner[0] + 1, corner[1] + 1, _CELL - 2, _CELL - 2, "us-pick")


def _sources(axes: tuple[Axis, ...], chosen: tuple[int, ...]) -> set[tuple[int, ...]]:
    pairs = [[i for i, _ in axis.pairs(o + axis.begin)] for axis, o in zip(axes, chosen, strict=True)]
    return set(product(*pairs))


def _phase_of(axes: tuple[Axis, ...], chosen: tuple[int, ...]) -> str:
    rows, columns = ((o + axis.begin) % axis.stride for axis, o in zip(axes, chosen, strict=True))
    return phase_class(rows * axes[1].stride + columns)


def _draw_kernel(pen: Drawing, axes: tuple[Axis, ...], plane: _Plane, chosen: tuple[int, ...] | None) -> None:
    """The taps at their dilated places, coloured by the phase they serve; those of the chosen output ringed."""
    _heading(pen, plane, "kernel w", sizes(axis.kernel for axis in axes))
    _grid_numbers(pen, plane, lambda n, place: _tap_number(axes[n], place))
    used = set() if chosen is None else set(product(*(a.taps(o + a.begin) for a, o in zip(axes, chosen, strict=True))))
    for (r, y), (c, x) in product(plane.rows.places(), plane.columns.places()):
        (kh, hole_h), (kw, hole_w) = divmod(r, axes[0].dilation), divmod(c, axes[1].dilation)
        if hole_h or hole_w:
            pen.rect(x + 11, y + 11, 4, 4, "us-cell", round_=2)
            continue
        name = phase_class(r % axes[0].stride * axes[1].stride + c % axes[1].stride)
        pen.rect(x + 2, y + 2, _CELL - 4, _CELL - 4, name, tip=f"w[{kh},{kw}]")
        if (kh, kw) in used:
            pen.rect(x + 1, y + 1, _CELL - 2, _CELL - 2, "us-pick")


def _draw_field(
    pen: Drawing, problem: Problem, axes: tuple[Axis, ...], plane: _Plane, chosen: tuple[int, ...] | None
) -> None:
    gather = problem.direction == "gather"
    detail = f"{sizes(axis.y for axis in axes)}, the number in a cell counts the products it is in"
    _heading(pen, plane, "data y" if gather else "output y", detail)
    _grid_numbers(pen, plane, lambda n, position: _output_number(axes[n], position))
    shown = [[len(axis.taps(f)) for f, _ in track.places()] for axis, track in zip(axes, plane, strict=True)]
    most = max(shown[0], default=1) * max(shown[1], default=1) or 1
    for (r, y), (c, x) in product(plane.rows.places(), plane.columns.places()):
        _field_cell(pen, axes, (r, c), (x, y), most)
    _draw_window(pen, axes, plane)
    if chosen:
        _draw_choice(pen, axes, plane, chosen, gather)
    pen.text(plane.columns.start, plane.rows.end + 22, _borders(problem, axes), "us-small us-soft")


def _field_cell(
    pen: Drawing, axes: tuple[Axis, ...], place: tuple[int, int], corner: tuple[int, int], most: int
) -> None:
    inside = all(axis.begin <= f < axis.stop for axis, f in zip(axes, place, strict=True))
    reached = all(0 <= f < axis.full for axis, f in zip(axes, place, strict=True))
    x, y = corner
    if inside:
        count = len(axes[0].taps(place[0])) * len(axes[1].taps(place[1]))
        where = f"y[{place[0] - axes[0].begin},{place[1] - axes[1].begin}]"
        if count:
            heat_cell(pen, x, y, _CELL, _CELL, count, most, where)
        else:
            pen.rect(x + 2, y + 2, _CELL - 4, _CELL - 4, "us-zero", tip=f"{where}: no tap")
            pen.text(x + _CELL / 2, y + 17, 0, "us-mid us-mono us-soft")
    elif reached:
        crop_cell(pen, x + 2, y + 2, _CELL - 4)


def _draw_window(pen: Drawing, axes: tuple[Axis, ...], plane: _Plane) -> None:
    rows, columns = (track.span(axis.begin, axis.stop) for axis, track in zip(axes, plane, strict=True))
    if rows and columns:
        pen.rect(columns[0] - 2, rows[0] - 2, columns[1] - columns[0] + 4, rows[1] - rows[0] + 4, "us-window", round_=6)


def _draw_choice(pen: Drawing, axes: tuple[Axis, ...], plane: _Plane, chosen: tuple[int, ...], gather: bool) -> None:
    """The chosen output, and the footprint of one input under the kernel."""
    first = (
        chosen
        if gather
        else tuple(
            a.source(o + a.begin, a.taps(o + a.begin)[-1]) if a.taps(o + a.begin) else 0
            for a, o in zip(axes, chosen, strict=True)
        )
    )
    spans = [t.span(i * a.stride, i * a.stride + a.extent) for a, t, i in zip(axes, plane, first, strict=True)]
    rows, columns = spans
    if rows and columns:
        width, height = columns[1] - columns[0], rows[1] - rows[0]
        pen.rect(columns[0] - 1, rows[0] - 1, width + 2, height + 2, "us-pick us-stamp", round_=3)
    corner = None if gather else plane.at(chosen[0] + axes[0].begin, chosen[1] + axes[1].begin)
    if corner:
        pen.rect(corner[0] + 1, corner[1] + 1, _CELL - 2, _CELL - 2, "us-pick")


def _borders(problem: Problem, axes: tuple[Axis, ...]) -> str:
    """Top, bottom, left and right: how much is cropped, how much is zero."""
    cut, fill = border_words(problem)
    sides = zip(("top", "bottom", "left", "right"), (d for a in axes for d in (a.begin, a.full - a.stop)), strict=True)
    words = [f"{side} {abs(d)} {cut if d > 0 else fill}" for side, d in sides if d]
    return ", ".join(words) or "the window is the whole reach of the taps"
