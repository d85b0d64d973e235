"""The rows of a box, each sum in registers: pixels in the lanes of their results, phases woven or spread.

A few rows at once, in one turn if they are short. What a turn stores beyond the end of a row the next one overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from unstride.codegen import ir
from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.emit import I32, I64, PTR, Emitter, Int, Ptr, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.strips import weave
from unstride.plan.job import Job
from unstride.plan.phases import ONE_ROW, AxisPhases
from unstride.plan.spread import MOST_ROWS, Lanes, is_woven, patterns, rows_at_once

__all__ = ["SpreadRows"]

_VECTORS, _MOST_VECTORS = 4, 8  # side by side, if the same few taps serve all of them; where two periods are no more
_TURN_BYTES = 256  # of these: a longer turn has to leave out much at the end of a row
_LONG = 64  # multiply-adds of a turn that are enough


@dataclass(frozen=True)
class _Target:
    """A result row: its taps, by source row and kernel row; what must hold for it to exist, and where it is; how many
    elements may be stored from its first on."""

    taps: list[tuple[int, int]]
    tests: list[Any]
    line: Ptr
    over: Int


class SpreadRows:
    """rows(result, source, heads, taps, weights, bias, job, v0, v1, low, high, limit, pitch, part, kernel_pitch): the
    rows of a box, of one outer phase.

    Of each row the elements [low, high), and what follows in memory if it is before `limit`, counted from row 0 on: it
    is overwritten later. Its first element, and that of every period, is of phase `rotation`.
    """

    def __init__(
        self, module: Any, numbers: Numbers, activation: str, axis: AxisPhases, rows: AxisPhases | None, rotation: int
    ) -> None:
        """`rows`: the axis along v, if its phases and taps are written out."""
        self.e = e = Emitter(module, f"rows_{rotation}", [*(PTR,) * 7, *(I64,) * 8], internal=True)
        self.numbers, self.activation, self.rotation = numbers, activation, rotation
        self.axis, self.rows, self.written = axis, rows or ONE_ROW, rows is not None
        self.sums: _Woven | _Permuted
        if is_woven(axis):
            self.sums = _Woven(e, numbers, axis, rotation, e.arg_int(13))
        else:
            self.sums = _Permuted(e, numbers, axis)
        self.width = self.sums.width
        self.function = e.function
        self._emit()

    def _emit(self) -> None:
        e, numbers, computed = self.e, self.numbers, self.numbers.computed
        self.result, strip = e.arg_ptr(0, numbers.stored), e.arg_ptr(1, computed)
        heads, taps, job = e.arg_ptr(2, I64), e.arg_ptr(3, I64), e.arg_ptr(6, I64)
        self.weights = e.arg_ptr(4, computed)
        self.bias = e.splat(e.arg_ptr(5, computed).load(0), numbers.lanes)
        v0, v1, self.low, self.high, self.limit, self.pitch = (e.arg_int(i) for i in range(7, 13))
        self.kernel_pitch = e.arg_int(14)
        slope = self.activation == "leaky_relu"
        self.slope = slope_vector(e, job, Job.SLOPE_BITS, numbers) if slope else None
        step, begin, self.size, self.stride = (
            job.int(field) for field in (Job.RESULT_V_STEP, Job.RESULT_V_BEGIN, Job.RESULT_V_SIZE, Job.RESULT_V_STRIDE)
        )
        by_position = self.pitch * job.int(Job.SOURCE_V_STEP)

        def walk(together: int) -> None:
            """Some positions at a time; the last ones are moved back to end with the box."""
            self.together = together
            for first in e.range(v0, v1, together):
                v = e.min(first, v1 - together)
                self.source = strip + (v - v0) * by_position
                for listed in e.range(1 if self.written else step):
                    head = heads + listed * 2
                    self.taps, self.count = taps + head.int(0), head.int(1)
                    self.first_row = v * step + listed - begin
                    self._rows()

        most = self._most_together()
        if most == 1:
            walk(1)
        else:
            with e.either(v1 - v0 >= most) as (many, few):
                with many:
                    walk(most)
                with few:
                    walk(1)
        e.ret()

    def _most_together(self) -> int:
        """Positions along v whose rows share what they load."""
        return rows_at_once(self.rows, self.sums.products) if self.written else 1

    def _rows(self) -> None:
        """The rows of one list, a few at once: in one turn, or in turns of which the last is moved back to end with
        the row."""
        sums, step = self.sums, self.axis.result_step
        few = _VECTORS // sums.vectors
        many = min(_MOST_VECTORS, _TURN_BYTES // self.numbers.isa.vector_bytes) // sums.vectors
        alone = self.written and len(self.rows.phases) == len(self.rows.phases[0].taps) == 1  # as in 1D
        periods = max(few, many if sums.long_rows or alone else min(many, 2))
        most = max(1, min(periods, _LONG // max(1, sums.products)))
        period = sums.vectors * self.numbers.lanes // step
        self.positions = (self.high + (step - 1)) // step
        choices = {1, min(2, most), most} if self.together == self._most_together() else {1, most}
        self._in_one_turn(sorted(choices), period, lambda: self._in_turns(most, period))

    def _in_one_turn(self, choices: list[int], period: int, otherwise: Callable[[], None]) -> None:
        """The first of these numbers of periods that is enough for a row, or what else can be done."""
        if not choices:
            otherwise()
            return
        periods, *longer = choices
        with self.e.either(self.positions <= periods * period) as (short, long):
            with short:
                for targets in self._targets(periods, MOST_ROWS):
                    self._turn(self.e.int(0), periods, targets)
            with long:
                self._in_one_turn(longer, period, otherwise)

    def _in_turns(self, most: int, period: int) -> None:
        """Turns of so many periods, and one of half as many for what is left."""
        e, long, half = self.e, most * period, (most + 1) // 2
        # More than that is best done at once, even if not all of it is there.
        end = (self.positions + (long // 2 - 1)) // long * long if most > 1 else self.positions
        for targets in self._targets(most, 2):
            # Beyond the end of a row, but not if the next one has been started.
            targets = [replace(target, over=self.high) for target in targets[:-1]] + targets[-1:]
            for x in e.range(0, end, long, inner=True):
                self._turn(e.min(x, self.positions - long), most, targets, filled=True)
            if most > 1:
                with e.when(end < self.positions):
                    self._turn(self.positions - half * period, half, targets, filled=True)

    def _targets(self, periods: int, most: int) -> Iterator[list[_Target]]:
        """As many rows at a time as there is room for their sums."""
        count, room = self.together * self.rows.result_step, self.numbers.isa.registers // 2
        rows = max(1, min(room // (self.sums.vectors * periods), most))
        for first in range(0, count, rows):
            yield [self._target(r) for r in range(first, min(first + rows, count))]

    def _target(self, index: int) -> _Target:
        """A row by its number, from the first position's first on."""
        e, row = self.e, self.first_row + index
        further, r = divmod(index, self.rows.result_step)
        first = further * self.rows.source_step - self.rows.first
        taps = [(first + tap.a, tap.k) for phase in self.rows.phases if phase.r == r for tap in phase.taps]
        offset, last = row * self.stride, self.together * self.rows.result_step - 1
        # A position is visited for a row that exists: only those before its last may come too early, and of the last
        # position those behind its first too late.
        tests = []
        if not self.written or index < self.rows.result_step - 1:
            tests.append(row >= 0)
        if not self.written or index > last - (self.rows.result_step - 1):
            tests.append(row < self.size)
        return _Target(taps, tests, self.result + offset, e.max(self.high, self.limit - offset))

    def _turn(self, x: Int, periods: int, targets: list[_Target], *, filled: bool = False) -> None:
        """So many periods, from position x on, of the rows of a few phases; all of them exist if `filled`."""
        e, numbers, lanes, sums = self.e, self.numbers, self.numbers.lanes, self.sums
        count = sums.vectors * periods
        totals = [constant(vector(numbers.computed, lanes), 0.0)] * (count * len(targets))
        taps = sorted((*tap, i) for i, target in enumerate(targets) for tap in target.taps)
        for tap, carried in e.fold(0, self.count, 1, totals):
            plane, weights = self.source + (x + self.taps.int(tap * 2)), self.weights + self.taps.int(tap * 2 + 1)
            for a, served in groupby(taps, itemgetter(0)):
                values = sums.load(plane + self.pitch * a, periods)
                for _, k, i in served:
                    part = carried[i * count : (i + 1) * count]
                    sums.add(values, weights + self.kernel_pitch * k, part)
                    carried[i * count : (i + 1) * count] = part
        for i, target in enumerate(targets):
            ordered = sums.in_order([e.b.fadd(total, self.bias) for total in totals[i * count : (i + 1) * count]])
            done = [activate(e, self.activation, value, self.slope) for value in ordered]
            with ExitStack() as exists:
                for test in target.tests:
                    exists.enter_context(e.when(test))
                self._store(target, x * self.axis.result_step, done, filled=filled)

    def _store(self, row: _Target, t: Int, done: list[Any], *, filled: bool) -> None:
        """Store a turn's elements of a row, from t on; beyond its end, too, as far as that may be."""
        e, lanes, step = self.e, self.numbers.lanes, self.axis.result_step
        target = row.line + t
        inside = t + len(done) * lanes <= row.over
        # A row that starts with another phase than the first starts with its first element.
        low, high = e.int(0), self.high - t
        if self.rotation == 0:
            inside, low = e.b.and_(t >= self.low, inside), self.low - t
        with e.either(inside) as (then, otherwise):
            with then:
                for i, value in enumerate(done):
                    self.numbers.store(target, i * lanes, value)
            with otherwise:
                # What does not exist of positions that do, before the first element or behind the last, is less than
                # a position's phases.
                certain = range(step - 1, len(done) * lanes - (step - 1) if filled else 0)
                for i, value in enumerate(done):
                    first, last = i * lanes, (i + 1) * lanes - 1
                    if first in certain and last in certain:
                        self.numbers.store(target, first, value)
                    else:
                        start = low if first < step - 1 else e.int(first)
                        self.numbers.store_between(target, first, value, start, high)


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

    def load(self, line: Ptr, periods: int) -> dict[Any, Any]:
        """What the taps of a source row take from it, by vector of a few periods."""
        return {
            (period * self.vectors + index, tap): self._spread(line + period * self.along, tap)
            for index, taps in enumerate(self.taps)
            for tap in taps
            for period in range(periods)
        }

    def add(self, values: dict[Any, Any], weights: Ptr, sums: list[Any]) -> None:
        """Add the products of one source row and one kernel row to the sums of a few periods."""
        at, lanes = 0, self.numbers.lanes
        for index, taps in enumerate(self.taps):
            for tap in taps:
                factors = weights.load(at, lanes)
                at += lanes
                for i in range(index, len(sums), self.vectors):
                    sums[i] = self.numbers.multiply_add(self.e, values[i, tap], factors, sums[i])

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

    def load(self, line: Ptr, periods: int) -> dict[Any, Any]:
        """What the taps of a source row take from it, by period and place."""
        return {
            (period, (part, first)): (line + self.part * part).load(period * self.along + first, self.numbers.lanes)
            for period in range(periods)
            for part, first in sorted({source for _, source in self.taps})
        }

    def add(self, values: dict[Any, Any], weights: Ptr, sums: list[Any]) -> None:
        """Add the products of one source row and one kernel row to the sums of a few periods."""
        e, lanes = self.e, self.numbers.lanes
        for period in range(len(sums) // self.vectors):
            for i, (place, source) in enumerate(self.taps):
                factor = e.splat(weights.load(i), lanes)
                at = period * self.vectors + place
                sums[at] = self.numbers.multiply_add(e, values[period, source], factor, sums[at])

    def in_order(self, sums: list[Any]) -> list[Any]:
        periods = [sums[i : i + self.vectors] for i in range(0, len(sums), self.vectors)]
        return [value for period in periods for value in weave(self.e, period)]
