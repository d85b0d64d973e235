"""The driver of weight gradients: sums over positions, one box of positions at a time.

    task = (chunk of boxes, block of the result)
      for each box:                  rows of positions, a range of columns
        fill the strip of the small side
        for each tap of the row axes:
          list the rows where the tap falls inside the large side, fill its strip with them
          for each panel of vectors, each item (rows of a register tile): add the products of the box
      finish: round the sums into the result, in the filter's own order

Ranges are clipped to what exists instead of padded, so an implied zero is never multiplied. With several chunks, each
has sums of its own, and a second launch (`finish`) adds them in order: the split does not depend on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import I64, PTR, Emitter, Int, Ptr
from unstride.codegen.gradient_strips import emit_pack, emit_transpose_out, emit_transposing_pack
from unstride.codegen.gradient_tile import GradientTiles, TileArgs
from unstride.codegen.numbers import Numbers
from unstride.codegen.strips import emit_zero
from unstride.plan.gradient_job import Block, Finish, GradientJob, Item, RowAxis, Segment, StripPanel, VectorPanel

__all__ = ["GradientFamily"]

_PIXELS_AT_A_TIME = 32


@dataclass(frozen=True)
class GradientFamily:
    """What is compiled into one gradient kernel; equal families share their machine code."""

    dtype: str
    channel_major: bool
    depthwise: bool
    height: int
    width: int

    symbols = ("run", "finish")

    @property
    def key(self) -> str:
        layout = "ncx" if self.channel_major else "nxc"
        kind = "depthwise" if self.depthwise else "dense"
        return f"gradient {kind} {self.dtype} {layout} {self.height}x{self.width}"

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        # A dense tile may be one row too tall; a row too many of a depthwise one would be a tap that does not exist.
        heights = [h for h in range(1, self.height + 1) if self.depthwise or h not in (5, 7, 9, 11)]
        tiles = GradientTiles(module, numbers, self.depthwise, heights, range(1, self.width + 1))
        tiles.emit()
        finisher = _Finisher(module, numbers)
        _Driver(module, numbers, self, tiles, finisher).emit()
        finisher.emit_task()
        return str(module)


class _Driver:
    """Emits `run(job, task, slot)`."""

    def __init__(
        self, module: Any, numbers: Numbers, family: GradientFamily, tiles: GradientTiles, finisher: _Finisher
    ) -> None:
        self.numbers, self.family, self.tiles, self.finisher = numbers, family, tiles, finisher
        self.zero = emit_zero(module, numbers)
        emit = emit_transposing_pack if family.channel_major else emit_pack
        self.pack = emit(module, "pack", numbers, placed=False)
        self.pack_placed = emit(module, "pack_placed", numbers, placed=True)
        self.e = e = Emitter(module, "run", [PTR, I64, I64])
        self.job = e.arg_ptr(0, I64)
        self.tables = e.ptr(self.get(GradientJob.TABLES), I64)

    def get(self, field: GradientJob) -> Int:
        return self.job.int(field)

    def table(self, start: Int) -> Ptr:
        return self.tables + start

    def emit(self) -> None:
        e = self.e
        chunks = self.get(GradientJob.CHUNKS)
        chunk, block_index = e.arg_int(1) % chunks, e.arg_int(1) // chunks
        self.block = self.table(self.get(GradientJob.BLOCKS)) + block_index * len(Block)
        self._slot()
        alone = chunks.equals(1)
        shared = e.ptr(self.get(GradientJob.SCRATCH), self.numbers.computed)
        shared = shared + chunk * self.get(GradientJob.SUMS) + self.block.int(Block.SUMS)
        self.sums = Ptr(e, e.b.select(alone, self.own_sums.value, shared.value), self.numbers.computed)
        boxes = self.get(GradientJob.BOXES)
        first = chunk * boxes // chunks
        for box in e.range(first, (chunk + 1) * boxes // chunks):
            self._box(box, box.equals(first))
        with e.when(alone):
            e.call(self.finisher.write, self.job, self.block, self.sums, 0, self.block.int(Block.A))
        e.ret()

    def _slot(self) -> None:
        """This thread's part of the scratch."""
        e, computed = self.e, self.numbers.computed
        slot = self.get(GradientJob.SCRATCH) + self.get(GradientJob.PARTIAL_BYTES)
        slot = slot + e.arg_int(2) * self.get(GradientJob.SLOT_BYTES)
        self.small_strip = e.ptr(slot, computed)
        self.large_strip = e.ptr(slot + self.get(GradientJob.OFFSET_LARGE), computed)
        self.own_sums = e.ptr(slot + self.get(GradientJob.OFFSET_SUMS), computed)
        # One entry for each row of a box in each list: its first pixel in either strip, its offset in the large side.
        room = self.get(GradientJob.ROW_UNIT)
        self.small_rows = e.ptr(slot + self.get(GradientJob.OFFSET_ROWS), I64)
        self.large_rows = self.small_rows + room
        self.sources = self.large_rows + room
        self.tile_args = e.stack(I64, len(TileArgs))

    # -- one box of positions

    def _box(self, box: Int, fresh: Any) -> None:
        e = self.e
        self.tile_args.store(TileArgs.FRESH, e.select(fresh, 1, 0))
        x_blocks = self.get(GradientJob.X_BLOCKS)
        self.x0 = box % x_blocks * self.get(GradientJob.X_UNIT)
        self.x1 = e.min(self.x0 + self.get(GradientJob.X_UNIT), self.get(GradientJob.X_SIZE))
        self.q0 = box // x_blocks * self.get(GradientJob.ROW_UNIT)
        self.q1 = e.min(self.q0 + self.get(GradientJob.ROW_UNIT), self.get(GradientJob.ROWS))
        self.columns = self.x1 - self.x0
        self._fill_small()
        for tap in e.range(self.block.int(Block.FIRST_TAP), self.block.int(Block.LAST_TAP)):
            rows = self._list_rows(tap)
            with e.when(e.b.or_(rows > 0, fresh)):
                self._fill_large(rows)
                self._products(tap, rows, fresh)

    def _fill_small(self) -> None:
        e = self.e
        x_stride, per_segment = self.get(GradientJob.SMALL_X_STRIDE), self.get(GradientJob.SEGMENT_ROWS)
        source = e.ptr(self.get(GradientJob.SMALL), self.numbers.stored)
        source = source + self.block.int(Block.SMALL_CHANNEL) * self.get(GradientJob.SMALL_C_STRIDE)

        def runs() -> Iterator[_Run]:
            for segment in e.range(self.q0 // per_segment, (self.q1 - 1) // per_segment + 1):
                first = e.max(self.q0, segment * per_segment)
                last = e.min(self.q1, (segment + 1) * per_segment)
                inside = ((first - segment * per_segment) * self.get(GradientJob.X_SIZE) + self.x0) * x_stride
                at = source + segment * self.get(GradientJob.SEGMENT_STRIDE) + inside
                yield _Run(at, (first - self.q0) * self.columns, (last - first) * self.columns)

        self._fill(_Side.of_small(self), (self.q1 - self.q0) * self.columns, runs, None)

    def _list_rows(self, tap: Int) -> Int:
        """Write the lists for the rows where a tap of the row axes falls inside the large side; how many they are."""
        e, count = self.e, self.e.var(0)
        axis_count, per_image = self.get(GradientJob.ROW_AXIS_COUNT), self.get(GradientJob.ROWS_PER_IMAGE)
        axes = self.table(self.get(GradientJob.ROW_AXES))
        shifts = self.table(self.get(GradientJob.ROW_TAPS)) + tap * axis_count
        for row in e.range(self.q1 - self.q0):
            q = self.q0 + row
            rest, offset = e.var(q % per_image), e.var(q // per_image * self.get(GradientJob.LARGE_N_STRIDE))
            alive = e.var(1)
            for i in e.range(axis_count):  # the innermost axis comes first
                axis = axes + i * len(RowAxis)
                size = axis.int(RowAxis.SIZE)
                at = rest.get() % size * axis.int(RowAxis.STEP) + shifts.int(i)
                rest.set(rest.get() // size)
                inside = e.b.and_(at >= 0, at < axis.int(RowAxis.LARGE_SIZE))
                alive.set(e.select(inside, alive.get(), 0))
                offset.set(offset.get() + at * axis.int(RowAxis.LARGE_STRIDE))
            with e.when(alive.get().differs(0)):
                n = count.get()
                self.small_rows.store(n, row * self.columns)
                self.large_rows.store(n, n * self.get(GradientJob.STRIP_ROW))
                self.sources.store(n, offset.get())
                count.set(n + 1)
        return count.get()

    def _fill_large(self, rows: Int) -> None:
        """Pack the listed rows; pixels outside the array are left as they are, nobody reads them."""
        e = self.e
        first = self.x0 * self.get(GradientJob.X_STEP) - self.get(GradientJob.X_BEGIN)
        span = (self.columns - 1) * self.get(GradientJob.X_STEP) + self.get(GradientJob.X_SPAN)
        left = e.max(0 - first, 0)
        right = e.min(self.get(GradientJob.LARGE_X_SIZE) - first, span)
        source = e.ptr(self.get(GradientJob.LARGE), self.numbers.stored)
        source = source + self.block.int(Block.LARGE_CHANNEL) * self.get(GradientJob.LARGE_C_STRIDE)
        source = source + (first + left) * self.get(GradientJob.LARGE_X_STRIDE)
        places = self.table(self.get(GradientJob.PLACES)) + left

        def runs(skipped: Int) -> Iterator[_Run]:
            for row in e.range(rows):
                yield _Run(source + self.sources.int(row), self.large_rows.int(row) + skipped, right - left)

        side, pixels = _Side.of_large(self), self.get(GradientJob.LARGE_PIXELS)
        placed = self.get(GradientJob.PLACED).differs(0)
        with e.when(right > left), e.either(placed) as (then, otherwise):
            with then:
                self._fill(side, pixels, lambda: runs(e.int(0)), places)
            with otherwise:
                self._fill(side, pixels, lambda: runs(left), None)

    def _fill(self, side: _Side, pixels: Int, runs: Callable[[], Iterator[_Run]], places: Ptr | None) -> None:
        """Pack runs of pixels into every panel of a strip: one after another, or where `places` says."""
        e = self.e
        for panel in side.panels():
            # Lanes beyond the last channel must hold something harmless: what was there before could be slow.
            with e.when(panel.int(StripPanel.WIDTH) < panel.int(StripPanel.PITCH)):
                e.call(self.zero, side.area(panel), pixels * panel.int(StripPanel.PITCH))
        if self.family.channel_major:
            for panel in side.panels():
                for run in runs():
                    side.pack(panel, run, places)
            return
        for run in runs():
            # A few pixels at a time: memory is read in its own order, panels take their share from L1.
            for start in e.range(0, run.pixels, _PIXELS_AT_A_TIME):
                count = e.min(run.pixels - start, _PIXELS_AT_A_TIME)
                to = run.to if places else run.to + start
                part = _Run(run.source + start * side.x_stride, to, count)
                for panel in side.panels():
                    side.pack(panel, part, places and places + start)

    # -- products

    def _products(self, tap: Int, rows: Int, fresh: Any) -> None:
        e, args = self.e, self.tile_args
        large = self.get(GradientJob.VECTOR_IS_LARGE).differs(0)
        lists = [Int(e, e.b.ptrtoint(rows.value, I64)) for rows in (self.small_rows, self.large_rows)]
        args.store(TileArgs.VECTOR_RUNS, e.select(large, lists[1], lists[0]))
        args.store(TileArgs.ROW_RUNS, e.select(large, lists[0], lists[1]))
        args.store(TileArgs.SUMS_PITCH, self.block.int(Block.PITCH))
        args.store(TileArgs.TAP_STEP, self.get(GradientJob.ROW_STEP))
        tap_row = (tap - self.block.int(Block.FIRST_TAP)) * self.block.int(Block.ROWS_PER_ROW_TAP)
        sums = self.sums + tap_row * self.block.int(Block.PITCH)
        vector_panels, items = self.table(self.block.int(Block.VECTOR_PANELS)), self.table(self.block.int(Block.ITEMS))
        for v in e.range(self.block.int(Block.VECTOR_COUNT)):
            panel = vector_panels + v * len(VectorPanel)
            for i in e.range(self.block.int(Block.ITEM_COUNT)):
                self._item(_Place(self, large, panel, items + i * len(Item), sums, rows), fresh)

    def _item(self, place: _Place, fresh: Any) -> None:
        """Segment by segment. Sums begin with the only one that has all rows; where there is none, with zeros."""
        e, item = self.e, place.item
        segments, count = self.table(item.int(Item.SEGMENTS)), item.int(Item.SEGMENT_COUNT)
        rows = item.int(Item.ROWS)
        one = e.b.and_(count.equals(1), segments.int(Segment.ROWS).equals(rows))
        begin = e.b.and_(fresh, e.b.not_(one))
        with e.when(begin):
            self._tile(place, e.int(0), rows, self.x0, self.x0)
        self.tile_args.store(TileArgs.FRESH, e.select(e.b.and_(fresh, one), 1, 0))
        for index in e.range(count):
            segment = segments + index * len(Segment)
            x0, x1 = e.max(segment.int(Segment.LOW), self.x0), e.min(segment.int(Segment.HIGH), self.x1)
            wanted = e.b.or_(x1 > x0, e.b.and_(fresh, one))
            with e.when(wanted):
                self._tile(place, segment.int(Segment.ROW), segment.int(Segment.ROWS), x0, x1)
        self.tile_args.store(TileArgs.FRESH, e.select(fresh, 1, 0))

    def _tile(self, place: _Place, row: Int, rows: Int, x0: Int, x1: Int) -> None:
        """Add the products at [x0, x1)."""
        e, args = self.e, self.tile_args
        vectors, row_values = place.addresses(row, x0 - self.x0)
        args.store(TileArgs.VECTORS, vectors)
        args.store(TileArgs.ROWS, row_values)
        args.store(TileArgs.VECTOR_PITCH, place.vector_pitch)
        if not place.depthwise:
            args.store(TileArgs.ROW_PITCH, place.row_pitch)
        args.store(TileArgs.VECTOR_STEP, place.vector_step)
        args.store(TileArgs.ROW_STEP, place.row_step)
        runs, length = place.runs, e.max(x1 - x0, 0)
        whole = self._one_run(runs, length)
        args.store(TileArgs.RUNS, e.select(whole, 1, runs))
        args.store(TileArgs.LENGTH, e.select(whole, runs * length, length))
        args.store(TileArgs.HEIGHT, rows)
        args.store(TileArgs.SUMS, place.sums_at(row))
        self.tiles.call(e, place.panel.int(VectorPanel.VECTORS), rows, args)

    def _one_run(self, runs: Int, length: Int) -> Any:
        """Whether the runs follow each other without a gap in both strips."""
        e = self.e
        dense = self.get(GradientJob.STRIP_ROW).equals(self.columns * self.get(GradientJob.STRIP_STEP))
        last = e.max(runs - 1, 0)
        neighbours = (self.small_rows.int(last) - self.small_rows.int(0)).equals(last * self.columns)
        return e.b.and_(e.b.and_(length.equals(self.columns), dense), e.b.and_(neighbours, runs > 0))


@dataclass(frozen=True)
class _Run:
    """Consecutive pixels of an array and where they go in a strip."""

    source: Ptr
    to: Int
    pixels: Int


@dataclass(frozen=True)
class _Side:
    """One of the two arrays and its strip, as a block sees them."""

    driver: _Driver
    strip: Ptr
    pixels: Int
    x_stride: Int
    c_stride: Int
    table: Ptr
    count: Int

    @classmethod
    def of_small(cls, driver: _Driver) -> _Side:
        get, block = driver.get, driver.block
        strides = get(GradientJob.SMALL_X_STRIDE), get(GradientJob.SMALL_C_STRIDE)
        table, count = driver.table(block.int(Block.SMALL_PANELS)), block.int(Block.SMALL_COUNT)
        return cls(driver, driver.small_strip, get(GradientJob.SMALL_PIXELS), *strides, table, count)

    @classmethod
    def of_large(cls, driver: _Driver) -> _Side:
        get, block = driver.get, driver.block
        strides = get(GradientJob.LARGE_X_STRIDE), get(GradientJob.LARGE_C_STRIDE)
        table, count = driver.table(block.int(Block.LARGE_PANELS)), block.int(Block.LARGE_COUNT)
        return cls(driver, driver.large_strip, get(GradientJob.LARGE_PIXELS), *strides, table, count)

    def panels(self) -> Iterator[Ptr]:
        for index in self.driver.e.range(self.count):
            yield self.table + index * len(StripPanel)

    def area(self, panel: Ptr) -> Ptr:
        return self.strip + panel.int(StripPanel.START) * self.pixels

    def pack(self, panel: Ptr, run: _Run, places: Ptr | None) -> None:
        pitch, width = panel.int(StripPanel.PITCH), panel.int(StripPanel.WIDTH)
        source = run.source + panel.int(StripPanel.CHANNEL) * self.c_stride
        target = self.area(panel) + run.to * pitch
        stride = self.c_stride if self.driver.family.channel_major else self.x_stride
        pack = self.driver.pack_placed if places else self.driver.pack
        self.driver.e.call(pack, target, pitch, places or self.table, source, stride, width, run.pixels)


class _Place:
    """Where the operands and sums of one item with one vector panel lie."""

    def __init__(self, driver: _Driver, large: Any, panel: Ptr, item: Ptr, sums: Ptr, runs: Int) -> None:
        e = self.e = driver.e
        self.item, self.panel, self.runs, self.depthwise = item, panel, runs, driver.family.depthwise
        self.tap_step = driver.get(GradientJob.ROW_STEP)
        get = driver.get
        pixels = get(GradientJob.SMALL_PIXELS), get(GradientJob.LARGE_PIXELS)
        strips = driver.small_strip, driver.large_strip
        steps = e.int(1), get(GradientJob.STRIP_STEP)

        def side(of_vectors: bool, pair: Any) -> Int:
            small, big = (e.int(value) for value in pair)
            return e.select(large, big, small) if of_vectors else e.select(large, small, big)

        addresses = tuple(Int(e, e.b.ptrtoint(strip.value, I64)) for strip in strips)
        self.vector_pitch, self.row_pitch = panel.int(VectorPanel.PITCH), item.int(Item.ROW_PITCH)
        self.vector_step, self.row_step = side(True, steps) * self.vector_pitch, side(False, steps) * self.row_pitch
        row_start = item.int(Item.ROW_START) + panel.int(VectorPanel.ROW_START)
        self.vectors = e.ptr(side(True, addresses), driver.numbers.computed)
        self.vectors = self.vectors + (
            panel.int(VectorPanel.START) * side(True, pixels) + item.int(Item.VECTOR_SHIFT) * self.vector_pitch
        )
        self.rows = e.ptr(side(False, addresses), driver.numbers.computed)
        self.rows = self.rows + (row_start * side(False, pixels) + item.int(Item.ROW_SHIFT))
        self.pitch = driver.block.int(Block.PITCH)
        self.sums = sums + (item.int(Item.SUMS_ROW) * self.pitch + panel.int(VectorPanel.COLUMN))

    def addresses(self, row: Int, position: Int) -> tuple[Any, Any]:
        """Of the vectors and the row values at a row and position of the box."""
        e = self.e
        shift = row * self.tap_step if self.depthwise else row
        vectors = self.vectors + position * self.vector_step
        rows = self.rows + (position * self.row_step + shift)
        return e.b.ptrtoint(vectors.value, I64), e.b.ptrtoint(rows.value, I64)

    def sums_at(self, row: Int) -> Any:
        return self.e.b.ptrtoint((self.sums + row * self.pitch).value, I64)


class _Finisher:
    """Emits `write(job, block, sums, a0, a1)`, which rounds sums into the result, and the task `finish`."""

    def __init__(self, module: Any, numbers: Numbers) -> None:
        self.module, self.numbers = module, numbers
        self.transpose = emit_transpose_out(module, "transpose_out", numbers)
        self.write = self._emit_write()

    def _emit_write(self) -> Any:
        e = Emitter(self.module, "write", [PTR, PTR, PTR, I64, I64], internal=True)
        job, block = e.arg_ptr(0, I64), e.arg_ptr(1, I64)
        sums, a0, a1 = e.arg_ptr(2, self.numbers.computed), e.arg_int(3), e.arg_int(4)
        result = e.ptr(job.int(GradientJob.RESULT), self.numbers.stored) + block.int(Block.RESULT)
        step_t, step_a = job.int(GradientJob.RESULT_T), job.int(GradientJob.RESULT_A)
        step_b = job.int(GradientJob.RESULT_B)
        taps, rows, columns, pitch = (block.int(f) for f in (Block.TAPS, Block.A, Block.B, Block.PITCH))
        kind = job.int(GradientJob.FINISH)
        with e.when(kind.equals(Finish.TAPS_INNERMOST)):
            for a in e.range(a0, a1):
                e.call(self.transpose, result + a * step_a, step_b, sums + a * pitch, rows * pitch, taps, columns)
        with e.when(kind.equals(Finish.A_INNERMOST)):
            for t in e.range(taps):
                source = sums + (t * rows + a0) * pitch
                e.call(self.transpose, result + (t * step_t + a0), step_b, source, pitch, a1 - a0, columns)
        with e.when(kind.equals(Finish.COPY)):
            for t in e.range(taps):
                for a in e.range(a0, a1):
                    self._round(e, result + (t * step_t + a * step_a), sums + (t * rows + a) * pitch, columns)
        e.ret()
        return e.function

    def _round(self, e: Emitter, target: Ptr, source: Ptr, count: Int) -> None:
        lanes = self.numbers.lanes
        whole = count - (count & (lanes - 1))
        for i in e.range(0, whole, lanes):
            self.numbers.store(target, i, source.load(i, lanes))
        for i in e.range(whole, count):
            self.numbers.store(target, i, source.load(i))

    def emit_task(self) -> None:
        """`finish(job, task, slot)`: a task is a block and a part of its rows."""
        e = Emitter(self.module, "finish", [PTR, I64, I64])
        job, parts = e.arg_ptr(0, I64), e.arg_ptr(0, I64).int(GradientJob.PARTS)
        part, index = e.arg_int(1) % parts, e.arg_int(1) // parts
        block = e.ptr(job.int(GradientJob.TABLES), I64) + job.int(GradientJob.BLOCKS) + index * len(Block)
        rows, pitch = block.int(Block.A), block.int(Block.PITCH)
        a0, a1 = part * rows // parts, (part + 1) * rows // parts
        sums = e.ptr(job.int(GradientJob.SCRATCH), self.numbers.computed) + block.int(Block.SUMS)
        lanes, chunk_size = self.numbers.lanes, job.int(GradientJob.SUMS)
        for t in e.range(block.int(Block.TAPS)):
            line = sums + (t * rows + a0) * pitch
            for i in e.range(0, (a1 - a0) * pitch, lanes):
                total = e.stack(ir.VectorType(self.numbers.computed, lanes))
                e.b.store(line.load(i, lanes), total.value)
                for chunk in e.range(1, job.int(GradientJob.CHUNKS)):
                    more = (line + chunk * chunk_size).load(i, lanes)
                    e.b.store(e.b.fadd(e.b.load(total.value, typ=more.type), more), total.value)
                line.store(i, e.b.load(total.value, typ=ir.VectorType(self.numbers.computed, lanes)))
        e.call(self.write, job, block, sums, a0, a1)
        e.ret()
