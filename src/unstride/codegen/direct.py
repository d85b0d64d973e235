"""The driver of the direct kernels: one task fills a strip, runs its panels over it, and flushes what needs it.

    task = (outer position, images, rows, columns, panels)
      fill the strip: source pixels of the box, widened, padded with zeros, pixel-major
      for each panel: list the taps that read real planes; for each tile of positions: accumulate, finish, store
      where the result is channel-major: tiles store to an out strip, which is transposed when its panels are done

One emitted module serves every layer of a (dtype, layout, activation, kind, ISA): all else is read from tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from unstride.codegen import ir
from unstride.codegen.box import Box
from unstride.codegen.emit import I64, PTR, Callee, Emitter, Int, Ptr, size_of
from unstride.codegen.numbers import Numbers
from unstride.codegen.tile import TileArgs, TileFamily, TileKind
from unstride.plan.direct import DirectPlan
from unstride.plan.job import X_RANGES, Job, Panel, VRange, XRange

__all__ = ["Affine", "DirectDriver", "DirectFamily", "Place", "call_tile", "tile_height"]


@dataclass(frozen=True)
class DirectFamily:
    """What is compiled into one direct kernel; equal families share their machine code."""

    dtype: str
    isa_name: str
    channel_major: bool
    depthwise: bool
    activation: str
    rows: int
    vectors: int
    clipped: bool = False
    overlapping: bool = False
    banded: bool = False
    shaped: bool = False

    @classmethod
    def of(cls, plan: DirectPlan, activation: str) -> DirectFamily:
        dtype, layout = plan.structure.dtype, plan.structure.data_layout
        kind = (dtype, plan.isa.name, layout == "NCX", plan.depthwise, activation)
        ways = (plan.clipped, plan.overlapping, plan.banded, plan.shaped)
        return cls(*kind, plan.tile.rows, plan.tile.vectors, *ways)

    @property
    def key(self) -> str:
        layout = "ncx" if self.channel_major else "nxc"
        kind = "depthwise" if self.depthwise else "direct"
        ways = {"banded": self.banded, "overlapping": self.overlapping, "clipped": self.clipped}
        way = next((f" {name}" for name, is_so in ways.items() if is_so), "")
        widths = "-".join(str(v) for v in self.tile_kind.vectors)
        return f"{kind} {self.dtype} {layout} {self.activation} {self.rows}x{widths}{way}"

    @property
    def tile_kind(self) -> TileKind:
        to_strip = self.channel_major or self.clipped
        kind = TileKind(self.depthwise, self.activation, to_strip, self.rows, self.vectors, shaped=self.shaped)
        return replace(kind, bare=self.clipped, accumulates=self.clipped and not self.overlapping)

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("run",)

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        TileFamily(module, numbers, self.tile_kind).emit()
        _driver_of(self)(module, numbers, self).emit()
        return str(module)


def _driver_of(family: DirectFamily) -> type[DirectDriver]:
    if not family.clipped and not family.banded:
        return DirectDriver
    from unstride.codegen.banded import BandedDriver  # which are built on this file
    from unstride.codegen.clipped import ClippedDriver
    from unstride.codegen.overlap import OverlapDriver

    return BandedDriver if family.banded else OverlapDriver if family.overlapping else ClippedDriver


class DirectDriver(Box):
    def __init__(self, module: Any, numbers: Numbers, family: DirectFamily) -> None:
        super().__init__(module, numbers, channel_major=family.channel_major)
        self.family = family
        self.through_strip = family.channel_major or family.clipped
        self.flushes_past = not family.overlapping

    def emit(self) -> None:
        e = self.e
        flags = self.get(Job.FLAGS)
        chosen = e.var(1)
        with e.when(flags.differs(0)):
            chosen.set(e.ptr(flags, I64).int(e.arg_int(1)))
        with e.when(chosen.get().differs(0)):
            self.geometry()
            self.reach_source()
            self.tile_args = e.stack(I64, TileArgs.COUNT)
            self.tile_args.store(TileArgs.TAPS, e.b.ptrtoint(self.taps.value, I64))
            self.tile_args.store(TileArgs.SLOPE_BITS, self.get(Job.SLOPE_BITS))
            self.fetch = self._fetching() if self.channel_major else None
            for panel in self.panels():
                self.panel(panel)
        self.done()

    def _fetching(self) -> Callable[[], None]:
        """What is called after each tile, to fetch a part of the next task's source."""
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        panels = blocks.int(self.panel_block + 1) - blocks.int(self.panel_block)
        positions = self.images * (self.v1 - self.v0) * (self.x1 - self.x0)
        tiles = (positions + (self.family.rows - 1)) // self.family.rows
        return self.fetch_in(panels * tiles, self.rows, by_channel=True)

    def reach_source(self) -> None:
        """Fill the strip, unless the box can be read where it lies: pixel-major, of computed type, without padding.

        In a box of one row (or column) padding is not read anyway: taps that would are left out.
        """
        e = self.e
        if self.channel_major or self.numbers.stored is not self.numbers.computed:
            self.fill()
            return
        rows_inside = self._rows_inside()
        columns_inside = e.b.and_(self.source_x >= 0, self.source_x + self.columns <= self.get(Job.SOURCE_X_SIZE))
        rows_inside = e.b.or_(rows_inside, (self.v1 - self.v0).equals(1))
        in_place = e.b.and_(e.b.and_(rows_inside, columns_inside), self.get(Job.IN_PLACE).differs(0))
        strides = (Job.SOURCE_N_STRIDE, Job.SOURCE_V_STRIDE, Job.SOURCE_X_STRIDE)
        first = self.n0 * self.get(Job.SOURCE_N_STRIDE) + self.source_v * self.get(Job.SOURCE_V_STRIDE)
        first = first + self.source_x * self.get(Job.SOURCE_X_STRIDE)
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + first
        before = (self.image_pitch, self.row_pitch, self.pixel_pitch)
        strip = self.strip
        with e.when(e.b.not_(in_place)):
            self.fill()
        with e.when(in_place):
            self.list_planes()
        self.image_pitch, self.row_pitch, self.pixel_pitch = (
            e.select(in_place, self.get(field), pitch) for field, pitch in zip(strides, before, strict=True)
        )
        self.strip = Ptr(e, e.b.select(in_place, source.value, strip.value), self.numbers.computed)

    # -- panels

    def panel(self, panel: Ptr) -> None:
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            if self.channel_major:
                self.start_out(panel)
            taps = self.list_taps(panel)
            self.tile_args.store(TileArgs.TAP_COUNT, taps)
            self.tile_args.store(TileArgs.RUN, panel.int(Panel.RUN))
            size = self.numbers.isa.vector_bytes // self.numbers.lanes
            self.tile_args.store(TileArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
            self.tile_args.store(TileArgs.BIAS, self.get(Job.BIAS) + panel.int(Panel.BIAS) * size)
            v_range = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
            x_range = self.sizes + self.get(Job.X_RANGES) + panel.int(Panel.X_RANGE) * (X_RANGES * len(XRange))
            rows = (e.max(v_range.int(VRange.LOW), self.v0), e.min(v_range.int(VRange.HIGH), self.v1))
            place = self.place(panel, v_range.int(VRange.PHASE), offset)
            self.stream_to(place)
            for index in e.range(1 if self.channel_major else X_RANGES):
                self._region(panel, place, rows, x_range + index * len(XRange), index)
            if self.channel_major:
                with e.when(panel.int(Panel.FLUSH).differs(0)):
                    self.flush(panel, offset)

    def stream_to(self, place: Place) -> None:
        """Tell the tiles whether results go past the caches."""
        if not self.through_strip and any(map(self.numbers.streams, self.family.tile_kind.vectors)):
            to = place.result
            self.tile_args.store(TileArgs.STREAM, self.streamed(to.at(*to.origin), to.by_image, to.by_v, to.by_x))

    def place(self, panel: Ptr, phase: Int, offset: Int) -> Place:
        """Where results go, as an affine function of (image, v, x); source addresses are affine in the same way."""
        source = Affine(
            self.strip,
            self.image_pitch,
            self.get(Job.SOURCE_V_STEP) * self.row_pitch,
            self.get(Job.SOURCE_X_STEP) * self.pixel_pitch,
            (self.v0, self.x0),
        )
        if self.through_strip:
            width = panel.int(Panel.GROUP_WIDTH)
            row = self.out_columns * width
            result = Affine(
                self.out + (phase * row + panel.int(Panel.COLUMN)),
                self.out_rows * row,
                self.get(Job.RESULT_V_STEP) * row,
                self.get(Job.RESULT_X_STEP) * width,
                (self.v0, self.x0),
            )
            return Place(source, result)
        v_stride, x_stride = self.get(Job.RESULT_V_STRIDE), self.get(Job.RESULT_X_STRIDE)
        first = (
            self.n0 * self.get(Job.RESULT_N_STRIDE)
            + offset
            + (phase - self.get(Job.RESULT_V_BEGIN)) * v_stride
            - self.get(Job.RESULT_X_BEGIN) * x_stride
            + panel.int(Panel.COLUMN)
        )
        base = self.e.ptr(self.get(Job.RESULT), self.numbers.stored) + first
        result = Affine(
            base,
            self.get(Job.RESULT_N_STRIDE),
            self.get(Job.RESULT_V_STEP) * v_stride,
            self.get(Job.RESULT_X_STEP) * x_stride,
            (self.e.int(0), self.e.int(0)),
        )
        return Place(source, result)

    def _region(self, panel: Ptr, place: Place, rows: tuple[Int, Int], x_range: Ptr, index: Int) -> None:
        """Run the tiles of a box of positions; at an edge only a window of the columns is stored."""
        e = self.e
        v_first, x_first = rows[0], e.max(x_range.int(XRange.FIRST), self.x0)
        height, length = rows[1] - v_first, e.min(x_range.int(XRange.LAST), self.x1) - x_first
        alive = e.b.and_(height > 0, length > 0)
        with e.when(alive):
            inside = index.equals(0)  # blocks of different width may share one range
            high = e.select(inside, panel.int(Panel.COLUMNS), x_range.int(XRange.HIGH))
            self.tile_args.store(TileArgs.LOW, x_range.int(XRange.LOW))
            self.tile_args.store(TileArgs.HIGH, high)
            self.run_tiles(panel, place, (v_first, rows[1]), (x_first, x_first + length))

    def run_tiles(self, panel: Ptr, place: Place, rows: tuple[Int, Int], columns: tuple[Int, Int]) -> None:
        """Run the tiles of a box of positions, which may be empty."""
        e = self.e
        height, length = rows[1] - rows[0], columns[1] - columns[0]
        with e.when(e.b.and_(height > 0, length > 0)):
            total = self.images * height * length
            cursor = _Cursor(e, place, rows[0], columns[0], height, length, self.family.rows)
            for done in e.range(0, total, self.family.rows):
                count = e.min(total - done, self.family.rows)
                with e.either(cursor.in_one_row()) as (then, otherwise):
                    with then:
                        cursor.list_row(self.tile_args)
                    with otherwise:
                        self._list_rows(panel, cursor, count)
                call_tile(e, self.tile_args, panel.int(Panel.VECTORS), count, self.family.tile_kind.vectors)
                if self.fetch:
                    self.fetch()

    def _list_rows(self, panel: Ptr, cursor: _Cursor, count: Int) -> None:
        """Addresses of the tile's rows; the spare rows of a tile that is too tall repeat the last one."""
        e = self.e
        for m in e.range(count):
            source, result = cursor.addresses()
            self.tile_args.store(m + TileArgs.SOURCES, source)
            self.tile_args.store(m + TileArgs.RESULTS, result)
            cursor.advance()
        last_source = self.tile_args.int(count + (TileArgs.SOURCES - 1))
        last_result = self.tile_args.int(count + (TileArgs.RESULTS - 1))
        for m in e.range(count, tile_height(e, panel.int(Panel.VECTORS), count, self.family.tile_kind.vectors)):
            self.tile_args.store(m + TileArgs.SOURCES, last_source)
            self.tile_args.store(m + TileArgs.RESULTS, last_result)


@dataclass(frozen=True)
class Affine:
    """base + image*by_image + (v - v0)*by_v + (x - x0)*by_x, in elements."""

    base: Ptr
    by_image: Int
    by_v: Int
    by_x: Int
    origin: tuple[Int, Int]

    def at(self, v: Int, x: Int) -> Int:
        """The address of a position of the first image."""
        pointer = self.base + (v - self.origin[0]) * self.by_v + (x - self.origin[1]) * self.by_x
        return Int(pointer.e, pointer.e.b.ptrtoint(pointer.value, I64))


@dataclass(frozen=True)
class Place:
    source: Affine
    result: Affine


class _Cursor:
    """Walks the positions of a box, x fastest, then v, then the image, carrying both addresses along by additions."""

    def __init__(
        self, e: Emitter, place: Place, v_first: Int, x_first: Int, height: Int, length: Int, most: int
    ) -> None:
        self.e, self.height, self.length, self.most = e, height, length, most
        self.v_left, self.x_left = e.var(height), e.var(length)
        self.ends = []
        for affine in (place.source, place.result):
            size = size_of(affine.base.element)
            by_x, by_v, by_image = affine.by_x * size, affine.by_v * size, affine.by_image * size
            row_jump, image_jump = by_v - (length - 1) * by_x, by_image - height * by_v
            self.ends.append((e.var(affine.at(v_first, x_first)), by_x, row_jump, image_jump))
        # The distances of a whole tile's rows from its first, where they are neighbours.
        self.distances = [[by_x * m for m in range(most)] for _, by_x, _, _ in self.ends]

    def in_one_row(self) -> Any:
        """Whether the next tile is whole, with rows that are neighbours along x and not the last of their line."""
        return self.x_left.get() > self.most

    def list_row(self, tile_args: Ptr) -> None:
        """Write the addresses of such a tile, and go on behind it: no row waits for the one before."""
        for first, (at, by_x, _, _), distances in zip(
            (TileArgs.SOURCES, TileArgs.RESULTS), self.ends, self.distances, strict=True
        ):
            start = at.get()
            for m, distance in enumerate(distances):
                tile_args.store(first + m, start + distance)
            at.set(start + by_x * self.most)
        self.x_left.set(self.x_left.get() - self.most)

    def addresses(self) -> list[Int]:
        return [end[0].get() for end in self.ends]

    def advance(self) -> None:
        e = self.e
        x_left = self.x_left.get() - 1
        row_done = x_left.equals(0)
        v_left = self.v_left.get() - e.select(row_done, 1, 0)
        image_done = v_left.equals(0)
        self.x_left.set(e.select(row_done, self.length, x_left))
        self.v_left.set(e.select(image_done, self.height, v_left))
        for at, by_x, row_jump, image_jump in self.ends:
            at.set(at.get() + e.select(row_done, row_jump, by_x) + e.select(image_done, image_jump, 0))


def tile_height(e: Emitter, vectors: Int, count: Int, widths: tuple[int, ...]) -> Int:
    """How many rows the tile of this width that holds `count` rows has."""
    return Ptr(e, _by_width(e, "tile_rows", vectors, widths), I64).int(count)


def _by_width(e: Emitter, name: str, vectors: Int, widths: tuple[int, ...]) -> Any:
    """The address of one of the tables `{name}_{vectors}`."""
    chosen = e.module.globals[f"{name}_{widths[0]}"]
    for v in widths[1:]:
        chosen = e.b.select(vectors.equals(v), e.module.globals[f"{name}_{v}"], chosen)
    return chosen


def call_tile(e: Emitter, tile_args: Ptr, vectors: Int, count: Int, widths: tuple[int, ...]) -> None:
    """Call the tile of this width that holds `count` rows."""
    function = Ptr(e, _by_width(e, "tiles", vectors, widths), PTR).load(count)
    e.call(Callee(function), tile_args)
