"""How one call of a planned layer is cut into units of work, by a model of what the pieces cost.

A *unit* is a box of positions of a few images: its source pixels, padded, fill one strip in L2. A task is a unit
and a block of panels. Nothing here changes the order of any sum, so results do not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from unstride._lazy import lazy
from unstride.plan.axis import Axis
from unstride.plan.direct import DirectPlan
from unstride.plan.job import Panel
from unstride.plan.machine import LINE_BYTES, Machine
from unstride.plan.phases import ONE_ROW
from unstride.plan.shares import in_blocks, largest
from unstride.problem import Problem

__all__ = ["MOST_RESIDUES", "STREAM", "STRIP_BYTES", "UNHIDDEN", "Cut", "Grid"]

STRIP_BYTES = 240 * 1024
_DEEP_STRIP_BYTES = (2**20, 2**22)  # where weights come from memory for every strip, few large strips are better
_CALL, _CLIPPED_CALL = 60, 110  # cycles of listing a tile's rows; with sums that are read and written
_PAGE, _PAGE_BYTES = 150, 4096  # cycles of finding a page of memory
STREAM = 5.0  # bytes that a core gets from beyond its L2 in a cycle
UNHIDDEN = 0.3  # of two things that a core does at the same time, what the shorter one adds
_STRAGGLE = 0.3  # of a task, that one thread may start or end later than the others
MOST_RESIDUES = 32  # of a position, without taps among them, that wait for each other
_LOW_TILES = ((0, 0), (2, 5), (4, 6), (8, 9))  # rows, and cycles of a step


@dataclass(frozen=True)
class Grid:
    """How positions, images and panels are cut."""

    images: int
    v_unit: int
    x_unit: int
    panel_blocks: tuple[int, ...]  # panel index where each block ends
    outer_unit: int = 1  # positions of the outer axes that stay together


class Cut:
    """One problem by one direct plan: its axes, and the ways to cut it with their prices."""

    flushes_past = True  # whether a kernel may store lines of a channel-major result past the caches
    crowd = 8  # results larger than this part of the last cache, an 8th, may go past the caches

    def __init__(self, plan: DirectPlan, problem: Problem, machine: Machine, threads: int) -> None:
        self.plan, self.problem, self.machine, self.threads = plan, problem, machine, threads
        scatter = problem.direction == "scatter"
        source, result = (problem.x, problem.y) if scatter else (problem.y, problem.x)
        none = (0,) * problem.rank
        shifts, begins = (none, problem.begin) if scatter else (tuple(-b for b in problem.begin), none)
        self.batch = problem.batch
        if _is_product(problem):
            self.batch, source = _flattened(problem)
            result = source
        axes = [Axis(*values) for values in zip(plan.axes, source, result, shifts, begins, strict=True)]
        self.outer, self.x = axes[:-2], axes[-1]
        self.v = axes[-2] if problem.rank > 1 else Axis(ONE_ROW, 1, 1, 0, 0)
        self.prefill = (plan.needs_prefill and not self.fills_holes) or _mostly_out_of_reach(axes)
        self.compute_bytes = 8 if problem.dtype == "f64" else 4
        self.v_hull, self.x_hull = self.v.hull(reach=self.prefill), self.x.hull(reach=self.prefill)
        self.v_reach, self.x_reach = self.v.phases.reach, self.x.phases.reach
        if plan.needs_prefill and not self.prefill:
            self.v_hull, self.x_hull = self.v.whole, self.x.whole
            self.v_reach, self.x_reach = self.v.phases.result_step, self.x.phases.result_step
        self.counts = (self.v_hull[1] - self.v_hull[0], self.x_hull[1] - self.x_hull[0])  # positions along v and x
        self.outer_hulls = [axis.hull(reach=self.prefill) for axis in self.outer]
        self.outer_positions = prod(high - low for low, high in self.outer_hulls)

    @property
    def fills_holes(self) -> bool:
        """Whether residues without taps are stored with the others, as part of an out strip that starts as bias."""
        steps = self.v.phases.result_step * self.x.phases.result_step
        in_strip = self.plan.through_strip and not self.plan.clipped
        return self.has_all_planes and in_strip and steps <= MOST_RESIDUES

    @property
    def has_all_planes(self) -> bool:
        """Whether no residue of an outer axis is without taps."""
        return all(axis.phases.complete for axis in self.outer)

    def best_grid(self) -> tuple[Grid, float]:
        """The cheapest way to cut the work, by a simple model of a core's cycles, and its cost."""
        whole = (len(self.plan.panels),)
        nv, nx = self.counts
        if not nv * nx * self.outer_positions * self.batch:
            return Grid(1, 1, 1, whole), 0.0
        counts = (1, self.threads, 4 * self.threads, 16 * self.threads)
        choices = [self._panel_blocks(count) for count in counts]
        best, best_cost = Grid(1, 1, 1, whole), float("inf")
        for images, v, x in dict.fromkeys(self._boxes(nv, nx)):
            for blocks in dict.fromkeys(choices):
                grid = Grid(images, v, x, blocks)
                cost = self._cycles(grid, nv, nx)
                if cost < best_cost * 0.995:
                    best, best_cost = grid, cost
        return best, best_cost

    def _boxes(self, nv: int, nx: int) -> Iterable[tuple[int, int, int]]:
        """Boxes whose strips fit in L2: whole ones, ones cut for the threads, and single rows or columns of many
        images, which can leave out the taps that would read padding."""
        yield from self._boxes_within(min(STRIP_BYTES, self.machine.l2_bytes // 2), nv, nx)
        if self.plan.packed_elements * self.compute_bytes > self.machine.l2_bytes // 2:
            for budget in _DEEP_STRIP_BYTES:
                yield from self._boxes_within(budget, nv, nx)

    def _boxes_within(self, budget: int, nv: int, nx: int) -> Iterable[tuple[int, int, int]]:
        batch, pieces = self.batch, range(1, 8 * self.threads + 1)

        def images(v: int, x: int) -> int:
            return largest(batch, lambda n: self._footprint(n, v, x) <= budget)

        x_unit = largest(nx, lambda x: self._footprint(1, 1, x) <= budget)
        rows = self.plan.tile.rows
        if x_unit < rows:  # tiles of few rows cost more than results that leave the cache half written
            few = -(-nx // (3 * rows))
            x_unit = largest(-(-nx // few), lambda x: self._strip_bytes(1, 1, x) <= budget)
        v_unit = largest(nv, lambda v: self._footprint(1, v, x_unit) <= budget) if x_unit == nx else 1
        most = images(v_unit, x_unit)
        yield most, v_unit, x_unit
        for piece in pieces:
            yield min(most, -(-batch // piece)), v_unit, x_unit
            yield 1, min(v_unit, -(-nv // piece)), x_unit
            if nv < 2 * self.threads:
                yield 1, 1, min(x_unit, -(-nx // piece))
        if rows < x_unit < nx:
            yield 1, 1, x_unit // rows * rows
        for v, x in ((1, x_unit), (1, 1)):
            for piece in (1, self.threads, 2 * self.threads):
                yield min(images(v, x), -(-batch // piece)), v, x

    def _cycles(self, grid: Grid, nv: int, nx: int) -> float:
        """What the busiest thread spends, roughly: products, or the weights' way from memory; filling; listing rows."""
        tile, plan = self.plan.tile, self.plan
        blocks = len(grid.panel_blocks)
        units = -(-self.batch // grid.images) * -(-nv // grid.v_unit) * -(-nx // grid.x_unit)
        tasks = units * self.outer_positions * blocks
        tiles = -(-grid.images * grid.v_unit * grid.x_unit // tile.rows)
        unpadded = plan.clipped or plan.banded
        share = self.v.useful_share if grid.v_unit == 1 or unpadded else 1.0
        if unpadded or (grid.x_unit == 1 and not self._long_runs):
            share *= self.x.useful_share
        weights = plan.packed_elements / blocks
        regions, full = 1.0, tiles * share
        if plan.banded:
            regions, tiles, full = self._band_tiles(grid, nv * nx)
        products = full * tile.rows * weights / (2 * tile.lanes)
        if not plan.depthwise:  # whose loads take longer anyway
            products *= self.machine.pace
        streamed = weights * share * self.compute_bytes / STREAM
        if weights * self.compute_bytes <= self.machine.l2_bytes / 2:
            streamed /= max(1, tasks // blocks // self.threads)  # read once, used by every unit that follows
        strip = self._strip_bytes(grid.images, grid.v_unit, grid.x_unit)
        if plan.banded and self.panel_bytes > self.machine.l2_bytes // 4:
            streamed *= max(1.0, regions)  # every region reads them again
        elif not plan.clipped and strip + self.panel_bytes > self.machine.l2_bytes:
            streamed *= tiles  # a panel is gone before the next rows need it
        if (
            strip > self.machine.l2_bytes * 3 // 4
        ):  # the strip itself comes from beyond L2, for every panel or every tap
            sweeps = self._steps if plan.clipped else len(plan.panels)
            streamed += strip * share * sweeps / blocks / (2 * STREAM)
        channels = plan.reduce_channels * self.problem.groups
        filling = self._strip_pixels(grid.images, grid.v_unit, grid.x_unit) * channels * 5 / tile.lanes
        if plan.depthwise:  # with few products to hide it
            filling += self._finding_pages(grid.images, strip)
        if plan.through_strip:
            across = self._run_of_pixels(grid.v_unit, grid.x_unit)
            filling += (
                self._out_bytes(grid.images, grid.v_unit, grid.x_unit)
                / 4
                * len(plan.flush_ends)
                * len(plan.outer_phases)
                / blocks
                * (0.8 if across >= tile.lanes else 1.2 if across >= 4 else 4.0)
                * self.result_distance
            )
        calls = self._steps if plan.clipped else len(plan.panels)
        listing = 8 * self._steps * regions / blocks if plan.banded else 0.0
        listing += (
            200 * len(plan.panels) + (_CLIPPED_CALL * share if plan.clipped else _CALL) * calls * tiles
        ) / blocks
        # They overlap, but not quite; what every unit has to get from memory, and not from the last cache, not at all.
        alike = units == 1 or weights * self.compute_bytes <= self.machine.last_bytes // 2
        reading = max(products, streamed) + (UNHIDDEN if alike else 1.0) * min(products, streamed)
        return self._turns(tasks) * (reading + filling + listing + 3000)

    def _run_of_pixels(self, v: int, x: int) -> int:
        """How many pixels of the out strip are neighbours in the result: whole rows are one long row."""
        columns = (x - 1) * self.x.phases.result_step + self.x_reach
        rows = v * self.v.phases.result_step if columns == self.x.result_size else 1
        return rows * min(columns, self.x.result_size)

    @property
    def has_far_source(self) -> bool:
        """Whether the source lies in memory and not in a cache."""
        return prod(self.problem.data_shape) * self.problem.itemsize > 2 * self.machine.l2_bytes

    def _finding_pages(self, images: int, strip: int) -> float:
        """Cycles of finding the pages of a box: every channel of a large channel-major source begins on another."""
        if not self.has_far_source or self.problem.data_layout == "NXC":
            return 0.0
        planes = len(self.plan.planes) * self.plan.reduce_channels * self.problem.groups
        return images * _PAGE * (planes + strip / _PAGE_BYTES)

    def _turns(self, tasks: int) -> float:
        """How many tasks the busiest thread has to wait for."""
        return -(-tasks // self.threads) + (_STRAGGLE if self.threads > 1 else 0.0)

    def _band_tiles(self, grid: Grid, positions: int) -> tuple[float, int, float]:
        """Of a box in bands: regions, tiles, and what these come to in tiles with all taps."""
        regions = tiles = full = 0.0
        rows = self.plan.tile.rows
        for (v, v_share), (x, x_share) in product(self.v.bands, self.x.bands):
            height, length = min(v, grid.v_unit), min(x, grid.x_unit)
            times = v * x / (height * length)
            whole, rest = divmod(grid.images * height * length, rows)
            # A low tile takes longer than its share: it waits for weights, and for its own last sums.
            fitting = next((cycles for height, cycles in _LOW_TILES if height >= rest), rows)
            regions, tiles = regions + times, tiles + times * (whole + (rest > 0))
            full += times * (whole + fitting / rows) * v_share * x_share
        part = grid.v_unit * grid.x_unit / positions
        return regions * part, ceil(tiles * part), full * part

    @property
    def prefilling(self) -> float:
        """Cycles of filling the result before the kernel, where that has to be."""
        return self._result_bytes / STREAM if self.prefill else 0.0

    @lazy
    def result_distance(self) -> float:
        """How much longer a burst of stores takes because the result lies in memory and not in a cache."""
        far = self._result_bytes > 2 * self.machine.l2_bytes
        return 1.3 if far and not self.streams else 1.0

    @property
    def may_stream(self) -> bool:
        """Whether results may gain by going past the caches: they and all else would crowd the last one."""
        return self._result_bytes >= self.machine.last_bytes // self.crowd and self.plan.isa.streams

    @property
    def streams(self) -> bool:
        """Whether the result goes past the caches.

        In channel-major memory that gains with AVX2, and where vectors of a line take two passes; with AVX-512 in one
        pass it may lose, or gain even for what only L2 does not hold.
        """
        if self.problem.data_layout == "NXC":
            return self.may_stream
        usually = self.may_stream and (self.machine.pace > 1 or self.plan.isa.name == "avx2")
        pays = usually or (self.machine.past_l2 and self._result_bytes >= self.machine.l2_bytes)
        in_lines = prod(self.problem.result_shape[2:]) * self.problem.itemsize % LINE_BYTES == 0
        return pays and self.flushes_past and in_lines and self.problem.dtype in ("f32", "f64")

    @lazy
    def _result_bytes(self) -> int:
        return prod(self.problem.result_shape) * self.problem.itemsize

    @property
    def may_gain_by_clipping(self) -> bool:
        """Whether running each tap over just the positions at which it reads the source is worth a look.

        That saves products with padding, and a tap's weights stay in L2 where those of all taps would not. Not where
        elements are only bias: the clipped kernel activates them itself, which may round otherwise than what others
        store there.
        """
        large = self.panel_bytes >= self.machine.l2_bytes // 4
        return self.is_padded or (self._may_be_clipped and large)

    @property
    def is_padded(self) -> bool:
        """Whether much of the direct kernel's work would be products with padding, and another may leave it out."""
        return self._may_be_clipped and self.v.useful_share * self.x.useful_share <= 0.98

    @property
    def _may_be_clipped(self) -> bool:
        plan = self.plan
        return not (plan.merged or plan.depthwise or plan.clipped or plan.banded or self.prefill or plan.needs_prefill)

    @lazy
    def panel_bytes(self) -> int:
        """The weights that the largest panel reads for every row of positions."""
        sizes = (
            len(source.steps) * self.plan.reduce_channels * panel[Panel.VECTORS]
            for panel, source in zip(self.plan.panels, self.plan.sources, strict=True)
        )
        return max(sizes, default=0) * self.plan.tile.lanes * self.compute_bytes

    @lazy
    def _steps(self) -> int:
        return sum(len(source.steps) for source in self.plan.sources)

    @lazy
    def _long_runs(self) -> bool:
        """Whether taps along x are joined into runs, so that single ones cannot be left out."""
        channels = self.plan.reduce_channels * self.problem.groups
        return any(panel[Panel.RUN] > channels for panel in self.plan.panels)

    def _panel_blocks(self, most: int) -> tuple[int, ...]:
        """Panels cut into blocks of about equal weight, for layers whose weights outweigh their pixels."""
        return in_blocks(self.plan.flush_ends, most)

    def _strip_pixels(self, images: int, v: int, x: int) -> int:
        rows = self.v.phases.source_step * (v - 1) + self.v.phases.span
        columns = self.x.phases.source_step * (x - 1) + self.x.phases.span
        if self.plan.clipped or self.plan.banded:
            rows, columns = min(rows, self.v.source_size), min(columns, self.x.source_size)
        return images * len(self.plan.planes) * rows * columns

    def _strip_bytes(self, images: int, v: int, x: int) -> int:
        slack = 2 * self.plan.tile.columns  # a vector may start at the last element
        return (self._strip_pixels(images, v, x) * self.plan.pixel_pitch + slack) * self.compute_bytes

    def _out_bytes(self, images: int, v: int, x: int) -> int:
        if not self.plan.through_strip:
            return 0
        width = max(p[Panel.GROUP_WIDTH] for p in self.plan.panels)
        rows = (v - 1) * self.v.phases.result_step + self.v_reach
        pixels = images * rows * ((x - 1) * self.x.phases.result_step + self.x_reach)
        return (pixels * width + 2 * self.plan.tile.columns) * self.compute_bytes

    def _footprint(self, images: int, v: int, x: int) -> int:
        """Bytes of a box that should stay in L2: of its strip, and of its results.

        Where weights are small, sums are short and stores count: then even the box's part of the result should stay
        while one panel after the other writes a slice of it, unless it does not go there at all.
        """
        small_weights = self.plan.packed_elements * self.compute_bytes <= self.machine.l2_bytes // 4
        if self.plan.through_strip or self.streams or not small_weights:
            return max(self._strip_bytes(images, v, x), self._out_bytes(images, v, x))
        pixels = images * v * self.v.phases.result_step * x * self.x.phases.result_step
        written = pixels * self.plan.result_channels * self.problem.groups * self.problem.itemsize
        return max(self._strip_bytes(images, v, x), 2 * written)


def _is_product(problem: Problem) -> bool:
    """Whether every result pixel is one source pixel times a matrix."""
    ones, zeros = (1,) * problem.rank, (0,) * problem.rank
    return (problem.kernel, problem.stride, problem.begin, problem.x) == (ones, ones, zeros, problem.y)


def _flattened(problem: Problem) -> tuple[int, tuple[int, ...]]:
    """Images and sizes of the same pixels as one long row: of all images where they follow one another."""
    pixels, short = prod(problem.x), (1,) * (problem.rank - 1)
    if problem.data_layout == "NXC":
        return min(1, problem.batch), (*short, pixels * problem.batch)
    return problem.batch, (*short, pixels)


def _mostly_out_of_reach(axes: list[Axis]) -> bool:
    """Whether so much of the result is only bias that visiting it would be a waste."""
    visited = prod(sum(high - low for low, high in axis.ranges(reach=False)) for axis in axes)
    reached = prod(sum(high - low for low, high in axis.ranges(reach=True)) for axis in axes)
    return visited > 2 * reached + 4096
