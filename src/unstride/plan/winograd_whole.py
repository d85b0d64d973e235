"""Winograd for whole maps: tiles of the source, not of the result.

Tiles of results fit small maps badly: 12 pixels under k4 s2 have 13 positions, which are five tiles of three, and under
a dilated kernel without pads most of what the outer tiles multiply is padding. From the source a phase is a product
of polynomials: a tile of m pixels and q taps give m + q - 1 results, and those of neighbouring tiles are added where
they overlap. By transposition the weights are the same, transformed and packed, and the matrices change places:

    y = J BT^T [ (G g) * (A J d) ]      A = AT^T; J turns the order round

12 pixels are four tiles, and nothing is multiplied with padding. Where the last tile of a line is not full, its first
point is zero and is left out. A single pixel there needs only as many products as it has taps: under F(3, 2) it is
taken for (d, 0, -d), whose first and last point give d times either tap where they belong, and what the others would
have put right lies beyond the result. Sums that overlap are added by one task, so a unit is whole maps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from math import prod

from unstride._lazy import lazy
from unstride.plan.cut import Grid
from unstride.plan.job import Job, Panel, XRange
from unstride.plan.launch import Launch
from unstride.plan.shares import round_up
from unstride.plan.winograd import Matrix, Transform, WinogradPlan
from unstride.plan.winograd_launch import CALL, FILL, IMAGES, TRANSFORM, TRANSPOSED, Units, WinogradLaunch

__all__ = ["WholeLaunch", "WholePlan", "result_matrix", "source_matrix", "whole_maps"]

_MOST_TILES = 400  # of a unit: more than of the other form, for maps cannot be cut
_ADDED = 4.0  # cycles of transforming one vector at one point back, and adding it to its neighbours'
_OUT_ROOM = 4  # times L2: results of a unit that wait to be flushed may come from the last cache
_STORE = 8.0  # cycles of a finished vector on its way to the result


def source_matrix(transform: Transform) -> Matrix:
    """A J, size x outputs: what the pixels of a tile are multiplied with."""
    return tuple(zip(*reversed(transform.result), strict=True))


def result_matrix(transform: Transform) -> Matrix:
    """J BT^T, reach x size: what the products are multiplied with."""
    return tuple(reversed(tuple(zip(*transform.source, strict=True))))


class WholePlan(WinogradPlan):
    """The plan of Winograd, read the other way: its panels and weights are the same."""

    @property
    def algorithm(self) -> str:
        return f"{super().algorithm} of whole maps"

    @property
    def growth(self) -> float:
        return _growth(self.v) * _growth(self.x)


def whole_maps(plan: WinogradPlan | None) -> WholePlan | None:
    """The plan for whole maps, or None where the source falls into planes that are transformed by themselves."""
    if plan is None or plan.direct.structure.direction == "gather" or any(axis.count > 1 for axis in plan.residues):
        return None
    return WholePlan(**{field.name: getattr(plan, field.name) for field in fields(plan)})


def _growth(transform: Transform) -> float:
    """How much larger than the result the terms of its sum can be, with those of tiles that overlap."""
    into, back = source_matrix(transform), result_matrix(transform)
    weight = [max(map(abs, g)) * sum(map(abs, row)) for g, row in zip(transform.kernel, into, strict=True)]
    terms = [sum(abs(b) * w for b, w in zip(row, weight, strict=True)) for row in back]
    return max(sum(terms[start :: transform.outputs]) for start in range(transform.outputs)) / transform.divisor


class WholeLaunch(WinogradLaunch):
    """Launches of one problem by whole maps, and their price."""

    @property
    def price(self) -> float | None:
        """None where there are results that no tile reaches, or maps are too large to be units."""
        axes = zip((self.v_hull, self.x_hull), self._last, self._sum_sizes, strict=True)
        reached = all(low + last >= 0 and high + last <= size for (low, high), last, size in axes)
        fitting = next(self._candidates(), None)
        return super().price if reached and fitting and prod(self.counts) and self._has_room(fitting) else None

    def _tiles_by_axis(self) -> tuple[int, int]:
        v, x = (-(-axis.source_size // step) for axis, step in zip((self.v, self.x), self._tile_steps, strict=True))
        return v, x

    @property
    def _tiles_of_map(self) -> int:
        return prod(self._tiles_by_axis()) * self._spread

    @lazy
    def _extra(self) -> tuple[int, int]:
        return 0, 0

    @lazy
    def _last(self) -> tuple[int, int]:
        """What position and index of its sum differ by: the offset of the last tap."""
        transforms = zip((self.v, self.x), (self.winograd.v, self.winograd.x), self.winograd.residues, strict=True)
        v, x = (
            axis.phases.first + axis.source_shift + (transform.taps - 1) * residues.step
            for axis, transform, residues in transforms
        )
        return v, x

    @property
    def _sum_sizes(self) -> tuple[int, int]:
        """Sums along v and x: those of all tiles, and what the last one reaches beyond its pixels."""
        plan = self.winograd
        axes = zip(self._tiles_by_axis(), self._tile_steps, (plan.v, plan.x), plan.residues, strict=True)
        v, x = (tiles * step + (transform.taps - 1) * residues.step for tiles, step, transform, residues in axes)
        return v, x

    def _candidates(self) -> Iterator[Units]:
        v, x = self._tiles_by_axis()
        numbers = dict.fromkeys(min(n, self.batch) for n in (1, *IMAGES))
        for images in [n for n in numbers if n * self._tiles_of_map <= _MOST_TILES]:
            yield Units(images, v, x, -(-self.batch // images) * self.outer_positions)

    def _strip_rows(self, rows: int, columns: int) -> int:
        """One row of tiles at a time: no other one needs its pixels, and they hardly leave L1."""
        return 1

    @property
    def _out_room(self) -> int:
        return _OUT_ROOM * self.machine.l2_bytes

    def _rows_and_columns(self, grid: Grid) -> tuple[int, int]:
        return self._tiles_by_axis()

    def _grid(self, units: Units, blocks: tuple[int, ...]) -> Grid:
        return Grid(units.images, *self.counts, blocks)

    @property
    def _sums_bytes(self) -> int:
        """Rows of sums to which tiles of one row add something."""
        rows = self.winograd.v.reach * self.winograd.residues[0].spread
        return round_up(rows * self._sum_sizes[1] * self.winograd.direct.tile.columns * self.compute_bytes)

    def _scratch(self, grid: Grid) -> tuple[int, int, int]:
        strip, transformed, products = super()._scratch(grid)
        return strip, transformed, products + self._sums_bytes

    def _build_winograd(self, grid: Grid) -> Launch:
        base, (v, x) = super()._build_winograd(grid), self._alone
        ring = base.scratch_per_slot - self._sums_bytes
        return base.changed({Job.OFFSET_RING: ring, Job.ALONE_V: int(v), Job.ALONE_X: int(x)})

    @lazy
    def _alone(self) -> tuple[bool, bool]:
        """Along v and x: whether the last tile holds one pixel, and no result lies beyond what that reaches."""
        plan = self.winograd
        axes = zip((self.v, self.x), (self.v_hull, self.x_hull), self._last, strict=True)
        v, x = (
            transform == Transform(3, 2)
            and residues.spread == 1
            and axis.source_size % transform.outputs == 1
            and high + last <= axis.source_size + 1
            for (axis, (_, high), last), transform, residues in zip(axes, (plan.v, plan.x), plan.residues, strict=True)
        )
        return v, x

    def _costs(self, units: Units) -> tuple[float, float, float]:
        plan, direct, lanes = self.winograd, self.plan, self.plan.tile.lanes
        channels = plan.planes * direct.reduce_channels * self.problem.groups
        width = sum(panel[Panel.VECTORS] for panel in direct.panels)
        fill = TRANSPOSED if self.problem.data_layout == "NCX" else FILL
        results = self.batch * self.outer_positions * prod(self.counts)
        return (
            (TRANSFORM * plan.points + fill * plan.v.outputs * plan.x.outputs) * self._tiles * channels / lanes,
            self._multiplications(units),
            (_ADDED * plan.points * self._tiles + _STORE * results) * width * self._of_a_line,
        )

    def _multiplications(self, units: Units) -> float:
        """Cycles of the products: at some points there are none of tiles that are not full."""
        plan, total = self.winograd, 0.0
        lines, full = zip(*self._lines_and_full(), strict=True)
        swept = [[self._swept(units.images * v * x) for x in (lines[1], full[1])] for v in (lines[0], full[0])]
        for panel in plan.panels:
            short = panel[Panel.SHORT_V], panel[Panel.SHORT_X]
            # By axis: points of all tiles, points of full ones.
            axes = zip(self._alone, self._cropped(panel), short, (plan.v, plan.x), strict=True)
            v, x = (
                (transform.size - 1, 1 - lacking) if not alone else (1, 3 - lacking) if cropped else (2 - lacking, 2)
                for alone, cropped, lacking, transform in axes
            )
            rows = sum(v[i] * x[j] * swept[i][j] for i, j in product(range(2), range(2)))
            total += rows * panel[Panel.RUN] * panel[Panel.OUTER_COUNT] * panel[Panel.VECTORS]
        calls = CALL * len(plan.panels) * plan.points * (1 + -(-self._tiles_of(units) // plan.direct.tile.rows))
        return units.count * (total * self.machine.pace / 2 + calls)

    def _cropped(self, panel: tuple[int, ...]) -> tuple[bool, bool]:
        """Along v and x: whether the second result of the last pixel lies outside of what a panel computes."""
        ends = self._v_ends[panel[Panel.V_RANGE]], self._x_ends[panel[Panel.X_RANGE]]
        axes = zip(ends, self._last, (self.v, self.x), strict=True)
        v, x = (end + last <= axis.source_size for end, last, axis in axes)
        return v, x

    @lazy
    def _v_ends(self) -> list[int]:
        return [high for _, high in self.v.ranges(reach=self.prefill)]

    @lazy
    def _x_ends(self) -> list[int]:
        return [self._x_range(*key)[XRange.LAST] for key in self.plan.x_ranges]

    def _lines_and_full(self) -> Iterator[tuple[int, int]]:
        """Along v and x: tiles with those of all residues, and how many of them are full."""
        plan = self.winograd
        for axis, step, residues in zip((self.v, self.x), self._tile_steps, plan.residues, strict=True):
            tiles, spread = -(-axis.source_size // step), residues.spread
            partly = spread - max(0, min(spread, axis.source_size + spread - tiles * step))
            yield tiles * spread, tiles * spread - partly
