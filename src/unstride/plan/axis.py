"""One axis of a problem: which positions exist, and at which of them a tap reads the source and not its padding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from unstride._lazy import lazy
from unstride.plan.phases import AxisPhases, Tap

__all__ = ["Axis"]


@dataclass(frozen=True)
class Axis:
    """One axis with its sizes."""

    phases: AxisPhases
    source_size: int
    result_size: int
    source_shift: int  # added to source_step*p + a
    begin: int  # subtracted from result_step*p + r

    def positions(self, r: int, taps: tuple[Tap, ...], *, reach: bool) -> tuple[int, int]:
        """Positions whose result element of residue r exists (and, with `reach`, that some tap can reach)."""
        step = self.phases.result_step
        low = -((r - self.begin) // step)
        high = (self.result_size - 1 - r + self.begin) // step + 1
        if reach:
            first, end = self.reach(taps)
            low, high = max(low, first), min(high, end)
        return low, max(low, high)

    def reach(self, taps: tuple[Tap, ...]) -> tuple[int, int]:
        """Positions from which the first or the last tap (or one between) falls inside the source."""
        step = self.phases.source_step
        low = -((taps[-1].a + self.source_shift) // step)
        return low, (self.source_size - 1 - taps[0].a - self.source_shift) // step + 1

    def ranges(self, *, reach: bool) -> list[tuple[int, int]]:
        return [self.positions(phase.r, phase.taps, reach=reach) for phase in self.phases.phases]

    @lazy
    def useful_share(self) -> float:
        """Of all (position, tap) pairs, the share that reads the source and not its padding."""
        step, pairs, useful = self.phases.source_step, 0, 0
        for phase, (low, high) in zip(self.phases.phases, self.ranges(reach=False), strict=True):
            pairs += len(phase.taps) * (high - low)
            for tap in phase.taps:
                first = -((tap.a + self.source_shift) // step)
                last = (self.source_size - 1 - tap.a - self.source_shift) // step
                useful += max(0, min(high - 1, last) - max(low, first) + 1)
        return useful / pairs if pairs else 1.0

    @lazy
    def bands(self) -> list[tuple[int, float]]:
        """Stretches of positions at which the same taps read the source: their lengths, and the share of the taps."""
        step, (first, last) = self.phases.source_step, self.hull(reach=False)
        taps = [tap.a + self.source_shift for phase in self.phases.phases for tap in phase.taps]
        lives = [(-(a // step), (self.source_size - 1 - a) // step + 1) for a in taps]
        borders = sorted({first, last, *(at for life in lives for at in life if first < at < last)})
        return [
            (high - low, sum(begin <= low < end for begin, end in lives) / len(lives))
            for low, high in pairwise(borders)
        ]

    def hull(self, *, reach: bool) -> tuple[int, int]:
        """The positions of all phases."""
        alive = [(low, high) for low, high in self.ranges(reach=reach) if high > low]
        return (min(low for low, _ in alive), max(high for _, high in alive)) if alive else (0, 0)

    @property
    def whole(self) -> tuple[int, int]:
        """The positions of all residues, those without taps as well."""
        last = self.phases.result_step - 1
        low, high = self.positions(last, (), reach=False)[0], self.positions(0, (), reach=False)[1]
        return low, max(low, high)
