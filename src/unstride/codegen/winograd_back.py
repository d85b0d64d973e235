"""The way back of Winograd's products: tile by tile transformed, shifted by the bias, activated and stored once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.box import Box
from unstride.codegen.emit import I64, Int, Ptr, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.winograd_pack import both_sides
from unstride.plan.job import X_RANGES, Job, Panel, VRange, XRange
from unstride.plan.winograd import Transform

__all__ = ["Back", "WayBack", "WinogradForm", "address"]


@dataclass(frozen=True)
class WinogradForm:
    """What is compiled into a Winograd kernel."""

    dtype: str
    isa_name: str
    channel_major: bool
    activation: str
    v: Transform
    x: Transform
    rows: int
    vectors: int


@dataclass(frozen=True)
class Back:
    """What the output transform of a panel needs at every tile."""

    limits: tuple[Int, Int, Int, Int]  # positions [v_low, v_high) x [x_low, x_high) that exist
    phase: Int  # along v
    steps: tuple[Int, Int]  # elements between neighbouring outputs of a tile along v and x
    by_x: Int  # elements between neighbouring positions along x
    bias: Ptr
    columns: Int
    slope: Any
    stream: Int  # 1 if outputs are whole lines that go past the caches


class WayBack(Box):
    """A box whose results are the outputs of tiles; whoever knows the tiles says where they lie."""

    spread: tuple[Int, Int]  # positions from output to output of a tile, along v and x
    tile_steps: tuple[Int, Int]  # and from tile to tile
    products_pitch: Int  # elements from the products of a point to those of the next one

    def __init__(self, module: Any, numbers: Numbers, family: WinogradForm) -> None:
        super().__init__(module, numbers, channel_major=family.channel_major)
        self.family, self.v, self.x = family, family.v, family.x
        self.flushes_past = True
        self.typ = vector(numbers.computed, numbers.lanes)
        self.points = self.v.size * self.x.size
        self.width = family.vectors * numbers.lanes  # of a line of products, whatever the panel's own width

    def back(self, panel: Ptr) -> Back:
        """What the output transform of a panel needs."""
        e, (by_v, by_x), (v_range, x_range) = self.e, self._distances(panel), self.ranges(panel)
        phase = v_range.int(VRange.PHASE)
        return Back(
            limits=(
                e.max(v_range.int(VRange.LOW), self.v0),
                e.min(v_range.int(VRange.HIGH), self.v1),
                e.max(x_range.int(XRange.FIRST), self.x0),
                e.min(x_range.int(XRange.LAST), self.x1),
            ),
            phase=phase,
            steps=(by_v * self.spread[0], by_x * self.spread[1]),
            by_x=by_x,
            bias=e.ptr(self.get(Job.BIAS), self.numbers.computed) + panel.int(Panel.BIAS),
            columns=panel.int(Panel.COLUMNS),
            slope=self._slope(),
            stream=self._streamed(panel),
        )

    def ranges(self, panel: Ptr) -> tuple[Ptr, Ptr]:
        """The ranges of positions along v and x at which a panel has results."""
        v_range = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
        x_range = self.sizes + self.get(Job.X_RANGES) + panel.int(Panel.X_RANGE) * (X_RANGES * len(XRange))
        return v_range, x_range

    def end_of(self, panel: Ptr, axis: int) -> Int:
        """Where along an axis a panel's results end."""
        return self.ranges(panel)[axis].int((VRange.HIGH, XRange.LAST)[axis])

    def target(self, panel: Ptr, offset: Int, image: Int, at: tuple[Int, Int], phase: Int) -> Ptr:
        """Where the first output of a tile goes."""
        v, x = at
        if self.channel_major:
            width = panel.int(Panel.GROUP_WIDTH)
            row = image * self.out_rows + (v - self.v0) * self.get(Job.RESULT_V_STEP) + phase
            pixel = row * self.out_columns + (x - self.x0) * self.get(Job.RESULT_X_STEP)
            return self.out + (pixel * width + panel.int(Panel.COLUMN))
        v_at = v * self.get(Job.RESULT_V_STEP) + phase - self.get(Job.RESULT_V_BEGIN)
        x_at = x * self.get(Job.RESULT_X_STEP) - self.get(Job.RESULT_X_BEGIN)
        place = (self.n0 + image) * self.get(Job.RESULT_N_STRIDE) + offset + panel.int(Panel.COLUMN)
        place = place + v_at * self.get(Job.RESULT_V_STRIDE) + x_at * self.get(Job.RESULT_X_STRIDE)
        return self.e.ptr(self.get(Job.RESULT), self.numbers.stored) + place

    def _distances(self, panel: Ptr) -> tuple[Int, Int]:
        """Distance, in elements of the target, of neighbouring positions along v and x."""
        if self.channel_major:
            width = panel.int(Panel.GROUP_WIDTH)
            return self.get(Job.RESULT_V_STEP) * self.out_columns * width, self.get(Job.RESULT_X_STEP) * width
        v_step = self.get(Job.RESULT_V_STEP) * self.get(Job.RESULT_V_STRIDE)
        return v_step, self.get(Job.RESULT_X_STEP) * self.get(Job.RESULT_X_STRIDE)

    def finish_tile(self, panel: Ptr, source: Ptr, target: Ptr, at: tuple[Int, Int], back: Back) -> None:
        """Most tiles lie inside, and most panels are as wide as can be: those are put as a whole."""
        e, lanes = self.e, self.numbers.lanes
        v_low, v_high, x_low, x_high = back.limits
        (v, x), (v_last, x_last) = at, (self.tile_steps[0] - self.spread[0], self.tile_steps[1] - self.spread[1])
        in_v, in_x = e.b.and_(v >= v_low, v + v_last < v_high), e.b.and_(x >= x_low, x + x_last < x_high)
        inside = e.b.and_(in_v, in_x)
        with e.either(e.b.and_(inside, back.columns.equals(self.width))) as (then, otherwise):
            with then:
                self._put_whole_tile(source, target, back)
            with otherwise:
                for column in e.range(0, panel.int(Panel.VECTORS) * lanes, lanes):
                    self._finish_columns(source + column, target, column, at, inside, back)

    def _outputs(self, source: Ptr, column: Int | int, back: Back) -> list[list[Any]]:
        """A vector of the outputs of a tile."""
        e, products = self.e, self.products_of_tile(source)
        shift = (back.bias + column).load(0, self.numbers.lanes)
        return [
            [activate(e, self.family.activation, e.b.fadd(self.divided(value), shift), back.slope) for value in line]
            for line in both_sides(e, self.numbers, self.v.result_steps, products, self.x.result_steps)
        ]

    def divided(self, value: Any) -> Any:
        """A sum of products as a result. The division is no part of a sum, so that one of integers stays exact."""
        divisor = self.v.divisor * self.x.divisor
        return value if divisor == 1 else self.e.b.fmul(value, constant(value.type, 1 / divisor))

    def _put_whole_tile(self, source: Ptr, target: Ptr, back: Back) -> None:
        lanes, vectors = self.numbers.lanes, self.family.vectors
        columns = range(0, self.width, lanes)
        outputs = [self._outputs(source + column, column, back) for column in columns]
        rows = [target + back.steps[0] * i for i in range(self.v.outputs)]
        places = [[row + back.steps[1] * j for j in range(self.x.outputs)] for row in rows]
        lines = [
            (place + column, values[i][j])
            for i, row in enumerate(places)
            for j, place in enumerate(row)
            for column, values in zip(columns, outputs, strict=True)
        ]
        kept = self.numbers.unrounded if self.channel_major else self.numbers
        kept.store_lines(self.e, lines, vectors, back.stream)

    def _finish_columns(
        self, source: Ptr, target: Ptr, column: Int, at: tuple[Int, Int], inside: Any, back: Back
    ) -> None:
        e, lanes = self.e, self.numbers.lanes
        outputs = self._outputs(source, column, back)
        whole = column + lanes <= back.columns
        with e.either(e.b.and_(inside, whole)) as (then, otherwise):
            with then:
                self._put_all(outputs, target + column, column, back)
            with otherwise, e.either(whole) as (at_edge, in_last_columns):
                with at_edge:
                    self._put_those_inside(outputs, target + column, at, back)
                with in_last_columns:
                    self._put_what_fits(outputs, target, column, at, back)

    def products_of_tile(self, source: Ptr) -> list[list[Any]]:
        """A vector of the products of a tile, by point."""
        patch: list[list[Any]] = []
        for _ in range(self.v.size):
            patch.append([])
            for _ in range(self.x.size):
                patch[-1].append(source.load(0, self.numbers.lanes))
                source = source + self.products_pitch
        return patch

    def _put_all(self, outputs: list[list[Any]], target: Ptr, column: Int, back: Back) -> None:
        rows = [target + back.steps[0] * i for i in range(self.v.outputs)]
        places = [row + back.steps[1] * j for row in rows for j in range(self.x.outputs)]
        lines = list(zip(places, (value for line in outputs for value in line), strict=True))
        if self._in_halves:
            self._put_halves(lines, column, back)
            return
        if not self.channel_major:
            self.numbers.store_lines(self.e, lines, 1, back.stream)
            return
        for place, value in lines:
            self._put(place, value)

    @property
    def _in_halves(self) -> bool:
        """Whether it takes the two vectors of a panel to fill a line, and lines may go past the caches."""
        numbers, vectors = self.numbers, self.family.vectors
        return vectors == 2 and numbers.streams(2) and not numbers.streams(1) and not self.channel_major

    def _put_halves(self, lines: list[tuple[Ptr, Any]], column: Int, back: Back) -> None:
        """If lines are streamed, the first half of each waits for the other: halves would go one by one."""
        e, lanes = self.e, self.numbers.lanes
        waiting = e.stack(self.typ, len(lines)).as_type(self.numbers.stored)
        with e.either(back.stream.equals(0)) as (then, otherwise):
            with then:
                for place, value in lines:
                    place.store(0, value)
            with otherwise, e.either(column.equals(0)) as (first, second):
                with first:
                    for index, (_, value) in enumerate(lines):
                        waiting.store(index * lanes, value)
                with second:
                    for index, (place, value) in enumerate(lines):
                        (place + -lanes).stream(0, waiting.load(index * lanes, lanes))
                        place.stream(0, value)

    def _streamed(self, panel: Ptr) -> Int:
        """1 if the panel's columns of every pixel are whole lines that shall go past the caches."""
        e = self.e
        if self.channel_major:
            return e.int(0)
        first = e.ptr(self.get(Job.RESULT), self.numbers.stored) + panel.int(Panel.COLUMN)
        stream = self.streamed(address(first), self.get(Job.RESULT_X_STRIDE))
        return e.select(panel.int(Panel.COLUMNS).equals(self.width), stream, 0) if self._in_halves else stream

    def _put_those_inside(self, outputs: list[list[Any]], target: Ptr, at: tuple[Int, Int], back: Back) -> None:
        """At an edge of the result: small maps have little else."""
        e, b, (v_low, v_high, x_low, x_high) = self.e, self.e.b, back.limits
        for i, line in enumerate(outputs):
            v = at[0] + self.spread[0] * i
            with e.when(b.and_(v >= v_low, v < v_high)):
                for j, value in enumerate(line):
                    x = at[1] + self.spread[1] * j
                    with e.when(b.and_(x >= x_low, x < x_high)):
                        self._put(target + (back.steps[0] * i + back.steps[1] * j), value)

    def _put_what_fits(
        self, outputs: list[list[Any]], target: Ptr, column: Int, at: tuple[Int, Int], back: Back
    ) -> None:
        """In the last columns: output by output, from a copy on the stack."""
        e, lanes = self.e, self.numbers.lanes
        v_low, v_high, x_low, x_high = back.limits
        stored = self.numbers.computed if self.channel_major else self.numbers.stored
        copy = e.stack(self.typ, self.v.outputs * self.x.outputs).as_type(stored)
        for index, value in enumerate(value for line in outputs for value in line):
            self._put(copy + index * lanes, value)

        def alive(low: Int, high: Int, spread: Int, outputs: int) -> Iterator[Int]:
            """Outputs whose positions lie in [low, high), counted from the tile's first."""
            first, end = ((e.max(bound, 0) + (spread - 1)) // spread for bound in (low, high))
            return e.range(first, e.min(end, outputs))

        for i in alive(v_low - at[0], v_high - at[0], self.spread[0], self.v.outputs):
            for j in alive(x_low - at[1], x_high - at[1], self.spread[1], self.x.outputs):
                place = target + (back.steps[0] * i + back.steps[1] * j + column)
                saved = copy + (i * self.x.outputs + j) * lanes
                for c in e.range(back.columns - column):
                    place.store(c, saved.load(c))

    def _put(self, target: Ptr, value: Any) -> None:
        if self.channel_major:
            target.store(0, value)
        else:
            self.numbers.store(target, 0, value)

    def _slope(self) -> Any:
        if self.family.activation != "leaky_relu":
            return None
        return slope_vector(self.e, self.job, Job.SLOPE_BITS, self.numbers)


def address(pointer: Ptr) -> Int:
    return Int(pointer.e, pointer.e.b.ptrtoint(pointer.value, I64))
