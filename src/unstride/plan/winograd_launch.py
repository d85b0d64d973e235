"""How a call is cut for Winograd: units of whole tiles, the same for every number of threads."""

from __future__ import annotations

from dataclasses import replace

from unstride.plan.job import Job, Panel
from unstride.plan.launch import STREAM, STRIP_BYTES, Grid, Launch, LaunchBuilder, round_up
from unstride.plan.machine import Machine
from unstride.plan.winograd import WinogradPlan
from unstride.problem import Problem

__all__ = ["plan_winograd_launch"]

_TRANSFORM = 3.0  # cycles of transforming one vector at one point, in or out


def plan_winograd_launch(
    plan: WinogradPlan, problem: Problem, machine: Machine, threads: int
) -> tuple[Launch, Launch] | None:
    """The launch of one problem with Winograd, and the direct one, cut alike, for the units that Winograd leaves.

    None where the map is too small for it to pay. The units must not depend on the threads: a unit is the
    grain of the choice between the two kernels, and that choice must not change the result. Panels may be cut freely.
    """
    builder = _Builder(plan.direct, problem, machine, threads)
    grid = builder.winograd_grid(plan)
    return None if grid is None else (builder.build_winograd(plan, grid), builder.build(grid))


class _Builder(LaunchBuilder):
    def build_winograd(self, plan: WinogradPlan, grid: Grid) -> Launch:
        """The Winograd launch: the direct one with room for the transformed strip and the products."""
        base = self.build(grid)
        tiles = self._tiles(plan, grid)
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

    def _tiles(self, plan: WinogradPlan, grid: Grid) -> int:
        return grid.images * -(-grid.v_unit // plan.v.outputs) * -(-grid.x_unit // plan.x.outputs)

    def winograd_grid(self, plan: WinogradPlan) -> Grid | None:
        nv, nx = self.v_hull[1] - self.v_hull[0], self.x_hull[1] - self.x_hull[0]
        batch = self.problem.batch
        if self.prefill or not nv * nx * batch * self.outer_positions:
            return None
        tiles_v, tiles_x = -(-nv // plan.v.outputs), -(-nx // plan.x.outputs)
        per_image = tiles_v * tiles_x
        total = batch * per_image * self.outer_positions
        if total < 8:
            return None
        channels = plan.direct.reduce_channels * self.problem.groups
        tile_bytes = plan.planes * plan.points * (channels + plan.direct.tile.lanes) * self.compute_bytes
        most = max(plan.direct.tile.rows, min(112, self.machine.l2_bytes // 2 // tile_bytes))
        if per_image <= most:
            images, v_tiles, x_tiles = even_share(batch, most // per_image), tiles_v, tiles_x
        elif tiles_x <= most:
            images, v_tiles, x_tiles = 1, even_share(tiles_v, most // tiles_x), tiles_x
        else:
            images, v_tiles, x_tiles = 1, 1, even_share(tiles_x, most)
        units = -(-batch // images) * -(-tiles_v // v_tiles) * -(-tiles_x // x_tiles) * self.outer_positions
        before, products, after = self._costs(plan, total, units)
        if not before + products + after < 0.95 * self._direct_cost(plan):
            return None

        def slowest(blocks: tuple[int, ...]) -> float:
            """What the busiest thread spends; every block of panels transforms the source anew."""
            each = (before + (products + after) / len(blocks)) / units
            return -(-units * len(blocks) // self.threads) * each

        blocks = min((self._panel_blocks(count) for count in range(1, 4 * self.threads + 1)), key=slowest)
        return Grid(images, v_tiles * plan.v.outputs, x_tiles * plan.x.outputs, blocks)

    def _costs(self, plan: WinogradPlan, tiles: int, units: int) -> tuple[float, float, float]:
        """Cycles of the input transform, the products, and the output transform.

        Transformed weights are larger, and every unit reads all of them: on small maps of many channels that costs
        more than the products it saves. Nothing here may depend on the number of threads.
        """
        direct, lanes = plan.direct, plan.direct.tile.lanes
        products = tiles * plan.v.outputs * plan.x.outputs * direct.packed_elements / (2 * lanes) / plan.gain
        channels = plan.planes * direct.reduce_channels * self.problem.groups
        width = sum(panel[Panel.VECTORS] for panel in direct.panels)
        return (
            _TRANSFORM * tiles * plan.points * channels / lanes,
            max(products, self._streamed(plan.packed_elements, units)),
            _TRANSFORM * tiles * plan.points * width,
        )

    def _direct_cost(self, plan: WinogradPlan) -> float:
        """Cycles of the direct kernel, by the same measure."""
        direct = plan.direct
        positions = self.problem.batch * self.outer_positions
        positions *= (self.v_hull[1] - self.v_hull[0]) * (self.x_hull[1] - self.x_hull[0])
        useful = self.v.useful_share * self.x.useful_share
        strips = -(-positions * direct.reduce_channels * self.compute_bytes // STRIP_BYTES)
        products = useful * positions * direct.packed_elements / (2 * direct.tile.lanes)
        return max(products, self._streamed(direct.packed_elements, strips))

    def _streamed(self, elements: int, times: int) -> float:
        """Cycles of reading weights that do not stay in L2."""
        size = elements * self.compute_bytes
        return size * times / STREAM if size > self.machine.l2_bytes // 2 else 0.0


def even_share(total: int, most: int) -> int:
    """The largest even share of `total` that is at most `most`."""
    pieces = -(-total // max(1, most))
    return -(-total // pieces)
