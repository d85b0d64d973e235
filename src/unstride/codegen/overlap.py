"""Products of whole patches, and their sums: the driver of `plan.overlap`.

per box: start the out strip with the bias; per some source rows: products [pixel][column] of the pixels that exist,
         panel by panel, and the patch of every pixel is added to the out strip; activate; flush

Under a dilated kernel the sums of a row wait in order of their residue by the dilation: so a row of a patch is one run.
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
        """The first of some panels stands for all that feed the same out strip."""
        e = self.e
        offset, alive = self.result_offset(panel)
        with e.when(e.b.and_(alive.differs(0), panel.int(Panel.START).differs(0))):
            self.start_with(Job.BIAS, panel)  # sums start with it
            at_once = self.get(Job.RING_ROWS)
            for turn in e.range((self.rows + at_once - 1) // at_once):
                rows = (turn * at_once, e.min(turn * at_once + at_once, self.rows))
                for index in e.range(panel.int(Panel.START)):
                    self._multiply(panel + index * len(Panel), *rows)
                self._fold(panel, *rows)
            self._activate(panel)
            with e.when(self.get(Job.DILATION_X).differs(1)):
                self._sort_columns(panel)
            self.flush(panel, offset)

    def _multiply(self, panel: Ptr, first: Int, end: Int) -> None:
        """One panel of columns, for all pixels of these source rows that exist."""
        e = self.e
        size = self.numbers.isa.vector_bytes // self.numbers.lanes
        self.tile_args.store(TileArgs.TAP_COUNT, self._list_planes(panel))
        self.tile_args.store(TileArgs.RUN, panel.int(Panel.RUN))
        self.tile_args.store(TileArgs.WEIGHTS, self.get(Job.WEIGHTS) + panel.int(Panel.WEIGHTS) * size)
        pitch, zero = panel.int(Panel.PRODUCTS), (e.int(0), e.int(0))
        source = Affine(self._first_pixel(), self.image_pitch, self.row_pitch, self.pixel_pitch, zero)
        row = self.columns * pitch
        first_product = self._products() + panel.int(Panel.COLUMN)
        result = Affine(first_product, (end - first) * row, row, pitch, (first, zero[1]))
        self.run_tiles(panel, Place(source, result), (first, end), (zero[0], self.columns))

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

    def _fold(self, panel: Ptr, first: Int, end: Int) -> None:
        """Add the patch of every pixel of these rows: each of its rows is one run of products and of sums.

        Patches that overlap are not added one right after the other, since a sum that was just stored cannot be loaded
        again at another offset for a while: pixels go by residues of x, so far apart that they do not touch.
        """
        e, width, pitch = self.e, panel.int(Panel.GROUP_WIDTH), panel.int(Panel.PRODUCTS)
        kernel, dilation = self.get(Job.KERNEL_X), self.get(Job.DILATION_X)
        step_v, step_x = self.get(Job.RESULT_V_STEP), self.get(Job.RESULT_X_STEP)
        first_x = (self.source_x - self.x0) * step_x
        before = self.get(Job.SOURCE_X_SPAN) * step_x  # no column is as far before the box
        apart = ((kernel - 1) * dilation + step_x) // step_x
        apart = (apart + dilation - 1) // dilation * dilation  # so that all of them have one residue by the dilation
        for image in e.range(self.images):
            for row in e.range(first, end):
                products = self._products() + (image * (end - first) + row - first) * self.columns * pitch
                top = (self.source_v + row - self.v0) * step_v
                for k in e.range(self.get(Job.KERNEL_V)):
                    at = top + k * self.get(Job.DILATION_V)
                    with e.when(e.b.and_(at >= 0, at < self.out_rows)):
                        line = self.out + (image * self.out_rows + at) * self.out_columns * width
                        for residue in e.range(apart):
                            # Residues of the source's own x, so that the order of a sum does not depend on the box.
                            start = (residue + apart - self.source_x % apart) % apart
                            lifted = first_x + start * step_x + before * dilation
                            begin, count = self._columns_of(lifted % dilation)
                            sums, left = line + begin * width, (lifted // dilation - before) * width
                            patch = products + (start * pitch + k * kernel * width)
                            for turn in e.range(e.max(self.columns - start + (apart - 1), 0) // apart):
                                at_x = left + turn * (apart // dilation * step_x * width)
                                self._add(sums, patch + turn * (apart * pitch), at_x, kernel * width, count * width)

    def _columns_of(self, residue: Int) -> tuple[Int, Int]:
        """Where the columns of one residue by the dilation begin in a line of sums, and how many there are."""
        least, more = self.out_columns // self.get(Job.DILATION_X), self.out_columns % self.get(Job.DILATION_X)
        return residue * least + self.e.min(residue, more), least + self.e.select(residue < more, 1, 0)

    def _sort_columns(self, panel: Ptr) -> None:
        """Put the columns of every row into the order of the result, by way of what held the products."""
        e, width, lanes = self.e, panel.int(Panel.GROUP_WIDTH), self.numbers.lanes
        line, dilation = self._products(), self.get(Job.DILATION_X)
        for row in e.range(self.images * self.out_rows):
            sums = self.out + row * self.out_columns * width
            for turn in e.range((self.out_columns + dilation - 1) // dilation):
                for residue in e.range(e.min(dilation, self.out_columns - turn * dilation)):
                    to, start = line + (turn * dilation + residue) * width, self._columns_of(residue)[0] + turn
                    # Ascending, so a vector may run over into the next pixel.
                    for c in e.range(0, width, lanes):
                        to.store(c, (sums + start * width).load(c, lanes))
            for i, vector in in_vectors(e, self.out_columns * width, lanes):
                sums.store(i, line.load(i, vector))

    def _add(self, line: Ptr, values: Ptr, first: Int, run: Int, length: Int) -> None:
        """Add a run of products to a line of sums, at `first`, as far as it lies on the line."""
        e = self.e
        low = e.min(e.max(0 - first, 0), run)
        high = e.max(e.min(run, length - first), low)
        sums, values, kept = line + (first + low), values + low, self.numbers.unrounded
        if self.numbers.isa.masked:
            for i in e.range(0, high - low, kept.lanes):
                zero, left = e.int(0), high - low - i
                total = e.b.fadd(kept.load_between(sums + i, zero, left), values.load(i, kept.lanes))
                kept.store_between(sums + i, 0, total, zero, left)
            return
        for i, lanes in in_vectors(e, high - low, kept.lanes):
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
