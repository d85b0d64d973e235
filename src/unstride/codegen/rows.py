"""Depthwise layers in pixel-major memory, row by row: the driver of `plan.rows`.

per result row: list the source rows and kernel rows that make it up
per block of channels whose weights stay in L1, and few positions along x, or one at the ends: all phases of each vector
where the result is large: parts of a row wait on a stage, from which whole lines go past the caches
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.box import Box
from unstride.codegen.emit import I64, PTR, Emitter, Int, Ptr, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.spread import SpreadFamily
from unstride.codegen.strips import emit_stream
from unstride.plan.job import Job, Panel
from unstride.plan.phases import AxisPhases
from unstride.plan.rows import positions_at_once, sums_at_once, vectors_at_once
from unstride.plan.spread import SpreadPlan

__all__ = ["RowsFamily"]


@dataclass(frozen=True)
class RowsFamily(SpreadFamily):
    """What is compiled into one such kernel: all of the last axis but its sizes."""

    vectors: int = 1  # of channels that are done together
    name: ClassVar[str] = "rows"

    @classmethod
    def of(cls, plan: SpreadPlan, activation: str) -> Self:
        vectors = vectors_at_once(plan.direct.structure, plan.direct.isa)
        return replace(super().of(plan, activation), vectors=vectors)

    @property
    def key(self) -> str:
        return super().key if self.vectors == 1 else f"{super().key} v{self.vectors}"

    def _emit(self, module: Any, numbers: Numbers) -> None:
        _Driver(module, numbers, self).emit()


class _Driver(Box):
    def __init__(self, module: Any, numbers: Numbers, family: RowsFamily) -> None:
        self.sweep = _Sweep(module, numbers, family)
        if numbers.isa.streams:
            self.stream = emit_stream(module, numbers)
        super().__init__(module, numbers, channel_major=False)

    def emit(self) -> None:
        e = self.e
        self.geometry()
        self.list_planes()
        e.call(self.zero, self.strip, e.int(self.numbers.lanes))
        part = e.max(self.get(Job.STAGE), 1)
        self.parts = (self.x1 - self.x0 + (part - 1)) // part
        for image in e.range(self.images):
            n = self.n0 + image
            source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + n * self.get(Job.SOURCE_N_STRIDE)
            result = e.ptr(self.get(Job.RESULT), self.numbers.stored) + n * self.get(Job.RESULT_N_STRIDE)
            for phase in e.range((self.plan + self.get(Job.PANELS)).int(Panel.OUTER_COUNT)):
                offset, alive = self.phase_offset(phase)
                with e.when(alive.differs(0)):
                    self._rows(source, result + offset, phase)
        self.done()

    def _rows(self, source: Ptr, result: Ptr, phase: Int) -> None:
        e, step = self.e, self.get(Job.RESULT_V_STEP)
        for v in e.range(self.v0, self.v1):
            for residue in e.range(step):
                at = v * step + residue - self.get(Job.RESULT_V_BEGIN)
                with e.when(e.b.and_(at >= 0, at < self.get(Job.RESULT_V_SIZE))):
                    count = self._list_rows(phase * step + residue, v)
                    self._row(source, result + at * self.get(Job.RESULT_V_STRIDE), count)

    def _list_rows(self, row: Int, v: Int) -> Int:
        """(source, weights) offsets of the taps of a result row that read a source row which exists."""
        e, count = self.e, self.e.var(0)
        lists = self.plan + self.get(Job.INNER_TAPS)
        head = lists + row * 2
        first = v * self.get(Job.SOURCE_V_STEP) + self.get(Job.SOURCE_V_FIRST)
        for i in e.range(head.int(1)):
            tap = lists + (head.int(0) + i * 2) * 2
            at = first + tap.int(1)
            inside = e.b.and_(at >= 0, at < self.get(Job.SOURCE_V_SIZE))
            with e.when(e.b.and_(inside, self.planes_alive.int(tap.int(0)).differs(0))):
                place = self.plane_offsets.int(tap.int(0)) + at * self.get(Job.SOURCE_V_STRIDE)
                self.taps.store(count.get() * 2, place)
                self.taps.store(count.get() * 2 + 1, tap.int(2) * self.sweep.width)
                count.set(count.get() + 1)
        return count.get()

    def _row(self, source: Ptr, result: Ptr, count: Int) -> None:
        """A result row: stored where it belongs, or, if lines that go past the caches would not be whole, part by part
        on a stage that is streamed there."""
        e = self.e
        inside = [self.get(field) for field in (Job.INSIDE_LOW, Job.INSIDE_HIGH)]
        pixel, begin, step = (self.get(f) for f in (Job.RESULT_X_STRIDE, Job.RESULT_X_BEGIN, Job.RESULT_X_STEP))
        blocks, panels = self.sizes + self.get(Job.PANEL_BLOCKS), self.plan + self.get(Job.PANELS)
        ends = blocks.int(self.panel_block), blocks.int(self.panel_block + 1)
        in_lines = self.streamed(Int(e, e.b.ptrtoint(result.value, I64)), pixel)
        if not self.numbers.streams(1):
            in_lines = e.int(0)
        staged = e.b.and_(in_lines.equals(0), self.get(Job.STAGE).differs(0))
        part = e.select(staged, self.get(Job.STAGE), self.x1 - self.x0)
        for turn in e.range(e.select(staged, self.parts, 1)):
            x0 = self.x0 + turn * part
            x1 = e.min(x0 + part, self.x1)
            low = e.min(e.max(inside[0], x0), x1)
            high = e.min(e.max(inside[1], low), x1)
            first = e.max(x0 * step - begin, 0) * pixel
            stage = self.out.as_type(self.numbers.stored)
            to = Ptr(e, e.b.select(staged, (stage + (0 - first)).value, result.value), self.numbers.stored)
            target, rest = to + (0 - begin * pixel), (count, x0, low, high, x1, *ends, in_lines)
            e.call(self.sweep.function, target, source, self.taps, panels, self.strip, self.job, *rest)
            if self.numbers.isa.streams:
                end = e.min(x1 * step - begin, self.get(Job.RESULT_X_SIZE)) * pixel
                with e.when(staged):
                    e.call(self.stream, result + first, stage, e.max(end - first, 0))


class _Sweep:
    """sweep(target, source, taps, panels, zeros, job, count, x0, low, high, x1, first, end, stream): the vectors of
    channels [first, end) of the positions [x0, x1) of a result row. In [low, high) all taps and results exist."""

    def __init__(self, module: Any, numbers: Numbers, family: RowsFamily) -> None:
        self.e = e = Emitter(module, "sweep", [*(PTR,) * 6, *(I64,) * 8], internal=True)
        self.numbers, self.activation, self.axis = numbers, family.activation, family.axis
        self.lanes, self.vectors = numbers.lanes, family.vectors
        self.typ = vector(numbers.computed, self.lanes)
        self.phases = _by_residue(self.axis)
        self.width = family.kernel * self.lanes  # elements of the weights of a kernel row
        self.function = e.function
        self._emit()

    def _emit(self) -> None:
        e, numbers = self.e, self.numbers
        self.target, self.source = e.arg_ptr(0, numbers.stored), e.arg_ptr(1, numbers.stored)
        self.taps, self.panels = e.arg_ptr(2, I64), e.arg_ptr(3, I64)
        self.zeros, self.job = e.arg_ptr(4, numbers.stored), e.arg_ptr(5, I64)
        self.count, x0, low, high, x1, self.first_panel, self.end_panel, self.stream = map(e.arg_int, range(6, 14))
        self.source_pixel, self.result_pixel = self.job.int(Job.SOURCE_X_STRIDE), self.job.int(Job.RESULT_X_STRIDE)
        self.first, self.source_size = self.job.int(Job.SOURCE_X_FIRST), self.job.int(Job.SOURCE_X_SIZE)
        self.begin, self.result_size = self.job.int(Job.RESULT_X_BEGIN), self.job.int(Job.RESULT_X_SIZE)
        self.all_weights = e.ptr(self.job.int(Job.WEIGHTS), numbers.computed)
        self.all_bias = e.ptr(self.job.int(Job.BIAS), numbers.computed)
        slope = self.activation == "leaky_relu"
        self.slope = slope_vector(e, self.job, Job.SLOPE_BITS, numbers) if slope else None
        self.ahead = self.job.int(Job.AHEAD) > self.stream  # not of lines that go past the caches
        first, end, at_once = self.first_panel, self.end_panel, self.job.int(Job.PANELS_AT_ONCE)
        for block in e.range((end - first + (at_once - 1)) // at_once):
            self.first_panel = first + block * at_once
            self.end_panel = e.min(self.first_panel + at_once, end)
            self._block(x0, low, high, x1)
        e.ret()

    def _block(self, x0: Int, low: Int, high: Int, x1: Int) -> None:
        """All positions, for the channels of a block."""
        e, room = self.e, sums_at_once(self.numbers.isa)
        positions, start = positions_at_once(self.axis, self.vectors), low
        while positions:
            whole = start + (high - start) // positions * positions
            for x in e.range(start, whole, positions):
                self._positions(x, positions, room)
            positions, start = positions // 2, whole
        inside = high - low
        for x in e.range(x0, x1 - inside):
            self._positions(e.select(x < low, x, x + inside), 1, room, guarded=True)

    def _positions(self, x: Int, count: int, room: int, *, guarded: bool = False) -> None:
        """All phases of so many positions, a few vectors of channels at a time, and the rest one by one."""
        e, start = self.e, self.first_panel
        for vectors in dict.fromkeys((self.vectors, 1)):
            stop = start + (self.end_panel - start) // vectors * vectors
            for index in e.range(start, stop, vectors, inner=True):
                panels = [self.panels + (index + i) * len(Panel) for i in range(vectors)]
                self._vectors(x, count, room, panels, guarded=guarded)
            start = stop

    def _vectors(self, x: Int, count: int, room: int, panels: list[Ptr], *, guarded: bool) -> None:
        """As many phases at a time as there is room for their sums."""
        self.channels = [panel.int(Panel.CHANNEL) for panel in panels]
        self.weights = [self.all_weights + panel.int(Panel.WEIGHTS) for panel in panels]
        self.bias = [self.all_bias.load(channel, self.lanes) for channel in self.channels]
        at_once = max(1, room // (count * len(panels)))
        for first in range(0, len(self.phases), at_once):
            self._phases(x, count, range(first, min(first + at_once, len(self.phases))), guarded=guarded)

    def _phases(self, x: Int, count: int, residues: range, *, guarded: bool) -> None:
        e, step, vectors = self.e, self.axis.source_step, len(self.channels)
        sums = [constant(self.typ, 0.0)] * (len(residues) * count * vectors)
        start = x * step + self.first
        # From pixel to pixel, so that few are at hand at a time, and sums of all phases grow side by side.
        taps = sorted((a, place, weight) for place, r in enumerate(residues) for a, weight in self.phases[r])
        exists = {}
        if guarded:
            needed = sorted({u * step + a for a, _, _ in taps for u in range(count)})
            exists = {i: e.b.and_(start + i >= 0, start + i < self.source_size) for i in needed}
        for tap, carried in e.fold(0, self.count, 1, sums):
            row = self.source + (self.taps.int(tap * 2) + start * self.source_pixel)
            weights = [line + self.taps.int(tap * 2 + 1) for line in self.weights]
            values: dict[tuple[int, int], Any] = {}
            for a, place, weight in taps:
                for v, channel in enumerate(self.channels):
                    factor = weights[v].load(weight * self.lanes, self.lanes)
                    for u in range(count):
                        i, at = u * step + a, (place * count + u) * vectors + v
                        if (i, v) not in values:
                            pixel = row + self.source_pixel * i + channel
                            if guarded:
                                pixel = Ptr(
                                    e, e.b.select(exists[i], pixel.value, self.zeros.value), self.numbers.stored
                                )
                            values[i, v] = self.numbers.load(pixel, 0, self.lanes)
                        carried[at] = self.numbers.multiply_add(e, values[i, v], factor, carried[at])
        done = [
            activate(e, self.activation, e.b.fadd(total, self.bias[i % vectors]), self.slope)
            for i, total in enumerate(sums)
        ]
        self._store(x, count, residues, done, guarded=guarded)

    def _store(self, x: Int, count: int, residues: range, done: list[Any], *, guarded: bool) -> None:
        e, step, vectors = self.e, self.axis.result_step, len(self.channels)
        target = self.target + x * step * self.result_pixel
        if not guarded:
            lines = [
                (target + self.result_pixel * (u * step + r) + channel, done[(place * count + u) * vectors + v])
                for u in range(count)
                for place, r in enumerate(residues)
                for v, channel in enumerate(self.channels)
            ]
            with e.when(self.ahead):
                for to, _ in lines:
                    e.fetch(to + self.result_pixel * (count * step))
            self.numbers.store_lines(e, lines, 1, self.stream)
            return
        for place, r in enumerate(residues):
            at = x * step + r - self.begin
            with ExitStack() as exists:
                # A position is visited for a result that exists: its last is not too early, nor its first too late.
                if r < step - 1:
                    exists.enter_context(e.when(at >= 0))
                if r > 0:
                    exists.enter_context(e.when(at < self.result_size))
                for v, channel in enumerate(self.channels):
                    self.numbers.store(target + self.result_pixel * r + channel, 0, done[place * vectors + v])


def _by_residue(axis: AxisPhases) -> list[list[tuple[int, int]]]:
    """By residue, its taps: source elements from the position's first on, and the number of the weight."""
    taps: list[list[tuple[int, int]]] = [[] for _ in range(axis.result_step)]
    weight = 0
    for phase in axis.phases:
        for tap in phase.taps:
            taps[phase.r].append((tap.a - axis.first, weight))
            weight += 1
    return taps
