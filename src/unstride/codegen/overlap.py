"""Products of whole patches, and their sums: the driver of `plan.overlap`.

per box: start the out strip with the bias; per panel: products [pixel][column] of the pixels that exist;
         add the patch of every pixel to the out strip; activate; flush
"""

from __future__ import annotations

from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.clipped import ClippedDriver
from unstride.codegen.direct import Affine, Place
from unstride.codegen.emit import Int, Ptr
from unstride.codegen.strips import in_vectors
from unstride.codegen.tile import TileArgs
from unstride.plan.job import Job, Panel

__all__ = ["OverlapDriver"]


class OverlapDriver(ClippedDriver):
    def panel(self, panel: Ptr) -> None:
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(alive.differs(0)):
            with e.when(panel.int(Panel.START).differs(0)):
                self._start(panel)
            self._multiply(panel)
            with e.when(panel.int(Panel.FLUSH).differs(0)):
                self._fold(panel)
                self._activate(panel)
                self.flush(panel, offset)

    def _start(self, panel: Ptr) -> None:
        """Sums start with the bias."""
        e, width = self.e, panel.int(Panel.GROUP_WIDTH)
        bias = e.ptr(self.get(Job.BIAS), self.numbers.computed) + panel.int(Panel.BIAS)
        for pixel in e.range(self.images * self.out_rows * self.out_columns):
            line = self.out + pixel * width
            for c, lanes in in_vectors(e, width, self.numbers.lanes):
                line.store(c, bias.load(c, lanes))

    def _multiply(self, panel: Ptr) -> None:
        """One panel of columns, for all pixels of the box that exist."""
        e = self.e
        size = self.numbers.isa.vector_bytes // self.numbers.lanes
        self.tile_args.store(TileArgs.TAP_COUNT, self._list_planes(panel))
        self.tile_args.store(TileArgs.RUN, panel.int(Panel.RUN))
        self.tile_args.store(TileArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
        pitch, zero = panel.int(Panel.PRODUCTS), (e.int(0), e.int(0))
        source = Affine(self._first_pixel(), self.image_pitch, self.row_pitch, self.pixel_pitch, zero)
        row = self.columns * pitch
        result = Affine(self._products() + panel.int(Panel.COLUMN), self.rows * row, row, pitch, zero)
        self.run_tiles(panel, Place(source, result), (zero[0], self.rows), (zero[0], self.columns))

    def _first_pixel(self) -> Ptr:
        """The first pixel of the box that exists; `strip` is where the first one would be, existing or not."""
        missing_v, missing_x = self.source_v - self.first_v, self.source_x - self.first_x
        return self.strip + (missing_v * self.row_pitch + missing_x * self.pixel_pitch)

    def _products(self) -> Ptr:
        return self.scratch_at(Job.OFFSET_PRODUCTS, self.numbers.computed)

    def _list_planes(self, panel: Ptr) -> Int:
        """The taps of a product are the planes that exist."""
        e, count = self.e, self.e.var(0)
        outer = self.plan + self.get(Job.OUTER_TAPS) + panel.int(Panel.OUTER_FIRST)
        step = panel.int(Panel.RUN) * panel.int(Panel.VECTORS) * self.numbers.lanes
        for o in e.range(panel.int(Panel.OUTER_COUNT)):
            plane = outer.int(o)
            with e.when(self.planes_alive.int(plane).differs(0)):
                at = count.get() * 2
                self.taps.store(at, self.plane_offsets.int(plane) + panel.int(Panel.CHANNEL))
                self.taps.store(at + 1, o * step)
                count.set(count.get() + 1)
        return count.get()

    def _fold(self, panel: Ptr) -> None:
        """Add the patch of every pixel: each of its rows is one run of products and of sums, or one for each element.

        Patches that overlap are not added one right after the other, since a sum that was just stored cannot be loaded
        again at another offset for a while: pixels go by residues of x, so far apart that they do not touch.
        """
        e, width, pitch = self.e, panel.int(Panel.GROUP_WIDTH), panel.int(Panel.PRODUCTS)
        dense, kernel, dilation = self.get(Job.DILATION_X).equals(1), self.get(Job.KERNEL_X), self.get(Job.DILATION_X)
        runs, run = e.select(dense, 1, kernel), e.select(dense, kernel * width, width)
        step_v, step_x = self.get(Job.RESULT_V_STEP), self.get(Job.RESULT_X_STEP)
        line_length = self.out_columns * width
        first_x = (self.source_x - self.x0) * step_x * width
        apart = ((kernel - 1) * dilation + step_x) // step_x
        for image in e.range(self.images):
            for row in e.range(self.rows):
                products = self._products() + (image * self.rows + row) * self.columns * pitch
                top = (self.source_v + row - self.v0) * step_v
                for k in e.range(self.get(Job.KERNEL_V)):
                    at = top + k * self.get(Job.DILATION_V)
                    with e.when(e.b.and_(at >= 0, at < self.out_rows)):
                        line = self.out + (image * self.out_rows + at) * line_length
                        for residue in e.range(apart):
                            # Residues of the source's own x, so that the order of a sum does not depend on the box.
                            start = (residue + apart - self.source_x % apart) % apart
                            for turn in e.range(e.max(self.columns - start + (apart - 1), 0) // apart):
                                x = start + turn * apart
                                patch = products + (x * pitch + k * kernel * width)
                                for j in e.range(runs):
                                    first = first_x + (x * step_x + j * dilation) * width
                                    self._add(line, patch + j * run, first, run, line_length)

    def _add(self, line: Ptr, values: Ptr, first: Int, run: Int, length: Int) -> None:
        """Add a run of products to a line of sums, at `first`, as far as it lies on the line."""
        e = self.e
        low = e.min(e.max(0 - first, 0), run)
        high = e.max(e.min(run, length - first), low)
        sums, values = line + (first + low), values + low
        for i, lanes in in_vectors(e, high - low, self.numbers.lanes):
            sums.store(i, e.b.fadd(sums.load(i, lanes), values.load(i, lanes)))

    def _activate(self, panel: Ptr) -> None:
        e, kind = self.e, self.family.activation
        if kind == "none":
            return
        slope = slope_vector(e, self.job, Job.SLOPE_BITS, self.numbers) if kind == "leaky_relu" else None
        count = self.images * self.out_rows * self.out_columns * panel.int(Panel.GROUP_WIDTH)
        for i in e.range(
            0, count, self.numbers.lanes
        ):  # may run over by less than a vector, which the strip has room for
            at = self.out + i
            at.store(0, activate(e, kind, at.load(0, self.numbers.lanes), slope))
