"""Direct products in tiles of halves, where the processor multiplies those: 16 x 32 by 32 x 16 in one instruction.

Or, in the same order, by pairs of channels of bf16 (VDPBF16PS), 256 instructions for each of those.

The processor adds in f32 and takes what is subnormal there for zero. Data and weights of f16 cannot get there; those of
bf16 could, so boxes (and weights) that hold values below SMALLEST are left to other kernels: the products of all
others, and so every sum of them, are multiples of the smallest normal number.

Rows of the first operand are pixels, of which 32 channels lie in a line of memory each: however far a tap reaches, a
tile of neighbours is one aligned run of 1 KiB, which loads twice as fast as anything else.

A line of positions may run over rows of the box, through what pads them: the sums in between are thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import prod

from unstride._lazy import lazy
from unstride.plan.cut import STREAM, Grid
from unstride.plan.direct import DirectPlan, PanelSource, plan_direct
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch, LaunchBuilder
from unstride.plan.machine import AMX, DOTS, ISA, LINE_BYTES
from unstride.plan.shares import round_up
from unstride.plan.tables import Interned
from unstride.problem import Structure

__all__ = ["DEPTH", "MOST_TILES", "SIDE", "SMALLEST", "MatrixLaunch", "MatrixPlan", "plan_matrix"]

DEPTH = 32  # channels of one product
SIDE = 16  # rows and columns of a tile of sums
MOST_TILES = 4  # of sums, at a time
SMALLEST = 2.0**-56  # of bf16, beside zero: (2**-7)**2 parts of products are then at least 2**-126

_OVER = 4 * SIDE  # positions that the last tiles of a line may run over
# What follows was fitted to 487 launches of 14 layers; cycles.
_PRODUCT = {AMX.name: 24.0, DOTS.name: 140.0}  # of multiplying two tiles; with AMX the clock is slower, which is in it
_SUMS, _CALL = 25.0, 40.0  # of putting away a tile of sums, and of a call for up to four of them
_UNHIDDEN = 0.1  # of weights that come from afar: they are fetched ahead
_FILL, _FILL_ROW = {"NCX": 0.2, "NXC": 0.07}, 80.0  # of an element on its way in, and of a row of a block
_LEAVE, _LEAVE_FAR = 0.22, 0.32  # on its way out of an out strip within a quarter of L2, or not
# Where several panels write parts of pixels past the caches, these should be near: by the part of L1 of the out strip.
_IN_PARTS = ((2.0, 0.2), (1.6, 0.28), (0.0, 0.4))
_PANEL, _TASK = 200.0, 900.0

_ALGORITHM = {AMX.name: "direct, in AMX tiles", DOTS.name: "direct, in pairs of bf16"}
_REASON = {
    AMX.name: "one instruction of this processor multiplies 16 pixels x 32 channels by 16 result channels",
    DOTS.name: "one instruction of this processor multiplies 2 channels of a pixel by 16 result channels",
}


@dataclass(frozen=True)
class MatrixPlan(DirectPlan):
    """The direct plan, with channels in steps of DEPTH; `left` computes boxes of tiny numbers, in the same panels."""

    left: DirectPlan
    window: int  # neighbouring pixels whose channels are taken together


def plan_matrix(structure: Structure, isa: ISA, by: ISA = AMX) -> MatrixPlan | None:
    """The plan, or None where such products cannot be used. `isa` is that of other kernels."""
    s = structure
    if s.ci * s.co == 1:
        return None
    base = plan_direct(s, by, merge=False, shaped=False, deep=DEPTH)
    if base.needs_prefill:
        return None
    left = plan_direct(s, isa, merge=False, shaped=False)
    window = base.axes[-1].span if _joining_pays(base) else 1
    if window > 1:
        base = _with_windows(base, window)
    changed = replace(
        base,
        algorithm=_ALGORITHM[by.name],
        reason=_REASON[by.name],
        pixel_pitch=DEPTH,
    )
    own = {field.name: getattr(changed, field.name) for field in fields(changed)}
    return MatrixPlan(**own, left=left, window=window)


def _joining_pays(base: DirectPlan) -> bool:
    """Whether blocks of channels are half as many where those of all pixels that a position reads are taken together.

    That takes channels of one pixel after those of the one before: channels last, and no groups. Every phase must have
    all taps of the window, for a zero in the place of one would meet the pixel, which may be infinite. Windows overlap,
    so more of them is filled, for which a few products less would not make up.
    """
    s, axis, channels = base.structure, base.axes[-1], base.reduce_channels
    every = list(range(axis.first, axis.first + axis.span))
    has_gaps = any([tap.a for tap in phase.taps] != every for phase in axis.phases)
    if s.data_layout != "NXC" or s.groups > 1 or axis.span == 1 or has_gaps:
        return False
    apart = sum(len(phase.taps) for phase in axis.phases) * -(-channels // DEPTH)
    return 2 * len(axis.phases) * -(-axis.span * channels // DEPTH) <= apart


def _with_windows(base: DirectPlan, window: int) -> DirectPlan:
    """The plan with one run of channels for all pixels that a position reads along x."""
    run = round_up(window * base.reduce_channels, DEPTH)
    inner: Interned[tuple[int, int]] = Interned()
    panels: list[tuple[int, ...]] = []
    sources: list[PanelSource] = []
    weights = 0
    for panel, source in zip(base.panels, base.sources, strict=True):
        first, count = panel[Panel.INNER_FIRST], panel[Panel.INNER_COUNT]
        taps = base.inner_taps[first : first + count]
        rows = tuple(dict.fromkeys(a_v for a_v, _ in taps))
        steps: list[tuple[int, ...] | None] = []
        for outer in range(0, len(source.steps), count):
            known = dict(zip(taps, source.steps[outer : outer + count], strict=True))
            steps += [known[a_v, j] for a_v in rows for j in range(window)]
        fields_of = dict(zip(Panel, panel, strict=True))
        fields_of |= {
            Panel.WEIGHTS: weights,
            Panel.INNER_FIRST: inner.place(tuple((a_v, 0) for a_v in rows)),
            Panel.INNER_COUNT: len(rows),
            Panel.RUN: run,
        }
        panels.append(tuple(fields_of[field] for field in Panel))
        sources.append(replace(source, steps=tuple(steps)))
        weights += len(steps) // window * run * panel[Panel.VECTORS] * base.tile.lanes
    return replace(
        base,
        panels=tuple(panels),
        sources=tuple(sources),
        inner_taps=tuple(inner.values),
        packed_elements=weights,
    )


class MatrixLaunch(LaunchBuilder):
    """How a call is cut: boxes whose source stays in L2 as halves."""

    plan: MatrixPlan

    @property
    def price(self) -> float | None:
        """None where not all of the result would be visited."""
        return None if self.prefill else super().price

    @property
    def is_guarded(self) -> bool:
        return self.problem.dtype == "bf16"

    def launches(self) -> tuple[Launch, ...]:
        """The launch, and the direct one, cut alike, for the boxes that it leaves."""
        grid = self.best_grid()[0]
        own = self.build(grid)
        if not self.is_guarded:
            return (own,)
        return own, LaunchBuilder(self.plan.left, self.problem, self.machine, self.threads).build(grid)

    def build(self, grid: Grid | None = None) -> Launch:
        grid = grid or self.best_grid()[0]
        changes = {
            Job.FLAT: int(self._is_flat(grid.v_unit, grid.x_unit)),
            Job.CHANNEL_BLOCKS: self._channels // DEPTH,
            Job.GROUP_BLOCKS: self._channels // DEPTH // self.problem.groups,
            Job.GROUP_CHANNELS: self.plan.window * self.plan.reduce_channels,
        }
        return super().build(grid).changed(changes)

    @property
    def _channels(self) -> int:
        """Of a pixel in the strip: those of a group are whole blocks."""
        return round_up(self.plan.window * self.plan.reduce_channels, DEPTH) * self.problem.groups

    @property
    def _x_step(self) -> int:
        """Pixels of the strip from position to position."""
        return 1 if self.plan.window > 1 else self.x.phases.source_step

    # -- the strips of a box

    def _line(self, v: int, x: int) -> tuple[int, int]:
        """How many lines of positions an image of a box has, and how many positions each."""
        if self._is_flat(v, x):
            return 1, (v - 1) * self._columns(x) + x
        return v, x

    def _is_flat(self, v: int, x: int) -> bool:
        """Whether a line runs over rows of the box: where that takes fewer tiles."""
        if not self._may_be_flat:
            return False
        return -(-((v - 1) * self._columns(x) + x) // SIDE) <= v * -(-x // SIDE)

    @property
    def _may_be_flat(self) -> bool:
        return self.v.phases.source_step == self._x_step == 1

    def _columns(self, x: int) -> int:
        return x if self.plan.window > 1 else self._x_step * (x - 1) + self.x.phases.span

    def _plane_pixels(self, v: int, x: int) -> int:
        rows = self.v.phases.source_step * (v - 1) + self.v.phases.span
        return len(self.plan.planes) * rows * self._columns(x)

    def _strip_bytes(self, images: int, v: int, x: int) -> int:
        over = _OVER * self._x_step
        return LINE_BYTES * (images * self._channels // DEPTH * self._plane_pixels(v, x) + over)

    def _out_bytes(self, images: int, v: int, x: int) -> int:
        width = max(p[Panel.GROUP_WIDTH] for p in self.plan.panels)
        row = self._columns(x) if self._is_flat(v, x) else x
        positions = images * self.v.phases.result_step * v * row + _OVER
        return 4 * positions * self.x.phases.result_step * width

    # -- the price

    def _boxes(self, nv: int, nx: int) -> Iterable[tuple[int, int, int]]:
        for budget in (*(self.machine.l2_bytes // part for part in (2, 4, 8)), self.machine.l1_bytes):
            yield from self._boxes_within(budget, nv, nx)

    def _footprint(self, images: int, v: int, x: int) -> int:
        return self._strip_bytes(images, v, x) + self._out_bytes(images, v, x)

    def _cycles(self, grid: Grid, nv: int, nx: int) -> float:
        """What the busiest thread spends: products, or the weights' way from memory; filling, and the way out."""
        plan, box = self.plan, (grid.images, grid.v_unit, grid.x_unit)
        blocks = len(grid.panel_blocks)
        units = -(-self.batch // grid.images) * -(-nv // grid.v_unit) * -(-nx // grid.x_unit)
        tasks = units * self.outer_positions * blocks
        lines, length = self._line(grid.v_unit, grid.x_unit)
        tiles = grid.images * lines * -(-length // SIDE)
        share = self.v.useful_share if grid.v_unit == 1 else 1.0
        share *= self.x.useful_share if grid.x_unit == self.plan.window == 1 else 1.0
        product = _PRODUCT[plan.isa.name] * self.machine.pace
        cycles = 0.0
        for vectors, (panels, steps) in self._steps_by_width.items():
            cycles += tiles * vectors * (steps * share * product + panels * _SUMS)
            cycles += panels * -(-tiles * vectors // MOST_TILES) * _CALL
        weights = 2 * plan.packed_elements / blocks * share
        streamed = weights / STREAM
        if weights <= self.machine.l2_bytes / 2:
            streamed /= max(1, tasks // blocks // self.threads)
        pixels = grid.images * self._plane_pixels(grid.v_unit, grid.x_unit)
        by_row = _FILL_ROW / self._columns(grid.x_unit) / DEPTH
        filling = pixels * self._channels * (_FILL[self.problem.data_layout] + by_row)
        phases = self.v.phases.result_step * self.x.phases.result_step * len(plan.outer_phases)
        results = prod(box) * phases * plan.result_channels * self.problem.groups
        leaving = results / blocks * self._leave(box) * self.result_distance
        work = cycles / blocks
        reading = max(work, streamed) + _UNHIDDEN * min(work, streamed)
        return self._turns(tasks) * (reading + filling + leaving + _PANEL * len(plan.panels) / blocks + _TASK)

    @lazy
    def _steps_by_width(self) -> dict[int, tuple[int, int]]:
        """By the vectors of panels: how many of them there are, and all their steps of taps and blocks of channels."""
        found = dict.fromkeys((1, 2), (0, 0))
        for panel, source in zip(self.plan.panels, self.plan.sources, strict=True):
            panels, steps = found[panel[Panel.VECTORS]]
            turns = len(source.steps) // self.plan.window * panel[Panel.RUN] // DEPTH
            found[panel[Panel.VECTORS]] = panels + 1, steps + turns
        return found

    def _leave(self, box: tuple[int, int, int]) -> float:
        """Cycles of an element on its way out of a box."""
        out = self._out_bytes(*box)
        if self.problem.data_layout == "NXC" and self.streams and len(self.plan.flush_ends) > 1:
            return next(cycles for part, cycles in _IN_PARTS if out * part <= self.machine.l1_bytes)
        return _LEAVE if out <= self.machine.l2_bytes // 4 else _LEAVE_FAR
