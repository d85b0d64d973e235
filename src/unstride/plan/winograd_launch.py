"""How a call is cut for Winograd: units of whole tiles, the same for every number of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heapreplace
from itertools import accumulate, pairwise, product
from math import prod
from operator import itemgetter

from unstride._lazy import lazy
from unstride.plan.cut import STREAM, UNHIDDEN, Grid
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch, LaunchBuilder
from unstride.plan.machine import LINE_BYTES, Machine
from unstride.plan.shares import even_share, kept_apart, largest, round_up
from unstride.plan.winograd import WinogradPlan, even_heights, height_step
from unstride.problem import Problem

__all__ = [
    "CALL",
    "FILL",
    "IMAGES",
    "TRANSFORM",
    "TRANSPOSED",
    "Units",
    "WinogradLaunch",
]

TRANSFORM = 4.0  # cycles of transforming one vector at one point; on the way out, where results are whole lines
CALL = 60.0  # cycles of one call of the inner loop, and of listing the planes of a point
FILL, TRANSPOSED, _STORE = 5.0, 10.0, 10.0  # cycles of a vector on its way into the strip, and to the result
_MOST_TILES = 224  # of a unit: few large units read the weights seldom
IMAGES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)  # of a unit, if one has few tiles
_PIECES = 12  # of a single line of tiles: so many numbers of them are tried
_MOST_SCRATCH = 8 * 2**20 - 2**17  # of one thread
_LOADS = 1.0  # rows in whose time a tile loads its weights
_NEARER = 1.5  # how much faster than memory the last cache is
_FEW = 32  # tasks whose turns are played through
_GUARD = 8000.0  # cycles: of asking what was left to the direct kernel, and of the second wait for all threads


@dataclass(frozen=True)
class Units:
    """Images, rows and columns of tiles in a unit, and how many units there are."""

    images: int
    v_tiles: int
    x_tiles: int
    count: int


def _last_end(tasks: Iterable[float], threads: int) -> float:
    """When the last thread ends if each takes the next task as soon as it is free."""
    ends = [0.0] * threads
    for cycles in tasks:
        heapreplace(ends, ends[0] + cycles)
    return max(ends)


class WinogradLaunch(LaunchBuilder):
    """Launches of one problem with Winograd, and its price."""

    def __init__(self, plan: WinogradPlan, problem: Problem, machine: Machine, threads: int) -> None:
        super().__init__(plan.direct, problem, machine, threads)
        self.winograd = plan

    @property
    def price(self) -> float | None:
        """Cycles of one thread; None where it cannot be used, or the map is too small to think of it.

        What is too little for two threads costs twice: others can be cut finer, and this one seldom runs alone.
        """
        tiles = self._tiles_by_axis()
        if self.prefill or self.batch * self.outer_positions * tiles[0] * tiles[1] < 8:
            return None
        return 2 * self._best_units[0] + _GUARD

    def launches(self) -> tuple[Launch, Launch]:
        """The Winograd launch, and the direct one, cut alike, for the units that Winograd leaves.

        The units must not depend on the threads: a unit is the grain of the choice between the two kernels, and that
        choice must not change the result. Panels may be cut freely.
        """
        grid = self._winograd_grid()
        return self._build_winograd(grid), self.build(grid)

    @property
    def v_grain(self) -> int:
        return self._tile_steps[0]

    def _build_winograd(self, grid: Grid) -> Launch:
        """The Winograd launch: the direct one with room for the transformed strip and the products."""
        plan, base = self.winograd, self.build(grid)
        strip, transformed, products = self._scratch(grid)
        out = base.fields[Job.OFFSET_TAPS] - base.fields[Job.OFFSET_OUT]
        taps = base.scratch_per_slot - base.fields[Job.OFFSET_TAPS]
        taps = max(taps, round_up(16 * (plan.planes + len(plan.direct.planes))))
        fields = list(base.fields)
        fields[Job.RESIDUES_V], fields[Job.RESIDUES_X] = (residues.count for residues in plan.residues)
        fields[Job.FULL_V], fields[Job.FULL_X] = (residues.full for residues in plan.residues)
        fields[Job.TAP_STEP_V], fields[Job.TAP_STEP_X] = (residues.step for residues in plan.residues)
        fields[Job.APART_V], fields[Job.APART_X] = (residues.apart for residues in plan.residues)
        fields[Job.SPREAD_V], fields[Job.SPREAD_X] = (residues.spread for residues in plan.residues)
        fields[Job.EXTRA_V], fields[Job.EXTRA_X] = self._extra
        fields[Job.PIXEL_PITCH] = self._pitch
        rows, columns = self._rows_and_columns(grid)
        fields[Job.STRIP_TILE_ROWS] = self._strip_rows(rows, columns)
        fields[Job.PANELS_AT_ONCE] = self._at_once(grid.images * rows * columns * self._spread)
        fields[Job.TASKS_AHEAD] = self.threads if self._has_far_rows(grid) else 0
        fields[Job.OFFSET_OUT] = strip
        fields[Job.OFFSET_TAPS] = strip + out
        fields[Job.OFFSET_TRANSFORMED] = strip + out + taps
        fields[Job.OFFSET_PRODUCTS] = strip + out + taps + transformed
        fields[Job.SCRATCH_PER_SLOT] = total = strip + out + taps + transformed + products
        return replace(base, fields=tuple(fields), scratch_per_slot=total)

    def _scratch(self, grid: Grid) -> tuple[int, int, int]:
        """Bytes of the strip, the transformed strip, and the products of the panels at hand."""
        plan, tile = self.winograd, self.winograd.direct.tile
        rows, columns = self._rows_and_columns(grid)
        tiles = grid.images * rows * columns * self._spread
        channels = plan.direct.reduce_channels * self.problem.groups
        row = round_up(channels, tile.lanes) + tile.lanes
        strip = self._strip_row_bytes(columns) * self._source_rows(self._strip_rows(rows, columns))
        over = tile.rows * row  # the last block of tiles may read rows that hold nothing
        return (
            round_up(strip + 2 * tile.columns * self.compute_bytes),
            round_up((plan.planes * plan.points * (tiles * row + tile.lanes) + over) * self.compute_bytes),
            round_up(self._at_once(tiles) * self._products_bytes(tiles)),
        )

    @lazy
    def _extra(self) -> tuple[int, int]:
        plan = self.winograd
        return plan.residues[0].extra(plan.v.taps), plan.residues[1].extra(plan.x.taps)

    @lazy
    def _tile_steps(self) -> tuple[int, int]:
        """Positions from one row of tiles to the next, and from column to column."""
        v, x = self.winograd.residues
        return self.winograd.v.outputs * v.spread, self.winograd.x.outputs * x.spread

    @lazy
    def _spread(self) -> int:
        """Tiles that interleave where there would be one."""
        return prod(residues.spread for residues in self.winograd.residues)

    def _rows_and_columns(self, grid: Grid) -> tuple[int, int]:
        return -(-grid.v_unit // self._tile_steps[0]), -(-grid.x_unit // self._tile_steps[1])

    def _source_rows(self, tile_rows: int) -> int:
        return tile_rows * self.winograd.v.outputs * self.winograd.residues[0].step + self._extra[0]

    def _strip_row_bytes(self, columns: int) -> int:
        """Bytes of one source row of a strip of so many columns of tiles, of all planes."""
        width = columns * self.winograd.x.outputs * self.winograd.residues[1].step + self._extra[1]
        return width * len(self.plan.planes) * self._pitch * self.compute_bytes

    @lazy
    def _pitch(self) -> int:
        """Elements from pixel to pixel of a strip: whole lines, so that no vector lies in two."""
        line = LINE_BYTES // self.compute_bytes
        return kept_apart(round_up(self.winograd.direct.reduce_channels * self.problem.groups, line), line)

    def _strip_rows(self, rows: int, columns: int) -> int:
        """How many rows of tiles are filled and transformed at a time."""
        room = self.machine.l2_bytes // 2 // self._strip_row_bytes(columns)
        return largest(rows, lambda tile_rows: self._source_rows(tile_rows) <= room)

    def _products_bytes(self, tiles: int) -> int:
        """Bytes of the products of one panel; the last tile of the inner loop may run over."""
        tile = self.winograd.direct.tile
        return (self.winograd.points * (tiles | 1) + tile.rows) * tile.columns * self.compute_bytes

    def _at_once(self, tiles: int) -> int:
        """How many panels are multiplied at the same time: several where the transformed source leaves L2."""
        if tiles * self._tile_bytes <= self.machine.l2_bytes * 3 // 4:
            return 1
        return max(1, min(4, self.machine.l2_bytes // 2 // self._products_bytes(tiles)))

    def _tiles_by_axis(self) -> tuple[int, int]:
        nv, nx = self.counts
        return -(-nv // self._tile_steps[0]), -(-nx // self._tile_steps[1])

    @lazy
    def _best_units(self) -> tuple[float, Units]:
        """The price of the cheapest units for two threads, and these: they must not depend on the number of threads."""
        best: tuple[float, Units] | None = None
        for units in self._candidates():
            if best is not None and not self._has_room(units):
                continue
            price = self._cheapest_blocks(units, 2)[0]
            if best is None or price < best[0]:
                best = price, units
        assert best is not None
        return best

    def _has_room(self, units: Units) -> bool:
        """Whether scratch is small enough, and the out strip near until it is flushed."""
        grid = self._grid(units, ())
        out = self._out_bytes(grid.images, grid.v_unit, grid.x_unit)
        return out <= self._out_room and sum(self._scratch(grid)) + out <= _MOST_SCRATCH

    @property
    def _out_room(self) -> int:
        return self.machine.l2_bytes

    def _candidates(self) -> Iterator[Units]:
        """Units from small to large: parts of an image, or several images."""
        (tiles_v, tiles_x), least = self._tiles_by_axis(), self.winograd.direct.tile.rows
        least, most = -(-least // self._spread), max(1, _MOST_TILES // self._spread)
        room = self.machine.l2_bytes // (self._tile_bytes * self._spread)
        x_tiles = even_share(tiles_x, min(most, max(least, room)))
        widths = sorted({x_tiles, *self._lines(x_tiles, most)}) if tiles_v == 1 else [x_tiles]
        heights = {min(v, tiles_v) for v in range(1, 7)} | {-(-tiles_v // pieces) for pieces in range(1, 17)}
        rows = sorted({even_share(tiles_v, height) for height in heights})
        shapes = [(1, v, x) for v in rows for x in widths]
        if self.problem.data_layout == "NXC":
            # Where units are few, two halves of a row keep two threads equally busy. Channel-major rows stay whole.
            half = -(-x_tiles // 2)
            shapes += [(1, v, half) for v in rows if -(-tiles_v // v) * -(-tiles_x // half) * self.batch <= _FEW]
        shapes += [
            (images, tiles_v, x_tiles) for images in dict.fromkeys(min(n, self.batch) for n in IMAGES) if images > 1
        ]
        fitting = [shape for shape in shapes if least <= prod(shape) <= most]
        for images, v, x in fitting or [min(shapes, key=lambda shape: abs(prod(shape) - least))]:
            count = -(-self.batch // images) * -(-tiles_v // v) * -(-tiles_x // x) * self.outer_positions
            yield Units(images, v, x, count)

    def _lines(self, x_tiles: int, most: int) -> Iterator[int]:
        """Pieces of a single line of tiles, up to those of which only one point stays in L2: where weights come from
        memory for every piece, few and large ones are best, and as many for one thread as for the other. And such whose
        results stay there until they are flushed, which those of large strides may not."""
        tiles, rows = self._tiles_by_axis()[1], self.winograd.direct.tile.rows
        near = largest(x_tiles, lambda width: self._out_bytes(1, 1, width * self._tile_steps[1]) <= self._out_room)
        yield even_share(tiles, max(rows, near))
        room = self.machine.l2_bytes // 2 * self.winograd.points // (self._tile_bytes * self._spread)
        widest = min(most, max(x_tiles, room))
        least = -(-tiles // widest)
        for pieces in range(least, min(least + _PIECES, -(-tiles // x_tiles) + 2)):
            even = -(-tiles // pieces)
            yield from (width for width in (even, round_up(even, rows)) if width <= widest)

    @property
    def _weights_bytes(self) -> int:
        return self.winograd.packed_elements * self.compute_bytes

    @lazy
    def _tile_bytes(self) -> int:
        """Bytes of one transformed tile of the source."""
        channels = self.winograd.direct.reduce_channels * self.problem.groups
        row = channels + self.winograd.direct.tile.lanes
        return self.winograd.planes * self.winograd.points * row * self.compute_bytes

    def _rows(self, units: Units) -> float:
        """Rows of all tiles of the inner loop, which are of about the same height in a unit."""
        tiles_v, tiles_x = self._tiles_by_axis()
        cuts = ((self.batch, units.images), (tiles_x, units.x_tiles))
        parts = [((size, whole // size), (whole % size, 1)) for whole, size in cuts]
        blocks = -(-tiles_v // units.v_tiles)
        height, taller = divmod(tiles_v, blocks)
        parts.append(((height, blocks - taller), (height + 1, taller)))
        total = 0.0
        for sizes in product(*parts):
            times = prod(count for size, count in sizes if size)
            total += times * self._swept(prod(size for size, _ in sizes) * self._spread)
        return total * self.outer_positions

    def _swept(self, tiles: int) -> float:
        """Rows that the inner loop goes over for so many tiles, in blocks of about the same height."""
        most = self.winograd.direct.tile.rows
        blocks = -(-tiles // most)
        rows = max(round_up(tiles, height_step(most)), blocks * even_heights(most)[0])
        return (rows + blocks * _LOADS) * most / (most + _LOADS)

    def _winograd_grid(self) -> Grid:
        units = self._best_units[1]
        return self._grid(units, self._cheapest_blocks(units, self.threads)[1])

    def _grid(self, units: Units, blocks: tuple[int, ...]) -> Grid:
        v, x = units.v_tiles * self._tile_steps[0], units.x_tiles * self._tile_steps[1]
        return Grid(units.images, v, x, blocks)

    def _cheapest_blocks(self, units: Units, threads: int) -> tuple[float, tuple[int, ...]]:
        """What the busiest thread spends if panels are cut in the best way, and that.

        Every block of panels transforms the source anew. Units at an edge and blocks may be smaller than others: the
        thread that ends last may have had the largest.
        """
        before, products, after = self._costs(units)
        share = self._tiles_of(units) / self._tiles
        sizes = self._sizes(units) if units.count <= _FEW else []

        def slowest(blocks: tuple[int, ...]) -> float:
            panels = after + self._multiplying(units, products, len(blocks))
            if units.count * len(blocks) <= _FEW:
                by_block = [(before + panels * part) / self._tiles for part in self._shares(blocks)]
                return _last_end((cycles * tiles for cycles in by_block for tiles in sizes), threads)
            each = (before + panels / len(blocks)) / units.count
            most = (before + panels * max(self._shares(blocks))) * share
            return (-(-units.count * len(blocks) // threads) - 1) * each + most

        return min(((slowest(blocks), blocks) for blocks in self._choices[threads]), key=itemgetter(0))

    @lazy
    def _choices(self) -> dict[int, list[tuple[int, ...]]]:
        """Ways to cut the panels, by the number of threads: those that are asked for."""
        return {
            threads: list(dict.fromkeys(self._panel_blocks(count) for count in range(1, 4 * threads + 1)))
            for threads in {2, self.threads}
        }

    def _shares(self, blocks: tuple[int, ...]) -> list[float]:
        """The share of all columns of each block of panels."""
        vectors = self._vectors_before
        return [(vectors[end] - vectors[start]) / vectors[-1] for start, end in pairwise((0, *blocks))]

    def _sizes(self, units: Units) -> list[int]:
        """Tiles of the units, in the order in which they are taken."""
        tiles_v, tiles_x = self._tiles_by_axis()
        blocks = -(-tiles_v // units.v_tiles)
        images = [min(units.images, self.batch - n) for n in range(0, self.batch, units.images)]
        rows = [(tiles_v + i) // blocks for i in reversed(range(blocks))]
        columns = [min(units.x_tiles, tiles_x - x) for x in range(0, tiles_x, units.x_tiles)]
        return [n * v * x * self._spread for n in images for v in rows for x in columns] * self.outer_positions

    @lazy
    def _vectors_before(self) -> list[int]:
        return [0, *accumulate(panel[Panel.VECTORS] for panel in self.plan.panels)]

    @property
    def _tiles(self) -> int:
        return self.batch * self.outer_positions * prod(self._tiles_by_axis()) * self._spread

    def _tiles_of(self, units: Units) -> int:
        return units.images * units.v_tiles * units.x_tiles * self._spread

    def _costs(self, units: Units) -> tuple[float, float, float]:
        """Cycles of filling and the input transform, of the products, and of the output transform.

        Transformed weights are larger, and every unit reads all of them: on small maps of many channels that costs
        more than the products it saves.
        """
        plan, direct, lanes = self.winograd, self.plan, self.plan.tile.lanes
        rows, tiles = direct.tile.rows, self._tiles
        swept = self._rows(units)
        products = swept * plan.v.outputs * plan.x.outputs * direct.packed_elements / plan.gain
        products *= self.machine.pace / (2 * lanes) * self._needed_points
        products += CALL * len(plan.panels) * plan.points * (units.count + swept / rows)
        channels = plan.planes * direct.reduce_channels * self.problem.groups
        width = sum(panel[Panel.VECTORS] for panel in direct.panels)
        fill = TRANSPOSED if self.problem.data_layout == "NCX" else FILL
        return (
            (TRANSFORM * plan.points + fill * plan.v.outputs * plan.x.outputs) * tiles * channels / lanes,
            products,
            (TRANSFORM * plan.points + _STORE * plan.v.outputs * plan.x.outputs) * tiles * width * self._of_a_line,
        )

    @lazy
    def _needed_points(self) -> float:
        """The share of the points that tiles need: those at the ends may not have their last outputs, or none."""
        plan, share = self.winograd, 1.0
        sizes = zip(self._tiles_by_axis(), (plan.v, plan.x), plan.residues, strict=True)
        hulls = zip((self.v, self.x), (self.v_hull, self.x_hull), strict=True)
        for (tiles, transform, residues), (axis, (low, high)) in zip(sizes, hulls, strict=True):
            step = transform.outputs * residues.spread
            lacking = min(residues.spread, low + tiles * step - high)
            ends = [end for _, end in axis.ranges(reach=self.prefill)]
            points = [transform.size if end <= low + (tiles - 1) * step else 1 for end in ends]
            share *= 1 - lacking * sum(points) / (len(points) * tiles * residues.spread * transform.size)
        return share

    @property
    def _of_a_line(self) -> float:
        """What a vector of results costs, which is measured with whole lines: most of that is memory."""
        return 1.0 if self.plan.isa.vector_bytes == LINE_BYTES else 0.5

    def _multiplying(self, units: Units, products: float, blocks: int) -> float:
        """Cycles of the products, with reading weights that do not stay in L2, for every unit, and a source that does
        not, for each panel.

        The weights of a product come while the one before is computed, which hides most of it. If all units take one
        block of panels after the other, most of them find it in the last cache.
        """
        l2, weights = self.machine.l2_bytes, self._weights_bytes
        tiles = self._tiles_of(units)
        source = tiles * self._tile_bytes
        far = (
            units.count
            if weights > 2 * self.machine.last_bytes * blocks
            else min(1.0, weights / self.machine.last_bytes)
        )
        read = weights * (far + (units.count - far) / _NEARER) / STREAM
        again = source * len(self.winograd.panels) / self._at_once(tiles) * units.count / (4 * STREAM)
        if weights > l2 // 2:
            products = max(products, read) + UNHIDDEN * min(products, read)
        return products + (again if source > 3 * l2 // 4 else 0.0)
