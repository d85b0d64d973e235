"""The kernels of `plan.winograd_whole`: tiles of the source, whose results overlap and are added.

    strip  ->  V[plane][point][tile][channel]                 every pixel belongs to one tile; only ends are padded
    per panel and point:  P[point][tile][column] = V . U      only of tiles in which the point is not zero
    per row of tiles:  sums[v][x][column] += P transformed back;  bias, activation, the only store of what is final

Tiles are numbered so that those that are not full, and have no products at some points, lie at either end:
those with full rows only, those with both, those with full columns only, those with neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from unstride.codegen.activation import activate
from unstride.codegen.emit import Int, Ptr
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.winograd import WinogradDriver, WinogradFamily
from unstride.codegen.winograd_back import Back
from unstride.codegen.winograd_pack import both_sides
from unstride.plan.job import Job, Panel
from unstride.plan.winograd import Steps
from unstride.plan.winograd_whole import result_matrix, source_matrix

__all__ = ["WholeFamily"]


@dataclass(frozen=True)
class WholeFamily(WinogradFamily):
    """What is compiled into one such kernel; weights are packed by the other one."""

    name: ClassVar[str] = "whole maps"

    def _emit_rest(self, module: Any, numbers: Numbers) -> None:
        _Driver(module, numbers, self).emit()


class _Driver(WinogradDriver):
    def lay_tiles(self) -> None:
        """Rows and columns of tiles, over the source."""
        self.source_v, self.source_x = self.e.int(0), self.e.int(0)
        self.cut_axes((self.get(Job.SOURCE_V_SIZE), self.get(Job.SOURCE_X_SIZE)), self.source_steps)
        self.alone = (self.get(Job.ALONE_V), self.get(Job.ALONE_X))

    def geometry(self) -> None:
        super().geometry()
        reach = [(axis.taps - 1) * step for axis, step in zip((self.v, self.x), self.steps, strict=True)]
        self.sum_rows = self.tile_rows * self.source_steps[0] + reach[0]
        self.sum_columns = self.tile_columns * self.source_steps[1] + reach[1]
        # Index of a sum, less its position.
        self.last = (self.get(Job.SOURCE_V_FIRST) + reach[0], self.get(Job.SOURCE_X_FIRST) + reach[1])
        self.sums = self.scratch_at(Job.OFFSET_RING, self.numbers.computed)

    def mend_strip(self, ends: Any) -> None:
        """Where one pixel is alone in its tile, d becomes (d, 0, -d)."""
        e = self.e
        for plane in e.range(self.get(Job.PLANE_COUNT)):
            first = self.strip + plane * self.plane_pitch
            with e.when(self.alone[1].differs(0)):
                at = first + (self.columns - self.x.outputs) * self.pixel_pitch
                for row in e.range(self.rows):
                    self._negate(at + row * self.row_pitch, (self.x.outputs - 1) * self.pixel_pitch, self.pixel_pitch)
            with e.when(e.b.and_(ends, self.alone[0].differs(0))):
                at = first + (self.rows - self.v.outputs) * self.row_pitch
                self._negate(at, (self.v.outputs - 1) * self.row_pitch, self.row_pitch)

    def _negate(self, source: Ptr, distance: Int, count: Int) -> None:
        """So many elements with the other sign, that far behind them."""
        e, lanes = self.e, self.numbers.lanes
        target = source + distance
        for i in e.range(0, count, lanes):
            target.store(i, e.b.fsub(constant(self.typ, -0.0), source.load(i, lanes)))

    @property
    def ways_in(self) -> tuple[Steps, Steps]:
        return (source_matrix(self.v),), (source_matrix(self.x),)

    # -- products

    def only_full(self, panel: Ptr, index: Int, axis: int) -> Any:
        """Where a tile is not full its first point is zero; with a single pixel the inner ones are left out, and the
        first one as well if its second result, which is all that this point makes, lies outside."""
        e, b, last = self.e, self.e.b, (self.v, self.x)[axis].size - 1
        outside = self.end_of(panel, axis) + self.last[axis] <= self.get((Job.SOURCE_V_SIZE, Job.SOURCE_X_SIZE)[axis])
        first = e.select(outside, 0, 1)
        needless = b.and_(index >= first, index < last)
        return b.select(self.alone[axis].differs(0), needless, index.equals(0))

    # -- sums

    def transform_back(self, panel: Ptr, offset: Int, products: Ptr) -> None:
        """One row of tiles after the other: when it is added up, all of its results but the last few rows are final."""
        e, back = self.e, self.back(panel)
        row_of_sums = self.sum_columns * self.width
        for image in e.range(self.images):
            e.call(self.zero, self.sums, self.spread[0] * (self.v.taps - 1) * row_of_sums)
            for row in e.range(self.tile_rows):
                for v in e.range(self.spread[0]):
                    self._add_up(panel, products, image, row, v)
                self._store_row_of_tiles(panel, offset, image, row, back)

    def _sums_of(self, index: Int, v: Int) -> Ptr:
        """A row of sums: that many rows below the first one of its residue. Older ones are written over."""
        return self.sums + ((index % self.v.reach) * self.spread[0] + v) * self.sum_columns * self.width

    def _add_up(self, panel: Ptr, products: Ptr, image: Int, row: Int, v: Int) -> None:
        """The sums of one row of tiles. Only where tiles overlap is there something to add to."""
        e, lanes = self.e, self.numbers.lanes
        left, right = (result_matrix(self.v),), (result_matrix(self.x),)
        over_v, over_x = self.v.taps - 1, self.x.taps - 1
        lines = [self._sums_of(row * self.v.outputs + i, v) for i in range(self.v.reach)]
        for line in lines[over_v:]:
            e.call(self.zero, line, self.spread[1] * over_x * self.width)
        number, end, by_x = self.line(image, row, v), panel.int(Panel.VECTORS) * lanes, self.spread[1] * self.width
        for column, x in self.columns_of_tiles():
            tile = products + number(column, x) * self.width
            at = (column * self.source_steps[1] + x) * self.width
            for vec in e.range(0, end, lanes):
                for i, values in enumerate(both_sides(e, self.numbers, left, self.products_of_tile(tile + vec), right)):
                    target = lines[i] + (at + vec)
                    for j, value in enumerate(values):
                        sums = e.b.fadd(target.load(0, lanes), value) if i < over_v or j < over_x else value
                        target.store(0, sums)
                        target = target + by_x

    def _store_row_of_tiles(self, panel: Ptr, offset: Int, image: Int, row: Int, back: Back) -> None:
        """The rows to which no other tile adds anything: after the last row of tiles, all of them."""
        e, (v_low, v_high, _, _) = self.e, back.limits
        first = row * self.source_steps[0]
        end = e.select((row + 1).equals(self.tile_rows), self.sum_rows, first + self.source_steps[0])
        for v in e.range(e.max(v_low, first - self.last[0]), e.min(v_high, end - self.last[0])):
            line = self.target(panel, offset, image, (v, self.x0), back.phase)
            index, spread = v + self.last[0], self.spread[0]
            self._store_row(panel, line, self._sums_of(index // spread, index % spread), back)

    def _store_row(self, panel: Ptr, line: Ptr, sums: Ptr, back: Back) -> None:
        e, lanes, (_, _, x_low, x_high) = self.e, self.numbers.lanes, back.limits
        kept = self.numbers.unrounded if self.channel_major else self.numbers
        first, end = sums + self.last[1] * self.width, panel.int(Panel.VECTORS) * lanes

        def finished(x: Int, column: Int | int) -> Any:
            value = self.divided((first + (x * self.width + column)).load(0, lanes))
            return activate(e, self.family.activation, e.b.fadd(value, (back.bias + column).load(0, lanes)), back.slope)

        with e.either(back.columns.equals(self.width)) as (then, otherwise):
            with then:
                for x in e.range(x_low, x_high):
                    place = line + (x - self.x0) * back.by_x
                    columns = range(0, self.width, lanes)
                    kept.store_lines(
                        e, [(place + c, finished(x, c)) for c in columns], self.family.vectors, back.stream
                    )
            with otherwise:
                for column in e.range(0, end, lanes):
                    live = e.min(back.columns - column, lanes)
                    for x in e.range(x_low, x_high):
                        place = line + ((x - self.x0) * back.by_x + column)
                        kept.store_between(place, 0, finished(x, column), e.int(0), live)
