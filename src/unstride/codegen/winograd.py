"""The Winograd kernels: a box is transformed tile by tile, multiplied point by point, and transformed back.

    strip  ->  V[plane][point][tile][channel]                 input transform, vectors over channels
    per panel and point:  P[point][tile][column] = V . U      the same inner loop as the direct kernel
    P  ->  result                                             output transform, bias, activation, the only store

Before the transform the box is looked over: one value that is not finite, or one that dwarfs the mean, and the task
raises its flag and leaves the box to the direct kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from unstride.codegen import ir
from unstride.codegen.activation import scalar_constant
from unstride.codegen.direct import call_tile
from unstride.codegen.emit import I64, Emitter, Int, Ptr
from unstride.codegen.numbers import Numbers, constant
from unstride.codegen.tile import Sweep, TileArgs, TileFamily, TileKind
from unstride.codegen.winograd_back import WayBack, WinogradForm, address
from unstride.codegen.winograd_guard import Guard
from unstride.codegen.winograd_pack import both_sides, emit_winograd_pack
from unstride.plan.job import Job, Panel
from unstride.plan.machine import LINE_BYTES
from unstride.plan.winograd import Steps, WinogradPlan, height_step

__all__ = ["WinogradDriver", "WinogradFamily"]


@dataclass(frozen=True)
class WinogradFamily(WinogradForm):
    """The kernels of one form."""

    name: ClassVar[str] = "winograd"

    @classmethod
    def of(cls, plan: WinogradPlan, activation: str) -> WinogradFamily:
        structure, tile = plan.direct.structure, plan.direct.tile
        ncx = structure.data_layout == "NCX"
        return cls(structure.dtype, plan.direct.isa.name, ncx, activation, plan.v, plan.x, tile.rows, tile.vectors)

    @property
    def key(self) -> str:
        layout = "ncx" if self.channel_major else "nxc"
        return f"{self.name} {self.v}x{self.x} {self.dtype} {layout} {self.activation} {self.rows}x{self.vectors}"

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family: `run` and `pack`."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        plain = TileKind(False, "none", True, self.rows, self.vectors, bare=True, regular=True)
        TileFamily(module, numbers, plain).emit()
        self._emit_rest(module, numbers)
        return str(module)

    def _emit_rest(self, module: Any, numbers: Numbers) -> None:
        WinogradDriver(module, numbers, self).emit()
        emit_winograd_pack(module, numbers, self.v, self.x)


class WinogradDriver(WayBack):
    def emit(self) -> None:
        e = self.e
        self.geometry()
        self.guard = Guard(e, self.numbers, scalar_constant(self.job, Job.EXACT_BITS, self.numbers))
        self._transform_source()
        with e.either(self.guard.tame()) as (then, otherwise):
            with otherwise:
                e.ptr(self.get(Job.FLAGS), I64).store(e.arg_int(1), e.int(1))
            with then:
                self.tile_args = e.stack(I64, TileArgs.COUNT)
                self.tile_args.store(TileArgs.TAPS, e.b.ptrtoint(self.taps.value, I64))
                size = self.numbers.isa.vector_bytes // self.numbers.lanes
                self.tile_args.store(Sweep.BETWEEN, self.tile_pitch * size)
                self._run_panels()
        self.done()

    def geometry(self) -> None:
        """Like a direct box, but its strip covers whole tiles: a few rows of them, of one image."""
        super().geometry()
        self.steps = (self.get(Job.TAP_STEP_V), self.get(Job.TAP_STEP_X))
        self.spread = (self.get(Job.SPREAD_V), self.get(Job.SPREAD_X))
        self.residues = (self.get(Job.RESIDUES_V), self.get(Job.RESIDUES_X))
        # Positions, and source elements, from tile to tile. Between them lie the tiles of other residues.
        self.tile_steps = (self.spread[0] * self.v.outputs, self.spread[1] * self.x.outputs)
        self.source_steps = (self.steps[0] * self.v.outputs, self.steps[1] * self.x.outputs)
        self.lay_tiles()
        self.columns = self.tile_columns * self.source_steps[1] + self.get(Job.EXTRA_X)
        self.row_pitch = self.columns * self.pixel_pitch
        self.tiles = self.images * self.lines[0] * self.lines[1]
        # Where the tiles begin that have full rows and columns, full columns only, neither.
        self.starts = [self.images * self.full[0] * self.partly[1]]
        for rows, columns in ((self.full[0], self.full[1]), (self.partly[0], self.full[1])):
            self.starts.append(self.starts[-1] + self.images * rows * columns)
        self.blocks = EvenBlocks(self.e, self.tiles, self.family.rows)
        lanes = self.numbers.lanes
        padded = (self.get(Job.CHANNELS) + (lanes - 1)) & -lanes
        # Rows a power of two apart would fall into one cache set.
        self.tile_pitch = padded + lanes
        self.point_pitch = self.tiles * self.tile_pitch + lanes
        # Products of a point; an odd number of lines, so that those of a tile do not fall into one cache set.
        self.products_pitch = (self.tiles | 1) * self.width
        self.transformed = self.scratch_at(Job.OFFSET_TRANSFORMED, self.numbers.computed)
        self.products = self.scratch_at(Job.OFFSET_PRODUCTS, self.numbers.computed)

    def lay_tiles(self) -> None:
        """Rows and columns of tiles, over the results of the box."""
        self.cut_axes((self.v1 - self.v0, self.x1 - self.x0), self.tile_steps)

    def cut_axes(self, sizes: tuple[Int, Int], steps: tuple[Int, Int]) -> None:
        """Tiles along v and x; with those of all residues; how many of these are full, and how many are not."""
        e = self.e
        self.tile_rows, self.tile_columns = (
            (size + (step - 1)) // step for size, step in zip(sizes, steps, strict=True)
        )
        self.lines = (self.tile_rows * self.spread[0], self.tile_columns * self.spread[1])
        # The last tile of a residue is full if its last element exists.
        ends = zip(sizes, (self.tile_rows, self.tile_columns), steps, self.spread, strict=True)
        self.full = [
            e.min(e.max(size + spread - tiles * step, 0), spread) + (tiles - 1) * spread
            for size, tiles, step, spread in ends
        ]
        self.partly = [line - count for line, count in zip(self.lines, self.full, strict=True)]

    def _transform_source(self) -> None:
        """Fill, look over and transform a few rows of tiles at a time: their pixels need not leave the cache."""
        e, whole = self.e, (self.images, self.n0, self.source_v)
        at_once = self.get(Job.STRIP_TILE_ROWS)
        for image in e.range(self.images):
            for turn in e.range((self.tile_rows + (at_once - 1)) // at_once):
                first = turn * at_once
                count = e.min(self.tile_rows - first, at_once)
                self.images, self.n0 = e.int(1), whole[1] + image
                self.source_v = whole[2] + first * self.source_steps[0]
                self.rows = count * self.source_steps[0] + self.get(Job.EXTRA_V)
                self.plane_pitch = self.rows * self.row_pitch
                self.image_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
                self._clear_gaps()
                self.fill()
                self.mend_strip((first + count).equals(self.tile_rows))
                self._look_at_strip()
                self._transform_strip(image, first, count)
        self.images, self.n0, self.source_v = whole
        self.source_rows = self.tile_rows * self.source_steps[0] + self.get(Job.EXTRA_V)

    def mend_strip(self, ends: Any) -> None:
        """For those whose tiles need something beside zeros where pixels end: whether rows do in this strip."""

    def _clear_gaps(self) -> None:
        """Zeros between the pixels of the strip, which are looked over with them."""
        e, lanes, channels = self.e, self.numbers.lanes, self.get(Job.CHANNELS)
        nothing = constant(self.typ, 0.0)
        with e.when(channels < self.pixel_pitch):
            for pixel in e.range(self.get(Job.PLANE_COUNT) * self.rows * self.columns):
                for c in e.range(channels & -lanes, self.pixel_pitch, lanes):
                    (self.strip + pixel * self.pixel_pitch).store(c, nothing)

    def _look_at_strip(self) -> None:
        """Show the guard what was filled in."""
        e, values = self.e, self.rows * self.columns * self.get(Job.CHANNELS)
        for plane in e.range(self.get(Job.PLANE_COUNT)):
            with e.when(self.planes_alive.int(plane).differs(0)):
                self.guard.look_over(self.strip + plane * self.plane_pitch, self.plane_pitch, values)

    # -- the input transform

    def _transform_strip(self, image: Int, first: Int, rows: Int) -> None:
        """Transform so many rows of tiles of an image, from the first on."""
        e = self.e
        for plane in e.range(self.get(Job.PLANE_COUNT)):
            with e.when(self.planes_alive.int(plane).differs(0)):
                for v in e.range(self.residues[0]):
                    for x in e.range(self.residues[1]):
                        source = self.strip + (plane * self.plane_pitch + v * self.get(Job.APART_V) * self.row_pitch)
                        source = source + x * self.get(Job.APART_X) * self.pixel_pitch
                        target = self.transformed + self._residue(plane, v, x) * (self.point_pitch * self.points)
                        self._transform_rows(source, target, (image, first), rows)

    def _residue(self, plane: Int, v: Int, x: Int) -> Int:
        """The number of a residue of a plane among the transformed planes."""
        return (plane * self.residues[0] + v) * self.residues[1] + x

    def _transform_rows(self, source: Ptr, target: Ptr, start: tuple[Int, Int], rows: Int) -> None:
        by_row, by_column = self.source_steps[0] * self.row_pitch, self.source_steps[1] * self.pixel_pitch
        for row, v in self.rows_of_tiles(rows):
            number = self.line(start[0], start[1] + row, v)
            for column, x in self.columns_of_tiles():
                place = row * by_row + v * self.row_pitch + column * by_column + x * self.pixel_pitch
                self._transform_tile(source + place, target + number(column, x) * self.tile_pitch)

    def rows_of_tiles(self, count: Int) -> Iterator[tuple[Int, Int]]:
        """Loops over rows of tiles, and over the residues of positions that interleave there."""
        for row in self.e.range(count):
            for residue in self.e.range(self.spread[0]):
                yield row, residue

    def columns_of_tiles(self) -> Iterator[tuple[Int, Int]]:
        for column in self.e.range(self.tile_columns):
            for residue in self.e.range(self.spread[1]):
                yield column, residue

    def line(self, image: Int, row: Int, v: Int) -> Callable[[Int, Int], Int]:
        """The numbers of the tiles of one line, by column and residue x: of its image and row, and the residue v."""
        e, both, columns_only, neither = self.e, *self.starts
        line = row * self.spread[0] + v
        whole = line < self.full[0]
        index = e.select(whole, image * self.full[0] + line, image * self.partly[0] + (line - self.full[0]))
        inside = e.select(whole, both, columns_only) + index * self.full[1]
        beside = e.select(whole, 0, neither) + index * self.partly[1] - self.full[1]

        def number(column: Int, x: Int) -> Int:
            place = column * self.spread[1] + x
            return e.select(place < self.full[1], inside, beside) + place

        return number

    @property
    def ways_in(self) -> tuple[Steps, Steps]:
        """What a patch of pixels is multiplied with from either side."""
        return self.v.source_steps, self.x.source_steps

    def _transform_tile(self, source: Ptr, target: Ptr) -> None:
        """LLVM is not shown how pointers grow: it would give every pixel and every point one of its own."""
        e, lanes, (left, right) = self.e, self.numbers.lanes, self.ways_in
        height, width = len(left[0][0]), len(right[0][0])
        by_row, by_pixel = self.row_pitch * self.steps[0], self.pixel_pitch * self.steps[1]
        lines = [source + by_row * i for i in range(height)]
        lines += [target + self.point_pitch * (self.x.size * i) for i in range(self.v.size)]
        for _, inner in e.fold(0, self.get(Job.CHANNELS), lanes, [line.value for line in lines]):
            here = [Ptr(e, value, self.numbers.computed) for value in inner]
            patch = [[row.load(by_pixel * j, lanes) for j in range(width)] for row in here[:height]]
            for place, values in zip(here[height:], both_sides(e, self.numbers, left, patch, right), strict=True):
                for j, value in enumerate(values):
                    place.store(self.point_pitch * j, value)
            inner[:] = [e.unseen((line + lanes).value, "r") for line in here]

    # -- products and the output transform

    def _run_panels(self) -> None:
        """Several panels at a time, point by point: where the transformed source is larger than L2, one point of it
        is not, and serves all of them."""
        e = self.e
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        end, at_once = blocks.int(self.panel_block + 1), self.get(Job.PANELS_AT_ONCE)
        following = e.var(blocks.int(self.panel_block))
        fetch = self.fetch_in((end - following.get()) * self.points, self.source_rows, self.channel_major)
        for first in e.while_below(following, end):
            following.set(e.min(first + at_once, end))
            count = following.get() - first
            for point in e.range(self.points):
                for index in e.range(count):
                    fetch()
                    panel = self._panel(first + index)
                    _, alive = self.result_offset(panel)
                    with e.when(alive.differs(0)):
                        last = (index + 1).equals(count)
                        after = self._panel(first + e.select(last, 0, index + 1))
                        later = self._weights_of(after, point + e.select(last, 1, 0))
                        self._multiply(panel, point, self._products(index), later)
            for index in e.range(count):
                self._finish(self._panel(first + index), self._products(index))

    def _panel(self, index: Int) -> Ptr:
        return self.plan + self.get(Job.PANELS) + index * len(Panel)

    def _products(self, index: Int) -> Ptr:
        """Where the products of a panel are kept; the last tile of the inner loop may run over."""
        return self.products + index * (self.products_pitch * self.points + self.family.rows * self.width)

    def _finish(self, panel: Ptr, products: Ptr) -> None:
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            if self.channel_major:
                self.start_out(panel)
            self.transform_back(panel, offset, products)
            if self.channel_major:
                with e.when(panel.int(Panel.FLUSH).differs(0)):
                    self.flush(panel, offset)

    def _multiply(self, panel: Ptr, point: Int, products: Ptr, later: Later) -> None:
        e, size = self.e, self.numbers.isa.vector_bytes // self.numbers.lanes
        width = panel.int(Panel.VECTORS) * self.numbers.lanes
        self.tile_args.store(TileArgs.RUN, panel.int(Panel.RUN))
        outer_count = panel.int(Panel.OUTER_COUNT) * self.residues[0] * self.residues[1]
        step = panel.int(Panel.RUN) * width
        weights = self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size
        products = products + point * self.products_pitch
        with e.either(self._vanishes(panel, point)) as (then, otherwise):
            with then:
                e.call(self.zero, products, self.products_pitch)
            with otherwise:
                self.tile_args.store(TileArgs.TAP_COUNT, self._list_planes(panel, point, step))
                self.tile_args.store(TileArgs.WEIGHTS, weights + point * outer_count * step * size)
                self.run_tiles(panel, point, products, later)

    def _weights_of(self, panel: Ptr, point: Int) -> Later:
        """The weights of the product that comes next."""
        e, size = self.e, self.numbers.isa.vector_bytes // self.numbers.lanes
        planes = panel.int(Panel.OUTER_COUNT) * self.residues[0] * self.residues[1]
        needed = planes * panel.int(Panel.RUN) * panel.int(Panel.VECTORS) * self.numbers.isa.vector_bytes
        weights = self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size + point * needed
        turns = planes * (panel.int(Panel.RUN) // 2)
        all_turns = turns * self.blocks.number
        return Later(weights, turns, e.min((needed + (all_turns - 1)) // all_turns, LINE_BYTES))

    def _vanishes(self, panel: Ptr, point: Int) -> Any:
        """The first point of an axis needs only the first tap, which this phase may lack."""
        e = self.e
        no_v = e.b.and_(panel.int(Panel.SHORT_V).differs(0), point < self.x.size)
        no_x = e.b.and_(panel.int(Panel.SHORT_X).differs(0), (point % self.x.size).equals(0))
        return e.b.or_(no_v, no_x)

    def _list_planes(self, panel: Ptr, point: Int, step: Int) -> Int:
        """The taps of a product are the transformed planes that exist.

        The last point of an axis needs only the last tap, which a residue may lack.
        """
        e = self.e
        count = e.var(0)
        outer = self.plan + self.get(Job.OUTER_TAPS) + panel.int(Panel.OUTER_FIRST)
        v_last = point >= self.points - self.x.size
        x_last = (point % self.x.size).equals(self.x.size - 1)
        for o in e.range(panel.int(Panel.OUTER_COUNT)):
            plane = outer.int(o)
            with e.when(self.planes_alive.int(plane).differs(0)):
                for v in e.range(self.residues[0]):
                    for x in e.range(self.residues[1]):
                        no_v = e.b.and_(v_last, v >= self.get(Job.FULL_V))
                        no_x = e.b.and_(x_last, x >= self.get(Job.FULL_X))
                        with e.when(e.b.not_(e.b.or_(no_v, no_x))):
                            at = count.get() * 2
                            source = (self._residue(plane, v, x) * self.points + point) * self.point_pitch
                            self.taps.store(at, source + panel.int(Panel.CHANNEL))
                            self.taps.store(at + 1, self._residue(o, v, x) * step)
                            count.set(count.get() + 1)
        return count.get()

    def run_tiles(self, panel: Ptr, point: Int, products: Ptr, later: Later) -> None:
        """The tiles that need the point; what runs over is overwritten, by zeros or by the next point."""
        e = self.e
        places = (point // self.x.size, point % self.x.size)
        full_v, full_x = (self.only_full(panel, index, axis) for axis, index in enumerate(places))
        start = e.select(full_x, self.starts[0], 0)
        end = e.select(full_v, self.starts[1], e.select(full_x, self.starts[2], self.tiles))
        e.call(self.zero, products, start * self.width)
        with e.when(start < end):
            for block, first, blocks, height in EvenBlocks(e, end - start, self.family.rows).sweeps():
                with e.when(blocks > 0):
                    self._sweep(panel, block, start + first, blocks, height, products, later)
        e.call(self.zero, products + end * self.width, (self.tiles - end) * self.width)

    def only_full(self, panel: Ptr, index: Int, axis: int) -> Any:
        """Whether only full tiles need this point of an axis: the last one is part of the last result and no other,
        and a phase may have no result at all in tiles that are not full."""
        tiles, first = (self.tile_rows, self.tile_columns)[axis], (self.v0, self.x0)[axis]
        empty = self.end_of(panel, axis) <= first + (tiles - 1) * self.tile_steps[axis]
        return self.e.b.or_(empty, index.equals((self.v, self.x)[axis].size - 1))

    def _sweep(self, panel: Ptr, block: Int, first: Int, blocks: Int, height: Int, products: Ptr, later: Later) -> None:
        """So many blocks of so many tiles, from the first on, as rows; may run over into rows that are not used."""
        args, size = self.tile_args, self.numbers.isa.vector_bytes // self.numbers.lanes
        by_block = later.turns * later.by_turn
        args.store(Sweep.SOURCE, address(self.transformed + first * self.tile_pitch))
        args.store(Sweep.BY_TILE, height * self.tile_pitch * size)
        args.store(Sweep.TILES, blocks)
        args.store(Sweep.LATER, later.weights + block * by_block)
        args.store(Sweep.LATER_BY_TURN, later.by_turn)
        args.store(Sweep.LATER_BY_TILE, by_block)
        args.store(Sweep.RESULT, address(products + first * self.width))
        args.store(Sweep.RESULT_BY_TILE, height * (self.width * size))
        call_tile(self.e, args, panel.int(Panel.VECTORS), height, tuple(range(1, self.family.vectors + 1)))

    def transform_back(self, panel: Ptr, offset: Int, products: Ptr) -> None:
        e, back = self.e, self.back(panel)
        for image in e.range(self.images):
            for row, v in self.rows_of_tiles(self.tile_rows):
                v_at = self.v0 + row * self.tile_steps[0] + v
                line, number = self.target(panel, offset, image, (v_at, self.x0), back.phase), self.line(image, row, v)
                for column, x in self.columns_of_tiles():
                    x_at = column * self.tile_steps[1] + x
                    source = products + number(column, x) * self.width
                    target = line + x_at * back.by_x
                    self.finish_tile(panel, source, target, (v_at, self.x0 + x_at), back)


class EvenBlocks:
    """Rows in as few blocks as can be, which are as even as can be: a low one would wait for its own last sums."""

    def __init__(self, e: Emitter, count: Int, most: int) -> None:
        self.e, self.count, self.step = e, count, height_step(most)
        self.number = (count + (most - 1)) // most
        even = (count + (self.number - 1)) // self.number
        self.height = (even + (self.step - 1)) & -self.step  # of the first ones; the others are a step lower
        self.low = self.height - self.step
        self.high = (count - self.number * self.low + (self.step - 1)) // self.step  # so many are higher

    def sweeps(self) -> Iterator[tuple[Int, Int, Int, Int]]:
        """The blocks of either height: number and first row of the first one, how many, and the height."""
        e = self.e
        yield e.int(0), e.int(0), self.high, self.height
        yield self.high, self.high * self.height, self.number - self.high, self.low


@dataclass(frozen=True)
class Later:
    """Weights that tiles bring into L2 for the next product, evenly: one product's come much faster than memory is,
    if they all have to come while its first tile is computed."""

    weights: Int  # address
    turns: Int  # of the inner loop, in a tile
    by_turn: Int  # bytes
