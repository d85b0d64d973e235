"""Source pixels spread over the lanes of their results: the driver of `plan.spread`.

per box: list the source rows and kernel rows of every result row
per channel: fill the strip [channel of the group][plane][row][x]; then, row by row of the result, sums in registers
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from unstride.codegen import ir
from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.emit import I32, I64, PTR, Callee, Emitter, Int, Ptr, vector
from unstride.codegen.line_strip import LineStrip
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.strips import emit_stream, weave
from unstride.plan.across import SLACK
from unstride.plan.job import Job, Panel
from unstride.plan.phases import AxisPhases, axis_phases
from unstride.plan.spread import Lanes, SpreadPlan, is_woven, may_stage, patterns

__all__ = ["SpreadFamily"]

_VECTORS, _MOST_VECTORS = 4, 8  # side by side, if the same few taps serve all of them; where two periods are no more
_TURN_BYTES = 256  # of these: a longer turn has to leave out much at the end of a row
_LONG = 64  # multiply-adds of a turn that are enough


@dataclass(frozen=True)
class SpreadFamily:
    """What is compiled into one such kernel: all of the last axis but its sizes."""

    dtype: str
    isa_name: str
    activation: str
    direction: str
    kernel: int
    stride: int
    dilation: int
    name: ClassVar[str] = "spread"

    @classmethod
    def of(cls, plan: SpreadPlan, activation: str) -> Self:
        s = plan.direct.structure
        axis = (s.direction, s.kernel[-1], s.stride[-1], s.dilation[-1])
        return cls(s.dtype, plan.direct.isa.name, activation, *axis)

    @property
    def key(self) -> str:
        axis = f"{self.direction} k{self.kernel} s{self.stride} d{self.dilation}"
        return f"{self.name} {self.dtype} {self.activation} {axis}"

    @property
    def axis(self) -> AxisPhases:
        return axis_phases(self.direction, self.kernel, self.stride, self.dilation)

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
        axis = family.axis
        self.variants = [_Rows(module, numbers, family, r) for r in range(axis.result_step if is_woven(axis) else 1)]
        if may_stage(numbers.isa):
            self.stream = emit_stream(module, numbers)
        super().__init__(module, numbers, axis.source_step)

    def emit(self) -> None:
        e = self.e
        self.geometry()
        self.list_planes()
        self._list_rows()
        rows = self.variants[0].function
        for rotation, other in enumerate(self.variants[1:], 1):
            rows = e.b.select(self.get(Job.ROTATION).equals(rotation), other.function, rows)
        self.rows_function = Callee(rows)
        for image in e.range(self.images):
            self._channels(self.n0 + image)
        self.done()

    def _channels(self, image: Int) -> None:
        """Channel after channel. The next one is filled into the other strip before this one is read: what was just
        stored cannot be loaded across its seams until it has reached the cache."""
        e, first = self.e, self.strip
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        start, end = blocks.int(self.panel_block), blocks.int(self.panel_block + 1)
        table, side = self.plan + self.get(Job.PANELS), e.var(0)
        apart = table.int(Panel.RUN) * self.channel_pitch + SLACK * self.numbers.lanes
        self.fill_group(table + start * len(Panel), image)
        for index in e.range(start, end):
            panel = table + index * len(Panel)
            following = table + e.min(index + 1, end - 1) * len(Panel)
            another = following.int(Panel.CHANNEL).differs(panel.int(Panel.CHANNEL))
            this = side.get()
            with e.when(another):
                side.set(1 - this)
                self.strip = first + (1 - this) * apart
                self.fill_group(following, image)
            self.strip = first + this * apart
            self._channel(panel, image)
        self.strip = first

    def geometry(self) -> None:
        super().geometry()
        lanes, rotation = self.numbers.lanes, self.get(Job.ROTATION)
        # Rotated lines end with the first phases of one position more.
        self.columns = self.columns + self.e.select(rotation > 0, self.get(Job.SOURCE_X_STEP), 0)
        # What is read beyond the end of a row belongs to the next one, and is not used.
        self.part_pitch = ((self.columns + (self.parts - 1)) // self.parts + (lanes - 1)) & -lanes
        self.row_pitch = self.part_pitch * self.parts
        self.plane_pitch = self.rows * self.row_pitch
        self.channel_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
        # Of a result row, from the box's first element on, the part [low, high) exists.
        step = self.get(Job.RESULT_X_STEP)
        self.first = self.x0 * step + rotation - self.get(Job.RESULT_X_BEGIN)
        self.low = self.e.max(0 - self.first, 0)
        self.high = self.e.min((self.x1 - self.x0) * step, self.get(Job.RESULT_X_SIZE) - self.first)

    def _list_rows(self) -> None:
        """By result row of a position, the first of its taps and how many there are; then (source, weights) of each."""
        e, total = self.e, self.e.var(0)
        panel = self.plan + self.get(Job.PANELS)
        rows = panel.int(Panel.OUTER_COUNT) * self.get(Job.RESULT_V_STEP)
        self.heads, self.taps = self.taps, self.taps + rows * 2
        lists = self.plan + self.get(Job.INNER_TAPS)
        for row in e.range(rows):
            head = lists + row * 2
            self.heads.store(row * 2, total.get() * 2)
            for i in e.range(head.int(1)):
                tap = lists + (head.int(0) + i * 2) * 2
                with e.when(self.planes_alive.int(tap.int(0)).differs(0)):
                    source = tap.int(0) * self.plane_pitch + tap.int(1) * self.row_pitch
                    for c in e.range(panel.int(Panel.RUN)):
                        at = total.get() * 2
                        self.taps.store(at, source + c * self.channel_pitch)
                        self.taps.store(at + 1, (tap.int(2) * panel.int(Panel.RUN) + c) * self.variants[0].width)
                        total.set(total.get() + 1)
            self.heads.store(row * 2 + 1, total.get() - self.heads.int(row * 2) // 2)

    def _channel(self, panel: Ptr, image: Int) -> None:
        """All result rows of a channel."""
        e = self.e
        result = e.ptr(self.get(Job.RESULT), self.numbers.stored) + image * self.get(Job.RESULT_N_STRIDE)
        result = result + (panel.int(Panel.FLUSH_CHANNEL) * self.get(Job.RESULT_C_STRIDE) + self.first)
        for phase in e.range(panel.int(Panel.OUTER_COUNT)):
            offset, alive = self.phase_offset(phase)
            with e.when(alive.differs(0)):
                self._plane(panel, phase, result + offset)

    def _plane(self, panel: Ptr, phase: Int, result: Ptr) -> None:
        """The box's rows of one outer phase: where they belong, or by way of a stage that is streamed there."""
        e, stride = self.e, self.get(Job.RESULT_V_STRIDE)
        if not may_stage(self.numbers.isa):
            self._rows(panel, phase, result)
            return
        step, begin = self.get(Job.RESULT_V_STEP), self.get(Job.RESULT_V_BEGIN)
        top = e.max(self.v0 * step - begin, 0)
        rows = e.min(self.v1 * step - begin, self.get(Job.RESULT_V_SIZE)) - top
        streamed = e.b.and_(self.get(Job.STREAM).differs(0), rows > 0)
        first, stage = top * stride + self.low, self.out.as_type(self.numbers.stored)
        start = stage + (0 - first)
        self._rows(panel, phase, Ptr(e, e.b.select(streamed, start.value, result.value), self.numbers.stored))
        with e.when(streamed):
            e.call(self.stream, result + first, stage, (rows - 1) * stride + (self.high - self.low))

    def _rows(self, panel: Ptr, phase: Int, result: Ptr) -> None:
        e, heads = self.e, self.heads + phase * self.get(Job.RESULT_V_STEP) * 2
        weights = e.ptr(self.get(Job.WEIGHTS), self.numbers.computed) + panel.int(Panel.WEIGHTS)
        bias = e.ptr(self.get(Job.BIAS), self.numbers.computed) + panel.int(Panel.BIAS)
        pitch = self.row_pitch * self.get(Job.SOURCE_V_STEP)
        sizes = (self.v0, self.v1, self.low, self.high, pitch, self.part_pitch)
        e.call(self.rows_function, result, self.strip, heads, self.taps, weights, bias, self.job, *sizes)


class _Rows:
    """rows(result, source, heads, taps, weights, bias, job, v0, v1, low, high, pitch, part): a box's rows of an outer
    phase.

    Of each row the elements [low, high). Its first element, and that of every period, is of phase `rotation`.
    """

    def __init__(self, module: Any, numbers: Numbers, family: SpreadFamily, rotation: int) -> None:
        self.e = e = Emitter(module, f"rows_{rotation}", [*(PTR,) * 7, *(I64,) * 6], internal=True)
        self.numbers, self.activation, self.rotation = numbers, family.activation, rotation
        self.sums: _Woven | _Permuted
        if is_woven(family.axis):
            self.sums = _Woven(e, numbers, family.axis, rotation, e.arg_int(12))
        else:
            self.sums = _Permuted(e, numbers, family.axis)
        self.width = self.sums.width
        self.function = e.function
        self._emit()

    def _emit(self) -> None:
        e, numbers, computed = self.e, self.numbers, self.numbers.computed
        result, strip = e.arg_ptr(0, numbers.stored), e.arg_ptr(1, computed)
        heads, taps, job = e.arg_ptr(2, I64), e.arg_ptr(3, I64), e.arg_ptr(6, I64)
        self.weights = e.arg_ptr(4, computed)
        self.bias = e.splat(e.arg_ptr(5, computed).load(0), numbers.lanes)
        v0, v1, self.low, self.high, pitch = (e.arg_int(i) for i in range(7, 12))
        slope = self.activation == "leaky_relu"
        self.slope = slope_vector(e, job, Job.SLOPE_BITS, numbers) if slope else None
        step, begin, size, stride = (
            job.int(field) for field in (Job.RESULT_V_STEP, Job.RESULT_V_BEGIN, Job.RESULT_V_SIZE, Job.RESULT_V_STRIDE)
        )
        for v in e.range(v0, v1):
            self.source = strip + (v - v0) * pitch
            for residue in e.range(step):
                at, head = v * step + residue - begin, heads + residue * 2
                with e.when(e.b.and_(at >= 0, at < size)):
                    self.target = result + at * stride
                    self.taps, self.count = taps + head.int(0), head.int(1)
                    self._row()
        e.ret()

    def _row(self) -> None:
        e, lanes = self.e, self.numbers.lanes
        few = _VECTORS // self.sums.vectors
        many = min(_MOST_VECTORS, _TURN_BYTES // self.numbers.isa.vector_bytes) // self.sums.vectors
        periods = max(few, many if self.sums.long_rows else min(many, 2))
        most = max(1, min(periods, _LONG // max(1, self.sums.products)))
        start = e.int(0)
        for periods in dict.fromkeys((most, 1)):
            step = periods * self.sums.vectors * lanes
            # What is left is best done at once, even if half of it is not there.
            end = self.high if periods == 1 else (self.high + (step // 2 - 1)) // step * step
            for t in e.range(start, end, step, inner=True):
                self._turn(t, periods)
            start = end

    def _turn(self, t: Int, periods: int) -> None:
        """So many periods, from element t on."""
        e, numbers, lanes, sums = self.e, self.numbers, self.numbers.lanes, self.sums
        source = self.source + (t // (sums.vectors * lanes)) * sums.along
        totals = [constant(vector(numbers.computed, lanes), 0.0)] * (sums.vectors * periods)
        for tap, carried in e.fold(0, self.count, 1, totals):
            sums.add(source + self.taps.int(tap * 2), self.weights + self.taps.int(tap * 2 + 1), carried)
        ordered = sums.in_order([e.b.fadd(total, self.bias) for total in totals])
        done = [activate(e, self.activation, value, self.slope) for value in ordered]
        target = self.target + t
        inside = t + len(done) * lanes <= self.high
        # A row that starts with another phase than the first starts with its first element.
        low, high = e.int(0), self.high - t
        if self.rotation == 0:
            inside, low = e.b.and_(t >= self.low, inside), self.low - t
        with e.either(inside) as (then, otherwise):
            with then:
                for i, value in enumerate(done):
                    numbers.store(target, i * lanes, value)
            with otherwise:
                for i, value in enumerate(done):
                    numbers.store_between(target, i * lanes, value, low, high)


class _Permuted:
    """Sums of neighbouring results: for each tap, pixels are put into their lanes."""

    def __init__(self, e: Emitter, numbers: Numbers, axis: AxisPhases) -> None:
        self.e, self.numbers = e, numbers
        self.taps = patterns(axis, numbers.lanes)
        self.vectors = len(self.taps)  # after which everything repeats: a period
        self.products = sum(map(len, self.taps))  # of a period, for one row of the kernel
        self.width = self.products * numbers.lanes  # elements of the weights of that row
        self.along = self.vectors * numbers.lanes // axis.result_step  # source elements of a period
        self.long_rows = self.vectors > 1  # as is usual with such strides

    def add(self, line: Ptr, weights: Ptr, sums: list[Any]) -> None:
        """Add the products of one source row to the sums of a few periods."""
        at, lanes = 0, self.numbers.lanes
        for index, taps in enumerate(self.taps):
            for tap in taps:
                factors = weights.load(at, lanes)
                at += lanes
                for i in range(index, len(sums), self.vectors):
                    values = self._spread(line + i // self.vectors * self.along, tap)
                    sums[i] = self.numbers.multiply_add(self.e, values, factors, sums[i])

    def in_order(self, sums: list[Any]) -> list[Any]:
        return sums

    def _spread(self, line: Ptr, tap: Lanes) -> Any:
        """The source pixels of one tap, each in its lanes, and zeros in lanes that have no such tap."""
        e, lanes = self.e, self.numbers.lanes
        used = {source for source in tap.sources if source is not None}
        if len(used) == 1 and None not in tap.sources:
            return e.splat(line.load(tap.first + used.pop()), lanes)
        values = line.load(tap.first, lanes)
        if tap.sources == tuple(range(lanes)):
            return values
        order = [lanes if source is None else source for source in tap.sources]
        return e.b.shuffle_vector(values, constant(values.type, 0.0), ir.Constant(vector(I32, lanes), order))


class _Woven:
    """Sums of single phases, which are woven into neighbouring results at the end.

    `part` is how far the parts of a source line are apart.
    """

    def __init__(self, e: Emitter, numbers: Numbers, axis: AxisPhases, rotation: int, part: Int) -> None:
        self.e, self.numbers, self.part = e, numbers, part
        self.vectors, self.along, self.long_rows = axis.result_step, numbers.lanes, False
        self.products = self.width = sum(len(phase.taps) for phase in axis.phases)
        # Of each weight: the vector, and the part and element of the source that its first lane takes.
        self.taps: list[tuple[int, tuple[int, int]]] = []
        for phase in axis.phases:
            further, place = divmod(phase.r - rotation, self.vectors)
            firsts = [divmod(tap.a - axis.first - further, axis.source_step) for tap in phase.taps]
            self.taps += [(place, (part, first)) for first, part in firsts]

    def add(self, line: Ptr, weights: Ptr, sums: list[Any]) -> None:
        """Add the products of one source row to the sums of a few periods."""
        e, lanes = self.e, self.numbers.lanes
        for period in range(0, len(sums), self.vectors):
            pixels = line + period // self.vectors * self.along
            values = {
                (part, first): (pixels + self.part * part).load(first, lanes)
                for part, first in sorted({source for _, source in self.taps})
            }
            for i, (place, source) in enumerate(self.taps):
                factor = e.splat(weights.load(i), lanes)
                at = period + place
                sums[at] = self.numbers.multiply_add(e, values[source], factor, sums[at])

    def in_order(self, sums: list[Any]) -> list[Any]:
        periods = [sums[i : i + self.vectors] for i in range(0, len(sums), self.vectors)]
        return [value for period in periods for value in weave(self.e, period)]
