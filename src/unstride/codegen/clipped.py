"""The direct kernel without padding: taps one by one, each over the positions at which it reads the source.

Sums wait in the out strip between taps; bias and activation come when all are added. Padding is neither filled nor
multiplied, which weights that are not finite need, and by which small maps under wide kernels gain.
"""

from __future__ import annotations

from typing import Any

from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.direct import DirectDriver, DirectFamily
from unstride.codegen.emit import Int, Ptr
from unstride.codegen.numbers import Numbers
from unstride.codegen.strips import emit_narrow
from unstride.codegen.tile import TileArgs
from unstride.plan.job import X_RANGES, Job, Panel, TapRange, VRange, XRange

__all__ = ["ClippedDriver", "UnpaddedDriver"]


class UnpaddedDriver(DirectDriver):
    """Drivers that never read padding."""

    def reach_source(self) -> None:
        """The strip holds only what exists, or nothing at all where the source can be read in place."""
        e = self.e
        first_v, first_x = self.first_v, self.first_x = self.source_v, self.source_x
        self.source_v, self.source_x = e.max(first_v, 0), e.max(first_x, 0)
        self.rows = e.max(e.min(first_v + self.rows, self.get(Job.SOURCE_V_SIZE)) - self.source_v, 0)
        self.columns = e.max(e.min(first_x + self.columns, self.get(Job.SOURCE_X_SIZE)) - self.source_x, 0)
        self.row_pitch = self.columns * self.pixel_pitch
        self.plane_pitch = self.rows * self.row_pitch
        self.image_pitch = self.get(Job.PLANE_COUNT) * self.plane_pitch
        if self.channel_major or self.numbers.stored is not self.numbers.computed:
            in_place = e.int(0).differs(0)
        else:
            in_place = self.get(Job.IN_PLACE).differs(0)
        with e.when(e.b.not_(in_place)):
            self.fill()
        with e.when(in_place):
            self.list_planes()
        n, v, x = (self.get(f) for f in (Job.SOURCE_N_STRIDE, Job.SOURCE_V_STRIDE, Job.SOURCE_X_STRIDE))
        pitches = (self.image_pitch, self.row_pitch, self.pixel_pitch)
        self.image_pitch, self.row_pitch, self.pixel_pitch = (
            e.select(in_place, stride, pitch) for stride, pitch in zip((n, v, x), pitches, strict=True)
        )
        # Both bases are where the box's first source pixel would be, existing or not.
        missing = (self.source_v - first_v) * self.row_pitch + (self.source_x - first_x) * self.pixel_pitch
        strip = self.strip + (0 - missing)
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + (self.n0 * n + first_v * v + first_x * x)
        self.strip = Ptr(e, e.b.select(in_place, source.value, strip.value), self.numbers.computed)

    def _in_whole_rows(self) -> Any:
        """All that is filled exists."""
        return self.columns.equals(self.get(Job.SOURCE_X_SIZE))

    def _fill_row(self, target: Ptr, source: Ptr, v: Int) -> None:
        """All of the row exists."""
        first = v * self.get(Job.SOURCE_V_STRIDE) + self.source_x * self.get(Job.SOURCE_X_STRIDE)
        self._fill_pixels(target, source + first, self.columns)


class ClippedDriver(UnpaddedDriver):
    def __init__(self, module: Any, numbers: Numbers, family: DirectFamily) -> None:
        self.narrow = emit_narrow(module, numbers)
        super().__init__(module, numbers, family)

    def panel(self, panel: Ptr) -> None:
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            with e.when(panel.int(Panel.START).differs(0)):
                pixels = self.images * self.out_rows * self.out_columns
                e.call(self.zero, self.out, pixels * panel.int(Panel.GROUP_WIDTH))
            size = self.numbers.isa.vector_bytes // self.numbers.lanes
            self.tile_args.store(TileArgs.RUN, panel.int(Panel.RUN))
            self.tile_args.store(TileArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
            self._add_taps(panel)
            with e.when(panel.int(Panel.FLUSH).differs(0)):
                self._finish(panel)
                self.flush(panel, offset)

    def _add_taps(self, panel: Ptr) -> None:
        e = self.e
        v_range = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
        x_range = self.sizes + self.get(Job.X_RANGES) + panel.int(Panel.X_RANGE) * (X_RANGES * len(XRange))
        place = self.place(panel, v_range.int(VRange.PHASE), e.int(0))
        first, count = panel.int(Panel.INNER_FIRST), panel.int(Panel.INNER_COUNT)
        inner = self.plan + self.get(Job.INNER_TAPS) + first * 2
        ranges = self.sizes + self.get(Job.TAP_RANGES) + first * len(TapRange)
        outer = self.plan + self.get(Job.OUTER_TAPS) + panel.int(Panel.OUTER_FIRST)
        step = panel.int(Panel.RUN) * panel.int(Panel.VECTORS) * self.numbers.lanes
        v_span = (v_range.int(VRange.LOW), v_range.int(VRange.HIGH), self.v0, self.v1)
        x_span = (x_range.int(XRange.FIRST), x_range.int(XRange.LAST), self.x0, self.x1)
        for o in e.range(panel.int(Panel.OUTER_COUNT)):
            plane = outer.int(o)
            with e.when(self.planes_alive.int(plane).differs(0)):
                for i in e.range(count):
                    shift = inner.int(i * 2) * self.row_pitch + inner.int(i * 2 + 1) * self.pixel_pitch
                    self.taps.store(0, self.plane_offsets.int(plane) + panel.int(Panel.CHANNEL) + shift)
                    self.taps.store(1, (o * count + i) * step)
                    lives = ranges + i * len(TapRange)
                    rows = self._overlap(v_span, lives.int(TapRange.V_LOW), lives.int(TapRange.V_HIGH))
                    columns = self._overlap(x_span, lives.int(TapRange.X_LOW), lives.int(TapRange.X_HIGH))
                    self.run_tiles(panel, place, rows, columns)

    def _overlap(self, span: tuple[Int, Int, Int, Int], low: Int, high: Int) -> tuple[Int, Int]:
        """Where the panel, the box and the tap all live."""
        e = self.e
        return e.max(e.max(span[0], span[2]), low), e.min(e.min(span[1], span[3]), high)

    def _finish(self, panel: Ptr) -> None:
        """Bias and activation, over the whole out strip."""
        e, lanes = self.e, self.numbers.lanes
        bias = e.ptr(self.get(Job.BIAS), self.numbers.computed) + panel.int(Panel.BIAS)
        width, kind = panel.int(Panel.GROUP_WIDTH), self.family.activation
        slope = slope_vector(e, self.job, Job.SLOPE_BITS, self.numbers) if kind == "leaky_relu" else None
        for c in e.range(0, width, lanes):
            shift = bias.load(c, lanes)
            for pixel in e.range(self.images * self.out_rows * self.out_columns):
                at = self.out + (pixel * width + c)
                at.store(0, activate(e, kind, e.b.fadd(at.load(0, lanes), shift), slope))
