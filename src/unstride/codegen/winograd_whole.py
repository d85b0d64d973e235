"""The kernels of `plan.winograd_whole`: tiles of the source, whose results overlap and are added.

    strip  ->  V[plane][point][tile][channel]                 every pixel belongs to one tile; only ends are padded
    per panel and point:  P[point][tile][column] = V . U      only of tiles in which the point is not zero
    per vector of columns:  sums[v][x] += P transformed back  then bias, activation, the only store

Tiles are numbered so that those with a zero at a first point lie at either end:
those with full rows only, those with both, those with full columns only, those with neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from unstride.codegen.activation import activate
from unstride.codegen.emit import Int, Ptr
from unstride.codegen.numbers import Numbers
from unstride.codegen.winograd import Back, Later, WinogradDriver, WinogradFamily
from unstride.codegen.winograd_pack import both_sides
from unstride.plan.job import Job, Panel
from unstride.plan.winograd import Matrix
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
        """Rows and columns of tiles, over the source; and how many of them are full, counted with their residues."""
        e = self.e
        self.source_v, self.source_x = e.int(0), e.int(0)
        sizes = self.get(Job.SOURCE_V_SIZE), self.get(Job.SOURCE_X_SIZE)
        self.tile_rows, self.tile_columns = (
            (size + (step - 1)) // step for size, step in zip(sizes, self.source_steps, strict=True)
        )
        self.lines = (self.tile_rows * self.spread[0], self.tile_columns * self.spread[1])
        # The last tile of a residue is full if its last pixel exists.
        ends = zip(sizes, (self.tile_rows, self.tile_columns), self.source_steps, self.spread, strict=True)
        full = [
            e.min(e.max(size + spread - tiles * step, 0), spread) + (tiles - 1) * spread
            for size, tiles, step, spread in ends
        ]
        self.full, self.partly = full, [line - count for line, count in zip(self.lines, full, strict=True)]

    def geometry(self) -> None:
        super().geometry()
        reach = [(axis.taps - 1) * step for axis, step in zip((self.v, self.x), self.steps, strict=True)]
        self.sum_rows = self.tile_rows * self.source_steps[0] + reach[0]
        self.sum_columns = self.tile_columns * self.source_steps[1] + reach[1]
        # Index of a sum, less its position.
        self.last = (self.get(Job.SOURCE_V_FIRST) + reach[0], self.get(Job.SOURCE_X_FIRST) + reach[1])
        self.sums = self.scratch_at(Job.OFFSET_RING, self.numbers.computed)
        # Where the tiles begin that have full rows and columns, full columns only, neither.
        self.starts = [self.images * self.full[0] * self.partly[1]]
        for rows, columns in ((self.full[0], self.full[1]), (self.partly[0], self.full[1])):
            self.starts.append(self.starts[-1] + self.images * rows * columns)

    def number(self, image: Int, row: Int, v: Int, column: Int, x: Int) -> Int:
        e, both, columns_only, neither = self.e, *self.starts
        line, place = row * self.spread[0] + v, column * self.spread[1] + x
        whole = line < self.full[0]
        index = e.select(whole, image * self.full[0] + line, image * self.partly[0] + (line - self.full[0]))
        inside = e.select(whole, both, columns_only) + index * self.full[1] + place
        beside = e.select(whole, 0, neither) + index * self.partly[1] + (place - self.full[1])
        return e.select(place < self.full[1], inside, beside)

    @property
    def source_matrices(self) -> tuple[Matrix, Matrix]:
        return source_matrix(self.v), source_matrix(self.x)

    # -- products

    @property
    def products_pitch(self) -> Int:
        return (self.tiles * self.points + self.family.rows) * self.width

    def products_at(self, products: Ptr, point: Int) -> Ptr:
        return products + point * self.tiles * self.width

    def no_products(self, products: Ptr) -> None:
        self.e.call(self.zero, products, self.tiles * self.width)

    def run_tiles(self, panel: Ptr, point: Int, products: Ptr, later: Later) -> None:
        """The tiles in which the point is not zero; what runs over is overwritten, by zeros or by the next point."""
        e, most = self.e, self.family.rows
        first_v, first_x = point < self.x.size, (point % self.x.size).equals(0)
        start = e.select(first_x, self.starts[0], 0)
        end = e.select(first_v, self.starts[1], e.select(first_x, self.starts[2], self.tiles))
        e.call(self.zero, products, start * self.width)
        count = end - start
        blocks = (count + (most - 1)) // most
        with e.when(count > 0):
            rows = (count + (blocks - 1)) // blocks
            for block in e.range(blocks):
                first = start + block * rows
                self.run_block(panel, block, first, e.min(end - first, rows), products + first * self.width, later)
        e.call(self.zero, products + end * self.width, (self.tiles - end) * self.width)

    # -- sums

    def transform_back(self, panel: Ptr, offset: Int, products: Ptr) -> None:
        e, lanes, back = self.e, self.numbers.lanes, self.back(panel, offset)
        for image in e.range(self.images):
            for column in e.range(0, panel.int(Panel.VECTORS) * lanes, lanes):
                self._add_up(products + column, image)
                self._store_sums(panel, offset, image, column, back)

    def _add_up(self, products: Ptr, image: Int) -> None:
        """The sums of one vector of columns of an image."""
        e, lanes, pitch = self.e, self.numbers.lanes, self.tiles * self.width
        left, right = result_matrix(self.v), result_matrix(self.x)
        by_v, by_x = self.spread[0] * self.sum_columns * lanes, self.spread[1] * lanes
        e.call(self.zero, self.sums, self.sum_rows * self.sum_columns * lanes)
        for row, v in self.rows_of_tiles(self.tile_rows):
            line = self.sums + (row * self.source_steps[0] + v) * self.sum_columns * lanes
            for column, x in self.columns_of_tiles():
                source = products + self.number(image, row, v, column, x) * self.width
                patch: list[list[Any]] = []
                for _ in range(self.v.size):
                    patch.append([])
                    for _ in range(self.x.size):
                        patch[-1].append(source.load(0, lanes))
                        source = source + pitch
                target = line + (column * self.source_steps[1] + x) * lanes
                for i, values in enumerate(both_sides(e, left, patch, right)):
                    for j, value in enumerate(values):
                        place = target + (by_v * i + by_x * j)
                        place.store(0, e.b.fadd(place.load(0, lanes), value))

    def _store_sums(self, panel: Ptr, offset: Int, image: Int, column: Int, back: Back) -> None:
        e, lanes = self.e, self.numbers.lanes
        v_low, v_high, x_low, x_high = back.limits
        shift = (back.bias + column).load(0, lanes)
        live = e.min(back.columns - column, lanes)
        kept = self.numbers.unrounded if self.channel_major else self.numbers

        def finished(sums: Ptr, x: Int) -> Any:
            value = e.b.fadd((sums + x * lanes).load(0, lanes), shift)
            return activate(e, self.family.activation, value, back.slope)

        for v in e.range(v_low, v_high):
            line = self.target(panel, offset, image, (v, self.x0), back.phase) + column
            sums = self.sums + ((v + self.last[0]) * self.sum_columns + self.last[1]) * lanes
            with e.either(live.equals(lanes)) as (then, otherwise):
                with then:
                    for x in e.range(x_low, x_high):
                        place = line + (x - self.x0) * back.by_x
                        kept.store_lines(e, [(place, finished(sums, x))], 1, back.stream)
                with otherwise:
                    for x in e.range(x_low, x_high):
                        place = line + (x - self.x0) * back.by_x
                        kept.store_between(place, 0, finished(sums, x), e.int(0), live)
