"""The box of positions that one task works on: finding it, filling its source strip, flushing its results.

Every kernel family walks the same boxes. A family adds what happens between the filled strip and the stored result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unstride._lazy import lazy
from unstride.codegen.emit import I8, I64, PTR, VOID, Emitter, Int, Ptr, size_of
from unstride.codegen.numbers import Numbers
from unstride.codegen.strips import emit_copy, emit_transpose, emit_transpose_past, emit_zero
from unstride.plan.job import Job, Outer, Panel
from unstride.plan.machine import LINE_BYTES

__all__ = ["Box"]

_FLUSHED = 128  # pixels of the out strip that stay in L1 while their channels are written, some after the others


class Box:
    """Emits `run(job, task, slot)` up to the filled strip; subclasses emit the rest."""

    narrow: Any  # set by subclasses that flush to pixel-major memory
    flushes_past = False  # whether channel-major results may go past the caches

    def __init__(
        self, module: Any, numbers: Numbers, *, channel_major: bool, strip_numbers: Numbers | None = None
    ) -> None:
        """`strip_numbers`: what the strip is filled with, where that is not computed numbers."""
        self.numbers, self.channel_major = numbers, channel_major
        self.strip_numbers = strip_numbers or numbers
        self.zero = emit_zero(module, self.strip_numbers)
        if channel_major:
            self.gather = emit_transpose(module, "transpose_in", numbers, widen=True)
            same = numbers.stored is numbers.computed  # then one function serves both ways
            self.scatter = self.gather if same else emit_transpose(module, "transpose_out", numbers, widen=False)
        self.e = Emitter(module, "run", [PTR, I64, I64])
        self.job = self.e.arg_ptr(0, I64)
        self.plan = self.e.ptr(self.get(Job.PLAN), I64)
        self.sizes = self.e.ptr(self.get(Job.SIZES), I64)
        self._decode(self.e.arg_int(1))
        scratch = self.get(Job.SCRATCH) + self.e.arg_int(2) * self.get(Job.SCRATCH_PER_SLOT)
        self.scratch = self.e.ptr(scratch, I64)
        self.strip = self.scratch_at(Job.OFFSET_STRIP, self.strip_numbers.computed)
        self.out = self.scratch_at(Job.OFFSET_OUT, numbers.computed)
        self.planes_alive = self.scratch_at(Job.OFFSET_TAPS, I64)
        self.plane_offsets = self.planes_alive + self.get(Job.PLANE_COUNT)
        self.taps = self.plane_offsets + self.get(Job.PLANE_COUNT)

    @lazy
    def past(self) -> Any:
        """`transpose_past`, for those who need it."""
        return emit_transpose_past(self.e.module, self.numbers)

    @lazy
    def copy(self) -> Any:
        """`copy`, for those who need it."""
        return emit_copy(self.e.module, self.strip_numbers)

    def done(self) -> None:
        """The end of a task: what was streamed becomes visible before the task counts as done."""
        e = self.e
        if self.numbers.isa.streams:
            e.intrinsic("llvm.x86.sse.sfence", VOID, ())
        e.ret()

    def streamed(self, first: Int, *distances: Int) -> Int:
        """1 if the result is to be streamed, and what lies at these distances from this address starts on a line."""
        e, apart = self.e, distances[0]
        for distance in distances[1:]:
            apart = apart | distance
        off_line = (first & (LINE_BYTES - 1)) | (apart & (LINE_BYTES // size_of(self.numbers.stored) - 1))
        return e.select(off_line.equals(0), self.get(Job.STREAM), 0)

    def get(self, field: Job) -> Int:
        return self.job.int(field)

    def scratch_at(self, field: Job, element: Any) -> Ptr:
        """A region of this slot's scratch."""
        return (self.scratch.as_type(I8) + self.get(field)).as_type(element)

    def panels(self) -> Any:
        """Loop over the panels of this task."""
        blocks = self.sizes + self.get(Job.PANEL_BLOCKS)
        for index in self.e.range(blocks.int(self.panel_block), blocks.int(self.panel_block + 1)):
            yield self.plan + self.get(Job.PANELS) + index * len(Panel)

    # -- which box this task is

    def _decode(self, task: Int) -> None:
        e, (self.n0, (self.v0, self.v1), self.x0, rest) = self.e, self.unit_of(task)
        outer_positions = self.get(Job.OUTER_POSITIONS)
        self.outer_index, self.panel_block = rest % outer_positions, rest // outer_positions
        self.x1 = e.min(self.x0 + self.get(Job.X_UNIT), self.get(Job.X_HIGH))
        self.images = e.min(self.get(Job.IMAGES_PER_UNIT), self.get(Job.IMAGES) - self.n0)

    def unit_of(self, task: Int) -> tuple[Int, tuple[Int, Int], Int, Int]:
        """The first image, the first and the end of the positions along v, the first one along x; what is left of the
        number is outer positions and blocks of panels."""
        x_blocks, v_blocks, n_blocks = (self.get(f) for f in (Job.X_BLOCKS, Job.V_BLOCKS, Job.N_BLOCKS))
        # Panels change slowest: a core that takes task after task finds their weights still in its cache.
        x_block, rest = task % x_blocks, task // x_blocks
        v_block, rest = rest % v_blocks, rest // v_blocks
        n_block, rest = rest % n_blocks, rest // n_blocks
        starts = self.sizes + self.get(Job.V_STARTS)
        v = starts.int(v_block), starts.int(v_block + 1)
        x = self.get(Job.X_LOW) + x_block * self.get(Job.X_UNIT)
        return n_block * self.get(Job.IMAGES_PER_UNIT), v, x, rest

    def geometry(self) -> None:
        """Sizes of the strips, in elements."""
        self.source_v = self.v0 * self.get(Job.SOURCE_V_STEP) + self.get(Job.SOURCE_V_FIRST)
        self.source_x = self.x0 * self.get(Job.SOURCE_X_STEP) + self.get(Job.SOURCE_X_FIRST)
        self.rows = (self.v1 - self.v0 - 1) * self.get(Job.SOURCE_V_STEP) + self.get(Job.SOURCE_V_SPAN)
        self.columns = (self.x1 - self.x0 - 1) * self.get(Job.SOURCE_X_STEP) + self.get(Job.SOURCE_X_SPAN)
        self.pixel_pitch = self.get(Job.PIXEL_PITCH)
        self.row_pitch = self.columns * self.pixel_pitch
        self.plane_pitch = self.rows * self.row_pitch
        self.image_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
        self.out_columns = (self.x1 - self.x0 - 1) * self.get(Job.RESULT_X_STEP) + self.get(Job.RESULT_X_REACH)
        self.out_rows = (self.v1 - self.v0 - 1) * self.get(Job.RESULT_V_STEP) + self.get(Job.RESULT_V_REACH)

    def fetch_in(self, turns: Int, rows: Int, by_channel: bool) -> Callable[[], None]:
        """What fetches, in so many turns, the source of the task that this thread is likely to take next: memory has
        the time of all products to bring it. Rows are whole, so those of a unit are one run; of each channel, where
        channels come first."""
        e, get = self.e, self.get
        task = e.arg_int(1) + get(Job.TASKS_AHEAD)
        tasks = get(Job.V_BLOCKS) * get(Job.N_BLOCKS) * get(Job.P_BLOCKS)
        n, (v, _), _, _ = self.unit_of(task)
        first = e.max(v * get(Job.SOURCE_V_STEP) + get(Job.SOURCE_V_FIRST), 0)
        rows = e.min(rows, get(Job.SOURCE_V_SIZE) - first)
        start = e.ptr(get(Job.SOURCE), self.numbers.stored)
        start = start + (n * get(Job.SOURCE_N_STRIDE) + first * get(Job.SOURCE_V_STRIDE))
        line = LINE_BYTES // size_of(self.numbers.stored)
        length = rows * get(Job.SOURCE_V_STRIDE)
        runs, step = self.images, get(Job.SOURCE_N_STRIDE)
        if by_channel:
            runs, step = runs * get(Job.CHANNELS), get(Job.SOURCE_C_STRIDE)
        by_run = (length + (line - 1)) // line
        wanted = e.b.and_(get(Job.TASKS_AHEAD).differs(0), task < tasks)
        lines = e.var(e.select(wanted, runs * by_run, 0))
        share = (lines.get() + (turns - 1)) // turns
        place, of_run = e.var(0), e.var(by_run)

        def fetch() -> None:
            count = e.min(share, lines.get())
            lines.set(lines.get() - count)
            for _ in e.range(count):
                e.fetch(start + place.get(), near=False)
                over = of_run.get().equals(1)
                place.set(place.get() + e.select(over, step - (by_run - 1) * line, line))
                of_run.set(e.select(over, by_run, of_run.get() - 1))

        return fetch

    # -- filling the strip

    def fill(self) -> None:
        e = self.e
        planes = self.plan + self.get(Job.PLANES)
        count = self.get(Job.OUTER_COUNT)
        whole = self._in_whole_rows()
        # Ascending addresses: zeroing may run over into what is filled next, never into what is done.
        for image in e.range(self.images):
            source = e.ptr(self.get(Job.SOURCE), self.numbers.stored)
            source = source + (self.n0 + image) * self.get(Job.SOURCE_N_STRIDE)
            for plane in e.range(self.get(Job.PLANE_COUNT)):
                offset, alive = self._outer_offset(planes + plane * count)
                self.planes_alive.store(plane, alive)
                self.plane_offsets.store(plane, plane * self.plane_pitch)
                with e.when(alive.differs(0)):
                    target = self.strip + (image * self.image_pitch + plane * self.plane_pitch)
                    with e.either(whole) as (then, otherwise):
                        with then:
                            first = source + (offset + self.source_v * self.get(Job.SOURCE_V_STRIDE))
                            self._fill_pixels(target, first, self.rows * self.columns)
                        with otherwise:
                            for row in e.range(self.rows):
                                self._fill_row(target + row * self.row_pitch, source + offset, self.source_v + row)

    def _in_whole_rows(self) -> Any:
        """Whether the box has no padding and all columns: then its rows are one long row."""
        e, rows = self.e, self._rows_inside()
        columns = e.b.and_(self.source_x.equals(0), self.columns.equals(self.get(Job.SOURCE_X_SIZE)))
        return e.b.and_(rows, columns)

    def _rows_inside(self) -> Any:
        """Whether all rows of the box exist."""
        return self.e.b.and_(self.source_v >= 0, self.source_v + self.rows <= self.get(Job.SOURCE_V_SIZE))

    def list_planes(self) -> None:
        """What `fill` notes of the planes, when they are read where they lie."""
        planes, count = self.plan + self.get(Job.PLANES), self.get(Job.OUTER_COUNT)
        for plane in self.e.range(self.get(Job.PLANE_COUNT)):
            offset, alive = self._outer_offset(planes + plane * count)
            self.planes_alive.store(plane, alive)
            self.plane_offsets.store(plane, offset)

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
        if self.channel_major:
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

    # -- the taps of a panel

    def list_taps(self, panel: Ptr) -> Int:
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
                base = self.plane_offsets.int(plane) + self.channel_offset(panel)
                for i in e.range(inner_count):
                    a_v, a_x = inner.int(i * 2), inner.int(i * 2 + 1)
                    v, x = self.source_v + a_v, self.source_x + a_x
                    v_real = e.b.and_(v >= 0, v < self.get(Job.SOURCE_V_SIZE))
                    x_real = e.b.and_(x >= 0, x < self.get(Job.SOURCE_X_SIZE))
                    skip_v = e.b.and_(one_row, e.b.not_(v_real))
                    single = e.b.and_(one_column, self.has_single_taps(panel))
                    skip = e.b.or_(skip_v, e.b.and_(single, e.b.not_(x_real)))
                    with e.when(e.b.not_(skip)):
                        at = count.get() * 2
                        self.taps.store(at, base + a_v * self.row_pitch + a_x * self.pixel_pitch)
                        self.taps.store(at + 1, (o * inner_count + i) * step)
                        count.set(count.get() + 1)
        return count.get()

    def has_single_taps(self, panel: Ptr) -> Any:
        """Whether taps along x are not joined into runs."""
        return panel.int(Panel.RUN) <= self.get(Job.CHANNELS)

    def channel_offset(self, panel: Ptr) -> Int:
        """Where in a pixel of the strip the channels begin that a panel reads."""
        return panel.int(Panel.CHANNEL)

    # -- the result

    def result_offset(self, panel: Ptr) -> tuple[Int, Int]:
        """Result offset of a panel's outer phase at this task's outer position, and 1 if it is inside the result."""
        return self.phase_offset(panel.int(Panel.OUTER_PHASE))

    def phase_offset(self, phase: Int) -> tuple[Int, Int]:
        """The same, of an outer phase by its number."""
        e = self.e
        offset, alive, rest = e.var(0), e.var(1), e.var(self.outer_index)
        count = self.get(Job.OUTER_COUNT)
        phases = self.plan + self.get(Job.OUTER_PHASES) + phase * count
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

    # -- the out strip

    def start_out(self, panel: Ptr) -> None:
        """Where not every element of the out strip will be computed, let it start as the activated bias."""
        e = self.e
        with e.when(e.b.and_(panel.int(Panel.START).differs(0), self.get(Job.HOLES).differs(0))):
            self.start_with(Job.REST, panel)

    def start_with(self, field: Job, panel: Ptr) -> None:
        """Every pixel of the out strip starts with these values of the panel's columns."""
        e, width, lanes = self.e, panel.int(Panel.GROUP_WIDTH), self.numbers.lanes
        values = e.ptr(self.get(field), self.numbers.computed) + panel.int(Panel.BIAS)
        for pixel in e.range(self.images * self.out_rows * self.out_columns):
            line = self.out + pixel * width
            # Ascending, so a vector may run over into the next pixel.
            for column in e.range(0, width, lanes):
                line.store(column, values.load(column, lanes))

    def flush(self, panel: Ptr, offset: Int) -> None:
        """Transpose the out strip into the result: rows and columns outside the result stay behind."""
        e = self.e
        pitch, width = panel.int(Panel.GROUP_WIDTH), panel.int(Panel.FLUSH_WIDTH)
        x_first = self.x0 * self.get(Job.RESULT_X_STEP) - self.get(Job.RESULT_X_BEGIN)
        left = e.min(e.max(0 - x_first, 0), self.out_columns)
        right = e.min(self.get(Job.RESULT_X_SIZE) - x_first, self.out_columns)
        v_first = self.v0 * self.get(Job.RESULT_V_STEP) - self.get(Job.RESULT_V_BEGIN)
        c_stride = self.get(Job.RESULT_C_STRIDE)
        result = e.ptr(self.get(Job.RESULT), self.numbers.stored) + offset
        result = result + panel.int(Panel.FLUSH_CHANNEL) * c_stride + (x_first + left) * self.get(Job.RESULT_X_STRIDE)
        top = e.min(e.max(0 - v_first, 0), self.out_rows)
        bottom = e.max(e.min(self.get(Job.RESULT_V_SIZE) - v_first, self.out_rows), top)
        # Whole rows are one long row.
        whole = e.b.and_((right - left).equals(self.get(Job.RESULT_X_SIZE)), (right - left).equals(self.out_columns))
        together = e.select(whole, bottom - top, 1)
        with e.when(right > left):
            for image in e.range(self.images):
                for index in e.range(e.select(whole, 1, bottom - top)):
                    row = top + index
                    at = (self.n0 + image) * self.get(Job.RESULT_N_STRIDE)
                    at = at + (v_first + row) * self.get(Job.RESULT_V_STRIDE)
                    start = ((image * self.out_rows + row) * self.out_columns + left) * pitch
                    self._flush_line(result + at, c_stride, self.out + start, pitch, (right - left) * together, width)

    def _flush_line(self, target: Ptr, c_stride: Int, source: Ptr, pitch: Int, pixels: Int, width: Int) -> None:
        e = self.e
        if self.channel_major:
            self._flush_lines(target, c_stride, source, pitch, pixels, width)
            return
        stride = self.get(Job.RESULT_X_STRIDE)
        dense = e.b.and_(stride.equals(width), pitch.equals(width))
        run = e.select(dense, pixels, 1)  # pixels that lie side by side
        for pixel in e.range(e.select(dense, 1, pixels)):
            e.call(self.narrow, target + pixel * stride, source + pixel * pitch, run * width)

    def _flush_lines(self, target: Ptr, c_stride: Int, source: Ptr, pitch: Int, pixels: Int, width: Int) -> None:
        """Past the caches, if that is asked for: then the channels of the result are whole lines apart."""
        e, lanes, isa = self.e, self.numbers.lanes, self.numbers.isa
        keep = self._flush_in_blocks if isa.vector_bytes < LINE_BYTES else self._flush_at_once
        if not self.flushes_past or self.numbers.stored is not self.numbers.computed or not isa.streams:
            keep(target, c_stride, source, pitch, pixels, width)
            return
        long = e.b.and_(pixels >= LINE_BYTES // size_of(self.numbers.stored), width >= lanes)
        past = e.b.and_(long, self.get(Job.STREAM).differs(0))
        with e.either(past) as (then, otherwise):
            with then:
                e.call(self.past, target, c_stride, source, pitch, pixels, width)
            with otherwise:
                keep(target, c_stride, source, pitch, pixels, width)

    def _flush_at_once(self, target: Ptr, c_stride: Int, source: Ptr, pitch: Int, pixels: Int, width: Int) -> None:
        self.e.call(self.scatter, target, c_stride, source, pitch, pixels, width)

    def _flush_in_blocks(self, target: Ptr, c_stride: Int, source: Ptr, pitch: Int, pixels: Int, width: Int) -> None:
        """As many channels at a time as a vector has lanes: the rest of each line comes next, while it is at hand."""
        e, lanes = self.e, self.numbers.lanes
        count = e.min(width, lanes)
        # The last block takes along what would not fill a vector.
        for pixel in e.range(0, e.max(pixels - (lanes - 1), 1), _FLUSHED):
            rest = pixels - pixel
            run = e.select(rest < _FLUSHED + lanes, rest, _FLUSHED)
            for channel in e.range(0, width, lanes):
                first = e.min(channel, width - count)
                to, line = target + (first * c_stride + pixel), source + (pixel * pitch + first)
                e.call(self.scatter, to, c_stride, line, pitch, run, count)
