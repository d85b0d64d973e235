"""Products first, sums afterwards: for few result channels under large kernels.

A phase of few channels leaves most of a vector empty, and every phase reads the source anew. Here the columns of the
product are all of (kernel element, channel): a source pixel is multiplied once, with full vectors, and its products,
one patch of the result, are added to the patches of its neighbours in an L2 strip, some source rows at a time. Only
pixels that exist are multiplied. The sums of an element come in the order of the source pixels, whatever the cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from operator import itemgetter

from unstride.plan.cut import STREAM, Grid
from unstride.plan.direct import DirectPlan, PanelSource, plan_direct
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch, LaunchBuilder
from unstride.plan.machine import ISA
from unstride.plan.shares import largest, round_up
from unstride.problem import Structure

__all__ = ["OverlapLaunch", "plan_overlap"]

_MOST_CHANNELS = 48  # of the result: with more, phases fill their vectors well enough
_PRODUCTS_SHARE = 4  # of L2: for the products of some source rows
_SHORTEST = 64  # positions of a box along x, unless there are fewer
_FOLD, _FOLD_VECTOR = 14.0, 2.5  # cycles of adding one run of a patch, and of each of its vectors
_SORT = 3.0  # cycles of moving a vector to where it lies in the result


def plan_overlap(structure: Structure, isa: ISA) -> DirectPlan | None:
    """The plan, or None where it cannot be used or has nothing to gain."""
    s = structure
    if s.direction != "scatter" or s.kernel[-1] == 1 or s.co > _MOST_CHANNELS or (s.ci == s.co == 1):
        return None
    return _with_products(plan_direct(s, isa, clipped=True, shaped=False))


def _with_products(base: DirectPlan) -> DirectPlan:
    """The clipped plan, with panels of (kernel element, channel) in place of channels."""
    s, tile = base.structure, base.tile
    kernel = (1, *s.kernel)[-2:]
    elements = tuple(((v, x), c) for v in range(kernel[0]) for x in range(kernel[1]) for c in range(s.co))
    width = round_up(len(elements), tile.lanes)
    first = base.panels[0]
    zeros = (0,) * min(2, s.rank)
    panels: list[tuple[int, ...]] = []
    sources: list[PanelSource] = []
    ends: list[int] = []
    weights = 0
    outer_phases = list(product(*(axis.phases for axis in base.axes[:-2])))
    outer_runs = {p[Panel.OUTER_PHASE]: (p[Panel.OUTER_FIRST], p[Panel.OUTER_COUNT]) for p in base.panels}
    for group in range(s.groups):
        for index, phases in enumerate(outer_phases):
            steps = tuple((*(t.k for t in taps), *zeros) for taps in product(*(phase.taps for phase in phases)))
            for start in range(0, len(elements), tile.columns):
                columns = elements[start : start + tile.columns]
                vectors = -(-len(columns) // tile.lanes)
                fields = dict(zip(Panel, first, strict=True))
                fields.update(
                    {
                        Panel.WEIGHTS: weights,
                        Panel.INNER_FIRST: 0,
                        Panel.INNER_COUNT: 1,
                        Panel.OUTER_FIRST: outer_runs[index][0],
                        Panel.OUTER_COUNT: outer_runs[index][1],
                        Panel.CHANNEL: group * s.ci,
                        Panel.COLUMN: start,
                        Panel.COLUMNS: len(columns),
                        Panel.OUTER_PHASE: index,
                        Panel.BIAS: group * round_up(s.co, tile.lanes),
                        Panel.VECTORS: vectors,
                        Panel.GROUP_WIDTH: s.co,
                        Panel.START: -(-len(elements) // tile.columns) if start == 0 else 0,
                        Panel.FLUSH_CHANNEL: group * s.co,
                        Panel.FLUSH_WIDTH: s.co,
                        Panel.PRODUCTS: width,
                    }
                )
                panels.append(tuple(fields[f] for f in Panel))
                sources.append(PanelSource(group, steps, columns))
                weights += len(steps) * s.ci * vectors * tile.lanes
        ends.append(len(panels))
    return replace(
        base,
        algorithm="overlap-add",
        reason="few result channels: vectors run over kernel elements too, and patches are added",
        overlapping=True,
        panels=tuple(panels),
        sources=tuple(sources),
        flush_ends=tuple(ends),
        packed_elements=weights,
        bias_elements=s.groups * round_up(s.co, tile.lanes),
    )


class OverlapLaunch(LaunchBuilder):
    """How a call is cut: boxes of result positions, each with the source pixels that reach into it."""

    flushes_past = False

    @property
    def fills_holes(self) -> bool:
        """Sums start with the bias, so those without terms are nothing else."""
        return self.has_all_planes

    @property
    def price(self) -> float | None:
        """None where not all of the result would be visited."""
        return None if self.prefill else super().price

    def best_grid(self) -> tuple[Grid, float]:
        nv, nx = self.counts
        all_panels = (len(self.plan.panels),)
        if not nv * nx * self.outer_positions * self.batch:
            return Grid(1, 1, 1, all_panels), 0.0
        budget = self.machine.l2_bytes * 3 // 4
        boxes = [box for box in dict.fromkeys(self._overlap_boxes(nv, nx)) if self._room(*box) <= budget]
        grids = [Grid(*box, blocks) for box in boxes for blocks in self._cuts()]
        grids = grids or [Grid(1, 1, min(nx, _SHORTEST), all_panels)]
        return min(((grid, self._price(grid, nv, nx)) for grid in grids), key=itemgetter(1))

    def _cuts(self) -> list[tuple[int, ...]]:
        return list(dict.fromkeys(self._panel_blocks(count) for count in (1, self.threads, 4 * self.threads)))

    def _overlap_boxes(self, nv: int, nx: int) -> Iterable[tuple[int, int, int]]:
        for pieces in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256):
            for x in dict.fromkeys((nx, min(nx, 256), min(nx, _SHORTEST))):
                yield 1, -(-nv // pieces), x
            yield -(-self.batch // pieces), nv, nx

    def _price(self, grid: Grid, nv: int, nx: int) -> float:
        """Cycles of the busiest thread: filling, products, the sums of patches, and the way out."""
        plan, tile, lanes = self.plan, self.plan.tile, self.plan.tile.lanes
        blocks = len(grid.panel_blocks)
        box = (grid.images, grid.v_unit, grid.x_unit)
        units = -(-self.batch // grid.images) * -(-nv // grid.v_unit) * -(-nx // grid.x_unit)
        tasks = units * self.outer_positions * blocks
        pixels = self._strip_pixels(*box) // len(plan.planes)
        turns = -(-self._source_rows(grid.v_unit) // self._rows_at_once(*box))
        tiles = turns * -(-pixels // (turns * tile.rows))
        products = tiles * tile.rows * plan.packed_elements / blocks / (2 * lanes) * self.machine.pace
        products += 70.0 * tiles * len(plan.panels) / blocks
        streamed = plan.packed_elements / blocks * self.compute_bytes / STREAM
        if plan.packed_elements / blocks * self.compute_bytes <= self.machine.l2_bytes / 2:
            streamed /= max(1, tasks // blocks // self.threads)
        kernel = (1, *self.problem.kernel)[-2:]
        rounds = len(plan.flush_ends) * len(plan.outer_phases) / blocks
        folding = pixels * kernel[0] * (_FOLD + _FOLD_VECTOR * kernel[1] * self.problem.co / lanes) * rounds
        folding *= self.machine.pace
        channels = plan.reduce_channels * self.problem.groups
        filling = 0.0 if plan.in_place else self._strip_pixels(*box) * channels * 5 / lanes
        filling += self._finding_pages(grid.images, self._strip_bytes(*box))
        out = self._out_bytes(*box) / self.compute_bytes * rounds
        leaving = out * (1.0 + self.result_distance) * (0.6 if self.problem.data_layout == "NXC" else 0.75)
        if self.problem.dilation[-1] > 1:
            leaving += _SORT * out * -(-self.problem.co // lanes) / self.problem.co
        reading = max(products, streamed) + 0.3 * min(products, streamed)
        return -(-tasks // self.threads) * (reading + folding + filling + leaving + 3000)

    def _source_rows(self, v: int) -> int:
        return min(v + self.v.phases.span - 1, self.v.source_size)

    def _rows_at_once(self, images: int, v: int, x: int) -> int:
        """How many source rows are multiplied before their patches are added."""
        budget = self.machine.l2_bytes // _PRODUCTS_SHARE
        return largest(self._source_rows(v), lambda rows: self._products_of(images, rows, x) <= budget)

    def _products_of(self, images: int, rows: int, x: int) -> int:
        """Bytes of the products of so many source rows."""
        pixels = images * rows * min(x + self.x.phases.span - 1, self.x.source_size)
        return (pixels + self.plan.tile.rows) * self.plan.panels[0][Panel.PRODUCTS] * self.compute_bytes

    def _products_bytes(self, images: int, v: int, x: int) -> int:
        """Bytes of the products, or of one line of sums, which lies there later."""
        products = self._products_of(images, self._rows_at_once(images, v, x), x)
        return max(products, self._out_bytes(1, 1, x))

    def _room(self, images: int, v: int, x: int) -> int:
        strip = 0 if self.plan.in_place else self._strip_bytes(images, v, x)
        return strip + self._out_bytes(images, v, x) + self._products_bytes(images, v, x)

    def build(self, grid: Grid | None = None) -> Launch:
        grid = grid or self.best_grid()[0]
        base = super().build(grid)
        kernel, dilation = (1, *self.problem.kernel)[-2:], (1, *self.problem.dilation)[-2:]
        box = (grid.images, grid.v_unit, grid.x_unit)
        products = round_up(self._products_bytes(*box))
        return base.changed(
            {
                Job.OFFSET_PRODUCTS: base.scratch_per_slot,
                Job.SCRATCH_PER_SLOT: base.scratch_per_slot + products,
                Job.RING_ROWS: self._rows_at_once(*box),
                Job.KERNEL_V: kernel[0],
                Job.KERNEL_X: kernel[1],
                Job.DILATION_V: dilation[0],
                Job.DILATION_X: dilation[1],
            }
        )
