"""The direct kernel in bands: positions at which the same taps read the source are computed together.

Along each axis a tap comes in at one position and goes out at another; between two such borders lies a band. In the
crossing of two bands the list of taps is the same for all positions, and padding is neither filled nor multiplied.
"""

from __future__ import annotations

from unstride.codegen.clipped import UnpaddedDriver
from unstride.codegen.emit import Int, Ptr
from unstride.codegen.tile import TileArgs
from unstride.plan.job import X_RANGES, Job, Panel, TapRange, VRange, XRange

__all__ = ["BandedDriver"]


class BandedDriver(UnpaddedDriver):
    def panel(self, panel: Ptr) -> None:
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            size = self.numbers.isa.vector_bytes // self.numbers.lanes
            self.tile_args.store(TileArgs.RUN, panel.int(Panel.RUN))
            self.tile_args.store(TileArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
            self.tile_args.store(TileArgs.BIAS, self.get(Job.BIAS) + panel.int(Panel.BIAS) * size)
            self.tile_args.store(TileArgs.LOW, e.int(0))
            self.tile_args.store(TileArgs.HIGH, panel.int(Panel.COLUMNS))
            self._bands(panel, offset)
            if self.channel_major:
                with e.when(panel.int(Panel.FLUSH).differs(0)):
                    self.flush(panel, offset)

    def _bands(self, panel: Ptr, offset: Int) -> None:
        e = self.e
        v_range = self.sizes + self.get(Job.V_RANGES) + panel.int(Panel.V_RANGE) * len(VRange)
        x_range = self.sizes + self.get(Job.X_RANGES) + panel.int(Panel.X_RANGE) * (X_RANGES * len(XRange))
        taps = self.sizes + self.get(Job.TAP_RANGES) + panel.int(Panel.INNER_FIRST) * len(TapRange)
        place = self.place(panel, v_range.int(VRange.PHASE), offset)
        self.stream_to(place)
        v_end = e.min(v_range.int(VRange.HIGH), self.v1)
        x_end = e.min(x_range.int(XRange.LAST), self.x1)
        v_next = e.var(e.max(v_range.int(VRange.LOW), self.v0))
        for v in e.while_below(v_next, v_end):
            below = self._band_end(panel, taps, TapRange.V_LOW, v, v_end)
            x_next = e.var(e.max(x_range.int(XRange.FIRST), self.x0))
            for x in e.while_below(x_next, x_end):
                right = self._band_end(panel, taps, TapRange.X_LOW, x, x_end)
                self.tile_args.store(TileArgs.TAP_COUNT, self._list_taps_at(panel, taps, v, x))
                self.run_tiles(panel, place, (v, below), (x, right))
                x_next.set(right)
            v_next.set(below)

    def _band_end(self, panel: Ptr, taps: Ptr, low: TapRange, start: Int, end: Int) -> Int:
        """Where, after `start`, the next tap comes in or goes out."""
        e, found = self.e, self.e.var(end)
        for i in e.range(panel.int(Panel.INNER_COUNT)):
            for border in (taps.int(i * len(TapRange) + low), taps.int(i * len(TapRange) + low + 1)):
                found.set(e.select(border > start, e.min(border, found.get()), found.get()))
        return found.get()

    def _list_taps_at(self, panel: Ptr, taps: Ptr, v: Int, x: Int) -> Int:
        """The taps that read the source at this position, and so at all of its bands."""
        e, count = self.e, self.e.var(0)
        inner_count = panel.int(Panel.INNER_COUNT)
        inner = self.plan + self.get(Job.INNER_TAPS) + panel.int(Panel.INNER_FIRST) * 2
        outer = self.plan + self.get(Job.OUTER_TAPS) + panel.int(Panel.OUTER_FIRST)
        step = panel.int(Panel.RUN) * panel.int(Panel.VECTORS) * self.numbers.lanes
        for o in e.range(panel.int(Panel.OUTER_COUNT)):
            plane = outer.int(o)
            with e.when(self.planes_alive.int(plane).differs(0)):
                base = self.plane_offsets.int(plane) + panel.int(Panel.CHANNEL)
                for i in e.range(inner_count):
                    lives = taps + i * len(TapRange)
                    rows = e.b.and_(v >= lives.int(TapRange.V_LOW), v < lives.int(TapRange.V_HIGH))
                    columns = e.b.and_(x >= lives.int(TapRange.X_LOW), x < lives.int(TapRange.X_HIGH))
                    with e.when(e.b.and_(rows, columns)):
                        at = count.get() * 2
                        shift = inner.int(i * 2) * self.row_pitch + inner.int(i * 2 + 1) * self.pixel_pitch
                        self.taps.store(at, base + shift)
                        self.taps.store(at + 1, (o * inner_count + i) * step)
                        count.set(count.get() + 1)
        return count.get()
