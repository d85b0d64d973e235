"""A channel-major strip: the lines of a box as they lie in NCX memory, padded and widened."""

from __future__ import annotations

from typing import Any

from unstride.codegen.box import Box
from unstride.codegen.emit import Int, Ptr
from unstride.codegen.numbers import Numbers
from unstride.codegen.strips import emit_apart, emit_padded
from unstride.plan.across import SLACK
from unstride.plan.job import Job, Panel

__all__ = ["LineStrip"]


class LineStrip(Box):
    """A box whose strip is [channel][plane][row][x]; subclasses say how far its rows, planes and channels are apart."""

    flat: Any = None  # whether rows are one run, in the source and in the strip; None if they never are
    channel_pitch: Int

    def __init__(self, module: Any, numbers: Numbers, parts: int = 0) -> None:
        """`parts`: into how many the pixels of a line are put, by their residue; 0 if lines may be no whole vectors."""
        self.parts = parts
        if parts:
            self.padded = emit_apart(module, numbers, parts)
        elif numbers.masked_loads:
            self.padded = emit_padded(module, numbers)
        super().__init__(module, numbers, channel_major=False)

    def fill_group(self, panel: Ptr, image: Int) -> None:
        """Fill the strip with the channels that a panel reads."""
        e = self.e
        end = self.strip + panel.int(Panel.RUN) * self.channel_pitch
        e.call(self.zero, end, e.int(SLACK * self.numbers.lanes))
        source = e.ptr(self.get(Job.SOURCE), self.numbers.stored) + image * self.get(Job.SOURCE_N_STRIDE)
        for c in e.range(panel.int(Panel.RUN)):
            channel = source + (panel.int(Panel.CHANNEL) + c) * self.get(Job.SOURCE_C_STRIDE)
            for plane in e.range(self.get(Job.PLANE_COUNT)):
                with e.when(self.planes_alive.int(plane).differs(0)):
                    target = self.strip + (c * self.channel_pitch + plane * self.plane_pitch)
                    start = channel + self.plane_offsets.int(plane)
                    self._fill_plane(target, start)

    def _fill_plane(self, target: Ptr, source: Ptr) -> None:
        """Fill the lines of a channel of the box."""
        if self.flat is None:
            self._fill_padded(target, source)
            return
        with self.e.either(self.flat) as (then, otherwise):
            with then:
                self._fill_flat(target, source)
            with otherwise:
                self._fill_padded(target, source)

    def _fill_flat(self, target: Ptr, source: Ptr) -> None:
        """Lines that are one run."""
        e, first, count = self.e, self.source_v * self.get(Job.SOURCE_V_STRIDE), self.rows * self.columns
        e.call(self.copy, target, source + first, count)
        e.call(self.zero, target + count, self.plane_pitch - count)

    def _fill_padded(self, target: Ptr, source: Ptr) -> None:
        """Lines with zeros around them, and for rows that do not exist."""
        e = self.e
        top = e.min(e.max(0 - self.source_v, 0), self.rows)
        bottom = e.max(e.min(self.get(Job.SOURCE_V_SIZE) - self.source_v, self.rows), top)
        with e.when(top > 0):
            e.call(self.zero, target, top * self.row_pitch)
        self.fill_lines(target + top * self.row_pitch, source, self.source_v + top, bottom - top)
        with e.when(bottom < self.rows):
            e.call(self.zero, target + bottom * self.row_pitch, (self.rows - bottom) * self.row_pitch)

    def fill_lines(self, target: Ptr, source: Ptr, v: Int, count: Int) -> None:
        """Fill so many lines of a channel, from source row v on; they exist, but not all of their columns may."""
        e, stride = self.e, self.get(Job.SOURCE_V_STRIDE)
        left = e.min(e.max(0 - self.source_x, 0), self.columns)
        right = e.max(e.min(self.get(Job.SOURCE_X_SIZE) - self.source_x, self.columns), left)
        line = source + v * stride
        if self.numbers.masked_loads or self.parts:
            e.call(self.padded, target, line + self.source_x, left, right, self.row_pitch, count, stride)
            return
        for row in e.range(count):
            self._fill_line(target + row * self.row_pitch, line + row * stride, left, right)

    def _fill_line(self, target: Ptr, source: Ptr, left: Int, right: Int) -> None:
        e = self.e
        with e.when(left > 0):
            e.call(self.zero, target, left)
        with e.when(right > left):
            e.call(self.copy, target + left, source + (self.source_x + left), right - left)
        # To the end of the last vector: what happens to lie there may be subnormal, which is slow to multiply.
        e.call(self.zero, target + right, self.row_pitch - right)
