"""How a call is cut for vectors across x: rows of one group at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from unstride._lazy import lazy
from unstride.plan.across import AcrossPlan, line_cycles, vector_count
from unstride.plan.cut import MOST_RESIDUES, STREAM, STRIP_BYTES, Grid
from unstride.plan.job import Job, Panel
from unstride.plan.line_launch import LineLaunch
from unstride.plan.shares import largest, round_up

__all__ = ["AcrossLaunch"]

_DEEP = 2048  # channels whose lines take as long as their products
_WOVEN = {1: 1.0, 2: 1.0, 3: 2.5, 4: 1.4}  # cycles of an element, by stride, with up to eight lanes
_FILLED = {1: 3.0, 2: 4.0, 3: 7.0, 4: 5.0}  # cycles of a vector of a source line, by the parts it is put into
_FILLED_FAR = 6.0  # and if it comes from the last cache, which is not guessed as well as for plain copies
_CALL = 35.0  # of one line of a panel, beside its steps
_LINE = 20.0  # cycles of a result row of a channel, beside its elements


class AcrossLaunch(LineLaunch[AcrossPlan]):
    """The launch of one problem with vectors across x, and its price."""

    @property
    def fills_holes(self) -> bool:
        """Lines of x-phases without taps start as bias; whole rows without taps are not visited."""
        return self.has_all_planes and self.v.phases.complete and self.x.phases.result_step <= MOST_RESIDUES

    @property
    def price(self) -> float | None:
        """Cycles of one thread, or None where rows are too short to fill vectors."""
        nv, nx = self.counts
        # Depthwise layers have another good kernel, with vectors of channels: it wins where rows are short.
        shortest = 2 * self.lanes if self.plan.depthwise else 3 * self.lanes // 4
        if not nv * nx * self.batch * self.outer_positions or (nv * nx if self.flat else nx) < shortest:
            return None
        return self.best_grid()[1] + self.prefilling

    @lazy
    def flat(self) -> bool:
        """Whether rows are one run, in the source and in the strip: nothing is padded, shifted or left out.

        Rows of two phases that fill their vectors are better kept apart: they can be woven in registers.
        """
        nx = self.counts[1]
        if self.across.parts > 1:
            return False
        if self.x.phases.result_step > 1 and round_up(nx, self.lanes) < 1.1 * nx:
            return False
        hulls = ((self.v, self.v_hull), (self.x, self.x_hull))
        return all(
            axis.phases.span == 1 and axis.source_shift == 0 and hull == (0, axis.source_size) for axis, hull in hulls
        )

    def _grids(self) -> Iterator[Grid]:
        nv, nx = self.counts
        budgets = [min(STRIP_BYTES, self.machine.l2_bytes // 2)]
        if self.across.parts > 1:
            budgets.append(self.machine.l2_bytes // 2)
        if self.across.packed_elements * self.compute_bytes > self.machine.l2_bytes // 2:
            budgets.append(2**20)  # few large strips, so that the weights are read less often
        for budget in budgets:
            x_unit = largest(nx, lambda x: self._room(1, x) <= budget)  # noqa: B023, called at once
            v_most = largest(nv, lambda v: self._room(v, x_unit) <= budget) if x_unit == nx else 1  # noqa: B023
            for pieces in (1, self.threads, 4 * self.threads):
                v_unit = min(v_most, -(-nv // pieces))
                x_part = x_unit if self.flat or nv >= pieces else min(x_unit, round_up(-(-nx // pieces), self.lanes))
                for blocks in (1, self.threads, 4 * self.threads):
                    yield Grid(1, v_unit, x_part, self._panel_blocks(blocks))

    def _cost(self, grid: Grid) -> float:
        """Cycles of the busiest thread: products, or the weights' way in; filling; weaving."""
        (nv, nx), lanes, step, plan = self.counts, self.lanes, self.x.phases.result_step, self.across
        units = self.batch * -(-nv // grid.v_unit) * -(-nx // grid.x_unit)
        blocks = len(grid.panel_blocks)
        tasks = units * self.outer_positions * blocks
        vectors = grid.v_unit * -(-grid.x_unit // lanes)
        if self.flat and grid.x_unit == nx:
            vectors = -(-grid.v_unit * nx // lanes)
        weights = plan.packed_elements / blocks
        lines, length = (1, vectors) if self.flat and grid.x_unit == nx else (grid.v_unit, vectors // grid.v_unit)
        products = lines * (self._waiting * self._line_cycles(length) + _CALL * len(plan.panels)) / blocks
        streamed = weights * self.compute_bytes / STREAM
        if weights * self.compute_bytes <= self.machine.l2_bytes / 2:
            streamed /= max(1, tasks // blocks // self.threads)
        reading = max(products, streamed) + 0.3 * min(products, streamed)
        filled = self._strip_pixels(1, grid.v_unit, grid.x_unit) * plan.direct.reduce_channels * self.problem.groups
        woven = grid.v_unit * grid.x_unit * step * self.v.phases.result_step
        woven *= plan.direct.result_channels * self.problem.groups * len(plan.direct.outer_phases) // blocks
        in_place = step == 1 or (step == 2 and not self.flat and not plan.few)
        in_place &= self.problem.dtype in ("f32", "f64") and grid.x_unit >= self._longest_tile * lanes
        weaving = self._weaving(in_place)
        # Every channel of the source begins on another page, which has to be found if the source is large.
        planes = len(plan.direct.planes) * plan.direct.reduce_channels * self.problem.groups
        pages = planes + filled * self.problem.itemsize / 4096
        far = _FILLED_FAR if plan.parts > 1 and self._far_data else 0.0
        filling = (_FILLED[plan.parts] + far) * filled / lanes + (100 * pages if self.has_far_source else 0)
        listing = 120 * len(plan.panels) / blocks
        flushed = 0.0 if in_place else woven / (grid.x_unit * step)
        return self._turns(tasks) * (reading + filling + listing + weaving * woven + _LINE * flushed + 2000)

    @property
    def _far_data(self) -> bool:
        """Whether source and result do not stay in the L2 of two cores."""
        source = prod(self.problem.data_shape) * self.problem.itemsize
        return source + self._result_bytes > 2 * self.machine.l2_bytes

    def _weaving(self, in_place: bool) -> float:
        """Cycles of an element on its way to the result, between those of other phases."""
        step, wide = self.x.phases.result_step, self.lanes > 8
        if in_place:
            return 0.35 if step == 1 or wide else 0.6 * self.result_distance
        if wide and step != 3:
            return self.result_distance
        return _WOVEN.get(step, 1.7) * self.result_distance

    @lazy
    def _longest_tile(self) -> int:
        """Vectors that most lines must have to be written where they belong: panels of a chunk wait for each other."""
        widths = {height: vector_count(self.plan.isa, height) for height in self._steps_by_height}
        return max(widths.values()) if self.across.few else widths[max(widths)]

    @property
    def _waiting(self) -> float:
        """How much longer than its instructions a step takes: with small tiles, deep sums wait for their lines."""
        deep = not self.across.few and self.plan.isa.registers == 16
        return 1.1 * (1 + self.plan.reduce_channels / _DEEP if deep else 1)

    @lazy
    def _steps_by_height(self) -> Counter[int]:
        """How many steps of the inner loop, over all panels, have tiles of each height."""
        found: Counter[int] = Counter()
        for panel, source in zip(self.across.panels, self.across.sources, strict=True):
            found[panel[Panel.COLUMNS]] += len(source.steps) * panel[Panel.RUN]
        return found

    def _line_cycles(self, vectors: int) -> float:
        """Cycles of one line through all panels."""
        heights = self._steps_by_height.items()
        return sum(steps * line_cycles(self.machine, height, vectors) for height, steps in heights)

    def _strip_room(self, v: int, x: int) -> int:
        rows = self.v.phases.source_step * (v - 1) + self.v.phases.span
        parts = self.across.parts
        part = round_up(-(-(parts * (x - 1) + self.x.phases.span) // parts) + self.lanes, self.lanes)
        pixels = len(self.plan.planes) * round_up(rows * parts * part, self.lanes)
        return self.compute_bytes * (self.plan.reduce_channels * pixels + 9 * self.lanes)

    def _lines_room(self, v: int, x: int) -> int:
        line = v * (round_up(x, self.lanes) + self.lanes) + 8 * self.lanes
        return self.compute_bytes * self.across.rows_per_chunk * line

    def _room(self, v: int, x: int) -> int:
        return self._strip_room(v, x) + self._lines_room(v, x)

    def _scratch(self, grid: Grid) -> dict[Job, int]:
        plan = self.across
        steps = max(p[Panel.INNER_COUNT] * p[Panel.OUTER_COUNT] for p in plan.panels)
        return {
            Job.OFFSET_STRIP: self._strip_room(grid.v_unit, grid.x_unit),
            Job.OFFSET_OUT: self._lines_room(grid.v_unit, grid.x_unit),
            Job.OFFSET_TAPS: 16 * steps + 16 * len(plan.direct.planes),
            Job.OFFSET_PRODUCTS: self.compute_bytes * (grid.x_unit + 4 * self.lanes) * self.x.phases.result_step,
        }

    def _own_fields(self, grid: Grid) -> dict[Job, int]:
        return {Job.FLAT: int(self.flat and grid.x_unit == self.counts[1])}

    def _tasks_ahead(self, grid: Grid) -> int:
        """Lines that are not put apart come in fast enough; of several groups one at a time is filled in."""
        return super()._tasks_ahead(grid) if self.across.parts > 1 and self.problem.groups == 1 else 0
