"""How a call is cut for vectors across x: rows of one group at a time."""

from __future__ import annotations

from dataclasses import replace

from unstride.plan.across import AcrossPlan
from unstride.plan.job import Job, Panel
from unstride.plan.launch import STRIP_BYTES, Grid, Launch, LaunchBuilder, largest, round_up
from unstride.plan.machine import Machine
from unstride.problem import Problem

__all__ = ["plan_across_launch"]


def plan_across_launch(plan: AcrossPlan, problem: Problem, machine: Machine, threads: int) -> Launch | None:
    """The launch of one problem with vectors across x, or None where rows are too short to fill them."""
    builder = _Builder(plan.direct, problem, machine, threads)
    return builder.build_across(plan)


class _Builder(LaunchBuilder):
    def build_across(self, plan: AcrossPlan) -> Launch | None:
        nv, nx = self.v_hull[1] - self.v_hull[0], self.x_hull[1] - self.x_hull[0]
        lanes = plan.direct.tile.lanes
        # Depthwise layers have another good kernel, with vectors of channels: it wins where rows are short.
        shortest = 2 * lanes if plan.direct.depthwise else 3 * lanes // 4
        if self.prefill or nx < shortest or not nv * self.problem.batch * self.outer_positions:
            return None
        size, step = self.compute_bytes, self.x.phases.result_step

        def strip(v: int, x: int) -> int:
            rows = self.v.phases.source_step * (v - 1) + self.v.phases.span
            columns = round_up(x - 1 + self.x.phases.span + lanes, lanes)
            return size * (plan.direct.reduce_channels * len(plan.direct.planes) * rows * columns + 8 * lanes)

        def lines(v: int, x: int) -> int:
            return size * (v * plan.rows_per_group * (round_up(x, lanes) + 4 * lanes) + 8 * lanes)

        def fits(v: int, x: int) -> bool:
            return strip(v, x) + lines(v, x) <= min(STRIP_BYTES, self.machine.l2_bytes // 2)

        x_unit = largest(nx, lambda x: fits(1, x))
        v_unit = largest(nv, lambda v: fits(v, x_unit)) if x_unit == nx else 1
        units = self.problem.batch * self.outer_positions * -(-nv // v_unit) * -(-nx // x_unit)
        groups = len(plan.group_ends)
        blocks = min(groups, max(1, -(-16 * self.threads // units)))
        if units * blocks < 4 * self.threads and self.threads > 1:
            v_unit = min(v_unit, -(-nv // (4 * self.threads)))
        ends = tuple(plan.group_ends[(i + 1) * groups // blocks - 1] for i in range(blocks))
        base = self.build(Grid(1, v_unit, x_unit, ends))
        steps = max(p[Panel.INNER_COUNT] * p[Panel.OUTER_COUNT] for p in plan.panels)
        sizes = [
            strip(v_unit, x_unit),
            lines(v_unit, x_unit),
            16 * steps + 16 * len(plan.direct.planes),
            size * (x_unit * step + 4 * lanes * step),
        ]
        places = [sum(map(round_up, sizes[:i])) for i in range(5)]
        fields = list(base.fields)
        fields[Job.OFFSET_STRIP], fields[Job.OFFSET_OUT], fields[Job.OFFSET_TAPS] = places[:3]
        fields[Job.OFFSET_PRODUCTS], fields[Job.SCRATCH_PER_SLOT] = places[3:]
        return replace(base, fields=tuple(fields), scratch_per_slot=places[4])
