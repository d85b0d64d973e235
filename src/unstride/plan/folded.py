"""Products across x, sums afterwards: for few result channels in channel-major memory.

A phase of few channels has few rows for a tile across x, and each of them loads every source line anew. Here the rows
of the product are all of (kernel element, channel): a source line is loaded once for a tile full of them. The products
of a few source rows wait in a ring in L2. When all source rows of a result row are there, each of its elements is
summed from the products of its taps, shifted lines, in registers, and stored. Only source rows that exist are
multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from unstride.plan.across import OVERRUN, SLACK, AcrossPlan, find_planes, line_cycles, row_counts
from unstride.plan.cut import STREAM, Grid
from unstride.plan.direct import PanelSource, plan_direct
from unstride.plan.job import Job, Panel, VRange
from unstride.plan.line_launch import LineLaunch
from unstride.plan.machine import ISA
from unstride.plan.phases import ONE_ROW, AxisPhases
from unstride.plan.shares import largest, round_up
from unstride.problem import Structure

__all__ = ["FoldedLaunch", "FoldedPlan", "plan_folded"]

_MOST_CHANNELS = 48  # of the result: with more, phases fill their vectors well enough
_MOST_ROWS = 4096  # lines of products, and residues: with more, tables would be long
_STRIP_SHARE, _RING_SHARE = 8, 2  # of L2: for the source rows of a turn, and for products
_CALL = 90.0  # cycles of one line of products, beside its steps
_FAR = 2.5  # cycles of a store, by how much farther than a cache it goes
_SUM, _SUM_VECTOR = 14.0, 1.6  # cycles of one line of sums, and of each vector of each of its taps
Element = tuple[tuple[int, int], int]  # a kernel element (v, x), and a channel


@dataclass(frozen=True)
class FoldedPlan(AcrossPlan):
    """Panels are rows of (kernel element, channel); `inner_taps` says which of them each phase sums.

    First a (start, count) for every residue along v, then along x; then their taps: (distance of the source row or
    column from the first one that the position can touch, kernel index). A residue without taps is only bias.
    """

    @property
    def algorithm(self) -> str:
        return "folded across x"

    @property
    def product_rows(self) -> int:
        """Lines of products of one source row."""
        return sum(panel[Panel.COLUMNS] for panel in self.panels)


def plan_folded(structure: Structure, isa: ISA) -> FoldedPlan | None:
    """The plan, or None where it cannot be used or has nothing to gain."""
    s = structure
    channels, reduce = (s.co, s.ci) if s.direction == "scatter" else (s.ci, s.co)
    if s.data_layout != "NCX" or s.groups > 1 or channels > _MOST_CHANNELS or s.kernel[-1] == 1:
        return None
    direct = plan_direct(s, isa)
    rows = direct.axes[-2] if s.rank > 1 else ONE_ROW
    residues = rows.result_step * direct.axes[-1].result_step
    if rows.source_step * direct.axes[-1].source_step > 1 or residues > _MOST_ROWS:
        return None
    kernel = (1, *s.kernel)[-2:]
    elements = [((v, x), c) for v in range(kernel[0]) for x in range(kernel[1]) for c in range(channels)]
    outer_phases = list(product(*(axis.phases for axis in direct.axes[:-2])))
    if len(elements) * len(outer_phases) > _MOST_ROWS:
        return None
    plane_index = {plane: i for i, plane in enumerate(direct.planes)}
    zeros = (0,) * min(2, s.rank)
    panels: list[tuple[int, ...]] = []
    sources: list[PanelSource] = []
    weights = 0
    for index, phases in enumerate(outer_phases):
        taps = list(product(*(phase.taps for phase in phases)))
        planes = tuple(plane_index[tuple(t.a for t in tap)] for tap in taps)
        steps = tuple((*(t.k for t in tap), *zeros) for tap in taps)
        for start, columns in _tiles(elements, isa):
            fields = dict.fromkeys(Panel, 0)
            fields.update(
                {
                    Panel.WEIGHTS: weights,
                    Panel.OUTER_FIRST: find_planes(direct.outer_taps, planes),
                    Panel.OUTER_COUNT: len(planes),
                    Panel.RUN: reduce,
                    Panel.COLUMN: index * len(elements) + start,
                    Panel.COLUMNS: len(columns),
                    Panel.V_PHASES: rows.result_step,
                    Panel.OUTER_PHASE: index,
                    Panel.START: int(start == 0),
                    Panel.FLUSH_WIDTH: channels,
                }
            )
            panels.append(tuple(fields[f] for f in Panel))
            sources.append(PanelSource(0, steps, tuple(columns)))
            weights += len(steps) * reduce * len(columns)
    return FoldedPlan(
        direct,
        tuple(panels),
        tuple(sources),
        _tap_lists(rows, direct.axes[-1]),
        (len(panels),),
        channels * direct.axes[-1].result_step,
        True,
        weights,
        tuple(range(channels)),
        f"{channels} result channels: vectors run across x, and products of single kernel elements are summed",
    )


def _tiles(elements: list[Element], isa: ISA) -> Iterator[tuple[int, list[Element]]]:
    """Rows cut to tile heights."""
    start = 0
    while start < len(elements):
        height = max(h for h in row_counts(isa) if h <= len(elements) - start)
        yield start, elements[start : start + height]
        start += height


def _tap_lists(*axes: AxisPhases) -> tuple[tuple[int, int], ...]:
    residues = sum(axis.result_step for axis in axes)
    heads: list[tuple[int, int]] = []
    taps: list[tuple[int, int]] = []
    for axis in axes:
        by_residue = {phase.r: phase.taps for phase in axis.phases}
        for r in range(axis.result_step):
            found = by_residue.get(r, ())
            heads.append((residues + len(taps), len(found)))
            taps += [(tap.a - axis.first, tap.k) for tap in found]
    return (*heads, *taps)


@dataclass(frozen=True)
class Ring:
    """How the products of a box wait: in groups of so many source rows each, so many elements apart."""

    rows: int
    groups: int
    pitch: int


class FoldedLaunch(LineLaunch[FoldedPlan]):
    """How a call is cut: boxes of result positions, each with the source rows that reach into it."""

    def _v_table(self) -> list[int]:
        """By residue, with or without taps, the positions at which it is computed."""
        taps = {phase.r: phase.taps for phase in self.v.phases.phases}
        table: list[int] = []
        for r in range(self.v.phases.result_step):
            visited = r in taps or not self.prefill
            low, high = self.v.positions(r, taps.get(r, ()), reach=self.prefill) if visited else (0, 0)
            values = {VRange.LOW: low, VRange.HIGH: high, VRange.PHASE: r}
            table += [values[field] for field in VRange]
        return table

    def _grids(self) -> Iterator[Grid]:
        nv, nx = self.counts
        blocks = (len(self.across.panels),)
        x_most = largest(nx, self._may_be_wide)
        for x_pieces in (1, 2, 3, 4):
            x = round_up(-(-nx // x_pieces), self.lanes)
            for v_pieces in (1, self.threads, 2 * self.threads, 4 * self.threads, 8 * self.threads):
                yield Grid(1, -(-nv // v_pieces), min(nx, x_most, x), blocks)

    def _may_be_wide(self, x: int) -> bool:
        """Whether one source row, and the products of those that a position needs, and of one more, stay in L2."""
        columns = (x + self.x.phases.span - 1) * self.compute_bytes
        depth = len(self.plan.planes) * self.plan.reduce_channels
        lines = self.across.product_rows * min(self.v.phases.span + 1, self.v.source_size)
        l2 = self.machine.l2_bytes
        return columns * depth <= l2 // _STRIP_SHARE and columns * lines <= l2 // _RING_SHARE

    def _ring(self, grid: Grid) -> Ring:
        """As many source rows at a time as L1 and L2 have room for."""
        columns, span = grid.x_unit + self.x.phases.span - 1, self.v.phases.span
        lines, depth = self.across.product_rows, len(self.plan.planes) * self.plan.reduce_channels
        height = min(grid.v_unit + span - 1, self.v.source_size)

        def ring(rows: int) -> Ring:
            groups = min(1 + -(-(span - 1) // rows), -(-height // rows))
            pitch = round_up(rows * columns, self.lanes) + OVERRUN * self.lanes
            # Lines a power of two apart would fall into one cache set.
            return Ring(rows, groups, pitch + (self.lanes if pitch * self.compute_bytes % 512 == 0 else 0))

        def fits(rows: int) -> bool:
            made = ring(rows)
            strip, products = depth * made.pitch, lines * made.groups * made.pitch
            limits = (self.machine.l2_bytes // _STRIP_SHARE, self.machine.l2_bytes // _RING_SHARE)
            return strip * self.compute_bytes <= limits[0] and products * self.compute_bytes <= limits[1]

        return ring(largest(max(1, height), fits))

    def _cost(self, grid: Grid) -> float:
        """Cycles of the busiest thread: filling, products, sums and the way out."""
        (nv, nx), lanes, ring, plan = self.counts, self.lanes, self._ring(grid), self.across
        tasks = self.batch * -(-nv // grid.v_unit) * -(-nx // grid.x_unit) * self.outer_positions
        height = min(grid.v_unit + self.v.phases.span - 1, self.v.source_size)
        turns = -(-height // ring.rows)
        vectors = -(-height * (grid.x_unit + self.x.phases.span - 1) // (turns * lanes))
        products = turns * sum(self._line_cycles(panel, vectors) for panel in plan.panels)
        weights = plan.packed_elements * self.compute_bytes
        streamed = weights / STREAM / max(1, tasks // self.threads)
        if weights > self.machine.l2_bytes // 8:
            streamed += turns * weights / (4 * STREAM)
        channels = len(self.plan.planes) * self.plan.reduce_channels
        # Every channel of the source begins on another page, which has to be found if the source is large.
        pages = channels * (turns if self.has_far_source else 0)
        arriving = 4.0 if len(self.plan.planes) == 1 else 7.0  # what comes next is fetched for one plane only
        filling = turns * vectors * channels * arriving + 12.0 * channels * height + 60.0 * pages
        width = -(-grid.x_unit // lanes)
        phases = len(self.v.phases.phases) * len(self.x.phases.phases) * len(plan.direct.outer_phases)
        taps = sum(len(v.taps) * len(x.taps) for v, x in product(self.v.phases.phases, self.x.phases.phases))
        taps *= len(plan.direct.outer_phases)
        channels = plan.direct.result_channels
        sums = grid.v_unit * channels * (phases * _SUM + taps * (2.0 + _SUM_VECTOR * width))
        # Phases without taps leave, too.
        leaving = self._leaving * channels * grid.v_unit * self.v.phases.result_step * len(plan.direct.outer_phases)
        leaving *= grid.x_unit * self.x.phases.result_step
        return -(-tasks // self.threads) * (products + streamed + filling + sums + leaving + 3000)

    @property
    def _leaving(self) -> float:
        """Cycles of an element on its way to the result."""
        step, far = self.x.phases.result_step, self.result_distance
        return 0.65 + _FAR * (far - 1.0) if step <= 2 else far + (3.0 if step == 3 else 1.0)

    def _line_cycles(self, panel: tuple[int, ...], vectors: int) -> float:
        """Cycles of one line of products of a panel."""
        steps = panel[Panel.RUN] * panel[Panel.OUTER_COUNT]
        return _CALL + 1.05 * steps * line_cycles(self.machine, panel[Panel.COLUMNS], vectors)

    def _scratch(self, grid: Grid) -> dict[Job, int]:
        plan, ring = self.across, self._ring(grid)
        depth = len(self.plan.planes) * self.plan.reduce_channels
        line = round_up(grid.x_unit, self.lanes) + OVERRUN * self.lanes
        height = grid.v_unit + self.v.phases.span - 1
        taps = max(len(v.taps) * len(x.taps) for v, x in product(self.v.phases.phases, self.x.phases.phases))
        integers = 2 * len(self.plan.planes) + max(2 * max(p[Panel.OUTER_COUNT] for p in plan.panels), taps)
        return {
            Job.OFFSET_STRIP: self.compute_bytes * (depth * ring.pitch + SLACK * self.lanes),
            Job.OFFSET_OUT: self.compute_bytes * plan.rows_per_chunk * line,
            Job.OFFSET_TAPS: 8 * (integers + height),
            Job.OFFSET_PRODUCTS: self.compute_bytes * line * self.x.phases.result_step,
            Job.OFFSET_RING: self.compute_bytes * (plan.product_rows * ring.groups * ring.pitch + SLACK * self.lanes),
        }

    def _own_fields(self, grid: Grid) -> dict[Job, int]:
        ring = self._ring(grid)
        return {
            Job.KERNEL_ROWS: self.across.product_rows,
            Job.KERNEL_X: self.problem.kernel[-1],
            Job.RING_ROWS: ring.rows,
            Job.RING_GROUPS: ring.groups,
            Job.RING_PITCH: ring.pitch,
            Job.FETCH_SHARE: max(share for share in (1, 2, 4, 8) if share <= len(self.across.panels)),
        }
