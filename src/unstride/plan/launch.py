"""Sizes enter here: the launch of one size, the tables and the job that tell generated code what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from unstride.plan.cut import Cut, Grid
from unstride.plan.direct import DirectPlan
from unstride.plan.job import Job, Outer, Panel, VRange
from unstride.plan.machine import Machine
from unstride.plan.phases import Tap
from unstride.plan.shares import round_up
from unstride.problem import Problem

__all__ = ["Launch", "LaunchBuilder", "plan_launch"]

_NOWHERE = (0, 0, 0, 0)


@dataclass(frozen=True)
class Launch:
    """One size of one plan: the job's integers (addresses still 0), its size tables, and what it costs."""

    problem: Problem
    fields: tuple[int, ...]
    sizes: tuple[int, ...]
    tasks: int
    threads: int  # how many the work was cut for
    scratch_per_slot: int
    prefill: bool  # the result starts as bias alone, since phases or regions without taps are not visited

    def changed(self, changes: Mapping[Job, int]) -> Launch:
        """The launch with other integers in some fields."""
        fields = list(self.fields)
        for field, value in changes.items():
            fields[field] = value
        return replace(self, fields=tuple(fields), scratch_per_slot=fields[Job.SCRATCH_PER_SLOT])


def plan_launch(plan: DirectPlan, problem: Problem, machine: Machine, threads: int) -> Launch:
    """The launch of one problem: its structure must be the plan's."""
    return LaunchBuilder(plan, problem, machine, threads).build()


class LaunchBuilder(Cut):
    """Makes the launch of one problem by one direct plan; other algorithms build on it."""

    @property
    def price(self) -> float | None:
        """Cycles of the busiest thread, or None where the kernel cannot be used or is none to think of."""
        return self.best_grid()[1] + self.prefilling

    def launches(self) -> tuple[Launch, ...]:
        """What has to run, one after the other."""
        return (self.build(),)

    def build(self, grid: Grid | None = None) -> Launch:
        grid = grid or self.best_grid()[0]
        tables = [
            [0],  # no table starts at 0, so that no offset can be forgotten unnoticed
            self._x_table(),
            self._v_table(),
            self._outer_table(),
            self._block_table(grid),
            self._tap_table(),
            self._v_starts(grid),
        ]
        starts = [sum(map(len, tables[: i + 1])) for i in range(len(tables) - 1)]
        v_blocks, x_blocks = _blocks(self.v_hull, grid.v_unit), _blocks(self.x_hull, grid.x_unit)
        n_blocks = -(-self.batch // grid.images)
        outer_blocks = -(-self.outer_positions // grid.outer_unit)
        strip = round_up(self._strip_bytes(grid.images, grid.v_unit, grid.x_unit))
        out = round_up(self._out_bytes(grid.images, grid.v_unit, grid.x_unit))
        steps = max((p[Panel.INNER_COUNT] * p[Panel.OUTER_COUNT] for p in self.plan.panels), default=0)
        taps = round_up(16 * steps + 16 * len(self.plan.planes))
        fields = {
            **self._source_fields(),
            **self._result_fields(),
            Job.X_RANGES: starts[0],
            Job.V_RANGES: starts[1],
            Job.OUTER_AXES: starts[2],
            Job.PANEL_BLOCKS: starts[3],
            Job.TAP_RANGES: starts[4],
            Job.IMAGES: self.batch,
            Job.IMAGES_PER_UNIT: grid.images,
            Job.N_BLOCKS: n_blocks,
            Job.P_BLOCKS: len(grid.panel_blocks),
            Job.V_UNIT: grid.v_unit,
            Job.V_BLOCKS: v_blocks,
            Job.V_STARTS: starts[5],
            Job.X_LOW: self.x_hull[0],
            Job.X_HIGH: self.x_hull[1],
            Job.X_UNIT: grid.x_unit,
            Job.X_BLOCKS: x_blocks,
            Job.OUTER_COUNT: len(self.outer),
            Job.OUTER_POSITIONS: outer_blocks,
            Job.OFFSET_STRIP: 0,
            Job.OFFSET_OUT: strip,
            Job.OFFSET_TAPS: strip + out,
            Job.SCRATCH_PER_SLOT: strip + out + taps,
            Job.HOLES: int(self.prefill or self.plan.needs_prefill),
            Job.TASKS_AHEAD: self._tasks_ahead(grid),
        }
        tasks = n_blocks * len(grid.panel_blocks) * v_blocks * x_blocks * outer_blocks
        return Launch(
            problem=self.problem,
            fields=tuple(fields.get(field, 0) for field in Job),
            sizes=tuple(value for table in tables for value in table),
            tasks=tasks if prod(self.problem.result_shape) else 0,
            threads=self.threads,
            scratch_per_slot=fields[Job.SCRATCH_PER_SLOT],
            prefill=self.prefill,
        )

    def _tasks_ahead(self, grid: Grid) -> int:
        """How many tasks later the one comes whose source is fetched; 0 if that does not pay: pixels that need not be
        transposed come in fast enough, and where results are much more than the source, memory is busy with them."""
        much = 6 * prod(self.problem.data_shape) >= prod(self.problem.result_shape)
        return self.threads if much and self.problem.data_layout == "NCX" and self._has_far_rows(grid) else 0

    def _has_far_rows(self, grid: Grid) -> bool:
        """Whether the source is far, and units are whole rows of one plane of it."""
        return self.has_far_source and self.problem.rank == 2 and grid.x_unit == self.counts[1]

    # -- tables

    def _x_table(self) -> list[int]:
        return [value for key in self.plan.x_ranges for value in self._x_range(*key)]

    def _x_range(self, class_index: int, start: int, columns: int) -> list[int]:
        """Where a column block lives; a merged block may hang over the row's ends at one position on either side."""
        c = self.plan.classes[class_index]
        if self.plan.through_strip or not self.plan.merged:
            residues = range(c.first_phase, c.first_phase + c.phases)
            spans = [self.x.positions(r, c.taps.taps, reach=self.prefill) for r in residues]
            alive = [(low, high) for low, high in spans if high > low]
            first = min((low for low, _ in alive), default=0)
            last = max((high for _, high in alive), default=0)
            return [first, last, 0, columns, *_NOWHERE, *_NOWHERE]
        channels = self.plan.result_channels
        pitch, row = self.x.phases.result_step * channels, self.x.result_size * channels
        base = (c.first_phase - self.x.begin) * channels + start  # the block's first element at position 0
        low, high = -((base + columns - 1) // pitch), (row - 1 - base) // pitch + 1
        first, last = -(base // pitch), (row - columns - base) // pitch + 1
        if self.prefill:
            near, far = self.x.reach(c.taps.taps)
            low, high, first, last = max(low, near), min(high, far), max(first, near), min(last, far)
        last = max(first, last)
        edges = [p for p in range(low, min(high, low + 1)) if p < first]
        edges += [p for p in range(max(low, high - 1), high) if p >= last and p not in edges]
        windows = [(p, p + 1, max(0, -base - p * pitch), min(columns, row - base - p * pitch)) for p in edges] + [
            _NOWHERE
        ] * (2 - len(edges))
        return [first, last, 0, columns, *windows[0], *windows[1]]

    def _v_table(self) -> list[int]:
        table: list[int] = []
        for phase, (low, high) in zip(self.v.phases.phases, self.v.ranges(reach=self.prefill), strict=True):
            values = {VRange.LOW: low, VRange.HIGH: high, VRange.PHASE: phase.r}
            table += [values[field] for field in VRange]
        return table

    def _outer_table(self) -> list[int]:
        table: list[int] = []
        source_strides = _strides(self.problem, self.problem.data_shape)[2:-2]
        result_strides = _strides(self.problem, self.problem.result_shape)[2:-2]
        for axis, (low, high), source, result in zip(
            self.outer, self.outer_hulls, source_strides, result_strides, strict=True
        ):
            values = {
                Outer.LOW: low,
                Outer.COUNT: high - low,
                Outer.SOURCE_STEP: axis.phases.source_step,
                Outer.SOURCE_SIZE: axis.source_size,
                Outer.SOURCE_STRIDE: source,
                Outer.SOURCE_SHIFT: axis.source_shift,
                Outer.RESULT_STEP: axis.phases.result_step,
                Outer.RESULT_BEGIN: axis.begin,
                Outer.RESULT_SIZE: axis.result_size,
                Outer.RESULT_STRIDE: result,
            }
            table += [values[field] for field in Outer]
        return table

    def _block_table(self, grid: Grid) -> list[int]:
        return [0, *grid.panel_blocks]

    @property
    def v_grain(self) -> int:
        """Positions along v that stay together."""
        return 1

    def _v_starts(self, grid: Grid) -> list[int]:
        """Blocks as even as can be, the larger ones first: else one thread would wait for another's last one."""
        (low, high), grain, count = self.v_hull, self.v_grain, _blocks(self.v_hull, grid.v_unit)
        least, more = divmod(-(-(high - low) // grain), max(1, count))
        return [*(low + grain * (i * least + min(i, more)) for i in range(count)), high]

    def _tap_table(self) -> list[int]:
        if not self.plan.clipped and not self.plan.banded:
            return []
        table: list[int] = []
        for taps in self.plan.inner_taps:
            for axis, a in zip((self.v, self.x), taps, strict=True):
                table += axis.reach((Tap(a + axis.phases.first, 0),))
        return table

    # -- fields

    def _source_fields(self) -> dict[Job, int]:
        n, c, *_, v, x = _strides(self.problem, self.problem.data_shape)
        return {
            Job.SOURCE_V_STEP: self.v.phases.source_step,
            Job.SOURCE_X_STEP: self.x.phases.source_step,
            Job.SOURCE_V_FIRST: self.v.phases.first + self.v.source_shift,
            Job.SOURCE_X_FIRST: self.x.phases.first + self.x.source_shift,
            Job.SOURCE_V_SPAN: self.v.phases.span,
            Job.SOURCE_X_SPAN: self.x.phases.span,
            Job.SOURCE_V_SIZE: self.v.source_size,
            Job.SOURCE_X_SIZE: self.x.source_size,
            Job.SOURCE_N_STRIDE: n,
            Job.SOURCE_C_STRIDE: c,
            Job.SOURCE_V_STRIDE: v,
            Job.SOURCE_X_STRIDE: x,
            Job.CHANNELS: self.plan.reduce_channels * self.problem.groups,
            Job.PIXEL_PITCH: self.plan.pixel_pitch,
            Job.PLANE_COUNT: len(self.plan.planes),
            Job.IN_PLACE: int(self.plan.in_place),
        }

    def _result_fields(self) -> dict[Job, int]:
        n, c, *_, v, x = _strides(self.problem, self.problem.result_shape)
        return {
            Job.RESULT_V_STEP: self.v.phases.result_step,
            Job.RESULT_X_STEP: self.x.phases.result_step,
            Job.RESULT_V_REACH: self.v_reach,
            Job.RESULT_X_REACH: self.x_reach,
            Job.RESULT_V_BEGIN: self.v.begin,
            Job.RESULT_X_BEGIN: self.x.begin,
            Job.RESULT_V_SIZE: self.v.result_size,
            Job.RESULT_X_SIZE: self.x.result_size,
            Job.RESULT_N_STRIDE: n,
            Job.RESULT_C_STRIDE: c,
            Job.RESULT_V_STRIDE: v,
            Job.RESULT_X_STRIDE: x,
            Job.STREAM: int(self.streams),
        }


def _blocks(hull: tuple[int, int], unit: int) -> int:
    return -(-(hull[1] - hull[0]) // unit)


def _strides(problem: Problem, shape: tuple[int, ...]) -> list[int]:
    """Element strides of a contiguous array, in the order n, c, spatial...; a 1D case gets a row stride of 0."""
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    if problem.data_layout == "NXC":
        strides = [strides[0], strides[-1], *strides[1:-1]]
    return strides if problem.rank > 1 else [*strides[:2], 0, strides[2]]
