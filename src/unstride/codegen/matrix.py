"""The kernels of `plan.matrix`: products of whole tiles of halves, or of pairs of them, for either layout.

per box:    fill the strip with halves, as they are stored, in blocks of 32 channels
per panel:  for each line of positions, products of all taps and channels, tile by tile, put into the out strip
per flush:  bias, activation, rounding, the only store

out strip   [v-phase][image][row][column][x-phase][channel]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import frexp
from typing import Any

from unstride.codegen import ir
from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.box import Box
from unstride.codegen.emit import (
    I16,
    I32,
    I64,
    PTR,
    VOID,
    Callee,
    Emitter,
    Int,
    Ptr,
    function_table,
    mangle,
    size_of,
    vector,
)
from unstride.codegen.matrix_dots import emit_dots
from unstride.codegen.matrix_strips import PIXEL, emit_channels_in, emit_channels_out, emit_pixels_in, emit_windows_in
from unstride.codegen.matrix_tile import TILE_BYTES, TileJob, emit_tiles, give_back, reserve
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.job import X_RANGES, Job, Pack, PackPanel, Panel, VRange, XRange
from unstride.plan.machine import AMX, DOTS, LINE_BYTES
from unstride.plan.matrix import DEPTH, MOST_TILES, SIDE, SMALLEST, MatrixPlan

__all__ = ["MatrixDriver", "MatrixFamily"]

_HALF, _FULL = size_of(I16), 4  # bytes


@dataclass(frozen=True)
class MatrixFamily:
    """What is compiled into one kernel of tiles, or of pairs."""

    dtype: str
    channels_first: bool
    activation: str
    by: str = AMX.name  # whose instructions multiply
    windows: bool = False  # whether the channels of all pixels that a position reads along x are taken together

    @classmethod
    def of(cls, plan: MatrixPlan, activation: str) -> MatrixFamily:
        structure = plan.structure
        return cls(structure.dtype, structure.data_layout == "NCX", activation, plan.isa.name, plan.window > 1)

    @property
    def key(self) -> str:
        windows = " windows" if self.windows else ""
        return f"{self.by} {self.dtype} {'ncx' if self.channels_first else 'nxc'} {self.activation}{windows}"

    def build(self, numbers: Numbers) -> str:
        """The LLVM IR of the family: `run` and `pack`."""
        module = ir.Module(name=self.key)
        module.triple = numbers.isa.triple
        for columns in (1, 2):
            most = MOST_TILES // columns
            if self.by == DOTS.name:
                names = [emit_dots(module, rows + 1, columns) for rows in range(most)]
            else:
                names = [emit_tiles(module, self.dtype, rows + 1, columns) for rows in range(most)]
            function_table(module, f"tiles_{columns}", names)
        MatrixDriver(module, numbers, self).emit()
        _emit_pack(module, self.dtype)
        return str(module)


@dataclass(frozen=True)
class _StoredHalves(Numbers):
    """Halves as they are stored, which are moved and never computed with."""

    @property
    def stored(self) -> Any:
        return I16

    @property
    def computed(self) -> Any:
        return I16


class MatrixDriver(Box):
    def __init__(self, module: Any, numbers: Numbers, family: MatrixFamily) -> None:
        self.family, self.is_guarded = family, numbers.dtype == "bf16"
        emit_in = emit_windows_in if family.windows else emit_channels_in if family.channels_first else emit_pixels_in
        self.take_in = emit_in(module, looks=self.is_guarded)
        super().__init__(module, numbers, channel_major=False, strip_numbers=_StoredHalves(numbers.dtype, numbers.isa))
        if family.channels_first:
            self.channels_out = emit_channels_out(module, self._finished, self._both_rounded)

    def emit(self) -> None:
        e = self.e
        self.geometry()
        self.smallest = e.stack(PIXEL)
        e.b.store(ir.Constant(PIXEL, [-1] * DEPTH), self.smallest.value)
        self.fill()
        if not self.is_guarded:
            self._multiply()
        else:
            with e.either(self._is_tame()) as (then, otherwise):
                with then:
                    self._multiply()
                with otherwise:
                    e.ptr(self.get(Job.FLAGS), I64).store(e.arg_int(1), e.int(1))
        self.done()

    def geometry(self) -> None:
        super().geometry()
        self.height, self.length = self.v1 - self.v0, self.x1 - self.x0
        self.x_step = self.get(Job.SOURCE_X_STEP)
        if self.family.windows:  # of which each position has one
            self.x_step, self.columns = self.e.int(1), self.length
            self.row_pitch = self.columns * DEPTH
            self.plane_pitch = self.rows * self.row_pitch
        self.is_flat = self.get(Job.FLAT).differs(0)
        # Positions from row to row of the out strip.
        self.line = self.e.select(self.is_flat, self.columns, self.length)
        self.steps = (self.get(Job.RESULT_V_STEP), self.get(Job.RESULT_X_STEP))
        self.block_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
        self.image_pitch = self.get(Job.CHANNEL_BLOCKS) * self.block_pitch

    def has_single_taps(self, panel: Ptr) -> Any:
        return self.e.int(int(self.family.windows)).equals(0)

    def channel_offset(self, panel: Ptr) -> Int:
        group = panel.int(Panel.CHANNEL) // self.get(Job.GROUP_CHANNELS)
        return group * self.get(Job.GROUP_BLOCKS) * self.block_pitch

    # -- the way in

    def fill(self) -> None:
        """Ascending addresses: what is written beyond a row's end is the start of what comes next."""
        e, planes = self.e, self.plan + self.get(Job.PLANES)
        for plane in e.range(self.get(Job.PLANE_COUNT)):
            _, alive = self._outer_offset(planes + plane * self.get(Job.OUTER_COUNT))
            self.planes_alive.store(plane, alive)
            self.plane_offsets.store(plane, plane * self.plane_pitch)
        left = e.min(e.max(0 - self.source_x, 0), self.columns)
        right = e.max(e.min(self.get(Job.SOURCE_X_SIZE) - self.source_x, self.columns), left)
        top = e.min(e.max(0 - self.source_v, 0), self.rows)
        bottom = e.max(e.min(self.get(Job.SOURCE_V_SIZE) - self.source_v, self.rows), top)
        # Rows without padding are one long row.
        whole = self._in_whole_rows()
        rows = e.select(whole, 1, bottom - top)
        pixels = e.select(whole, self.columns * self.rows, right - left)
        by_channel, by_row, by_pixel = (
            self.get(field) for field in (Job.SOURCE_C_STRIDE, Job.SOURCE_V_STRIDE, Job.SOURCE_X_STRIDE)
        )
        start = (self.source_v + top) * by_row
        if self.family.windows:
            rows = bottom - top
        else:
            start = start + (self.source_x + left) * by_pixel
        for image in e.range(self.images):
            source = e.ptr(self.get(Job.SOURCE), I16) + (self.n0 + image) * self.get(Job.SOURCE_N_STRIDE) + start
            for block in e.range(self.get(Job.CHANNEL_BLOCKS)):
                in_group, by_group = block % self.get(Job.GROUP_BLOCKS), self.get(Job.GROUP_CHANNELS)
                channels = e.min(by_group - in_group * DEPTH, DEPTH)
                channel = block // self.get(Job.GROUP_BLOCKS) * by_group + in_group * DEPTH
                for plane in e.range(self.get(Job.PLANE_COUNT)):
                    with e.when(self.planes_alive.int(plane).differs(0)):
                        offset, _ = self._outer_offset(planes + plane * self.get(Job.OUTER_COUNT))
                        first = source + offset + (channel * by_channel if not self.family.windows else 0)
                        place = image * self.image_pitch + block * self.block_pitch + plane * self.plane_pitch
                        target = self.strip + place
                        e.call(self.zero, target, top * self.row_pitch)
                        for row in e.range(rows):
                            to = target + (top + row) * self.row_pitch
                            if self.family.windows:
                                self._take_windows(to, first + row * by_row, channel)
                                continue
                            e.call(self.zero, to, left * DEPTH)
                            stride = by_channel if self.family.channels_first else by_pixel
                            values = (to + left * DEPTH, first + row * by_row, pixels, stride, channels, self.smallest)
                            e.call(self.take_in, *values)
                            e.call(self.zero, to + right * DEPTH, (self.columns - right) * DEPTH)
                        e.call(self.zero, target + bottom * self.row_pitch, (self.rows - bottom) * self.row_pitch)

    def _take_windows(self, target: Ptr, row: Ptr, channel: Int) -> None:
        """The windows of a row of positions, from this one of their channels on."""
        by_pixel = self.get(Job.CHANNELS)
        first, step = self.source_x * by_pixel + channel, self.get(Job.SOURCE_X_STEP) * by_pixel
        run, length = self.get(Job.GROUP_CHANNELS) - channel, self.get(Job.SOURCE_X_SIZE) * by_pixel
        self.e.call(self.take_in, target, row, self.columns, step, first, run, length, self.smallest)

    def _is_tame(self) -> Any:
        """Whether no value of the box is so small that a product, or a difference of such, could be subnormal."""
        e = self.e
        found = e.b.load(self.smallest.value, typ=PIXEL)
        least = e.intrinsic(f"llvm.vector.reduce.umin.{mangle(PIXEL)}", I16, (found,))
        _, exponent = frexp(SMALLEST)  # of a number between a half and one
        return e.b.icmp_unsigned(">=", least, ir.Constant(I16, ((exponent + 126) << 7) - 1))

    # -- products

    def _multiply(self) -> None:
        e = self.e
        in_tiles = self.family.by == AMX.name
        if in_tiles:
            reserve(e)
        self.tile_job = e.stack(I64, TileJob.COUNT)
        self.tile_job.store(TileJob.TAPS, e.b.ptrtoint(self.taps.value, I64))
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        first, end = blocks.int(self.panel_block), blocks.int(self.panel_block + 1)
        panels = self.plan + self.get(Job.PANELS)
        for index in e.range(first, end):
            following = panels + e.min(index + 1, end - 1) * len(Panel)
            self.tile_job.store(TileJob.LATER, self._weights_of(following))
            self._panel(panels + index * len(Panel))
        if in_tiles:
            give_back(e)

    def _weights_of(self, panel: Ptr) -> Int:
        return self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * _HALF

    def _panel(self, panel: Ptr) -> None:
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            v_range = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
            x_range = self.sizes + self.get(Job.X_RANGES) + panel.int(Panel.X_RANGE) * (X_RANGES * len(XRange))
            v = e.max(v_range.int(VRange.LOW), self.v0) - self.v0
            x = e.max(x_range.int(XRange.FIRST), self.x0) - self.x0
            height = e.min(v_range.int(VRange.HIGH), self.v1) - self.v0 - v
            length = e.min(x_range.int(XRange.LAST), self.x1) - self.x0 - x
            with e.when(e.b.and_(height > 0, length > 0)):
                by_position = self._set_up(panel)
                # Rows that a tile holds are taken together, one tile each.
                short = e.b.and_(e.b.not_(self.is_flat), length <= SIDE)
                single = e.b.or_(self.is_flat, short)
                count = e.select(self.is_flat, (height - 1) * self.line + length, length)
                tiles = e.select(short, height, (count + (SIDE - 1)) // SIDE)
                by_row = self.get(Job.SOURCE_V_STEP) * self.row_pitch
                for field, usual, apart in (
                    (TileJob.SOURCE_BY_TILE, self.x_step * (SIDE * LINE_BYTES), by_row * _HALF),
                    (TileJob.RESULT_BY_TILE, by_position * (SIDE * _FULL), by_position * self.line * _FULL),
                ):
                    self.tile_job.store(field, e.select(short, apart, usual))
                for image in e.range(self.images):
                    for line in e.range(e.select(single, 1, height)):
                        source = (v + line) * by_row + x * self.x_step * DEPTH
                        position = self._row(v_range.int(VRange.PHASE), image, v + line) + x
                        result = self.out + (position * by_position + panel.int(Panel.COLUMN))
                        self._run_line(panel, self.strip + (source + image * self.image_pitch), result, tiles)
            with e.when(panel.int(Panel.FLUSH).differs(0)):
                (self._put_channels if self.family.channels_first else self._put_pixels)(panel, offset)

    def _set_up(self, panel: Ptr) -> Int:
        """Tell the tiles what is the same for all lines of a panel. Returns the sums of a position."""
        by_position = self.steps[1] * panel.int(Panel.GROUP_WIDTH)
        taps = panel.int(Panel.INNER_COUNT) * panel.int(Panel.OUTER_COUNT)
        values = {
            TileJob.SOURCE_BY_ROW: self.x_step * LINE_BYTES,
            TileJob.SOURCE_BY_STEP: self.block_pitch * _HALF,
            TileJob.WEIGHTS: self._weights_of(panel),
            TileJob.WEIGHTS_BY_STEP: taps * panel.int(Panel.VECTORS) * TILE_BYTES,
            TileJob.RESULT_BY_ROW: by_position * _FULL,
            TileJob.STEPS: panel.int(Panel.RUN) // DEPTH,
            TileJob.TAP_COUNT: self._list_taps(panel),
        }
        for field, value in values.items():
            self.tile_job.store(field, value)
        return by_position

    def _list_taps(self, panel: Ptr) -> Int:
        """The list of taps, with distances in bytes: of the weights, those of a step lie together."""
        count, run = self.list_taps(panel), panel.int(Panel.RUN)
        for tap in self.e.range(count):
            self.taps.store(tap * 2, self.taps.int(tap * 2) * _HALF)
            self.taps.store(tap * 2 + 1, self.taps.int(tap * 2 + 1) // run * (DEPTH * _HALF))
        return count

    def _row(self, v_phase: Int, image: Int, v: Int) -> Int:
        """The first position of a row in the out strip."""
        return ((v_phase * self.images + image) * self.height + v) * self.line

    def _run_line(self, panel: Ptr, source: Ptr, result: Ptr, tiles: Int) -> None:
        """Call for as many tiles of positions at a time as there are registers for."""
        e, job, tables = self.e, self.tile_job, self.e.module.globals
        wide = panel.int(Panel.VECTORS).equals(2)
        most = e.select(wide, MOST_TILES // 2, MOST_TILES)
        functions = Ptr(e, e.b.select(wide, tables["tiles_2"], tables["tiles_1"]), PTR)
        for field, place in ((TileJob.SOURCE, source), (TileJob.RESULT, result)):
            job.store(field, e.b.ptrtoint(place.value, I64))
        for turn in e.range((tiles + most - 1) // most):
            e.call(Callee(functions.load(e.min(tiles - turn * most, most) - 1)), job)
            for field, by in (
                (TileJob.SOURCE, job.int(TileJob.SOURCE_BY_TILE) * most),
                (TileJob.RESULT, job.int(TileJob.RESULT_BY_TILE) * most),
                (TileJob.LATER, TileJob.fetched(job.int(TileJob.STEPS) * job.int(TileJob.TAP_COUNT))),
            ):
                job.store(field, job.int(field) + by)

    # -- the way out

    def _finished(self, e: Emitter, value: Any, bias: Any) -> Any:
        slope = None
        if self.family.activation == "leaky_relu":
            job = self.job if e is self.e else e.arg_ptr(7, I64)
            slope = slope_vector(e, job, Job.SLOPE_BITS, self.numbers)
        return activate(e, self.family.activation, e.b.fadd(value, bias), slope)

    @property
    def _rounds_in_hardware(self) -> bool:
        """Whether the processor's own way to bf16 will do: it takes what is subnormal for zero, which no sum is."""
        return self.is_guarded and self.family.activation in ("none", "relu")

    def _both_rounded(self, e: Emitter, first: Any, second: Any) -> Any:
        """Two vectors of results as halves, element by element in turn."""
        turns = [i // 2 + i % 2 * SIDE for i in range(DEPTH)]
        both = self._side_by_side(first, second, e)
        return e.b.shuffle_vector(both, both, ir.Constant(vector(I32, DEPTH), turns))

    def _side_by_side(self, first: Any, second: Any, e: Emitter | None = None) -> Any:
        """Two vectors of results as one of halves."""
        e = e or self.e
        if self._rounds_in_hardware:
            typ = vector(ir.BFloatType(), DEPTH)
            both = e.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", typ, (second, first))
            return e.b.bitcast(both, PIXEL)
        low, high = (e.b.bitcast(self.numbers.narrow(e, value), vector(I16, SIDE)) for value in (first, second))
        return e.b.shuffle_vector(low, high, ir.Constant(vector(I32, DEPTH), list(range(DEPTH))))

    def _rows_that_exist(self, panel: Ptr, offset: Int) -> Iterator[tuple[Ptr, Ptr, Int]]:
        """Of each row of the box that the result has: where it begins there and in the out strip, and its pixels."""
        e, (v_step, x_step) = self.e, self.steps
        x_first = self.x0 * x_step - self.get(Job.RESULT_X_BEGIN)
        v_first = self.v0 * v_step - self.get(Job.RESULT_V_BEGIN)
        top = e.max(0 - v_first, 0)
        bottom = e.min(self.get(Job.RESULT_V_SIZE) - v_first, self.height * v_step)
        low = e.max(0 - x_first, 0)
        pixels = e.min(self.get(Job.RESULT_X_SIZE) - x_first, self.length * x_step) - low
        pitch = panel.int(Panel.GROUP_WIDTH)
        result = e.ptr(self.get(Job.RESULT), I16) + offset
        result = result + panel.int(Panel.FLUSH_CHANNEL) * self.get(Job.RESULT_C_STRIDE)
        result = result + (x_first + low) * self.get(Job.RESULT_X_STRIDE)
        for image in e.range(self.images):
            first = result + (self.n0 + image) * self.get(Job.RESULT_N_STRIDE)
            for v in e.range(self.height):
                for phase in e.range(v_step):
                    row = v * v_step + phase
                    with e.when(e.b.and_(row >= top, row < bottom)):
                        line = self.out + (self._row(phase, image, v) * x_step + low) * pitch
                        yield first + (v_first + row) * self.get(Job.RESULT_V_STRIDE), line, pixels

    def _biases(self, panel: Ptr) -> Ptr:
        return self.e.ptr(self.get(Job.BIAS), self.numbers.computed) + panel.int(Panel.BIAS)

    def _put_channels(self, panel: Ptr, offset: Int) -> None:
        pitch, width = panel.int(Panel.GROUP_WIDTH), panel.int(Panel.FLUSH_WIDTH)
        stride, biases = self.get(Job.RESULT_C_STRIDE), self._biases(panel)
        for target, line, pixels in self._rows_that_exist(panel, offset):
            self.e.call(self.channels_out, target, stride, line, pitch, pixels, width, biases, self.job)

    def _put_pixels(self, panel: Ptr, offset: Int) -> None:
        """Whole lines of 32 channels, past the caches if that is asked for; fewer under a mask."""
        e, width, biases = self.e, panel.int(Panel.FLUSH_WIDTH), self._biases(panel)
        first, second = (biases.load(c, SIDE) for c in (0, SIDE))  # of a single vector, behind it lie others
        stride, pitch = self.get(Job.RESULT_X_STRIDE), panel.int(Panel.GROUP_WIDTH)
        exist = self._channels_below(width)
        for target, line, pixels in self._rows_that_exist(panel, offset):
            address = Int(e, e.b.ptrtoint(target.value, I64))
            past = e.select(width.equals(DEPTH), self.streamed(address, stride), 0).differs(0)

            def finished(x: Int, line: Ptr = line) -> Any:
                sums = [(line + (x * pitch + c)).load(0, SIDE) for c in (0, SIDE)]
                values = zip(sums, (first, second), strict=True)
                return self._side_by_side(*(self._finished(e, value, bias) for value, bias in values))

            with e.either(past) as (then, otherwise):
                with then:
                    for x in e.range(pixels, inner=True):
                        (target + x * stride).stream(0, finished(x))
                with otherwise:
                    for x in e.range(pixels, inner=True):
                        place, one = (target + x * stride).value, ir.Constant(I32, 1)
                        e.intrinsic(f"llvm.masked.store.{mangle(PIXEL)}.p0", VOID, (finished(x), place, one, exist))

    def _channels_below(self, count: Int) -> Any:
        """A mask of so many channels."""
        e, lanes = self.e, ir.Constant(PIXEL, list(range(DEPTH)))
        return e.b.icmp_signed("<", lanes, e.splat(e.b.trunc(count.value, I16), DEPTH))


def _emit_pack(module: Any, dtype: str) -> None:
    """Emits `pack(job, task, slot)`: a panel becomes [step][tap][vector] tiles of 1 KiB, padded with zeros.

    A tile is [pair of channels][column][2].
    """
    e = Emitter(module, "pack", [PTR, I64, I64])
    job, task = e.arg_ptr(0, I64), e.arg_int(1)
    panel = e.ptr(job.int(Pack.PANELS), I64) + task * len(PackPanel)
    source = e.ptr(job.int(Pack.SOURCE), I16) + panel.int(PackPanel.SOURCE)
    packed = e.ptr(job.int(Pack.PACKED), I16) + panel.int(PackPanel.PACKED)
    step_offsets = e.ptr(job.int(Pack.STEPS), I64) + panel.int(PackPanel.STEPS_FIRST)
    column_offsets = e.ptr(job.int(Pack.COLUMNS), I64) + panel.int(PackPanel.COLUMNS_FIRST)
    taps, columns, width = (panel.int(f) for f in (PackPanel.STEPS, PackPanel.COLUMNS, PackPanel.WIDTH))
    channels, channel_stride, window = (job.int(f) for f in (Pack.CHANNELS, Pack.CHANNEL_STRIDE, Pack.WINDOW))
    blocks, steps = (channels * window + (DEPTH - 1)) // DEPTH, taps
    taps = steps // window
    for i in e.range(0, taps * blocks * DEPTH * width, DEPTH):
        packed.store(i, constant(PIXEL, 0))
    largest = e.var(0)
    for channel in e.range(channels):
        for step in e.range(steps):
            tap, place = step // window, step % window * channels + channel
            block, inside = place // DEPTH, place % DEPTH
            values = source + (channel * channel_stride + step_offsets.int(step))
            tiles = packed + ((block * taps + tap) * (width * DEPTH) + inside // 2 * (2 * SIDE) + inside % 2)
            for column in e.range(e.select(step_offsets.int(step) < 0, 0, columns)):
                value = values.load(column_offsets.int(column))
                tiles.store(column // SIDE * (TILE_BYTES // _HALF) + column % SIDE * 2, value)
                size = Int(e, e.b.zext(e.b.and_(value, ir.Constant(I16, 0x7FFF)), I64))
                largest.set(e.max(largest.get(), size))
    infinite = {"bf16": 0x7F80, "f16": 0x7C00}[dtype]
    e.ptr(job.int(Pack.NOT_FINITE), I64).store(task, e.select(largest.get() >= infinite, 1, 0))
    e.ret()
