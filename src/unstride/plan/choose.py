"""Which algorithm computes a problem: every candidate is priced by its model, and the cheapest is taken.

A price is cycles of one thread, so the choice does not depend on the number of threads: Winograd rounds differently
from the direct kernel, and results must not change with threads. `SCALE` corrects what a model gets wrong on the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from unstride._lazy import lazy
from unstride.plan.across import AcrossPlan, plan_across
from unstride.plan.across_launch import AcrossLaunch
from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.folded import FoldedLaunch, FoldedPlan, plan_folded
from unstride.plan.launch import Launch, LaunchBuilder
from unstride.plan.machine import AMX, ISA, Machine
from unstride.plan.matrix import MatrixLaunch, MatrixPlan, plan_matrix
from unstride.plan.overlap import OverlapLaunch, plan_overlap
from unstride.plan.rows import RowsLaunch, RowsPlan, plan_rows
from unstride.plan.shares import round_up
from unstride.plan.spread import SpreadLaunch, SpreadPlan, plan_spread
from unstride.plan.winograd import WinogradPlan, plan_winograd
from unstride.plan.winograd_launch import WinogradLaunch
from unstride.plan.winograd_whole import WholeLaunch, WholePlan, whole_maps
from unstride.problem import Problem, Structure

__all__ = ["KINDS", "SCALE", "Plan", "Plans", "choose", "fitting"]

Plan = DirectPlan | WinogradPlan | AcrossPlan

KINDS = (
    *("direct", "banded", "clipped", "overlap", "folded", "spread", "rows"),
    *("winograd", "large", "whole", "whole_large", "across", "matrix"),
)

# What makes the launches of a kind; of others it is a LaunchBuilder, for their plans are direct ones.
_LAUNCHES: dict[str, Callable[..., LaunchBuilder]] = {
    "overlap": OverlapLaunch,
    "folded": FoldedLaunch,
    "spread": SpreadLaunch,
    "rows": RowsLaunch,
    "winograd": WinogradLaunch,
    "large": WinogradLaunch,
    "whole": WholeLaunch,
    "whole_large": WholeLaunch,
    "across": AcrossLaunch,
    "matrix": MatrixLaunch,
}

# How much longer than its model says a kernel takes, relative to the direct one: the median over random layers that are
# in no list, by `python -m unstride.bench.learn`. The models know caches and registers; this is what they leave out.
# With AVX-512 two are below their median: `across`, which loses little where it does, and in one pass `spread`, of
# which few random layers are.
# In two passes `winograd` and `whole` are a little above theirs: deep direct layers are faster than their model says.
SCALE = {
    "avx512": {
        "banded": 0.98,
        "clipped": 0.96,
        "overlap": 0.92,
        "folded": 0.86,
        "spread": 0.85,
        "rows": 0.8,
        "winograd": 1.04,
        "large": 1.02,
        "whole": 1.04,
        "whole_large": 1.04,
        "across": 0.89,
    },
    "avx512 in 2 passes": {
        "banded": 0.97,
        "clipped": 0.97,
        "overlap": 0.92,
        "folded": 0.91,
        "spread": 1.0,
        "rows": 0.8,
        "winograd": 1.05,
        "large": 1.03,
        "whole": 1.05,
        "whole_large": 1.05,
        "across": 0.9,
    },
    "avx2": {
        "banded": 0.97,
        "clipped": 0.87,
        "overlap": 0.92,
        "folded": 0.95,
        "winograd": 0.96,
        "large": 0.97,
        "whole": 0.92,
        "whole_large": 0.92,
    },
}

# The same of `clipped` where there is no padding to leave out, and only its weights are near.
_UNPADDED = {"avx512 in 2 passes": 1.1}

# Where vectors take two passes, narrower ones compute as much; they are used where they leave fewer lanes empty and
# a large map takes at most this part of the time. Not where these kernels would compute it, whose prices, of which only
# the order counts, do not compare.
_NARROWER, _NOT_NARROWER = 0.97, ("rows", "spread", "clipped")

# What another kernel than the one for large maps must gain, in cycles: it has to be compiled and packed for. On tiny
# maps a part of its price will do, of the direct one less than of others: it serves the sizes that they leave, too.
_ANOTHER, _PART_OF_DIRECT, _PART = 40_000.0, 1 / 12, 1 / 5


class Plans:
    """The plans of one structure, each made when it is first looked at."""

    def __init__(
        self, structure: Structure, isa: ISA, accuracy: str, *, matrix: tuple[str, ...] = (), matrix_isa: ISA = AMX
    ) -> None:
        """`matrix` and `matrix_isa` are those of a `Machine`. An `accuracy` of "unmixed" is "standard"
        without Winograd: for weights that it must not mix."""
        self.structure, self.isa, self.accuracy = structure, isa, accuracy
        self._matrix_isa = matrix_isa if structure.dtype in matrix else None
        self.strict = accuracy == "strict"
        self._preferred: dict[Machine, str] = {}
        self._last_prices: tuple[Problem, Machine, dict[str, float]] | None = None

    @property
    def special(self) -> WinogradPlan | AcrossPlan | None:
        """What may beat the direct plan on every large map, if there is such a plan."""
        return self.across or self.large or self.winograd

    @lazy
    def across(self) -> AcrossPlan | None:
        """Not where pixels can be spread over lanes, which beats it."""
        return None if self.spread else plan_across(self.structure, self.isa)

    @lazy
    def winograd(self) -> WinogradPlan | None:
        return self._winograd("coarse" if self.accuracy == "fast" else "small")

    @lazy
    def large(self) -> WinogradPlan | None:
        """Winograd with larger tiles, where there are such of the same accuracy."""
        if self.accuracy == "fast" or (plan := self._winograd("large")) is None:
            return None
        return None if self.winograd and self.winograd.algorithm == plan.algorithm else plan

    def _winograd(self, tiles: str) -> WinogradPlan | None:
        """Only where nothing goes across x; not for strict results, either."""
        ruled_out = self.accuracy in ("strict", "unmixed") or self.spread or self.across
        return None if ruled_out else plan_winograd(self.structure, self.isa, tiles)

    @lazy
    def whole(self) -> WholePlan | None:
        return whole_maps(self.winograd)

    @lazy
    def whole_large(self) -> WholePlan | None:
        return whole_maps(self.large)

    @lazy
    def direct(self) -> DirectPlan:
        """Made already, if there is a plan that is built on it."""
        built = self.spread or self.rows or self.across
        return built.direct if built else plan_direct(self.structure, self.isa)

    @lazy
    def left(self) -> DirectPlan:
        """What computes the units that Winograd leaves: with its panels, and tiles of its one shape."""
        plan = self.winograd or self.large
        assert plan is not None
        left = plan.direct
        return self.direct if left == self.direct else left

    @lazy
    def clipped(self) -> DirectPlan:
        return plan_direct(self.structure, self.isa, clipped=True)

    @lazy
    def overlap(self) -> DirectPlan | None:
        """Not for strict results: it adds up the channels of each tap first, the others one long sum."""
        return None if self.strict else plan_overlap(self.structure, self.isa)

    @lazy
    def folded(self) -> FoldedPlan | None:
        """Not for strict results, either."""
        return None if self.strict else plan_folded(self.structure, self.isa)

    @lazy
    def spread(self) -> SpreadPlan | None:
        """Strict results need the order of all others, but a sum over one channel has no other."""
        alone = self.structure.ci * self.structure.co == 1
        return plan_spread(self.structure, self.isa) if alone or not self.strict else None

    @lazy
    def rows(self) -> RowsPlan | None:
        return plan_rows(self.structure, self.isa)

    @lazy
    def matrix(self) -> MatrixPlan | None:
        """Not for strict results, either: it adds up pairs of products first."""
        by = self._matrix_isa
        return plan_matrix(self.structure, self.isa, by) if by and not self.strict else None

    @property
    def left_by_matrix(self) -> DirectPlan:
        """What computes the boxes that products of tiles leave."""
        assert self.matrix is not None
        return self.matrix.left

    @lazy
    def banded(self) -> DirectPlan:
        return plan_direct(self.structure, self.isa, banded=True)

    def of(self, kind: str) -> Plan:
        found: Plan | None = getattr(self, kind)
        assert found is not None
        return found

    def _builder(self, kind: str, problem: Problem, machine: Machine, threads: int) -> LaunchBuilder:
        return _LAUNCHES.get(kind, LaunchBuilder)(self.of(kind), problem, machine, threads)

    def price(self, kind: str, problem: Problem, machine: Machine) -> float:
        """What one kernel would cost, in cycles of one thread; infinite if that is not known."""
        last = self._last_prices  # who chose has just asked
        if last and last[:2] == (problem, machine) and kind in last[2]:
            return last[2][kind]
        found = self._builder(kind, problem, machine, 1).price
        return math.inf if found is None else found

    def prices(self, problem: Problem, machine: Machine) -> dict[str, float]:
        """What each kernel that can compute the problem would cost, in cycles of one thread."""
        last = self._last_prices  # of another thread, perhaps
        if last and last[:2] == (problem, machine):
            return last[2]
        direct = self._builder("direct", problem, machine, 1)
        in_bands = self.direct.best_in_bands and not direct.prefill
        found: dict[str, float | None] = {} if in_bands else {"direct": direct.price}
        asked = {"banded": in_bands or direct.is_padded, "clipped": direct.may_gain_by_clipping}
        kinds = [kind for kind, wanted in asked.items() if wanted]
        kinds += [kind for kind in _LAUNCHES if getattr(self, kind)]
        found |= {kind: self._builder(kind, problem, machine, 1).price for kind in kinds}
        known = {kind: price for kind, price in found.items() if price is not None}
        self._last_prices = problem, machine, known
        return known

    def preferred(self, machine: Machine) -> str:
        """The kind that computes large maps."""
        if machine not in self._preferred:
            special = (kind for kind in ("spread", "rows", "across", "large", "winograd") if getattr(self, kind))
            usual = next(special, None) or ("banded" if self.direct.best_in_bands else "direct")
            may_differ = usual not in ("spread", "rows") and (self.overlap or self.folded or self.matrix)
            large = self._cheapest(_large(self.structure), machine, usual) if may_differ else usual
            self._preferred[machine] = large if large in ("overlap", "folded", "matrix") else usual
        return self._preferred[machine]

    def cheapest(self, problem: Problem, machine: Machine) -> str:
        """The kind of kernel to use."""
        return self._cheapest(problem, machine, self.preferred(machine))

    def _cheapest(self, problem: Problem, machine: Machine, usual: str) -> str:
        found, scale = self.prices(problem, machine), SCALE.get(machine.kind, {})
        if "banded" not in found:  # that of `clipped` was learned where there is padding, which bands leave out, too
            scale = {**scale, "clipped": _UNPADDED.get(machine.kind, 1.0)}
        prices = {kind: price * scale.get(kind, 1.0) for kind, price in found.items()}

        def effort(kind: str) -> float:
            if kind == usual:
                return 0.0
            return min(_ANOTHER, prices[kind] * (_PART_OF_DIRECT if kind == "direct" else _PART))

        return min(prices, key=lambda kind: prices[kind] + effort(kind))

    def launches(self, kind: str, problem: Problem, machine: Machine, threads: int) -> tuple[Launch, ...]:
        """The launches of one size: the kernel's own, and the direct one that Winograd may leave units to."""
        return self._builder(kind, problem, machine, threads).launches()


def fitting(structure: Structure, machine: Machine, accuracy: str) -> tuple[Machine, Plans]:
    """The machine as it computes a structure best, with its widest vectors or with narrower ones; and the plans."""
    channels = structure.co if structure.direction == "scatter" else structure.ci
    narrow, wide = machine.by_one_pass, replace(machine, narrower=None)
    usual = wide, Plans(structure, wide.isa, accuracy, matrix=wide.matrix, matrix_isa=wide.matrix_isa)
    if narrow is None or structure.ci * structure.co == 1:
        return usual
    if not _fills_better(channels, structure.dtype, wide.isa, narrow.isa):
        return usual
    other = narrow, Plans(structure, narrow.isa, accuracy)
    large, prices = _large(structure), []
    for one, plans in (other, usual):
        kind = plans.cheapest(large, one)
        if kind in _NOT_NARROWER:
            return usual
        prices.append(plans.price(kind, large, one) * SCALE[one.kind].get(kind, 1.0))
    return other if prices[0] < _NARROWER * prices[1] else usual


def _fills_better(channels: int, dtype: str, wide: ISA, narrow: ISA) -> bool:
    """Whether whole vectors of so many channels are at least a tenth smaller by the narrow ones."""
    padded = [round_up(channels, isa.lanes(8 if dtype == "f64" else 4)) for isa in (wide, narrow)]
    return padded[0] >= 1.1 * padded[1]


def choose(
    problem: Problem, machine: Machine, threads: int, accuracy: str = "standard"
) -> tuple[Plan, tuple[Launch, ...]]:
    """The plan that a problem with finite weights will run by, and its launches.

    >>> from unstride.plan.machine import AVX2
    >>> p = Problem.parse("scatter f32 NXC GIOX n1 g1 i64 o64 x16x16 k4x4 s2x2 d1x1 b1x1 y32x32")
    >>> choose(p, Machine(AVX2, 2), 2)[0].algorithm, choose(p, Machine(AVX2, 2), 2, "strict")[0].algorithm
    ('winograd F(3,2)xF(4,2) of whole maps', 'direct, in bands')
    """
    machine, plans = fitting(problem.structure, machine, accuracy)
    kind = plans.cheapest(problem, machine)
    return plans.of(kind), plans.launches(kind, problem, machine, threads)


def _large(s: Structure) -> Problem:
    """A problem with a map so large that every kernel can show what it is good for."""
    x = {1: (4096,), 2: (64, 64)}.get(s.rank, (*(4,) * (s.rank - 2), 32, 32))
    rows = zip(s.stride, x, s.kernel, s.dilation, strict=True)
    y = tuple(stride * (size - 1) + (k - 1) * dilation + 1 for stride, size, k, dilation in rows)
    head = (s.direction, s.dtype, s.data_layout, s.filter_layout, 1, s.groups, s.ci, s.co)
    return Problem(*head, x, s.kernel, s.stride, s.dilation, (0,) * s.rank, y)
