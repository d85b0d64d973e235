"""The kernels with vectors across x: a padded channel-major strip, broadcast weights, phases woven on the way out.

per group: fill the strip [channel][plane][row][x]
per panel of rows (x-phase, channel), per result row: accumulate along x into lines [row][x]
when the phases of a result row are complete: weave them into one line and copy it to the result
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from llvmlite import ir

from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.box import Box
from unstride.codegen.direct import Callee
from unstride.codegen.emit import I32, I64, PTR, Emitter, Int, Ptr, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.strips import emit_narrow
from unstride.plan.across import AcrossPlan, row_counts, vector_count
from unstride.plan.job import Job, Panel, VRange

__all__ = ["AcrossFamily"]

_OVERRUN = 4  # vectors that the last tile of a line may write too many
_WIDTHS = (1, 2, 4)  # of the last tile of a line, besides the widest


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
    SIZE = 11


@dataclass(frozen=True)
class AcrossFamily:
    """What is compiled into one such kernel."""

    dtype: str
    isa_name: str
    activation: str

    @classmethod
    def of(cls, plan: AcrossPlan, activation: str) -> AcrossFamily:
        return cls(plan.direct.structure.dtype, plan.direct.isa.name, activation)

    @property
    def key(self) -> str:
        return f"across {self.dtype} {self.activation}"

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        heights = row_counts(numbers.isa)
        for rows in heights:
            _Line(module, numbers, self.activation, rows).emit()
        _table(module, heights)
        _Driver(module, numbers, heights).emit()
        return str(module)


def _table(module: Any, heights: tuple[int, ...]) -> None:
    """The line function of each height; heights that do not exist are never asked for."""
    entries = [min(h for h in heights if h >= max(1, rows)) for rows in range(max(heights) + 1)]
    table = ir.GlobalVariable(module, ir.ArrayType(PTR, len(entries)), "lines")
    references = [ir.FormattedConstant(PTR, module.globals[f"line_{h}"].get_reference()) for h in entries]
    table.initializer = ir.Constant(table.value_type, references)
    table.global_constant = True
    table.linkage = "internal"


class _Line:
    """One result row of `rows` (phase, channel) lines: wide tiles, then single vectors."""

    def __init__(self, module: Any, numbers: Numbers, activation: str, rows: int) -> None:
        self.e = Emitter(module, f"line_{rows}", [PTR], internal=True)
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
        bias = e.ptr(args.int(LineArgs.BIAS), computed)
        self.bias = [e.splat(bias.load(m), self.lanes) for m in range(self.rows)]
        count, wide = args.int(LineArgs.COUNT), vector_count(self.numbers.isa, self.rows)
        step = wide * self.lanes
        whole = (count // step) * step
        for x in e.range(0, whole, step):
            self._tile(x, wide)
        # What is left takes one tile of the next width: lanes beyond the end are computed and not used.
        left = (count - whole + (self.lanes - 1)) // self.lanes
        narrower = 0
        for vectors in [v for v in _WIDTHS if v < wide] + [wide]:
            with e.when(e.b.and_(left > narrower, left <= vectors)):
                self._tile(whole, vectors)
            narrower = vectors
        e.ret()

    def _tile(self, x: Int, vectors: int) -> None:
        e, args = self.e, self.args
        acc = [constant(self.typ, 0.0)] * (self.rows * vectors)
        source, run, pitch = self.source + x, args.int(LineArgs.RUN), args.int(LineArgs.CHANNEL_PITCH)
        for tap, outer in e.fold(0, args.int(LineArgs.TAP_COUNT), 1, acc):
            at, weights = source + self.taps.int(tap * 2), self.weights + self.taps.int(tap * 2 + 1)
            for c, inner in e.fold(0, run, 1, outer):
                line, scalars = at + c * pitch, weights + c * self.rows
                values = [line.load(v * self.lanes, self.lanes) for v in range(vectors)]
                for m in range(self.rows):
                    weight = e.splat(scalars.load(m), self.lanes)
                    for v, value in enumerate(values):
                        i = m * vectors + v
                        inner[i] = self.numbers.multiply_add(e, value, weight, inner[i])
        slope = self._slope()
        for m in range(self.rows):
            target = self.result + (args.int(LineArgs.RESULT_PITCH) * m + x)
            for v in range(vectors):
                done = activate(e, self.activation, e.b.fadd(acc[m * vectors + v], self.bias[m]), slope)
                target.store(v * self.lanes, done)

    def _slope(self) -> Any:
        if self.activation != "leaky_relu":
            return None
        return slope_vector(self.e, self.args, LineArgs.SLOPE_BITS, self.numbers)


class _Driver(Box):
    def __init__(self, module: Any, numbers: Numbers, heights: tuple[int, ...]) -> None:
        self.weave = _emit_weave(module, numbers)
        self.narrow = emit_narrow(module, numbers)
        super().__init__(module, numbers, channel_major=False)
        self.heights = heights

    def emit(self) -> None:
        e = self.e
        self.geometry()
        self.line_args = e.stack(I64, LineArgs.SIZE)
        self.line_args.store(LineArgs.TAPS, e.b.ptrtoint(self.taps.value, I64))
        self.line_args.store(LineArgs.SLOPE_BITS, self.get(Job.SLOPE_BITS))
        self.line_args.store(LineArgs.CHANNEL_PITCH, self.channel_pitch)
        self.line_args.store(LineArgs.RESULT_PITCH, self.line_pitch)
        self.line_args.store(LineArgs.COUNT, self.x1 - self.x0)
        for image in e.range(self.images):
            for panel in self.panels():
                self._panel(panel, self.n0 + image)
        e.ret()

    def geometry(self) -> None:
        """The strip is [channel][plane][row][x]; results wait in lines [v][row of the tile][x]."""
        super().geometry()
        lanes = self.numbers.lanes
        self.row_pitch = (self.columns + (2 * lanes - 1)) & -lanes
        self.plane_pitch = self.rows * self.row_pitch
        self.channel_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
        self.line_pitch = ((self.x1 - self.x0 + (lanes - 1)) & -lanes) + _OVERRUN * lanes

    def _fill_group(self, panel: Ptr, image: Int) -> None:
        e = self.e
        self.list_planes()
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + image * self.get(Job.SOURCE_N_STRIDE)
        for c in e.range(panel.int(Panel.RUN)):
            channel = source + (panel.int(Panel.CHANNEL) + c) * self.get(Job.SOURCE_C_STRIDE)
            for plane in e.range(self.get(Job.PLANE_COUNT)):
                with e.when(self.planes_alive.int(plane).differs(0)):
                    target = self.strip + (c * self.channel_pitch + plane * self.plane_pitch)
                    for row in e.range(self.rows):
                        start = channel + self.plane_offsets.int(plane)
                        self._fill_line(target + row * self.row_pitch, start, self.source_v + row)

    def _fill_line(self, target: Ptr, source: Ptr, v: Int) -> None:
        e = self.e
        inside = e.b.and_(v >= 0, v < self.get(Job.SOURCE_V_SIZE))
        with e.either(inside) as (then, otherwise):
            with otherwise:
                e.call(self.zero, target, self.row_pitch)
            with then:
                left = e.min(e.max(0 - self.source_x, 0), self.columns)
                right = e.max(e.min(self.get(Job.SOURCE_X_SIZE) - self.source_x, self.columns), left)
                with e.when(left > 0):
                    e.call(self.zero, target, left)
                with e.when(right > left):
                    first = source + (v * self.get(Job.SOURCE_V_STRIDE) + self.source_x + left)
                    e.call(self.copy, target + left, first, right - left)
                with e.when(right < self.columns):
                    e.call(self.zero, target + right, self.columns - right)

    def _panel(self, panel: Ptr, image: Int) -> None:
        e = self.e
        with e.when(panel.int(Panel.START).differs(0)):
            self._fill_group(panel, image)
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            self.line_args.store(LineArgs.TAP_COUNT, self._list_taps(panel))
            size = self.numbers.isa.vector_bytes // self.numbers.lanes
            self.line_args.store(LineArgs.RUN, panel.int(Panel.RUN))
            self.line_args.store(LineArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
            self.line_args.store(LineArgs.BIAS, self.get(Job.BIAS) + panel.int(Panel.BIAS) * size)
            v_ranges = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
            phases = panel.int(Panel.V_PHASES)
            low, high = self._hull(v_ranges, phases)
            per_phase = panel.int(Panel.FLUSH_WIDTH) * self.get(Job.RESULT_X_STEP)
            lines = phases * per_phase
            function = Ptr(e, e.module.globals["lines"], PTR).load(panel.int(Panel.COLUMNS))
            for v in e.range(low, high):
                source = self.strip + (v - self.v0) * self.get(Job.SOURCE_V_STEP) * self.row_pitch
                result = self.out + ((v - self.v0) * lines + panel.int(Panel.COLUMN)) * self.line_pitch
                self.line_args.store(LineArgs.SOURCE, e.b.ptrtoint(source.value, I64))
                self.line_args.store(LineArgs.RESULT, e.b.ptrtoint(result.value, I64))
                e.b.call(Callee(function), [self.line_args.value])
            with e.when(panel.int(Panel.FLUSH).differs(0)):
                for v in e.range(low, high):
                    for phase in e.range(phases):
                        v_range = v_ranges + phase * len(VRange)
                        alive = e.b.and_(v >= v_range.int(VRange.LOW), v < v_range.int(VRange.HIGH))
                        with e.when(alive):
                            row = v_range.int(VRange.PHASE) - self.get(Job.RESULT_V_BEGIN)
                            at = (v * self.get(Job.RESULT_V_STEP) + row) * self.get(Job.RESULT_V_STRIDE)
                            place = image * self.get(Job.RESULT_N_STRIDE) + offset + at
                            first = ((v - self.v0) * lines + phase * per_phase) * self.line_pitch
                            self._flush_row(panel, place, self.out + first)

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
                    row = inner.int(i * 2) * self.row_pitch
                    self.taps.store(at, plane * self.plane_pitch + row + inner.int(i * 2 + 1))
                    self.taps.store(at + 1, (o * inner_count + i) * step)
                    count.set(count.get() + 1)
        return count.get()

    def _flush_row(self, panel: Ptr, place: Int, lines: Ptr) -> None:
        """Weave the phases of each channel into one line and copy what lies inside the result."""
        e = self.e
        step = self.get(Job.RESULT_X_STEP)
        first = self.x0 * step - self.get(Job.RESULT_X_BEGIN)
        left = e.min(e.max(0 - first, 0), self.out_columns)
        right = e.min(self.get(Job.RESULT_X_SIZE) - first, self.out_columns)
        woven = self.scratch_at(Job.OFFSET_PRODUCTS, self.numbers.computed)
        result = e.ptr(self.get(Job.RESULT), self.numbers.stored) + place + first
        with e.when(right > left):
            for c in e.range(panel.int(Panel.FLUSH_WIDTH)):
                line = lines + c * self.line_pitch
                target = result + (panel.int(Panel.FLUSH_CHANNEL) + c) * self.get(Job.RESULT_C_STRIDE)
                with e.either(step.equals(1)) as (then, otherwise):
                    with then:
                        e.call(self.narrow, target + left, line + left, right - left)
                    with otherwise:
                        pitch = panel.int(Panel.FLUSH_WIDTH) * self.line_pitch
                        e.call(self.weave, woven, line, pitch, step, self.x1 - self.x0)
                        e.call(self.narrow, target + left, woven + left, right - left)


def _emit_weave(module: Any, numbers: Numbers) -> Any:
    """weave(target, source, pitch, step, count): target[x*step + r] = source[r*pitch + x]; may run over by vectors."""
    e = Emitter(module, "weave", [PTR, PTR, I64, I64, I64], internal=True)
    target = e.arg_ptr(0, numbers.computed, noalias=True)
    source = e.arg_ptr(1, numbers.computed, noalias=True)
    pitch, step, count = e.arg_int(2), e.arg_int(3), e.arg_int(4)
    lanes = numbers.lanes
    with e.either(step.equals(2)) as (then, otherwise):
        with then:
            for x in e.range(0, count, lanes):
                pair = [(source + (x + pitch * r)).load(0, lanes) for r in range(2)]
                for half in range(2):
                    first = half * lanes // 2
                    order = [first + i // 2 + (i % 2) * lanes for i in range(lanes)]
                    mask = ir.Constant(ir.VectorType(I32, lanes), order)
                    target.store(x * 2 + half * lanes, e.b.shuffle_vector(pair[0], pair[1], mask))
        with otherwise:
            for r in e.range(step):
                for x in e.range(count):
                    target.store(x * step + r, source.load(r * pitch + x))
    e.ret()
    return e.function
