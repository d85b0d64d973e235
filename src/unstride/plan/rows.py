"""Depthwise layers in pixel-major memory, row by row.

Vectors of channels fill themselves, so what counts is all that is not multiplying: listing the rows of a tile takes
longer than its few products. Here the taps along x are compiled in. For every result row and vector of channels, source
pixels are read as they lie, each once for all phases of a few positions, and every phase is stored where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from unstride._lazy import lazy
from unstride.plan.cut import Grid
from unstride.plan.direct import PanelSource, plan_direct
from unstride.plan.job import Job, Panel
from unstride.plan.line_launch import LineLaunch
from unstride.plan.machine import ISA
from unstride.plan.phases import ONE_ROW, AxisPhases, axis_phases
from unstride.plan.shares import largest
from unstride.plan.spread import SpreadPlan, has_long_tables, row_lists
from unstride.problem import Structure

__all__ = ["RowsLaunch", "RowsPlan", "plan_rows", "positions_at_once", "sums_at_once", "vectors_at_once"]

_MOST_TAPS = 96  # along x: all are written out
_SHARING = 8  # sums that share a weight: the registers of every ISA have room for them
_BANKS_BYTES, _MANY_ROWS = 512, 6  # pixels so far apart, and kernel rows so many, that their lines meet in few banks
_BOX_BYTES = 256 * 1024  # of the results of one row of a box
_LEAST_BLOCK, _MOST_BLOCK = 512, 1024  # bytes of channels that take all positions of a row before the next ones do
# Of results on their way past the caches: so many, or what is computed together; at most an 8th of L2.
_STAGE_BYTES, _STAGE_SHARE = 8 * 1024, 8
# Of the last cache: where it no longer has all lines of a result when they are written, and where it keeps none.
_AHEAD, _KEPT = 0.5, 0.9
# Cycles: of a result row, of a vector that is stored or loaded, and of a product; a fit to random layers.
_ROW, _STORE, _LOAD, _PRODUCT = 60.0, 5.0, 2.8, 0.25
_HIDDEN, _WAITS = 0.7, 1.0  # how much of that, where many products hide the loads, and where few do


def sums_at_once(isa: ISA) -> int:
    """Sums that registers have room for, beside pixels and weights."""
    return 24 if isa.registers == 32 else 8


def positions_at_once(axis: AxisPhases, vectors: int = 1) -> int:
    """Positions that share the weights they load; fewer where several vectors of channels are done together.

    Two at least, even if not all phases of both fit, unless these are so many that every phase is far from its next.
    """
    most, least = (_SHARING, 2 if axis.result_step <= _SHARING else 1) if vectors == 1 else (_SHARING // 2, 1)
    return max(least, min(_SHARING // axis.result_step, most))


def vectors_at_once(structure: Structure, isa: ISA) -> int:
    """Vectors of channels that are done together.

    Where pixels are powers of two apart, the same channels of all pixels that a position reads wait for one bank of a
    cache, and drive each other out of it. Several lines of each pixel are better then than one of each.
    """
    s = structure
    axis = axis_phases(s.direction, s.kernel[-1], s.stride[-1], s.dilation[-1])
    if s.groups * s.itemsize % _BANKS_BYTES or prod(s.kernel[:-1]) < _MANY_ROWS:
        return 1
    return 4 if sums_at_once(isa) >= 4 * positions_at_once(axis, 4) * axis.result_step else 2


@dataclass(frozen=True)
class RowsPlan(SpreadPlan):
    """Panels are vectors of channels, the last one moved back to end with them; `inner_taps` as for `SpreadPlan`."""

    @property
    def algorithm(self) -> str:
        return "depthwise, row by row"


def plan_rows(structure: Structure, isa: ISA) -> RowsPlan | None:
    """The plan, or None where it cannot be used."""
    s, lanes = structure, isa.lanes(8 if structure.dtype == "f64" else 4)
    along_x = max(s.kernel[-1], s.stride[-1])
    if s.data_layout != "NXC" or s.ci * s.co > 1 or s.groups < lanes or along_x > _MOST_TAPS or has_long_tables(s):
        return None
    direct = plan_direct(s, isa)
    x, v = direct.axes[-1], direct.axes[-2] if s.rank > 1 else ONE_ROW
    kernels = list(product(*(range(k) for k in s.kernel[:-1])))
    columns = [tap.k for phase in x.phases for tap in phase.taps]
    steps = tuple((*index, k) for index in kernels for k in columns)
    firsts = [min(first, s.groups - lanes) for first in range(0, s.groups, lanes)]
    panels: list[tuple[int, ...]] = []
    sources: list[PanelSource] = []
    for first in firsts:
        fields = {
            Panel.WEIGHTS: len(panels) * len(steps) * lanes,
            Panel.RUN: 1,
            Panel.CHANNEL: first,
            Panel.COLUMNS: lanes,
            Panel.OUTER_COUNT: len(direct.outer_phases),
            Panel.BIAS: first,
        }
        panels.append(tuple(fields.get(field, 0) for field in Panel))
        sources.append(PanelSource(first, steps, tuple(((0, 0), c) for c in range(lanes))))
    return RowsPlan(
        direct,
        tuple(panels),
        tuple(sources),
        row_lists(direct.axes[:-2], v, direct.planes, {index: i for i, index in enumerate(kernels)}, s.rank),
        # The last two may share channels, which one task alone may store.
        (*range(1, len(panels) - (1 if s.groups % lanes else 0)), len(panels)),
        len(direct.outer_phases) * v.result_step,
        True,
        len(panels) * len(steps) * lanes,
        tuple(range(s.groups)),
        "one channel a group: every row is computed in one sweep, with its taps compiled in",
    )


class RowsLaunch(LineLaunch[RowsPlan]):
    """How a call is cut: rows, and where these are long, parts of them."""

    def _grids(self) -> Iterator[Grid]:
        nv, nx = self.counts
        x_unit = largest(nx, lambda x: x * self._position_bytes <= _BOX_BYTES)
        everything = self._panel_blocks(1)
        for pieces in (1, *(times * self.threads for times in (1, 2, 4))):
            yield Grid(1, -(-nv // pieces), x_unit, everything)
            if nv < pieces:
                yield Grid(1, 1, min(x_unit, -(-nx // pieces)), everything)
            if nv * nx < pieces:
                yield Grid(1, 1, x_unit, self._panel_blocks(pieces))

    def _cost(self, grid: Grid) -> float:
        """Cycles of the busiest thread."""
        (nv, nx), plan = self.counts, self.across
        units = self.batch * -(-nv // grid.v_unit) * -(-nx // grid.x_unit)
        tasks = units * self.outer_positions * len(grid.panel_blocks)
        vectors = len(plan.panels) / len(grid.panel_blocks)
        stored = grid.x_unit * self.x.phases.result_step
        low, high = self._inside
        inside = max(0, min(high, self.x_hull[1]) - max(low, self.x_hull[0])) / nx * grid.x_unit
        together = min(2, positions_at_once(self.x.phases))
        alone = grid.x_unit - inside // together * together  # positions that load pixels and weights for themselves
        taps = sum(len(phase.taps) for phase in self.x.phases.phases)
        loaded = (grid.x_unit - alone) * min(self.x.phases.source_step, self.x.phases.span) + alone * taps
        row = _ROW + vectors * _STORE * stored
        rows = plan.row_phases * row + plan.row_taps * vectors * (loaded * _LOAD + grid.x_unit * taps * _PRODUCT)
        return self._turns(tasks) * (grid.v_unit * rows * self._patience + 2000)

    @property
    def _patience(self) -> float:
        """Where few products hide the loads, as in 1D and where a gather strides, a sweep waits for them."""
        return _WAITS if self.problem.rank == 1 or self.problem.direction == "gather" else _HIDDEN

    @lazy
    def _inside(self) -> tuple[int, int]:
        """Positions along x whose taps all read the source, and whose results all exist."""
        axis = self.x
        step, first = axis.phases.source_step, axis.phases.first + axis.source_shift
        low = max(-(first // step), -(-axis.begin // axis.phases.result_step))
        high = (axis.source_size - axis.phases.span - first) // step + 1
        high = min(high, (axis.result_size - axis.phases.result_step + axis.begin) // axis.phases.result_step + 1)
        return low, max(low, high)

    def _stage(self, grid: Grid) -> int:
        """Positions whose results wait on a stage, 0 for none: it holds whole pixels.

        That is another copy, which gains where the last cache would not keep the result beside all else.
        """
        if not self.streams or self._result_bytes <= _KEPT * self.machine.last_bytes or len(grid.panel_blocks) > 1:
            return 0
        together = positions_at_once(self.x.phases)
        most, least = self.machine.l2_bytes // _STAGE_SHARE, together * self._position_bytes
        if least > most:
            return 0
        return min(grid.x_unit, max(1, min(_STAGE_BYTES, most) // least) * together)

    @property
    def _position_bytes(self) -> int:
        """Bytes of the results of one position in a row."""
        return self.problem.groups * self.problem.itemsize * self.x.phases.result_step

    def _panels_at_once(self, grid: Grid) -> int:
        """Vectors of channels that take all positions of a row before the next ones do.

        All of them, if L1 holds what a few positions need, or a result row has one source row: source and result are
        one run of memory each then. Otherwise weights, and pixels that the next positions need again, would come from
        L2 each time.
        """
        isa, axis, most = self.machine.isa, self.x.phases, -(-len(self.across.panels) // len(grid.panel_blocks))
        together = positions_at_once(axis)
        taps = sum(len(phase.taps) for phase in axis.phases)
        pixels = axis.span + (together - 1) * axis.source_step
        vectors = self._most_taps * (taps + pixels) + together * axis.result_step
        needed = vectors * isa.vector_bytes + len(Panel) * 8
        held = self.machine.l1_bytes // needed
        if held >= most or self._most_taps == 1:
            return most
        least, longest = _LEAST_BLOCK // isa.vector_bytes, _MOST_BLOCK // isa.vector_bytes
        return max(least, min(held // least * least, longest))

    @lazy
    def _most_taps(self) -> int:
        """Source rows of a result row, at most."""
        return max((count for _, count in self.across.inner_taps[: self.across.row_phases]), default=0)

    def _scratch(self, grid: Grid) -> dict[Job, int]:
        return {
            Job.OFFSET_STRIP: self.machine.isa.vector_bytes,
            Job.OFFSET_TAPS: 16 * (len(self.plan.planes) + self._most_taps),
            Job.OFFSET_OUT: self._stage(grid) * self._position_bytes,
        }

    def _own_fields(self, grid: Grid) -> dict[Job, int]:
        low, high = self._inside
        cache = self.machine.last_bytes
        ahead = _AHEAD * cache < self._result_bytes <= _KEPT * cache
        return {
            Job.INSIDE_LOW: low,
            Job.INSIDE_HIGH: high,
            Job.STAGE: self._stage(grid),
            Job.AHEAD: int(ahead),
            Job.PANELS_AT_ONCE: self._panels_at_once(grid),
        }
