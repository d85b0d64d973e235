"""Few channels a group, in channel-major memory: each source pixel is spread over the lanes of its results.

Depthwise layers multiply so little that moving pixels is all their time. Here a vector holds neighbouring elements of
one result row, as they are stored; nothing is transposed, and rows are written from the first element to the last.

A scatter with a stride up to 4 sums each x-phase in a vector of its own, from source pixels as they lie, and weaves the
phases at the end. With a larger stride the source pixels that a tap needs are put into the lanes of their results, by
one permutation, and multiplied by the weights of those lanes, packed in the same order. Which pixel goes into which
lane repeats after `stride / gcd(stride, lanes)` vectors, and is compiled in. For a gather with a stride the
pixels of a source line are put apart when it is filled, those of one residue side by side: each tap reads neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd, prod

from unstride._lazy import lazy
from unstride.plan.across import SLACK, AcrossPlan
from unstride.plan.cut import Grid
from unstride.plan.direct import PanelSource, plan_direct
from unstride.plan.job import Job, Panel
from unstride.plan.line_launch import LineLaunch
from unstride.plan.machine import ISA, LINE_BYTES
from unstride.plan.phases import ONE_ROW, AxisPhases, axis_phases
from unstride.plan.shares import largest, round_up
from unstride.problem import Structure

__all__ = [
    "MOST_ROWS",
    "MOST_WRITTEN",
    "Lanes",
    "SpreadLaunch",
    "SpreadPlan",
    "has_long_tables",
    "is_woven",
    "patterns",
    "plan_spread",
    "row_lists",
    "rows_at_once",
]

_MOST_PATTERNS, _MOST_PERIOD = 48, 128  # multiply-adds of a row of the kernel, and vectors: all are written out
_MOST_WOVEN = 4  # phases
MOST_ROWS = 4  # that are summed at once, if they are short
MOST_WRITTEN = 50  # multiply-adds of a plane of the kernel: those of all its rows are written out
_MOST_RESIDUES = 2**14  # of a position, and kernel elements
_MOST_PRODUCTS = 4  # channels in times channels out, of a group
_STRIP_BYTES = 32 * 1024  # of the source lines of a box, and the next channel's: they should stay in L1
_STRIP_SHARE = 4  # or in this part of L2, where results go past the caches
# Cycles: of a vector that is stored, of a product, and of a vector of a source line; of a result row, a source line and
# a plane, beside their vectors. Fits to random layers: whole lines in one pass, in two, and vectors of half a line.
_IN_ONE_PASS = (3.0, 1.0, 5.0, 4.0, 4.0, 25.0)
_IN_TWO_PASSES = (4.0, 1.4, 7.0, 7.0, 4.0, 90.0)
_IN_HALVES = (2.2, 0.8, 3.6, 2.0, 7.5, 115.0)
_LISTING = 250.0  # cycles of a position of the outer axes, whatever its channels
_MOST_POSITIONS = 256  # of the outer axes that a task visits
# Of results that are on their way past the caches, at most, and so many at a time that memory can take them meanwhile.
_STAGE_BYTES, _BURST_BYTES = 16 * 1024, 4 * 1024


@dataclass(frozen=True)
class Lanes:
    """One tap of one vector of results: from where to load, and what each lane takes from there."""

    first: int  # source element, from the position's first on
    sources: tuple[int | None, ...]  # by lane, counted from `first`; None where the lane's phase has no such tap
    kernel: tuple[int, ...]  # by lane, the kernel index; any where there is none, for it is multiplied by zero


@cache
def patterns(axis: AxisPhases, lanes: int) -> tuple[tuple[Lanes, ...], ...]:
    """The taps of each vector of results of a scatter, until they repeat; in ascending source order, as in a phase.

    >>> from unstride.plan.phases import axis_phases
    >>> for tap in patterns(axis_phases("scatter", 3, 2, 1), 4)[0]:
    ...     print(tap)
    Lanes(first=0, sources=(0, None, 1, None), kernel=(2, 0, 2, 0))
    Lanes(first=1, sources=(0, 0, 1, 1), kernel=(0, 1, 0, 1))
    """
    by_residue = {phase.r: {tap.a: tap.k for tap in phase.taps} for phase in axis.phases}
    offsets = sorted({a for taps in by_residue.values() for a in taps})
    vectors: list[tuple[Lanes, ...]] = []
    for index in range(period_of(axis, lanes)):
        places = [divmod(index * lanes + lane, axis.result_step) for lane in range(lanes)]
        taps: list[Lanes] = []
        for a in offsets:
            found = [by_residue.get(r, {}).get(a) for _, r in places]
            sources = tuple(None if k is None else q - places[0][0] for k, (q, _) in zip(found, places, strict=True))
            if any(k is not None for k in found):
                first = places[0][0] + a - axis.first
                taps.append(Lanes(first, sources, tuple(k or 0 for k in found)))
        vectors.append(tuple(taps))
    return tuple(vectors)


def period_of(axis: AxisPhases, lanes: int) -> int:
    """After how many vectors of results their lanes have the same phases again."""
    return axis.result_step // gcd(axis.result_step, lanes)


def is_woven(axis: AxisPhases) -> bool:
    """Whether each phase is summed in a vector of its own, and all are woven afterwards: less work if they are few."""
    return axis.result_step <= _MOST_WOVEN


@dataclass(frozen=True)
class SpreadPlan(AcrossPlan):
    """Panels are result channels; `inner_taps` says which source rows and kernel rows make up a result row.

    First a (start, count) for every outer phase and residue along v; then, in two pairs each, their taps: plane and
    row of the source, kernel row and 0. A panel serves all outer phases, and its OUTER_COUNT is how many there are.
    Where the kernel is small, residues and taps along v are written out: then there is a list for every outer phase
    alone, of planes and of the first kernel row of each.
    """

    writes_rows: bool = False

    @property
    def algorithm(self) -> str:
        return "spread across x"

    @property
    def row_phases(self) -> int:
        """How many result rows belong to one position."""
        return self.rows_per_chunk

    @property
    def row_taps(self) -> int:
        """Source rows of all of them."""
        return self.listed_taps * (self.along_v[0] if self.writes_rows else 1)

    @property
    def along_v(self) -> tuple[int, int, int]:
        """Kernel, stride and dilation of the axis before the last; a 1D case has one row."""
        s = self.direct.structure
        return (s.kernel[-2], s.stride[-2], s.dilation[-2]) if s.rank > 1 else (1, 1, 1)

    @property
    def lists(self) -> int:
        return len(self.direct.outer_phases) if self.writes_rows else self.row_phases

    @property
    def listed_taps(self) -> int:
        return sum(count for _, count in self.inner_taps[: self.lists])


def plan_spread(structure: Structure, isa: ISA) -> SpreadPlan | None:
    """The plan, or None where it cannot be used or has nothing to gain."""
    s = structure
    result, reduce = (s.co, s.ci) if s.direction == "scatter" else (s.ci, s.co)
    lanes = isa.lanes(8 if s.dtype == "f64" else 4)
    if s.data_layout != "NCX" or result * reduce > _MOST_PRODUCTS or has_long_tables(s):
        return None
    x = axis_phases(s.direction, s.kernel[-1], s.stride[-1], s.dilation[-1])
    # Patterns are kept once they were looked at: not those that are too many at first sight.
    many = period_of(x, lanes) > _MOST_PERIOD or any(len(phase.taps) > _MOST_PATTERNS for phase in x.phases)
    if x.source_step > _MOST_WOVEN or many or products_of(x, lanes) > _MOST_PATTERNS:
        return None
    direct = plan_direct(s, isa)
    v, columns = direct.axes[-2] if s.rank > 1 else ONE_ROW, _kernel_columns(x, lanes)
    kernels = list(product(*(range(k) for k in s.kernel[:-1])))
    kernel_row = {index: i for i, index in enumerate(kernels)}
    steps = tuple((*index, 0) for index in kernels)
    panels: list[tuple[int, ...]] = []
    sources: list[PanelSource] = []
    for group, channel in product(range(s.groups), range(result)):
        fields = {
            Panel.WEIGHTS: len(panels) * len(steps) * reduce * len(columns),
            Panel.RUN: reduce,
            Panel.CHANNEL: group * reduce,
            Panel.COLUMNS: len(columns),
            Panel.OUTER_COUNT: len(direct.outer_phases),
            Panel.BIAS: len(panels),
            Panel.FLUSH_CHANNEL: len(panels),
        }
        panels.append(tuple(fields.get(field, 0) for field in Panel))
        sources.append(PanelSource(group, steps, tuple(((0, k), channel) for k in columns)))
    row_taps = s.kernel[-2] if s.rank > 1 else 1
    writes_rows = is_woven(v) and row_taps * products_of(x, lanes) <= MOST_WRITTEN
    rows = row_lists(direct.axes[:-2], ONE_ROW if writes_rows else v, direct.planes, kernel_row, s.rank)
    return SpreadPlan(
        direct,
        tuple(panels),
        tuple(sources),
        rows,
        tuple(range(result, len(panels) + 1, result)),
        len(direct.outer_phases) * v.result_step,
        True,
        len(panels) * len(steps) * reduce * len(columns),
        tuple(range(len(panels))),
        f"{reduce} channel{'s' * (reduce > 1)} a group: pixels are spread over the lanes of their results",
        writes_rows,
    )


def has_long_tables(structure: Structure) -> bool:
    """Whether a huge stride or kernel would make tables by residue and kernel row too long to think of."""
    return max(prod(structure.stride), prod(structure.kernel)) > _MOST_RESIDUES


def products_of(axis: AxisPhases, lanes: int) -> int:
    """Multiply-adds of a period, for one row of the kernel."""
    if is_woven(axis):
        return sum(len(phase.taps) for phase in axis.phases)
    return sum(map(len, patterns(axis, lanes)))


def rows_at_once(v: AxisPhases, products: int) -> int:
    """Positions along v whose rows are summed at once, where these are written out: they share what they load.

    `products` are those of a period, for one row of the kernel.
    """
    written = products * sum(len(phase.taps) for phase in v.phases)
    return max(1, min(MOST_ROWS // v.result_step, MOST_WRITTEN // written))


def _kernel_columns(axis: AxisPhases, lanes: int) -> list[int]:
    """The kernel indices of a kernel row in the order of the packed weights."""
    if is_woven(axis):
        return [tap.k for phase in axis.phases for tap in phase.taps]
    return [k for taps in patterns(axis, lanes) for tap in taps for k in tap.kernel]


def row_lists(
    outer: tuple[AxisPhases, ...],
    v: AxisPhases,
    planes: tuple[tuple[int, ...], ...],
    kernel_row: dict[tuple[int, ...], int],
    rank: int,
) -> tuple[tuple[int, int], ...]:
    """The `inner_taps` of a plan whose kernel goes row by row."""
    plane_index = {plane: i for i, plane in enumerate(planes)}
    by_residue = {phase.r: phase.taps for phase in v.phases}
    outer_phases = list(product(*(axis.phases for axis in outer)))
    heads: list[tuple[int, int]] = []
    taps: list[tuple[int, int]] = []
    for phases, r in product(outer_phases, range(v.result_step)):
        found = [(o, t) for o in product(*(p.taps for p in phases)) for t in by_residue.get(r, ())]
        heads.append((len(outer_phases) * v.result_step + len(taps), len(found)))
        for o, t in found:
            kernel = kernel_row[(*(tap.k for tap in o), *((t.k,) if rank > 1 else ()))]
            taps += [(plane_index[tuple(tap.a for tap in o)], t.a - v.first), (kernel, 0)]
    return (*heads, *taps)


class SpreadLaunch(LineLaunch[SpreadPlan]):
    """How a call is cut: channels, rows, and where rows are long, parts of them."""

    def _grids(self) -> Iterator[Grid]:
        nv, nx = self.counts
        x_unit = largest(nx, lambda x: self._strip_room(1, x) <= _STRIP_BYTES)
        if x_unit < nx:
            x_unit = max(self.lanes, x_unit // self.lanes * self.lanes)
        v_unit = largest(nv, lambda v: self._strip_room(v, x_unit) <= _STRIP_BYTES)
        if self._streams_boxes(x_unit):  # long runs of memory matter more than lines in L1
            v_unit = largest(nv, lambda v: self._strip_room(v, x_unit) <= self.machine.l2_bytes // _STRIP_SHARE)
        most = min(self.outer_positions, _MOST_POSITIONS)
        for blocks in (1, self.threads, 4 * self.threads, 16 * self.threads):
            panel_blocks = self._panel_blocks(blocks)
            for pieces in (1, self.threads, 4 * self.threads):
                x_part = x_unit if nv >= pieces else min(x_unit, round_up(-(-nx // pieces), self.lanes))
                for together in dict.fromkeys(-(-most // parts) for parts in (1, self.threads, 4 * self.threads, most)):
                    yield Grid(1, min(v_unit, -(-nv // pieces)), x_part, panel_blocks, together)

    @lazy
    def _rotation(self) -> int:
        """The phase of a row's first element: lines that start with it need not be shifted when they are stored.

        Where only a part of the row is visited, that need not start with it.
        """
        axis = self.x.phases
        return self.x.begin % axis.result_step if is_woven(axis) and not self.prefill else 0

    def _row_pitch(self, x: int) -> int:
        axis = self.x.phases
        pixels = (x - (0 if self._rotation else 1)) * axis.source_step + axis.span
        return axis.source_step * round_up(-(-pixels // axis.source_step), self.lanes)

    @lazy
    def _ring(self) -> tuple[int, int]:
        """Planes that a channel's strip has room for, and how many of them are new from one position to the next.

        Along a single outer axis whose planes are neighbours the others are there already. What is new is filled in
        while the planes before it are still read.
        """
        planes, axes = len(self.plan.planes), self.outer
        kept = len(axes) == 1 and axes[0].phases.span == planes and axes[0].phases.source_step < planes
        new = axes[0].phases.source_step if kept else planes
        return (planes + new if self.outer_positions > 1 else planes), new

    def _strip_room(self, v: int, x: int) -> int:
        """Bytes of two strips."""
        rows = (v - 1) * self.v.phases.source_step + self.v.phases.span
        depth = self._ring[0] * self.plan.reduce_channels
        return 2 * self.compute_bytes * (depth * rows * self._row_pitch(x) + SLACK * self.lanes)

    @property
    def may_stream(self) -> bool:
        """The stage costs more than it saves, unless the last cache would not keep the result."""
        return super().may_stream and self._result_bytes > self.machine.last_bytes

    def _stage(self, v: int, x: int) -> int:
        """Bytes of a box's results of one outer phase."""
        row = self.x.result_size if x == self.counts[1] else x * self.x.phases.result_step
        return v * self.v.phases.result_step * row * self.problem.itemsize

    def _streams_boxes(self, x: int) -> bool:
        """Whether results are collected and go past the caches: if they are one run of memory, and rows are short."""
        run = (x == self.counts[1] and not self.prefill) or self.problem.rank == 1
        return self.may_stream and run and self._stage(1, x) <= _STAGE_BYTES

    def _positions_staged(self, grid: Grid) -> int:
        """Positions along v whose results are collected, 0 if they are not."""
        if not self._streams_boxes(grid.x_unit):
            return 0
        fitting = largest(grid.v_unit, lambda v: self._stage(v, grid.x_unit) <= _BURST_BYTES)
        if not self.across.writes_rows:
            return fitting
        # As many as are summed at once, or so many times that: of a burst of others the last ones are summed twice.
        at_once = rows_at_once(self.v.phases, products_of(self.x.phases, self.lanes))
        return fitting - fitting % at_once if fitting > at_once else fitting

    def _cost(self, grid: Grid) -> float:
        """Cycles of the busiest thread: filling lines, multiplying, and the way out."""
        (nv, nx), plan = self.counts, self.across
        units = self.batch * -(-nv // grid.v_unit) * -(-nx // grid.x_unit)
        blocks = len(grid.panel_blocks)
        tasks = units * -(-self.outer_positions // grid.outer_unit) * blocks
        period, products = self._period
        vectors = -(-grid.x_unit * self.x.phases.result_step // (self.lanes * period)) * period
        reduce, channels = self.plan.reduce_channels, len(plan.panels) / blocks
        passes = _IN_ONE_PASS if self.machine.pace == 1 else _IN_TWO_PASSES
        store, multiply, fill, row, line, plane = passes if self.plan.isa.masked else _IN_HALVES
        storing = plan.row_phases * (row + store * vectors * self.result_distance)
        rows = grid.v_unit * (storing + plan.row_taps * reduce * multiply * products * vectors)
        lines = (grid.v_unit - 1) * self.v.phases.source_step + self.v.phases.span
        planes, new = len(self.plan.planes), self._ring[1]
        filled = (planes + (grid.outer_unit - 1) * new) / grid.outer_unit
        filling = filled * reduce * lines * (line + fill * self._row_pitch(grid.x_unit) / self.lanes)
        each = rows + filling / plan.direct.result_channels + plane * len(plan.direct.outer_phases)
        return self._turns(tasks) * (channels * grid.outer_unit * each + _LISTING * grid.outer_unit + 2000)

    @lazy
    def _period(self) -> tuple[int, float]:
        """Vectors after which all repeats; products of one of them, and what these need, for a row of the kernel."""
        axis = self.x.phases
        products = products_of(axis, self.lanes)
        if is_woven(axis):
            return axis.result_step, products / axis.result_step
        period = period_of(axis, self.lanes)
        return period, 2.0 * products / period

    def _scratch(self, grid: Grid) -> dict[Job, int]:
        staged = self._positions_staged(grid)
        return {
            Job.OFFSET_STRIP: self._strip_room(grid.v_unit, grid.x_unit),
            Job.OFFSET_TAPS: 8 * grid.outer_unit * self._record,
            # With what waits of a line, and a line that is read beyond the end.
            Job.OFFSET_OUT: self._stage(staged, grid.x_unit) + 2 * LINE_BYTES if staged else 0,
        }

    @lazy
    def _record(self) -> int:
        """Integers that are noted of a position of the outer axes."""
        plan, planes, phases = self.across, len(self.plan.planes), len(self.plan.outer_phases)
        return 3 * planes + 2 * (phases + plan.lists + plan.listed_taps * self.plan.reduce_channels)

    def _own_fields(self, grid: Grid) -> dict[Job, int]:
        ring, new = self._ring
        return {
            Job.STAGE: self._positions_staged(grid),
            Job.ROTATION: self._rotation,
            Job.OUTER_UNIT: grid.outer_unit,
            Job.OUTER_END: self.outer_positions,
            Job.RING: ring,
            Job.RING_STEP: new,
            Job.RECORD: self._record,
        }
