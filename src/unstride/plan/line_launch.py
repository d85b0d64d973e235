"""What the launches of all plans whose work goes along lines of x have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import prod
from operator import itemgetter
from typing import Generic, TypeVar

from unstride.plan.across import AcrossPlan
from unstride.plan.cut import Grid
from unstride.plan.job import Job
from unstride.plan.launch import Launch, LaunchBuilder
from unstride.plan.machine import Machine
from unstride.plan.shares import in_blocks, round_up
from unstride.problem import Problem

__all__ = ["LineLaunch"]

P = TypeVar("P", bound=AcrossPlan)


class LineLaunch(LaunchBuilder, ABC, Generic[P]):
    """The launch of one problem, cut by the cheapest of a few grids, and its price.

    `plan` is the direct plan, whose axes it has; panels, scratch and the model of costs are those of `across`.
    """

    flushes_past = False
    crowd = 4  # with few products writing is all there is to do, and the last cache takes more than memory does

    def __init__(self, plan: P, problem: Problem, machine: Machine, threads: int) -> None:
        super().__init__(plan.direct, problem, machine, threads)
        self.across, self.lanes = plan, plan.direct.tile.lanes

    @abstractmethod
    def _grids(self) -> Iterator[Grid]:
        """The ways to cut that are worth a thought."""

    @abstractmethod
    def _cost(self, grid: Grid) -> float:
        """Cycles of the busiest thread."""

    @abstractmethod
    def _scratch(self, grid: Grid) -> dict[Job, int]:
        """Bytes of each part of a slot's scratch, in their order, by the field that says where the part starts."""

    @abstractmethod
    def _own_fields(self, grid: Grid) -> dict[Job, int]:
        """What the kernel reads beside the fields of a direct launch."""

    @property
    def fills_holes(self) -> bool:
        """Sums without terms are bias."""
        return self.has_all_planes

    @property
    def price(self) -> float | None:
        """Cycles of one thread, or None where there is nothing to compute."""
        work = prod(self.problem.data_shape) * prod(self.counts) * self.outer_positions
        return self.best_grid()[1] + self.prefilling if work else None

    def best_grid(self) -> tuple[Grid, float]:
        return min(((grid, self._cost(grid)) for grid in self._grids()), key=itemgetter(1))

    def _panel_blocks(self, most: int) -> tuple[int, ...]:
        """Whole chunks of channels, in blocks."""
        return in_blocks(self.across.chunk_ends, most)

    def build(self, grid: Grid | None = None) -> Launch:
        grid = grid or self.best_grid()[0]
        changes, end = self._own_fields(grid), 0
        for field, size in self._scratch(grid).items():
            changes[field] = end
            end += round_up(size)
        return super().build(grid).changed({**changes, Job.SCRATCH_PER_SLOT: end})
