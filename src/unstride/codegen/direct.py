"""The driver of the direct kernels: one task fills a strip, runs its panels over it, and flushes what needs it.

    task = (outer position, images, rows, columns, panels)
      fill the strip: source pixels of the box, widened, padded with zeros, pixel-major
      for each panel: list the taps that read real planes; for each tile of positions: accumulate, finish, store
      where the result is channel-major: tiles store to an out strip, which is transposed when its panels are done

One emitted module serves every layer of a (dtype, layout, activation, kind, ISA): all else is read from tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from unstride.codegen.emit import I64, PTR, VOID, Emitter, Int, Ptr
from unstride.codegen.numbers import Numbers
from unstride.codegen.strips import emit_copy, emit_transpose, emit_zero
from unstride.codegen.tile import TileArgs, TileFamily, TileKind
from unstride.plan.direct import DirectPlan
from unstride.plan.job import X_RANGES, Job, Outer, Panel, VRange, XRange

__all__ = ["DirectFamily"]


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

    @classmethod
    def of(cls, plan: DirectPlan, activation: str) -> DirectFamily:
        dtype, layout = plan.structure.dtype, plan.structure.data_layout
        return cls(
            dtype, plan.isa.name, layout == "NCX", plan.depthwise, activation, plan.tile.rows, plan.tile.vectors
        )

    @property
    def key(self) -> str:
        layout = "ncx" if self.channel_major else "nxc"
        kind = "depthwise" if self.depthwise else "direct"
        return f"{kind} {self.dtype} {layout} {self.activation} {self.rows}x{self.vectors}"

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("run",)

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        kind = TileKind(
            self.depthwise, self.activation, self.channel_major, _row_counts(self.rows), tuple(range(1, self.vectors + 1))
        )
        TileFamily(module, numbers, kind).emit()
        _Driver(module, numbers, self).emit()
        return str(module)


def _row_counts(most: int) -> tuple[int, ...]:
    """Tile heights to compile: all of a short tile, a spread of a tall one (rows in between are doubled up)."""
    return tuple(range(1, most + 1)) if most <= 8 else (1, 2, 4, 8, 11, most)


class _Driver:
    def __init__(self, module: Any, numbers: Numbers, family: DirectFamily) -> None:
        self.numbers, self.family = numbers, family
        self.zero = emit_zero(module, numbers)
        self.copy = emit_copy(module, numbers)
        if family.channel_major:
            self.gather = emit_transpose(module, "transpose_in", numbers, widen=True)
            self.scatter = emit_transpose(module, "transpose_out", numbers, widen=False)
        self.e = Emitter(module, "run", [PTR, I64, I64])
        self.job = self.e.arg_ptr(0, I64)
        self.plan = self.e.ptr(self.get(Job.PLAN), I64)
        self.sizes = self.e.ptr(self.get(Job.SIZES), I64)

    def get(self, field: Job) -> Int:
        return self.job.int(field)

    def emit(self) -> None:
        e = self.e
        self._decode(e.arg_int(1))
        scratch = self.get(Job.SCRATCH) + e.arg_int(2) * self.get(Job.SCRATCH_PER_SLOT)
        self.strip = e.ptr(scratch + self.get(Job.OFFSET_STRIP), self.numbers.computed)
        self.out = e.ptr(scratch + self.get(Job.OFFSET_OUT), self.numbers.computed)
        self.planes_alive = e.ptr(scratch + self.get(Job.OFFSET_TAPS), I64)
        self.taps = self.planes_alive + self.get(Job.PLANE_COUNT)
        self._geometry()
        self._fill()
        self.tile_args = e.stack(I64, TileArgs.COUNT)
        self.tile_args.store(TileArgs.TAPS, e.b.ptrtoint(self.taps.value, I64))
        self.tile_args.store(TileArgs.SLOPE_BITS, self.get(Job.SLOPE_BITS))
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        for index in e.range(blocks.int(self.panel_block), blocks.int(self.panel_block + 1)):
            self._panel(self.plan + self.get(Job.PANELS) + index * len(Panel))
        e.ret()

    # -- which box this task is

    def _decode(self, task: Int) -> None:
        e = self.e
        p_blocks, x_blocks, v_blocks, n_blocks = (
            self.get(f) for f in (Job.P_BLOCKS, Job.X_BLOCKS, Job.V_BLOCKS, Job.N_BLOCKS)
        )
        self.panel_block, rest = task % p_blocks, task // p_blocks
        x_block, rest = rest % x_blocks, rest // x_blocks
        v_block, rest = rest % v_blocks, rest // v_blocks
        n_block, self.outer_index = rest % n_blocks, rest // n_blocks
        self.x0 = self.get(Job.X_LOW) + x_block * self.get(Job.X_UNIT)
        self.x1 = e.min(self.x0 + self.get(Job.X_UNIT), self.get(Job.X_HIGH))
        self.v0 = self.get(Job.V_LOW) + v_block * self.get(Job.V_UNIT)
        self.v1 = e.min(self.v0 + self.get(Job.V_UNIT), self.get(Job.V_HIGH))
        self.n0 = n_block * self.get(Job.IMAGES_PER_UNIT)
        self.images = e.min(self.get(Job.IMAGES_PER_UNIT), self.get(Job.IMAGES) - self.n0)

    def _geometry(self) -> None:
        """Sizes of the strips, in elements."""
        self.source_v = self.v0 * self.get(Job.SOURCE_V_STEP) + self.get(Job.SOURCE_V_FIRST)
        self.source_x = self.x0 * self.get(Job.SOURCE_X_STEP) + self.get(Job.SOURCE_X_FIRST)
        self.rows = (self.v1 - self.v0 - 1) * self.get(Job.SOURCE_V_STEP) + self.get(Job.SOURCE_V_SPAN)
        self.columns = (self.x1 - self.x0 - 1) * self.get(Job.SOURCE_X_STEP) + self.get(Job.SOURCE_X_SPAN)
        self.pixel_pitch = self.get(Job.PIXEL_PITCH)
        self.row_pitch = self.columns * self.pixel_pitch
        self.plane_pitch = self.rows * self.row_pitch
        self.image_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
        self.out_columns = (self.x1 - self.x0) * self.get(Job.RESULT_X_STEP)
        self.out_rows = (self.v1 - self.v0) * self.get(Job.RESULT_V_STEP)

    # -- filling the strip

    def _fill(self) -> None:
        e = self.e
        planes = self.plan + self.get(Job.PLANES)
        count = self.get(Job.OUTER_COUNT)
        # Ascending addresses: zeroing may run over into what is filled next, never into what is done.
        for image in e.range(self.images):
            source = e.ptr(self.get(Job.SOURCE), self.numbers.stored)
            source = source + (self.n0 + image) * self.get(Job.SOURCE_N_STRIDE)
            for plane in e.range(self.get(Job.PLANE_COUNT)):
                offset, alive = self._outer_offset(planes + plane * count)
                self.planes_alive.store(plane, alive)
                with e.when(alive.differs(0)):
                    target = self.strip + (image * self.image_pitch + plane * self.plane_pitch)
                    for row in e.range(self.rows):
                        self._fill_row(target + row * self.row_pitch, source + offset, self.source_v + row)

    def _outer_offset(self, plane: Ptr) -> tuple[Int, Int]:
        """Source offset of a plane at this task's outer position, and 1 if the plane exists."""
        e = self.e
        offset, alive, rest = e.var(0), e.var(1), e.var(self.outer_index)
        axes = self.sizes + self.get(Job.OUTER_AXES)
        for i in e.range(self.get(Job.OUTER_COUNT)):
            axis = axes + i * len(Outer)
            position = axis.int(Outer.LOW) + rest.get() % axis.int(Outer.COUNT)
            rest.set(rest.get() // axis.int(Outer.COUNT))
            at = position * axis.int(Outer.SOURCE_STEP) + axis.int(Outer.SOURCE_SHIFT) + plane.int(i)
            inside = e.b.and_(at >= 0, at < axis.int(Outer.SOURCE_SIZE))
            alive.set(e.select(inside, alive.get(), 0))
            offset.set(offset.get() + at * axis.int(Outer.SOURCE_STRIDE))
        return offset.get(), alive.get()

    def _fill_row(self, target: Ptr, source: Ptr, v: Int) -> None:
        e, pitch = self.e, self.pixel_pitch
        inside = e.b.and_(v >= 0, v < self.get(Job.SOURCE_V_SIZE))
        with e.either(inside) as (then, otherwise):
            with otherwise:
                e.call(self.zero, target, self.row_pitch)
            with then:
                left = e.min(e.max(0 - self.source_x, 0), self.columns)
                right = e.max(e.min(self.get(Job.SOURCE_X_SIZE) - self.source_x, self.columns), left)
                with e.when(left > 0):
                    e.call(self.zero, target, left * pitch)
                with e.when(right > left):
                    first = v * self.get(Job.SOURCE_V_STRIDE) + (self.source_x + left) * self.get(Job.SOURCE_X_STRIDE)
                    self._fill_pixels(target + left * pitch, source + first, right - left)
                with e.when(right < self.columns):
                    e.call(self.zero, target + right * pitch, (self.columns - right) * pitch)

    def _fill_pixels(self, target: Ptr, source: Ptr, count: Int) -> None:
        e, channels = self.e, self.get(Job.CHANNELS)
        if self.family.channel_major:
            stride = self.get(Job.SOURCE_C_STRIDE)
            e.call(self.gather, target, self.pixel_pitch, source, stride, channels, count)
            return
        with e.either(self.pixel_pitch.equals(channels)) as (then, otherwise):
            with then:
                e.call(self.copy, target, source, count * channels)
            with otherwise:
                for pixel in e.range(count):
                    to, start = target + pixel * self.pixel_pitch, source + pixel * self.get(Job.SOURCE_X_STRIDE)
                    e.call(self.copy, to, start, channels)

    # -- panels

    def _panel(self, panel: Ptr) -> None:
        e = self.e
        offset, alive = self._result_offset(panel)
        with e.when(alive.differs(0)):
            if self.family.channel_major:
                self._start_out(panel)
            taps = self._list_taps(panel)
            self.tile_args.store(TileArgs.TAP_COUNT, taps)
            self.tile_args.store(TileArgs.RUN, panel.int(Panel.RUN))
            size = self.numbers.isa.vector_bytes // self.numbers.lanes
            self.tile_args.store(TileArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
            self.tile_args.store(TileArgs.BIAS, self.get(Job.BIAS) + panel.int(Panel.BIAS) * size)
            v_range = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
            x_range = self.sizes + self.get(Job.X_RANGES) + panel.int(Panel.X_RANGE) * (X_RANGES * len(XRange))
            rows = (e.max(v_range.int(VRange.LOW), self.v0), e.min(v_range.int(VRange.HIGH), self.v1))
            place = self._place(panel, v_range.int(VRange.PHASE), offset)
            for index in e.range(1 if self.family.channel_major else X_RANGES):
                self._region(panel, place, rows, x_range + index * len(XRange), index)
            if self.family.channel_major:
                with e.when(panel.int(Panel.FLUSH).differs(0)):
                    self._flush(panel, offset)

    def _result_offset(self, panel: Ptr) -> tuple[Int, Int]:
        """Result offset of a panel's outer phase at this task's outer position, and 1 if it is inside the result."""
        e = self.e
        offset, alive, rest = e.var(0), e.var(1), e.var(self.outer_index)
        count = self.get(Job.OUTER_COUNT)
        phases = self.plan + self.get(Job.OUTER_PHASES) + panel.int(Panel.OUTER_PHASE) * count
        axes = self.sizes + self.get(Job.OUTER_AXES)
        for i in e.range(count):
            axis = axes + i * len(Outer)
            position = axis.int(Outer.LOW) + rest.get() % axis.int(Outer.COUNT)
            rest.set(rest.get() // axis.int(Outer.COUNT))
            at = position * axis.int(Outer.RESULT_STEP) + phases.int(i) - axis.int(Outer.RESULT_BEGIN)
            inside = e.b.and_(at >= 0, at < axis.int(Outer.RESULT_SIZE))
            alive.set(e.select(inside, alive.get(), 0))
            offset.set(offset.get() + at * axis.int(Outer.RESULT_STRIDE))
        return offset.get(), alive.get()

    def _list_taps(self, panel: Ptr) -> Int:
        """Write the (source, weights) offsets of the taps that read something real; returns how many.

        Taps of planes that do not exist are left out, and in boxes of one row (or one column) those of rows (or
        columns) that do not exist: with such boxes everywhere, an implied zero is never multiplied.
        """
        e = self.e
        count = e.var(0)
        inner_count = panel.int(Panel.INNER_COUNT)
        inner = self.plan + self.get(Job.INNER_TAPS) + panel.int(Panel.INNER_FIRST) * 2
        outer = self.plan + self.get(Job.OUTER_TAPS) + panel.int(Panel.OUTER_FIRST)
        step = panel.int(Panel.RUN) * panel.int(Panel.VECTORS) * self.numbers.lanes
        one_row, one_column = (self.v1 - self.v0).equals(1), (self.x1 - self.x0).equals(1)
        for o in e.range(panel.int(Panel.OUTER_COUNT)):
            plane = outer.int(o)
            with e.when(self.planes_alive.int(plane).differs(0)):
                base = plane * self.plane_pitch + panel.int(Panel.CHANNEL)
                for i in e.range(inner_count):
                    a_v, a_x = inner.int(i * 2), inner.int(i * 2 + 1)
                    v, x = self.source_v + a_v, self.source_x + a_x
                    v_real = e.b.and_(v >= 0, v < self.get(Job.SOURCE_V_SIZE))
                    x_real = e.b.and_(x >= 0, x < self.get(Job.SOURCE_X_SIZE))
                    skip_v = e.b.and_(one_row, e.b.not_(v_real))
                    single = e.b.and_(one_column, panel.int(Panel.RUN) <= self.get(Job.CHANNELS))
                    skip = e.b.or_(skip_v, e.b.and_(single, e.b.not_(x_real)))
                    with e.when(e.b.not_(skip)):
                        at = count.get() * 2
                        self.taps.store(at, base + a_v * self.row_pitch + a_x * self.pixel_pitch)
                        self.taps.store(at + 1, (o * inner_count + i) * step)
                        count.set(count.get() + 1)
        return count.get()

    def _place(self, panel: Ptr, phase: Int, offset: Int) -> _Place:
        """Where results go, as an affine function of (image, v, x); source addresses are affine in the same way."""
        source = _Affine(
            self.strip,
            self.image_pitch,
            self.get(Job.SOURCE_V_STEP) * self.row_pitch,
            self.get(Job.SOURCE_X_STEP) * self.pixel_pitch,
            (self.v0, self.x0),
        )
        if self.family.channel_major:
            width = panel.int(Panel.GROUP_WIDTH)
            row = self.out_columns * width
            result = _Affine(
                self.out + (phase * row + panel.int(Panel.COLUMN)),
                self.out_rows * row,
                self.get(Job.RESULT_V_STEP) * row,
                self.get(Job.RESULT_X_STEP) * width,
                (self.v0, self.x0),
            )
            return _Place(source, result)
        v_stride, x_stride = self.get(Job.RESULT_V_STRIDE), self.get(Job.RESULT_X_STRIDE)
        first = (
            self.n0 * self.get(Job.RESULT_N_STRIDE)
            + offset
            + (phase - self.get(Job.RESULT_V_BEGIN)) * v_stride
            - self.get(Job.RESULT_X_BEGIN) * x_stride
            + panel.int(Panel.COLUMN)
        )
        base = self.e.ptr(self.get(Job.RESULT), self.numbers.stored) + first
        result = _Affine(
            base,
            self.get(Job.RESULT_N_STRIDE),
            self.get(Job.RESULT_V_STEP) * v_stride,
            self.get(Job.RESULT_X_STEP) * x_stride,
            (self.e.int(0), self.e.int(0)),
        )
        return _Place(source, result)

    def _region(self, panel: Ptr, place: _Place, rows: tuple[Int, Int], x_range: Ptr, index: Int) -> None:
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
            total = self.images * height * length
            cursor = _Cursor(e, v_first, x_first, rows[1], x_first + length)
            for done in e.range(0, total, self.family.rows):
                count = e.min(total - done, self.family.rows)
                self._list_rows(place, cursor, count)
                self._call_tile(panel, count)

    def _list_rows(self, place: _Place, cursor: _Cursor, count: Int) -> None:
        """Addresses of the tile's rows; the spare rows of a tile that is too tall repeat the last one."""
        e = self.e
        for m in e.range(count):
            source, result = place.at(cursor)
            self.tile_args.store(m + TileArgs.SOURCES, source)
            self.tile_args.store(m + TileArgs.RESULTS, result)
            cursor.advance()
        sizes = Ptr(e, e.module.globals["tile_rows"], I64)
        last_source = self.tile_args.int(count + (TileArgs.SOURCES - 1))
        last_result = self.tile_args.int(count + (TileArgs.RESULTS - 1))
        for m in e.range(count, sizes.int(count)):
            self.tile_args.store(m + TileArgs.SOURCES, last_source)
            self.tile_args.store(m + TileArgs.RESULTS, last_result)

    def _call_tile(self, panel: Ptr, count: Int) -> None:
        e = self.e
        vectors = panel.int(Panel.VECTORS)
        tables = [Ptr(e, e.module.globals[f"tiles_{v}"], PTR) for v in range(1, self.family.vectors + 1)]
        chosen = tables[0].value
        for v, table in enumerate(tables[1:], 2):
            chosen = e.b.select(vectors.equals(v), table.value, chosen)
        function = Ptr(e, chosen, PTR).load(count)
        e.b.call(_Callee(function), [self.tile_args.value])

    # -- the out strip

    def _start_out(self, panel: Ptr) -> None:
        """Where not every element of the out strip will be computed, let it start as the activated bias."""
        e = self.e
        with e.when(e.b.and_(panel.int(Panel.START).differs(0), self.get(Job.HOLES).differs(0))):
            width = panel.int(Panel.GROUP_WIDTH)
            rest = e.ptr(self.get(Job.REST), self.numbers.computed) + panel.int(Panel.BIAS)
            for pixel in e.range(self.images * self.out_rows * self.out_columns):
                line = self.out + pixel * width
                for column in e.range(width):
                    line.store(column, rest.load(column))

    def _flush(self, panel: Ptr, offset: Int) -> None:
        """Transpose the out strip into the result: rows and columns outside the result stay behind."""
        e = self.e
        width = panel.int(Panel.FLUSH_WIDTH)
        x_first = self.x0 * self.get(Job.RESULT_X_STEP) - self.get(Job.RESULT_X_BEGIN)
        left = e.min(e.max(0 - x_first, 0), self.out_columns)
        right = e.min(self.get(Job.RESULT_X_SIZE) - x_first, self.out_columns)
        v_first = self.v0 * self.get(Job.RESULT_V_STEP) - self.get(Job.RESULT_V_BEGIN)
        c_stride = self.get(Job.RESULT_C_STRIDE)
        result = e.ptr(self.get(Job.RESULT), self.numbers.stored) + offset
        result = result + panel.int(Panel.FLUSH_CHANNEL) * c_stride + (x_first + left) * self.get(Job.RESULT_X_STRIDE)
        with e.when(right > left):
            for image in e.range(self.images):
                for row in e.range(self.out_rows):
                    v = v_first + row
                    with e.when(e.b.and_(v >= 0, v < self.get(Job.RESULT_V_SIZE))):
                        at = (self.n0 + image) * self.get(Job.RESULT_N_STRIDE) + v * self.get(Job.RESULT_V_STRIDE)
                        start = ((image * self.out_rows + row) * self.out_columns + left) * width
                        e.call(self.scatter, result + at, c_stride, self.out + start, width, right - left, width)


@dataclass(frozen=True)
class _Affine:
    """base + image*by_image + (v - v0)*by_v + (x - x0)*by_x, in elements."""

    base: Ptr
    by_image: Int
    by_v: Int
    by_x: Int
    origin: tuple[Int, Int]

    def at(self, image: Int, v: Int, x: Int) -> Int:
        offset = image * self.by_image + (v - self.origin[0]) * self.by_v + (x - self.origin[1]) * self.by_x
        pointer = self.base + offset
        return Int(pointer.e, pointer.e.b.ptrtoint(pointer.value, I64))


@dataclass(frozen=True)
class _Place:
    source: _Affine
    result: _Affine

    def at(self, cursor: _Cursor) -> tuple[Int, Int]:
        image, v, x = cursor.image.get(), cursor.v.get(), cursor.x.get()
        return self.source.at(image, v, x), self.result.at(image, v, x)


class _Cursor:
    """Walks the positions of a box: x fastest, then v, then the image."""

    def __init__(self, e: Emitter, v_first: Int, x_first: Int, v_end: Int, x_end: Int) -> None:
        self.e, self.v_first, self.x_first, self.v_end, self.x_end = e, v_first, x_first, v_end, x_end
        self.image, self.v, self.x = e.var(0), e.var(v_first), e.var(x_first)

    def advance(self) -> None:
        e = self.e
        x = self.x.get() + 1
        row_done = x.equals(self.x_end)
        self.x.set(e.select(row_done, self.x_first, x))
        v = e.select(row_done, self.v.get() + 1, self.v.get())
        image_done = v.equals(self.v_end)
        self.v.set(e.select(image_done, self.v_first, v))
        self.image.set(e.select(image_done, self.image.get() + 1, self.image.get()))


class _Callee:
    """llvmlite takes a function's type from its typed pointer; an opaque one needs telling."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self.function_type = ir.FunctionType(VOID, [PTR])
        self.type = pointer.type
        self.attributes: list[str] = []

    def get_reference(self) -> str:
        return str(self.pointer.get_reference())
