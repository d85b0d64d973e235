"""Source pixels spread over the lanes of their results: the driver of `plan.spread`.

per box: list the source planes (or rows) and kernel rows of every result plane (or row)
per channel: fill the strip [channel of the group][plane][row][x]; then, row by row of the result, sums in registers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from unstride.codegen import ir
from unstride.codegen.emit import I64, Callee, Int, Ptr, size_of
from unstride.codegen.line_strip import LineStrip
from unstride.codegen.numbers import Numbers
from unstride.codegen.spread_rows import SpreadRows
from unstride.codegen.strips import before_and_in_lines, emit_stream
from unstride.plan.across import SLACK
from unstride.plan.job import Job, Panel
from unstride.plan.machine import LINE_BYTES
from unstride.plan.phases import AxisPhases, axis_phases
from unstride.plan.spread import SpreadPlan, is_woven

__all__ = ["SpreadFamily"]


@dataclass(frozen=True)
class SpreadFamily:
    """What is compiled into one such kernel: all but the sizes of the last axis, and of the one before if its kernel is
    small."""

    dtype: str
    isa_name: str
    activation: str
    direction: str
    kernel: int
    stride: int
    dilation: int
    along_v: tuple[int, int, int] | None = None  # kernel, stride and dilation; None where rows are listed
    name: ClassVar[str] = "spread"

    @classmethod
    def of(cls, plan: SpreadPlan, activation: str) -> Self:
        s = plan.direct.structure
        axis = (s.direction, s.kernel[-1], s.stride[-1], s.dilation[-1])
        return cls(s.dtype, plan.direct.isa.name, activation, *axis, plan.along_v if plan.writes_rows else None)

    @property
    def key(self) -> str:
        axis = f"{self.direction} k{self.kernel} s{self.stride} d{self.dilation}"
        rows = " rows k{} s{} d{}".format(*self.along_v) if self.along_v else ""
        return f"{self.name} {self.dtype} {self.activation} {axis}{rows}"

    @property
    def axis(self) -> AxisPhases:
        return axis_phases(self.direction, self.kernel, self.stride, self.dilation)

    @property
    def rows(self) -> AxisPhases | None:
        """Phases and taps along v that are written out."""
        return axis_phases(self.direction, *self.along_v) if self.along_v else None

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        self._emit(module, numbers)
        return str(module)

    def _emit(self, module: Any, numbers: Numbers) -> None:
        _Driver(module, numbers, self).emit()


class _Driver(LineStrip):
    def __init__(self, module: Any, numbers: Numbers, family: SpreadFamily) -> None:
        axis, rows, self.written = family.axis, family.rows, family.along_v is not None
        rotations = axis.result_step if is_woven(axis) else 1
        self.variants = [SpreadRows(module, numbers, family.activation, axis, rows, r) for r in range(rotations)]
        if numbers.isa.streams:
            self.stream = emit_stream(module, numbers, whole=True)
        super().__init__(module, numbers, axis.source_step)

    def emit(self) -> None:
        e = self.e
        self.geometry()
        self._list_positions()
        rows = self.variants[0].function
        for rotation, other in enumerate(self.variants[1:], 1):
            rows = e.b.select(self.get(Job.ROTATION).equals(rotation), other.function, rows)
        self.rows_function = Callee(rows)
        run = (self.plan + self.get(Job.PANELS)).int(Panel.RUN)
        slack = SLACK * self.numbers.lanes
        self.apart = run * self.channel_pitch + slack
        for end in (self.apart, self.apart * 2):
            e.call(self.zero, self.strip + (end - slack), e.int(slack))
        # Elements that wait on the stage for the rest of their line, and the address that it has.
        self.waiting, self.following = e.var(0), e.var(0)
        for image in e.range(self.images):
            self._channels(self.n0 + image)
        if self.numbers.isa.streams:
            self._put_what_waits()
        self.done()

    def _channels(self, image: Int) -> None:
        """Channel after channel, and of each position after position of the outer axes. What comes next is filled in
        before this is read, a channel into the other strip: what was just stored cannot be loaded across its seams
        until it has reached the cache."""
        e, first = self.e, self.strip
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        start, end = blocks.int(self.panel_block), blocks.int(self.panel_block + 1)
        table, side = self.plan + self.get(Job.PANELS), e.var(0)
        self._fill(table + start * len(Panel), image, e.int(0))
        for index in e.range(start, end):
            panel = table + index * len(Panel)
            following = table + e.min(index + 1, end - 1) * len(Panel)
            several = e.b.and_(self.positions > 1, index + 1 < end)
            another = e.b.or_(several, following.int(Panel.CHANNEL).differs(panel.int(Panel.CHANNEL)))
            this = side.get()
            side.set(e.select(another, 1 - this, this))
            for position in e.range(self.positions):
                more = position + 1 < self.positions
                with e.when(e.b.or_(more, another)):
                    self.strip = first + e.select(more, this, 1 - this) * self.apart
                    then = Ptr(e, e.b.select(more, panel.value, following.value), I64)
                    self._fill(then, image, e.select(more, position + 1, 0))
                with e.when(position + 2 < self.positions):
                    self._fetch(panel, image, position + 2)
                self.strip = first + this * self.apart
                self._record(position)
                self._channel(panel, image)
        self.strip = first

    def _fill(self, panel: Ptr, image: Int, position: Int) -> None:
        """Fill the planes of a position that the one before has not: all of the first."""
        e = self.e
        self._record(position)
        old = e.select(position > 0, self.get(Job.PLANE_COUNT) - self.get(Job.RING_STEP), 0)
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + image * self.get(Job.SOURCE_N_STRIDE)
        for c in e.range(panel.int(Panel.RUN)):
            channel = source + (panel.int(Panel.CHANNEL) + c) * self.get(Job.SOURCE_C_STRIDE)
            for plane in e.range(old, self.get(Job.PLANE_COUNT)):
                with e.when(self.planes_alive.int(plane).differs(0)):
                    target = self.strip + (c * self.channel_pitch + self.places.int(plane))
                    self._fill_plane(target, channel + self.plane_offsets.int(plane))

    def _fetch(self, panel: Ptr, image: Int, position: Int) -> None:
        """Ask for the last plane of a position: it has too few lines for the hardware to guess them."""
        e = self.e
        self._record(position)
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + image * self.get(Job.SOURCE_N_STRIDE)
        channel = source + panel.int(Panel.CHANNEL) * self.get(Job.SOURCE_C_STRIDE)
        stride = self.get(Job.SOURCE_V_STRIDE)
        first = channel + (self.plane_offsets.int(self.get(Job.PLANE_COUNT) - 1) + self.source_v * stride)
        for i in e.range(0, self.rows * stride, LINE_BYTES // size_of(self.numbers.stored)):
            e.fetch(first + i)

    def geometry(self) -> None:
        super().geometry()
        lanes, rotation = self.numbers.lanes, self.get(Job.ROTATION)
        # Rotated lines end with the first phases of one position more.
        self.columns = self.columns + self.e.select(rotation > 0, self.get(Job.SOURCE_X_STEP), 0)
        # What is read beyond the end of a row belongs to the next one, and is not used.
        self.part_pitch = ((self.columns + (self.parts - 1)) // self.parts + (lanes - 1)) & -lanes
        self.row_pitch = self.part_pitch * self.parts
        self.plane_pitch = self.rows * self.row_pitch
        self.channel_pitch = self.get(Job.RING) * self.plane_pitch
        # Of a result row, from the box's first element on, the part [low, high) exists.
        step = self.get(Job.RESULT_X_STEP)
        self.first = self.x0 * step + rotation - self.get(Job.RESULT_X_BEGIN)
        self.low = self.e.max(0 - self.first, 0)
        self.high = self.e.min((self.x1 - self.x0) * step, self.get(Job.RESULT_X_SIZE) - self.first)

    def _list_positions(self) -> None:
        """Of every position of the outer axes: which planes exist, where its results are, and the lists of its taps."""
        e, unit = self.e, self.get(Job.OUTER_UNIT)
        first, self.records = self.outer_index * unit, self.planes_alive
        self.positions = e.min(self.get(Job.OUTER_END) - first, unit)
        for position in e.range(self.positions):
            self._record(position)
            self.outer_index = first + position
            self.list_planes()
            for plane in e.range(self.get(Job.PLANE_COUNT)):
                # Planes take turns in a ring.
                place = (position * self.get(Job.RING_STEP) + plane) % self.get(Job.RING)
                self.places.store(plane, place * self.plane_pitch)
            for phase in e.range((self.plan + self.get(Job.PANELS)).int(Panel.OUTER_COUNT)):
                offset, alive = self.phase_offset(phase)
                self.offsets.store(phase * 2, offset)
                self.offsets.store(phase * 2 + 1, alive)
            self._list_taps()

    def _record(self, position: Int) -> None:
        """Look at what is noted of a position."""
        panel, planes = self.plan + self.get(Job.PANELS), self.get(Job.PLANE_COUNT)
        phases = panel.int(Panel.OUTER_COUNT)
        self.lists_per_phase = self.e.int(1) if self.written else self.get(Job.RESULT_V_STEP)
        self.planes_alive = self.records + position * self.get(Job.RECORD)
        self.plane_offsets = self.planes_alive + planes
        self.places = self.plane_offsets + planes
        self.offsets = self.places + planes
        self.heads = self.offsets + phases * 2
        self.taps = self.heads + phases * self.lists_per_phase * 2

    def _list_taps(self) -> None:
        """By list of a position, the first of its taps and how many there are; then (source, weights) of each.

        A list is that of a result row, or of all rows of an outer phase if these are written out.
        """
        e, total = self.e, self.e.var(0)
        panel, lists = self.plan + self.get(Job.PANELS), self.plan + self.get(Job.INNER_TAPS)
        for index in e.range(panel.int(Panel.OUTER_COUNT) * self.lists_per_phase):
            head = lists + index * 2
            self.heads.store(index * 2, total.get() * 2)
            for i in e.range(head.int(1)):
                tap = lists + (head.int(0) + i * 2) * 2
                with e.when(self.planes_alive.int(tap.int(0)).differs(0)):
                    source = self.places.int(tap.int(0))
                    if not self.written:
                        source = source + tap.int(1) * self.row_pitch
                    for c in e.range(panel.int(Panel.RUN)):
                        at = total.get() * 2
                        self.taps.store(at, source + c * self.channel_pitch)
                        self.taps.store(at + 1, (tap.int(2) * panel.int(Panel.RUN) + c) * self.variants[0].width)
                        total.set(total.get() + 1)
            self.heads.store(index * 2 + 1, total.get() - self.heads.int(index * 2) // 2)

    def _channel(self, panel: Ptr, image: Int) -> None:
        """All result rows of a channel at a position."""
        e = self.e
        result = e.ptr(self.get(Job.RESULT), self.numbers.stored) + image * self.get(Job.RESULT_N_STRIDE)
        result = result + (panel.int(Panel.FLUSH_CHANNEL) * self.get(Job.RESULT_C_STRIDE) + self.first)
        for phase in e.range(panel.int(Panel.OUTER_COUNT)):
            with e.when(self.offsets.int(phase * 2 + 1).differs(0)):
                self._plane(panel, phase, result + self.offsets.int(phase * 2))

    def _plane(self, panel: Ptr, phase: Int, result: Ptr) -> None:
        """The box's rows of one outer phase: where they belong, or by way of a stage that is streamed there."""
        e, positions = self.e, (self.v0, self.v1)
        # Where rows follow each other, what is too much at the end of one is overwritten by the next.
        whole = (self.high - self.low).equals(self.get(Job.RESULT_X_SIZE))
        limit = e.select(whole, self._run(*positions)[1], 0)
        if not self.numbers.isa.streams:
            self._rows(panel, phase, result, positions, limit)
            return
        with e.either(self.get(Job.STAGE).equals(0)) as (at_once, staged):
            with at_once:
                self._rows(panel, phase, result, positions, limit)
            with staged:
                few = self.get(Job.STAGE)
                for turn in e.range((self.v1 - self.v0 + (few - 1)) // few):
                    v = self.v0 + turn * few
                    self._burst(panel, phase, result, (v, e.min(v + few, self.v1)))

    def _run(self, v0: Int, v1: Int) -> tuple[Int, Int]:
        """The first and the end of the results of some positions of a plane, if these are one run of memory."""
        e, stride = self.e, self.get(Job.RESULT_V_STRIDE)
        step, begin = self.get(Job.RESULT_V_STEP), self.get(Job.RESULT_V_BEGIN)
        top = e.max(v0 * step - begin, 0)
        bottom = e.min(v1 * step - begin, self.get(Job.RESULT_V_SIZE)) - 1
        return top * stride + self.low, bottom * stride + self.high

    def _burst(self, panel: Ptr, phase: Int, result: Ptr, positions: tuple[Int, Int]) -> None:
        """A few rows, which go past the caches in whole lines; what is left of the last one waits for what follows it:
        memory takes parts of lines slowly, and all that is written after them waits."""
        e, stage, size = self.e, self.out.as_type(self.numbers.stored), size_of(self.numbers.stored)
        first, end = self._run(*positions)
        address = Int(e, e.b.ptrtoint((result + first).value, I64))
        with e.when(address.differs(self.following.get())):
            self._put_what_waits()
        waiting = self.waiting.get()
        self._rows(panel, phase, stage + (waiting - first), positions, end)
        target, count = result + (first - waiting), end - first + waiting
        e.call(self.stream, target, stage, count)
        head, lines = before_and_in_lines(target, count)
        lanes = self.numbers.isa.vector_bytes // size
        left = [(stage + (head + lines)).load(i, lanes) for i in range(0, LINE_BYTES // size, lanes)]
        for i, value in enumerate(left):
            stage.store(i * lanes, value)
        self.waiting.set(count - head - lines)
        self.following.set(address + (end - first) * size)

    def _put_what_waits(self) -> None:
        """Store the part of a line that nothing followed."""
        e, stage, size = self.e, self.out.as_type(self.numbers.stored), size_of(self.numbers.stored)
        count = self.waiting.get()
        target = e.ptr(self.following.get() - count * size, self.numbers.stored)
        for i in e.range(count):
            target.store(i, stage.load(i))
        self.waiting.set(0)

    def _rows(self, panel: Ptr, phase: Int, result: Ptr, positions: tuple[Int, Int], limit: Int) -> None:
        e, heads = self.e, self.heads + phase * self.lists_per_phase * 2
        weights = e.ptr(self.get(Job.WEIGHTS), self.numbers.computed) + panel.int(Panel.WEIGHTS)
        bias = e.ptr(self.get(Job.BIAS), self.numbers.computed) + panel.int(Panel.BIAS)
        kernel_pitch = panel.int(Panel.RUN) * self.variants[0].width
        source = self.strip + (positions[0] - self.v0) * self.get(Job.SOURCE_V_STEP) * self.row_pitch
        sizes = (*positions, self.low, self.high, limit, self.row_pitch, self.part_pitch, kernel_pitch)
        e.call(self.rows_function, result, source, heads, self.taps, weights, bias, self.job, *sizes)
