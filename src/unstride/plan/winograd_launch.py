"""How a call is cut for Winograd: units of whole tiles, the same for every number of threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from unstride._lazy import lazy
from unstride.plan.cut import STREAM, Grid
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch, LaunchBuilder, round_up
from unstride.plan.machine import Machine
from unstride.plan.winograd import WinogradPlan
from unstride.problem import Problem

__all__ = ["WinogradLaunch"]

_TRANSFORM = 3.0  # cycles of transforming one vector at one point, in or out
_CALL = 60.0  # cycles of one call of the inner loop, and of listing the planes of a point
_FILL, _STORE = 5.0, 8.0  # cycles of one vector on its way into the strip, and to the result
# How large a unit may be: halves of L2 for its transformed source, and tiles. Few large units read the weights seldom.
_ROOMS = ((1, 112), (2, 112), (4, 224), (6, 224))
_MOST_SCRATCH = 7 * 2**20  # of one thread


@dataclass(frozen=True)
class Units:
    """Images, rows and columns of tiles in a unit, and how many units there are."""

    images: int
    v_tiles: int
    x_tiles: int
    count: int


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
        return 2 * self._best_units[0]

    def launches(self) -> tuple[Launch, Launch]:
        """The Winograd launch, and the direct one, cut alike, for the units that Winograd leaves.

        The units must not depend on the threads: a unit is the grain of the choice between the two kernels, and that
        choice must not change the result. Panels may be cut freely.
        """
        grid = self._winograd_grid()
        return self._build_winograd(grid), self.build(grid)

    def _build_winograd(self, grid: Grid) -> Launch:
        """The Winograd launch: the direct one with room for the transformed strip and the products."""
        plan, base = self.winograd, self.build(grid)
        strip, transformed, products, targets = self._scratch(grid)
        out = base.fields[Job.OFFSET_TAPS] - base.fields[Job.OFFSET_OUT]
        taps = base.scratch_per_slot - base.fields[Job.OFFSET_TAPS]
        taps = max(taps, round_up(16 * (plan.planes + len(plan.direct.planes))))
        fields = list(base.fields)
        fields[Job.RESIDUES_V], fields[Job.RESIDUES_X] = (residues.count for residues in plan.residues)
        fields[Job.FULL_V], fields[Job.FULL_X] = (residues.full for residues in plan.residues)
        fields[Job.OFFSET_OUT] = strip
        fields[Job.OFFSET_TAPS] = strip + out
        fields[Job.OFFSET_TRANSFORMED] = strip + out + taps
        fields[Job.OFFSET_PRODUCTS] = strip + out + taps + transformed
        fields[Job.OFFSET_TARGETS] = strip + out + taps + transformed + products
        fields[Job.SCRATCH_PER_SLOT] = total = strip + out + taps + transformed + products + targets
        return replace(base, fields=tuple(fields), scratch_per_slot=total)

    def _scratch(self, grid: Grid) -> tuple[int, int, int, int]:
        """Bytes of the strip, the transformed strip, the products of a panel, and where tiles go."""
        plan, tile = self.winograd, self.winograd.direct.tile
        rows, columns = -(-grid.v_unit // plan.v.outputs), -(-grid.x_unit // plan.x.outputs)
        tiles = grid.images * rows * columns
        channels = plan.direct.reduce_channels * self.problem.groups
        row = round_up(channels, tile.lanes) + tile.lanes
        strip_pixels = (
            grid.images
            * len(plan.direct.planes)
            * (rows * plan.v.outputs + plan.v.taps - 1)
            * (columns * plan.x.outputs + plan.x.taps - 1)
            * self.v.phases.source_step
            * self.x.phases.source_step
        )
        over = tile.rows * row  # the last block of tiles may read rows that hold nothing
        blocks = -(-tiles // tile.rows)
        return (
            round_up((strip_pixels * plan.direct.pixel_pitch + 2 * tile.columns) * self.compute_bytes),
            round_up((plan.planes * plan.points * (tiles * row + tile.lanes) + over) * self.compute_bytes),
            round_up(plan.points * blocks * tile.rows * tile.columns * self.compute_bytes),
            round_up(8 * tiles),
        )

    def _tiles_by_axis(self) -> tuple[int, int]:
        nv, nx = self.v_hull[1] - self.v_hull[0], self.x_hull[1] - self.x_hull[0]
        return -(-nv // self.winograd.v.outputs), -(-nx // self.winograd.x.outputs)

    @lazy
    def _best_units(self) -> tuple[float, Units]:
        """The price of the cheapest units for two threads, and these: they must not depend on the number of threads.

        Where weights stay in L2 the source should, too. Otherwise larger units must gain something.
        """
        best: tuple[float, Units] | None = None
        for share, most in _ROOMS if self._weights_bytes > self.machine.l2_bytes // 2 else _ROOMS[:1]:
            units = self._units(share * self.machine.l2_bytes // 2, most)
            if best is not None and sum(self._scratch(self._grid(units, ()))) > _MOST_SCRATCH:
                break
            price = min(self._slowest(units, blocks, 2) for blocks in self._block_choices(2))
            if best is None or price < 0.97 * best[0]:
                best = price, units
        assert best is not None
        return best

    @property
    def _weights_bytes(self) -> int:
        return self.winograd.packed_elements * self.compute_bytes

    @property
    def _tile_bytes(self) -> int:
        """Bytes of one transformed tile of the source."""
        channels = self.winograd.direct.reduce_channels * self.problem.groups
        row = channels + self.winograd.direct.tile.lanes
        return self.winograd.planes * self.winograd.points * row * self.compute_bytes

    def _units(self, room: int, most: int) -> Units:
        """Units whose transformed source takes no more than `room`, of at most so many tiles."""
        plan, (tiles_v, tiles_x) = self.winograd, self._tiles_by_axis()
        per_image = tiles_v * tiles_x
        most = max(plan.direct.tile.rows, min(most, room // self._tile_bytes))
        if per_image <= most:
            images, v_tiles, x_tiles = _even_share(self.batch, most // per_image), tiles_v, tiles_x
        elif tiles_x <= most:
            images, v_tiles, x_tiles = 1, _even_share(tiles_v, most // tiles_x), tiles_x
        else:
            images, v_tiles, x_tiles = 1, 1, _even_share(tiles_x, most)
        count = -(-self.batch // images) * -(-tiles_v // v_tiles) * -(-tiles_x // x_tiles) * self.outer_positions
        return Units(images, v_tiles, x_tiles, count)

    def _winograd_grid(self) -> Grid:
        units = self._best_units[1]
        blocks = min(self._block_choices(self.threads), key=lambda blocks: self._slowest(units, blocks, self.threads))
        return self._grid(units, blocks)

    def _grid(self, units: Units, blocks: tuple[int, ...]) -> Grid:
        v, x = units.v_tiles * self.winograd.v.outputs, units.x_tiles * self.winograd.x.outputs
        return Grid(units.images, v, x, blocks)

    def _block_choices(self, threads: int) -> list[tuple[int, ...]]:
        return [self._panel_blocks(count) for count in range(1, 4 * threads + 1)]

    def _slowest(self, units: Units, blocks: tuple[int, ...], threads: int) -> float:
        """What the busiest thread spends; every block of panels transforms the source anew."""
        before, products, after = self._costs(units)
        products += self._streamed(units, len(blocks))
        each = (before + (products + after) / len(blocks)) / units.count
        return -(-units.count * len(blocks) // threads) * each

    def _costs(self, units: Units) -> tuple[float, float, float]:
        """Cycles of filling and the input transform, of the products, and of the output transform.

        Transformed weights are larger, and every unit reads all of them: on small maps of many channels that costs
        more than the products it saves.
        """
        plan, direct, lanes = self.winograd, self.plan, self.plan.tile.lanes
        rows, tiles = direct.tile.rows, self.batch * self.outer_positions * prod(self._tiles_by_axis())
        blocks = units.count * -(-tiles // (units.count * rows))
        products = blocks * rows * plan.v.outputs * plan.x.outputs * direct.packed_elements / (2 * lanes) / plan.gain
        products += _CALL * len(plan.panels) * plan.points * (units.count + blocks)
        channels = plan.planes * direct.reduce_channels * self.problem.groups
        width = sum(panel[Panel.VECTORS] for panel in direct.panels)
        return (
            (_TRANSFORM * plan.points + _FILL * plan.v.outputs * plan.x.outputs) * tiles * channels / lanes,
            products,
            (_TRANSFORM * plan.points + _STORE * plan.v.outputs * plan.x.outputs) * tiles * width,
        )

    def _streamed(self, units: Units, blocks: int) -> float:
        """Cycles of reading weights that do not stay in L2, for every unit, and a source that does not, for each panel.

        A panel comes from memory while its first rows are multiplied, which takes longer than to multiply them. If all
        units take one block of panels after the other, most of them find it in the last cache.
        """
        l2, weights = self.machine.l2_bytes, self._weights_bytes
        source = units.images * units.v_tiles * units.x_tiles * self._tile_bytes
        far = (
            units.count
            if weights > 2 * self.machine.last_bytes * blocks
            else min(1.0, weights / self.machine.last_bytes)
        )
        read = weights * (far + (units.count - far) / 4) / STREAM
        again = source * len(self.winograd.panels) * units.count / (4 * STREAM)
        return (read if weights > l2 // 2 else 0.0) + (again if source > 3 * l2 // 4 else 0.0)


def _even_share(total: int, most: int) -> int:
    """The largest even share of `total` that is at most `most`."""
    pieces = -(-total // max(1, most))
    return -(-total // pieces)
