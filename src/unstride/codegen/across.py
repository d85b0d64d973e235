"""The kernels with vectors across x: a padded channel-major strip, broadcast weights, phases woven on the way out.

per group: fill the strip [channel][plane][row][x]
per panel of rows (x-phase, channel), per result row: accumulate along x into lines [row of the tile][v][x]
when the phases of a chunk of channels are complete: weave them into the result's rows

Where nothing is padded or shifted (1x1 kernels, kernel == stride) the rows of a box are *flat*, one long line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, ClassVar, Self

from unstride.codegen import ir
from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.emit import I64, PTR, Callee, Emitter, Int, Ptr, function_table, int_table, size_of, vector
from unstride.codegen.line_strip import LineStrip
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.strips import emit_narrow, in_vectors, transpose_block, weave
from unstride.plan.across import LAST_WIDTHS, OVERRUN, AcrossPlan, row_counts, vector_count
from unstride.plan.job import Job, Panel, VRange
from unstride.plan.machine import ISA, LINE_BYTES

__all__ = ["AcrossDriver", "AcrossFamily", "Line", "LineArgs", "line_tables"]


class LineArgs(IntEnum):
    """What a line function finds at its one argument."""

    TAPS = 0
    TAP_COUNT = 1
    RUN = 2
    WEIGHTS = 3
    BIAS = 4
    SOURCE = 5
    CHANNEL_PITCH = 6
    RESULT = 7
    RESULT_PITCH = 8
    COUNT = 9  # positions
    SLOPE_BITS = 10
    IN_PLACE = 11  # 1 if lines go straight to the result: not one element more may be written
    WEAVE = 12  # 1 if the second half of the rows is the other phase of the first, to be woven in
    NEXT = 13  # of a bare line: what will be filled in next, channels so many elements apart
    NEXT_PITCH = 14
    NEXT_SHARE = 15  # minus the number of lines that share what there is to fetch, a power of two
    SIZE = 16


@dataclass(frozen=True)
class AcrossFamily:
    """What is compiled into one such kernel."""

    dtype: str
    isa_name: str
    activation: str
    heights: tuple[int, ...]  # of its tiles: a layer needs one or two, and each costs a tenth of the compilation
    parts: int  # into which the pixels of a source line are put
    name: ClassVar[str] = "across"

    @classmethod
    def of(cls, plan: AcrossPlan, activation: str) -> Self:
        heights = {panel[Panel.COLUMNS] for panel in plan.panels}
        return cls(plan.direct.structure.dtype, plan.direct.isa.name, activation, tuple(sorted(heights)), plan.parts)

    @property
    def key(self) -> str:
        parts = f" in {self.parts}" if self.parts > 1 else ""
        return f"{self.name} {self.dtype} {self.activation} {'+'.join(map(str, self.heights))}{parts}"

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        for rows in self.heights:
            weaves = rows == max(row_counts(numbers.isa))
            Line(module, numbers, self.activation, rows, weaves=weaves).emit()
        line_tables(module, numbers.isa, self.heights)
        AcrossDriver(module, numbers, self.heights, self.parts).emit()
        return str(module)


def line_tables(module: Any, isa: ISA, heights: tuple[int, ...]) -> None:
    """By height, the line function and the vectors of its widest tile; other heights are never asked for."""
    entries = [min(h for h in heights if h >= max(1, rows)) for rows in range(max(heights) + 1)]
    function_table(module, "lines", (f"line_{h}" for h in entries))
    int_table(module, "widths", (vector_count(isa, h) for h in entries))


class Line:
    """One result row of `rows` (phase, channel) lines: wide tiles, then single vectors."""

    def __init__(
        self, module: Any, numbers: Numbers, activation: str, rows: int, *, weaves: bool = False, bare: bool = False
    ) -> None:
        self.e = Emitter(module, f"line_{rows}", [PTR], internal=True)
        self.weaves, self.bare = weaves, bare  # a bare line is nothing but sums
        self.numbers, self.activation, self.rows = numbers, activation, rows
        self.args = self.e.arg_ptr(0, I64)
        self.lanes = numbers.lanes
        self.typ = vector(numbers.computed, self.lanes)

    def emit(self) -> None:
        e, args = self.e, self.args
        computed = self.numbers.computed
        self.taps = e.ptr(args.int(LineArgs.TAPS), I64)
        self.weights = e.ptr(args.int(LineArgs.WEIGHTS), computed)
        self.source = e.ptr(args.int(LineArgs.SOURCE), computed)
        self.result = e.ptr(args.int(LineArgs.RESULT), computed)
        if not self.bare:
            bias = e.ptr(args.int(LineArgs.BIAS), computed)
            self.bias = [e.splat(bias.load(m), self.lanes) for m in range(self.rows)]
        count, wide = args.int(LineArgs.COUNT), vector_count(self.numbers.isa, self.rows)
        step = wide * self.lanes
        whole = (count // step) * step
        # What is left takes one tile of the next width: lanes beyond the end are computed and not used, or the tile
        # is moved back and computes the same sums again. If that is a wide one, it is one more turn of the wide loop.
        left = (count - whole + (self.lanes - 1)) // self.lanes
        in_place = args.int(LineArgs.IN_PLACE).differs(0)
        widths = [0, *(v for v in LAST_WIDTHS if v < wide)]
        wide_end = whole + e.select(left > widths[-1], step, 0)
        last = e.select(in_place, count - step, whole)
        for x in e.range(0, wide_end, step):
            self._tile(e.select(x < whole, x, last), wide)
        for narrower, vectors in pairwise(widths):
            with e.when(e.b.and_(left > narrower, left <= vectors)):
                self._tile(e.select(in_place, count - vectors * self.lanes, whole), vectors)
        e.ret()

    def _tile(self, x: Int, vectors: int) -> None:
        e, args = self.e, self.args
        acc = [constant(self.typ, 0.0)] * (self.rows * vectors)
        source, run, pitch = self.source + x, args.int(LineArgs.RUN), args.int(LineArgs.CHANNEL_PITCH)
        for tap, outer in e.fold(0, args.int(LineArgs.TAP_COUNT), 1, acc):
            at, weights = source + self.taps.int(tap * 2), self.weights + self.taps.int(tap * 2 + 1)
            for c, inner in e.fold(0, run, 1, outer, some=True):
                if self.bare:
                    self._fetch(x, c, vectors)
                line, scalars = at + c * pitch, weights + c * self.rows
                self._step(line, scalars, vectors, inner)
        if self.bare:
            self._store([acc[m * vectors : (m + 1) * vectors] for m in range(self.rows)], x)
            return
        slope = self._slope()
        done = [
            [activate(e, self.activation, e.b.fadd(acc[m * vectors + v], self.bias[m]), slope) for v in range(vectors)]
            for m in range(self.rows)
        ]
        if not self.weaves:
            self._store(done, x)
            return
        with e.either(args.int(LineArgs.WEAVE).differs(0)) as (then, otherwise):
            with then:
                half = self.rows // 2
                self._store([self._woven(*pair) for pair in zip(done[:half], done[half:], strict=True)], x * 2)
            with otherwise:
                self._store(done, x)

    def _step(self, line: Ptr, weights: Ptr, vectors: int, sums: list[Any]) -> None:
        """One channel of one tap. Of its vectors and its weights, the fewer wait in registers for all of the others."""
        e, multiply_add = self.e, self.numbers.multiply_add
        if vectors > self.rows:
            factors = [e.splat(weights.load(m), self.lanes) for m in range(self.rows)]
            for v in range(vectors):
                value = line.load(v * self.lanes, self.lanes)
                for m, factor in enumerate(factors):
                    i = m * vectors + v
                    sums[i] = multiply_add(e, value, factor, sums[i])
            return
        values = [line.load(v * self.lanes, self.lanes) for v in range(vectors)]
        for m in range(self.rows):
            factor = e.splat(weights.load(m), self.lanes)
            for v, value in enumerate(values):
                i = m * vectors + v
                sums[i] = multiply_add(e, value, factor, sums[i])

    def _fetch(self, x: Int, c: Int, vectors: int) -> None:
        """While these are multiplied, what follows them in the source comes in."""
        e, args, stored = self.e, self.args, self.numbers.stored
        channel = c & args.int(LineArgs.NEXT_SHARE)
        line = e.ptr(args.int(LineArgs.NEXT), stored) + (channel * args.int(LineArgs.NEXT_PITCH) + x)
        for v in range(0, vectors * self.lanes, LINE_BYTES // size_of(stored)):
            e.fetch(line + v, near=False)

    def _woven(self, first: list[Any], second: list[Any]) -> list[Any]:
        """Two phases of one channel, element by element in turn."""
        return [half for pair in zip(first, second, strict=True) for half in weave(self.e, list(pair))]

    def _store(self, lines: list[list[Any]], x: Int) -> None:
        for m, line in enumerate(lines):
            target = self.result + (self.args.int(LineArgs.RESULT_PITCH) * m + x)
            for v, value in enumerate(line):
                target.store(v * self.lanes, value)

    def _slope(self) -> Any:
        if self.activation != "leaky_relu":
            return None
        return slope_vector(self.e, self.args, LineArgs.SLOPE_BITS, self.numbers)


class AcrossDriver(LineStrip):
    def __init__(self, module: Any, numbers: Numbers, heights: tuple[int, ...], parts: int = 1) -> None:
        self.weave = _emit_weave(module, numbers)
        self.narrow = emit_narrow(module, numbers)
        super().__init__(module, numbers, parts if parts > 1 else 0)
        self.heights = heights

    def emit(self) -> None:
        e = self.e
        self.geometry()
        self.line_args = e.stack(I64, LineArgs.SIZE)
        self.line_args.store(LineArgs.TAPS, e.b.ptrtoint(self.taps.value, I64))
        self.line_args.store(LineArgs.SLOPE_BITS, self.get(Job.SLOPE_BITS))
        self.line_args.store(LineArgs.CHANNEL_PITCH, self.channel_pitch)
        self.line_args.store(LineArgs.COUNT, e.select(self.flat, self.x_pitch * (self.v1 - self.v0), self.x1 - self.x0))
        self.list_planes()
        fetch = self._fetching() if self.parts else None
        for image in e.range(self.images):
            self.filled = e.var(-1)  # the first source channel of the group in the strip
            for panel in self.panels():
                self._panel(panel, self.n0 + image, fetch)
        e.ret()

    def _fetching(self) -> Callable[[], None]:
        """What is called after each line, to fetch a part of the next task's source."""
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        panels = blocks.int(self.panel_block + 1) - blocks.int(self.panel_block)
        return self.fetch_in(panels * (self.v1 - self.v0), self.rows, by_channel=True)

    def geometry(self) -> None:
        """The strip is [channel][plane][row][x]; results wait in lines [row of the tile][v][x]."""
        super().geometry()
        e, lanes, count, parts = self.e, self.numbers.lanes, self.x1 - self.x0, self.parts or 1
        self.flat = self.get(Job.FLAT).differs(0)
        self.part_pitch = ((self.columns + (parts - 1)) // parts + (2 * lanes - 1)) & -lanes
        self.row_pitch = e.select(self.flat, self.columns, self.part_pitch * parts)
        self.plane_pitch = (self.rows * self.row_pitch + (lanes - 1)) & -lanes
        self.channel_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
        # A line may run over into the next one, which is computed later.
        self.x_pitch = e.select(self.flat, count, (count + (lanes - 1)) & -lanes)
        self.line_pitch = (((self.v1 - self.v0) * self.x_pitch + (lanes - 1)) & -lanes) + OVERRUN * lanes

    def _panel(self, panel: Ptr, image: Int, fetch: Callable[[], None] | None) -> None:
        e = self.e
        channel = panel.int(Panel.CHANNEL)
        with e.when(self.filled.get().differs(channel)):
            self.fill_group(panel, image)
            self.filled.set(channel)
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            v_ranges = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
            hull = self._hull(v_ranges, panel.int(Panel.V_PHASES))
            with e.when(e.b.and_(panel.int(Panel.START).differs(0), self.get(Job.HOLES).differs(0))):
                self._start_lines(panel)
            place = image * self.get(Job.RESULT_N_STRIDE) + offset
            in_place = self._in_place(panel)
            self._run_lines(panel, hull, in_place, place + self._row_of(v_ranges), fetch)
            with e.when(e.b.and_(panel.int(Panel.FLUSH).differs(0), e.b.not_(in_place))):
                self._flush(panel, place, v_ranges, hull)

    def _in_place(self, panel: Ptr) -> Any:
        """Whether lines can be written where they belong: all phases at hand, the right type, whole and long rows."""
        e = self.e
        if self.numbers.stored is not self.numbers.computed:
            return e.int(0).differs(0)
        rows, step, begin = panel.int(Panel.COLUMNS), self.get(Job.RESULT_X_STEP), self.get(Job.RESULT_X_BEGIN)
        # All panels of a chunk must agree, for what waits is flushed together.
        alone = rows.equals(panel.int(Panel.FLUSH_WIDTH) * step)
        longest = max(vector_count(self.numbers.isa, height) for height in self.heights)
        widest = e.select(alone, Ptr(e, e.module.globals["widths"], I64).int(rows), longest)
        # Two phases are woven in registers, by the tallest tile. Several flat rows lie apart in the result.
        both = e.b.and_(e.b.and_(rows.equals(max(row_counts(self.numbers.isa))), alone), step.equals(2))
        both = e.b.and_(both, e.b.not_(self.flat))
        one = e.b.or_(e.b.not_(self.flat), (self.v1 - self.v0).equals(1))
        one = e.b.and_(one, step.equals(1))
        tests = [
            e.b.or_(one, both),
            panel.int(Panel.V_PHASES).equals(1),
            self.get(Job.HOLES).equals(0),
            self.line_args.int(LineArgs.COUNT) >= widest * self.numbers.lanes,
            self.x0 * step >= begin,
            self.x1 * step - begin <= self.get(Job.RESULT_X_SIZE),
        ]
        for test in tests[1:]:
            tests[0] = e.b.and_(tests[0], test)
        return tests[0]

    def _row_of(self, v_ranges: Ptr) -> Int:
        """The offset of the box's first element in a channel's result, of the panel's (first) v-phase."""
        v = self.v0 * self.get(Job.RESULT_V_STEP) + v_ranges.int(VRange.PHASE) - self.get(Job.RESULT_V_BEGIN)
        x = self.x0 * self.get(Job.RESULT_X_STEP) - self.get(Job.RESULT_X_BEGIN)
        return v * self.get(Job.RESULT_V_STRIDE) + x

    def _start_lines(self, panel: Ptr) -> None:
        """Where phases have no taps, their lines are the activated bias."""
        e, lanes, width = self.e, self.numbers.lanes, panel.int(Panel.FLUSH_WIDTH)
        rest = e.ptr(self.get(Job.REST), self.numbers.computed) + panel.int(Panel.BIAS)
        for phase in e.range(panel.int(Panel.V_PHASES) * self.get(Job.RESULT_X_STEP)):
            for c in e.range(width):
                line, value = self.out + (phase * width + c) * self.line_pitch, e.splat(rest.load(c), lanes)
                for x in e.range(0, self.line_pitch, lanes):
                    line.store(x, value)

    def _run_lines(
        self, panel: Ptr, hull: tuple[Int, Int], in_place: Any, place: Int, fetch: Callable[[], None] | None
    ) -> None:
        e, size = self.e, self.numbers.isa.vector_bytes // self.numbers.lanes
        self.line_args.store(LineArgs.TAP_COUNT, self._list_taps(panel))
        self.line_args.store(LineArgs.RUN, panel.int(Panel.RUN))
        self.line_args.store(LineArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
        self.line_args.store(LineArgs.BIAS, self.get(Job.BIAS) + panel.int(Panel.BIAS) * size)
        function = Ptr(e, e.module.globals["lines"], PTR).load(panel.int(Panel.COLUMNS))
        weave = e.b.and_(in_place, self.get(Job.RESULT_X_STEP).equals(2))
        self.line_args.store(LineArgs.IN_PLACE, e.select(in_place, 1, 0))
        self.line_args.store(LineArgs.WEAVE, e.select(weave, 1, 0))
        pitch = e.select(in_place, self.get(Job.RESULT_C_STRIDE), self.line_pitch)
        self.line_args.store(LineArgs.RESULT_PITCH, pitch)
        by_row = e.select(in_place, self.get(Job.RESULT_V_STEP) * self.get(Job.RESULT_V_STRIDE), self.x_pitch)
        home = self._channel(panel, panel.int(Panel.COLUMN)) + place
        waiting = self.out + panel.int(Panel.COLUMN) * self.line_pitch
        result = Ptr(e, e.b.select(in_place, home.value, waiting.value), self.numbers.computed)
        # A flat box is one line.
        for v in e.range(e.select(self.flat, self.v0, hull[0]), e.select(self.flat, self.v0 + 1, hull[1])):
            source = self.strip + (v - self.v0) * self.get(Job.SOURCE_V_STEP) * self.row_pitch
            line = result + (v - self.v0) * by_row
            self.line_args.store(LineArgs.SOURCE, e.b.ptrtoint(source.value, I64))
            self.line_args.store(LineArgs.RESULT, e.b.ptrtoint(line.value, I64))
            e.call(Callee(function), self.line_args)
            if fetch:
                fetch()

    def _flush(self, panel: Ptr, place: Int, v_ranges: Ptr, hull: tuple[Int, Int]) -> None:
        e = self.e
        step, stride = self.get(Job.RESULT_X_STEP), self.get(Job.RESULT_V_STRIDE)
        phases, per_phase = panel.int(Panel.V_PHASES), panel.int(Panel.FLUSH_WIDTH) * step
        for v in e.range(*hull):
            for phase in e.range(phases):
                v_range = v_ranges + phase * len(VRange)
                alive = e.b.and_(v >= v_range.int(VRange.LOW), v < v_range.int(VRange.HIGH))
                with e.when(alive):
                    row = v_range.int(VRange.PHASE) - self.get(Job.RESULT_V_BEGIN)
                    at = (v * self.get(Job.RESULT_V_STEP) + row) * stride
                    lines = self.out + (phase * per_phase * self.line_pitch + (v - self.v0) * self.x_pitch)
                    self.flush_row(panel, place + at, lines)

    def _channel(self, panel: Ptr, c: Int) -> Ptr:
        """Where a channel of the chunk starts in the result."""
        result = self.e.ptr(self.get(Job.RESULT), self.numbers.stored)
        return result + (panel.int(Panel.FLUSH_CHANNEL) + c) * self.get(Job.RESULT_C_STRIDE)

    def _hull(self, v_ranges: Ptr, phases: Int) -> tuple[Int, Int]:
        """Positions of the box at which any of the phases lives."""
        e = self.e
        low, high = e.var(self.v1), e.var(self.v0)
        for phase in e.range(phases):
            v_range = v_ranges + phase * len(VRange)
            low.set(e.min(low.get(), v_range.int(VRange.LOW)))
            high.set(e.max(high.get(), v_range.int(VRange.HIGH)))
        return e.max(low.get(), self.v0), e.min(high.get(), self.v1)

    def _list_taps(self, panel: Ptr) -> Int:
        """The (source, weights) offsets of the taps whose planes exist."""
        e = self.e
        count = e.var(0)
        inner_count = panel.int(Panel.INNER_COUNT)
        inner = self.plan + self.get(Job.INNER_TAPS) + panel.int(Panel.INNER_FIRST) * 2
        outer = self.plan + self.get(Job.OUTER_TAPS) + panel.int(Panel.OUTER_FIRST)
        step = panel.int(Panel.RUN) * panel.int(Panel.COLUMNS)
        for o in e.range(panel.int(Panel.OUTER_COUNT)):
            plane = outer.int(o)
            with e.when(self.planes_alive.int(plane).differs(0)):
                for i in e.range(inner_count):
                    at = count.get() * 2
                    pixel = inner.int(i * 2) * self.row_pitch + self._within_row(inner.int(i * 2 + 1))
                    self.taps.store(at, plane * self.plane_pitch + pixel)
                    self.taps.store(at + 1, (o * inner_count + i) * step)
                    count.set(count.get() + 1)
        return count.get()

    def _within_row(self, x: Int) -> Int:
        """Where a row of the strip has a pixel, counted from the first one that a position may touch."""
        parts = self.parts
        return x % parts * self.part_pitch + x // parts if parts else x

    def flush_row(self, panel: Ptr, place: Int, lines: Ptr) -> None:
        """Weave the phases of each channel into one line, and copy what lies inside the result."""
        e = self.e
        step, count = self.get(Job.RESULT_X_STEP), self.x1 - self.x0
        first = self.x0 * step - self.get(Job.RESULT_X_BEGIN)
        left = e.min(e.max(0 - first, 0), self.out_columns)
        right = e.min(self.get(Job.RESULT_X_SIZE) - first, self.out_columns)
        woven = self.scratch_at(Job.OFFSET_PRODUCTS, self.numbers.computed)
        whole = e.b.and_(left.equals(0), right.equals(count * step))
        if self.numbers.stored is not self.numbers.computed:
            whole = e.int(0).differs(0)
        pitch = panel.int(Panel.FLUSH_WIDTH) * self.line_pitch
        with e.when(right > left):
            for c in e.range(panel.int(Panel.FLUSH_WIDTH)):
                line = lines + c * self.line_pitch
                target = self._channel(panel, c) + (place + first)
                with e.either(step.equals(1)) as (then, otherwise):
                    with then:
                        e.call(self.narrow, target + left, line + left, right - left)
                    with otherwise:
                        with e.when(whole):
                            e.call(self.weave, target, line, pitch, step, count)
                        with e.when(e.b.not_(whole)):
                            e.call(self.weave, woven, line, pitch, step, count)
                            e.call(self.narrow, target + left, woven + left, right - left)


def _emit_weave(module: Any, numbers: Numbers) -> Any:
    """weave(target, source, pitch, step, count): target[x*step + r] = source[r*pitch + x]; not one element more."""
    e = Emitter(module, "weave", [PTR, PTR, I64, I64, I64], internal=True)
    target = e.arg_ptr(0, numbers.computed, noalias=True)
    source = e.arg_ptr(1, numbers.computed, noalias=True)
    pitch, step, count = e.arg_int(2), e.arg_int(3), e.arg_int(4)
    small = min(4, numbers.lanes)
    with e.either(step.equals(2)) as (then, otherwise):
        with then:
            for x, lanes in in_vectors(e, count, numbers.lanes):
                pair = [(source + (x + pitch * i)).load(0, lanes) for i in range(2)]
                for i, value in enumerate(weave(e, pair) if lanes else pair):
                    target.store(x * 2 + i * max(1, lanes), value)
        with otherwise, e.either(e.b.and_(step >= small, count >= small)) as (blocks, elements):
            with blocks:
                for phase in e.range(0, step, small):
                    r = e.min(phase, step - small)
                    for position in e.range(0, count, small):
                        x = e.min(position, count - small)
                        lines = [(source + ((r + i) * pitch + x)).load(0, small) for i in range(small)]
                        for i, line in enumerate(transpose_block(e, lines)):
                            target.store((x + i) * step + r, line)
            with elements:
                for x in e.range(count):
                    for r in e.range(step):
                        target.store(x * step + r, source.load(r * pitch + x))
    e.ret()
    return e.function
