"""How a call is cut for Winograd: units of whole tiles, the same for every number of threads."""

from __future__ import annotations

from dataclasses import replace

from unstride.plan.job import Job, Panel
from unstride.plan.launch import STREAM, Grid, Launch, LaunchBuilder, round_up
from unstride.plan.machine import Machine
from unstride.plan.winograd import WinogradPlan
from unstride.problem import Problem

__all__ = ["WinogradLaunch"]

_TRANSFORM = 3.0  # cycles of transforming one vector at one point, in or out
_CALL = 60.0  # cycles of one call of the inner loop, and of listing the planes of a point
_FILL, _STORE = 5.0, 8.0  # cycles of one vector on its way into the strip, and to the result


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
        return 2 * min(self._slowest(blocks, 2) for blocks in self._block_choices(2))

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
        tiles = grid.images * -(-grid.v_unit // plan.v.outputs) * -(-grid.x_unit // plan.x.outputs)
        lanes, vectors = plan.direct.tile.lanes, plan.direct.tile.vectors
        channels = plan.direct.reduce_channels * self.problem.groups
        row = round_up(channels, lanes) + lanes
        strip_pixels = (
            grid.images
            * len(plan.direct.planes)
            * (-(-grid.v_unit // plan.v.outputs) * plan.v.outputs + plan.v.taps - 1)
            * (-(-grid.x_unit // plan.x.outputs) * plan.x.outputs + plan.x.taps - 1)
            * self.v.phases.source_step
            * self.x.phases.source_step
        )
        strip = round_up((strip_pixels * plan.direct.pixel_pitch + 2 * plan.direct.tile.columns) * self.compute_bytes)
        out = base.fields[Job.OFFSET_TAPS] - base.fields[Job.OFFSET_OUT]
        planes = plan.planes
        taps = base.scratch_per_slot - base.fields[Job.OFFSET_TAPS]
        taps = max(taps, round_up(16 * (planes + len(plan.direct.planes))))
        over = plan.direct.tile.rows * row  # the last block of tiles may read rows that hold nothing
        transformed = round_up((planes * plan.points * (tiles * row + lanes) + over) * self.compute_bytes)
        blocks = -(-tiles // plan.direct.tile.rows)
        products = round_up(plan.points * blocks * plan.direct.tile.rows * vectors * lanes * self.compute_bytes)
        fields = list(base.fields)
        fields[Job.RESIDUES_V], fields[Job.RESIDUES_X] = (residues.count for residues in plan.residues)
        fields[Job.FULL_V], fields[Job.FULL_X] = (residues.full for residues in plan.residues)
        fields[Job.OFFSET_OUT] = strip
        fields[Job.OFFSET_TAPS] = strip + out
        fields[Job.OFFSET_TRANSFORMED] = strip + out + taps
        fields[Job.OFFSET_PRODUCTS] = strip + out + taps + transformed
        fields[Job.OFFSET_TARGETS] = strip + out + taps + transformed + products
        fields[Job.SCRATCH_PER_SLOT] = total = strip + out + taps + transformed + products + round_up(8 * tiles)
        return replace(base, fields=tuple(fields), scratch_per_slot=total)

    def _tiles_by_axis(self) -> tuple[int, int]:
        nv, nx = self.v_hull[1] - self.v_hull[0], self.x_hull[1] - self.x_hull[0]
        return -(-nv // self.winograd.v.outputs), -(-nx // self.winograd.x.outputs)

    def _units(self) -> tuple[int, int, int, int, int]:
        """Images, rows and columns of tiles in a unit; how many tiles, and how many units."""
        plan, (tiles_v, tiles_x) = self.winograd, self._tiles_by_axis()
        per_image = tiles_v * tiles_x
        channels = plan.direct.reduce_channels * self.problem.groups
        tile_bytes = plan.planes * plan.points * (channels + plan.direct.tile.lanes) * self.compute_bytes
        most = max(plan.direct.tile.rows, min(112, self.machine.l2_bytes // 2 // tile_bytes))
        if per_image <= most:
            images, v_tiles, x_tiles = _even_share(self.batch, most // per_image), tiles_v, tiles_x
        elif tiles_x <= most:
            images, v_tiles, x_tiles = 1, _even_share(tiles_v, most // tiles_x), tiles_x
        else:
            images, v_tiles, x_tiles = 1, 1, _even_share(tiles_x, most)
        units = -(-self.batch // images) * -(-tiles_v // v_tiles) * -(-tiles_x // x_tiles) * self.outer_positions
        return images, v_tiles, x_tiles, self.batch * per_image * self.outer_positions, units

    def _winograd_grid(self) -> Grid:
        images, v_tiles, x_tiles, *_ = self._units()
        blocks = min(self._block_choices(self.threads), key=lambda blocks: self._slowest(blocks, self.threads))
        return Grid(images, v_tiles * self.winograd.v.outputs, x_tiles * self.winograd.x.outputs, blocks)

    def _block_choices(self, threads: int) -> list[tuple[int, ...]]:
        return [self._panel_blocks(count) for count in range(1, 4 * threads + 1)]

    def _slowest(self, blocks: tuple[int, ...], threads: int) -> float:
        """What the busiest thread spends; every block of panels transforms the source anew."""
        *_, tiles, units = self._units()
        before, products, after = self._costs(tiles, units)
        each = (before + (products + after) / len(blocks)) / units
        return -(-units * len(blocks) // threads) * each

    def _costs(self, tiles: int, units: int) -> tuple[float, float, float]:
        """Cycles of filling and the input transform, of the products, and of the output transform.

        Transformed weights are larger, and every unit reads all of them: on small maps of many channels that costs
        more than the products it saves.
        """
        plan, direct, lanes = self.winograd, self.plan, self.plan.tile.lanes
        rows = direct.tile.rows
        blocks = units * -(-tiles // (units * rows))
        products = blocks * rows * plan.v.outputs * plan.x.outputs * direct.packed_elements / (2 * lanes) / plan.gain
        products += _CALL * len(plan.panels) * plan.points * (units + blocks)
        channels = plan.planes * direct.reduce_channels * self.problem.groups
        width = sum(panel[Panel.VECTORS] for panel in direct.panels)
        return (
            (_TRANSFORM * plan.points + _FILL * plan.v.outputs * plan.x.outputs) * tiles * channels / lanes,
            max(products, self._streamed(plan.packed_elements, units)),
            (_TRANSFORM * plan.points + _STORE * plan.v.outputs * plan.x.outputs) * tiles * width,
        )

    def _streamed(self, elements: int, times: int) -> float:
        """Cycles of reading weights that do not stay in L2."""
        size = elements * self.compute_bytes
        return size * times / STREAM if size > self.machine.l2_bytes // 2 else 0.0


def _even_share(total: int, most: int) -> int:
    """The largest even share of `total` that is at most `most`."""
    pieces = -(-total // max(1, most))
    return -(-total // pieces)
