"""Products of single kernel elements across x, and their sums: the driver of `plan.folded`.

per box: for a few source rows at a time: fill them into the strip [plane][channel][row][x];
         products [kernel element, channel][row][x] into the ring; sum and store the result rows that have all of theirs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from unstride.codegen import ir
from unstride.codegen.across import AcrossDriver, AcrossFamily, Line, LineArgs, line_tables
from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.emit import I64, PTR, Callee, Emitter, Int, Ptr, size_of, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.across import OVERRUN, SLACK
from unstride.plan.job import Job, Panel, VRange

__all__ = ["FoldedFamily"]

_SUMS = (4, 1)  # vectors that are summed side by side


@dataclass(frozen=True)
class FoldedFamily(AcrossFamily):
    """What is compiled into one such kernel."""

    name: ClassVar[str] = "folded"

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        for rows in self.heights:
            Line(module, numbers, "none", rows, bare=True).emit()
        line_tables(module, numbers.isa, self.heights)
        _Driver(module, numbers, self).emit()
        return str(module)


class _Driver(AcrossDriver):
    def __init__(self, module: Any, numbers: Numbers, family: FoldedFamily) -> None:
        self.sum = _emit_sum(module, numbers, family.activation)
        super().__init__(module, numbers, family.heights)

    def emit(self) -> None:
        e = self.e
        self.geometry()
        self.list_planes()
        self.line_args = e.stack(I64, LineArgs.SIZE)
        for field in (LineArgs.IN_PLACE, LineArgs.WEAVE):
            self.line_args.store(field, e.int(0))
        for field in (LineArgs.CHANNEL_PITCH, LineArgs.RESULT_PITCH):
            self.line_args.store(field, self.pitch)
        self.line_args.store(LineArgs.TAPS, e.b.ptrtoint(self.taps.value, I64))
        self.line_args.store(LineArgs.SOURCE, e.b.ptrtoint(self.strip.value, I64))
        for image in e.range(self.images):
            self._image(self.n0 + image)
        e.ret()

    def geometry(self) -> None:
        """The strip is [plane][channel][row][x], where the end of a row is the padding of the next one."""
        super().geometry()
        lanes = self.numbers.lanes
        self.pitch = self.get(Job.RING_PITCH)
        self.row_pitch = self.columns
        self.plane_pitch = self.get(Job.CHANNELS) * self.pitch
        self.line_pitch = ((self.x1 - self.x0 + (lanes - 1)) & -lanes) + OVERRUN * lanes
        self.ring = self.scratch_at(Job.OFFSET_RING, self.numbers.computed)
        self.row_places = self.taps  # where in the ring the products of each row of the box are
        self.taps = self.row_places + self.rows

    def _image(self, image: Int) -> None:
        e, at_once = self.e, self.get(Job.RING_ROWS)
        low = e.max(self.source_v, 0)
        high = e.max(e.min(self.source_v + self.rows, self.get(Job.SOURCE_V_SIZE)), low)
        turns = (high - low + (at_once - 1)) // at_once
        done = e.var(self.v0)
        slot = e.var(0)
        # One turn more than there are groups of source rows: it sums what is left.
        for turn in e.range(turns + 1):
            first = low + turn * at_once
            end = e.min(first + at_once, high)
            with e.when(turn < turns):
                self._fill_rows(image, first, end - first)
                self._fetch_rows(image, end, end.equals(high))
                self._multiply(first, end - first, slot.get() * self.get(Job.KERNEL_ROWS) * self.pitch)
                slot.set(e.select((slot.get() + 1).equals(self.get(Job.RING_GROUPS)), 0, slot.get() + 1))
            ready = end - self.get(Job.SOURCE_V_FIRST) - (self.get(Job.SOURCE_V_SPAN) - 1)
            ready = e.select(turn < turns, e.min(e.max(ready, done.get()), self.v1), self.v1)
            for v in e.range(done.get(), ready):
                self._sum_rows(image, v)
            done.set(ready)

    def _fill_rows(self, image: Int, first: Int, count: Int) -> None:
        e = self.e
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + image * self.get(Job.SOURCE_N_STRIDE)
        for plane in e.range(self.get(Job.PLANE_COUNT)):
            with e.when(self.planes_alive.int(plane).differs(0)):
                for c in e.range(self.get(Job.CHANNELS)):
                    start = source + (c * self.get(Job.SOURCE_C_STRIDE) + self.plane_offsets.int(plane))
                    target = self.strip + (plane * self.plane_pitch + c * self.pitch)
                    self.fill_lines(target, start, first, count)
        # What lies behind the last row is multiplied, too, if only to be ignored.
        end = self.strip + self.get(Job.PLANE_COUNT) * self.plane_pitch
        e.call(self.zero, end, e.int(SLACK * self.numbers.lanes))

    def _fetch_rows(self, image: Int, v: Int, last: Any) -> None:
        """Let the first panels fetch what is filled in next, of the first plane, while they multiply: the rows from v
        on, or at the end of a box the first row of the box beside it. One panel alone would ask for more than memory
        can bring."""
        e = self.e
        beside = e.b.and_(last, self.get(Job.X_BLOCKS) > 1)
        row, column = e.max(self.source_v, 0), self.source_x + self.get(Job.X_UNIT)
        first = e.select(beside, row, v) * self.get(Job.SOURCE_V_STRIDE) + e.select(beside, column, self.source_x)
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + image * self.get(Job.SOURCE_N_STRIDE)
        source = source + (self.plane_offsets.int(0) + first)
        self.line_args.store(LineArgs.NEXT, e.b.ptrtoint(source.value, I64))
        self.line_args.store(LineArgs.NEXT_PITCH, self.get(Job.SOURCE_C_STRIDE))
        self.line_args.store(LineArgs.NEXT_SHARE, 0 - self.get(Job.FETCH_SHARE))

    def _multiply(self, first: Int, count: Int, group: Int) -> None:
        """The products of so many source rows, into one group of the ring."""
        e, size = self.e, self.numbers.isa.vector_bytes // self.numbers.lanes
        for row in e.range(count):
            self.row_places.store(first - self.source_v + row, group + row * self.row_pitch)
        self.line_args.store(LineArgs.COUNT, count * self.row_pitch)
        fetching = e.var(self.get(Job.FETCH_SHARE))  # panels that still fetch
        for panel in self.panels():
            _, alive = self.result_offset(panel)
            with e.when(alive.differs(0)):
                self.line_args.store(LineArgs.TAP_COUNT, self._list_alive(panel))
                self.line_args.store(LineArgs.RUN, panel.int(Panel.RUN))
                self.line_args.store(LineArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
                result = self.ring + (group + panel.int(Panel.COLUMN) * self.pitch)
                self.line_args.store(LineArgs.RESULT, e.b.ptrtoint(result.value, I64))
                function = Ptr(e, e.module.globals["lines"], PTR).load(panel.int(Panel.COLUMNS))
                e.call(Callee(function), self.line_args)
                fetching.set(fetching.get() - 1)
                self._fetch_next_channels(fetching.get() > 0)

    def _fetch_next_channels(self, more: Any) -> None:
        """What the next panel fetches: the channels after those of this one, or nothing but what is there."""
        e, args, size = self.e, self.line_args, size_of(self.numbers.stored)
        following = args.int(LineArgs.NEXT) + args.int(LineArgs.NEXT_PITCH) * size
        args.store(LineArgs.NEXT, e.select(more, following, args.int(LineArgs.RESULT)))
        args.store(LineArgs.NEXT_PITCH, e.select(more, args.int(LineArgs.NEXT_PITCH), 0))

    def _list_alive(self, panel: Ptr) -> Int:
        """The taps of a product are the planes that exist."""
        e, count = self.e, self.e.var(0)
        outer = self.plan + self.get(Job.OUTER_TAPS) + panel.int(Panel.OUTER_FIRST)
        step = panel.int(Panel.RUN) * panel.int(Panel.COLUMNS)
        for o in e.range(panel.int(Panel.OUTER_COUNT)):
            plane = outer.int(o)
            with e.when(self.planes_alive.int(plane).differs(0)):
                self.taps.store(count.get() * 2, plane * self.plane_pitch)
                self.taps.store(count.get() * 2 + 1, o * step)
                count.set(count.get() + 1)
        return count.get()

    # -- sums

    def _sum_rows(self, image: Int, v: Int) -> None:
        """The result rows of position v, of every outer phase."""
        for panel in self.panels():
            with self.e.when(panel.int(Panel.START).differs(0)):
                self._sum_phases(panel, image, v)

    def _sum_phases(self, panel: Ptr, image: Int, v: Int) -> None:
        """One result row for each phase along v that exists there."""
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            for phase in e.range(panel.int(Panel.V_PHASES)):
                v_range = self.sizes + self.get(Job.V_RANGES) + phase * len(VRange)
                with e.when(e.b.and_(v >= v_range.int(VRange.LOW), v < v_range.int(VRange.HIGH))):
                    self._sum_row(panel, v, v_range.int(VRange.PHASE))
                    row = v * self.get(Job.RESULT_V_STEP) + v_range.int(VRange.PHASE)
                    at = (row - self.get(Job.RESULT_V_BEGIN)) * self.get(Job.RESULT_V_STRIDE)
                    self.flush_row(panel, image * self.get(Job.RESULT_N_STRIDE) + offset + at, self.out)

    def _sum_row(self, panel: Ptr, v: Int, residue: Int) -> None:
        """All x-phases and channels of one result row, each into its own line."""
        e, width = self.e, panel.int(Panel.FLUSH_WIDTH)
        bias = e.ptr(self.get(Job.BIAS), self.numbers.computed)
        for x_residue in e.range(self.get(Job.RESULT_X_STEP)):
            count = self._list_products(panel, v, residue, x_residue)
            for c in e.range(width):
                line = self.out + (x_residue * width + c) * self.line_pitch
                e.call(
                    self.sum, line, self.ring + c * self.pitch, self.taps, count, self.x1 - self.x0, bias + c, self.job
                )

    def _list_products(self, panel: Ptr, v: Int, residue: Int, x_residue: Int) -> Int:
        """Where the products lie that make up the first channel of a line; returns how many there are."""
        e, count, width = self.e, self.e.var(0), panel.int(Panel.FLUSH_WIDTH)
        lists = self.plan + self.get(Job.INNER_TAPS)
        rows, columns = lists + residue * 2, lists + (panel.int(Panel.V_PHASES) + x_residue) * 2
        for i in e.range(rows.int(1)):
            v_tap = lists + (rows.int(0) + i) * 2
            row = v - self.v0 + v_tap.int(0)
            exists = e.b.and_(row + self.source_v >= 0, row + self.source_v < self.get(Job.SOURCE_V_SIZE))
            with e.when(exists):
                line = panel.int(Panel.COLUMN) + v_tap.int(1) * self.get(Job.KERNEL_X) * width
                place = self.row_places.int(row) + line * self.pitch
                for j in e.range(columns.int(1)):
                    x_tap = lists + (columns.int(0) + j) * 2
                    self.taps.store(count.get(), place + x_tap.int(1) * width * self.pitch + x_tap.int(0))
                    count.set(count.get() + 1)
        return count.get()


def _emit_sum(module: Any, numbers: Numbers, activation: str) -> Any:
    """sum(target, products, places, count, positions, bias, job): target[x] = the sum of products[place + x], finished.

    May run over by less than a vector, which lines have room for.
    """
    e = Emitter(module, "sum", [PTR, PTR, PTR, I64, I64, PTR, PTR], internal=True)
    computed, lanes = numbers.computed, numbers.lanes
    target, products = e.arg_ptr(0, computed, noalias=True), e.arg_ptr(1, computed, noalias=True)
    places, count, positions = e.arg_ptr(2, I64), e.arg_int(3), e.arg_int(4)
    bias = e.splat(e.arg_ptr(5, computed).load(0), lanes)
    slope = slope_vector(e, e.arg_ptr(6, I64), Job.SLOPE_BITS, numbers) if activation == "leaky_relu" else None
    start = e.int(0)
    for width in _SUMS:
        step = width * lanes
        end = positions if width == _SUMS[-1] else (positions // step) * step
        for x in e.range(start, end, step):
            sums = [constant(vector(computed, lanes), 0.0)] * width
            for tap, carried in e.fold(0, count, 1, sums):
                line = products + (places.int(tap) + x)
                for i in range(width):
                    carried[i] = e.b.fadd(carried[i], line.load(i * lanes, lanes))
            for i, value in enumerate(sums):
                target.store(x + i * lanes, activate(e, activation, e.b.fadd(value, bias), slope))
        start = end
    e.ret()
    return e.function
