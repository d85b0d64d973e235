"""Stride phases: a scatter with stride s is s dense gathers, one for each residue of the output index.

A kernel walks *positions* p along each axis. At position p it reads the source at `source_step*p + a` for each tap
and writes the result at `result_step*p + r - begin` for each phase r:

    scatter:  source_step = 1, result_step = s;  phase r has the taps k with (r - k*d) % s == 0, a = (r - k*d) / s
    gather:   source_step = s, result_step = 1;  one phase, a = k*d (the problem's begin is subtracted at launch)

Every result element belongs to exactly one (position, phase), so it is computed and stored once.
"""

from __future__ import annotations

from dataclasses import dataclass

from unstride.problem import Structure

__all__ = ["ONE_ROW", "AxisPhases", "Phase", "Tap", "axis_phases", "phases_of"]


@dataclass(frozen=True)
class Tap:
    """Kernel index `k` reads the source `a` elements away from the position's own."""

    a: int
    k: int


@dataclass(frozen=True)
class Phase:
    """The taps of one residue `r`, in ascending source order; a phase without taps is only bias."""

    r: int
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class AxisPhases:
    """All phases of one axis that have taps, and how positions map to source and result."""

    source_step: int
    result_step: int
    phases: tuple[Phase, ...]

    @property
    def first(self) -> int:
        """The least source offset of any tap."""
        return min(phase.taps[0].a for phase in self.phases)

    @property
    def span(self) -> int:
        """How many source elements one position may touch."""
        return max(phase.taps[-1].a for phase in self.phases) - self.first + 1

    @property
    def reach(self) -> int:
        """How many result elements, from a position's first on, its phases can touch."""
        return self.phases[-1].r + 1

    @property
    def complete(self) -> bool:
        """Whether every residue has taps, so that no result element is only bias."""
        return len(self.phases) == self.result_step


ONE_ROW = AxisPhases(1, 1, (Phase(0, (Tap(0, 0),)),))  # the missing row axis of a 1D case


def axis_phases(direction: str, kernel: int, stride: int, dilation: int) -> AxisPhases:
    """The phases of one axis.

    >>> [(p.r, [(t.a, t.k) for t in p.taps]) for p in axis_phases("scatter", 3, 2, 1).phases]
    [(0, [(-1, 2), (0, 0)]), (1, [(0, 1)])]
    """
    if direction == "gather":
        return AxisPhases(stride, 1, (Phase(0, tuple(Tap(k * dilation, k) for k in range(kernel))),))
    by_residue: dict[int, list[Tap]] = {}
    for k in reversed(range(kernel)):
        r = k * dilation % stride
        by_residue.setdefault(r, []).append(Tap((r - k * dilation) // stride, k))
    return AxisPhases(1, stride, tuple(Phase(r, tuple(taps)) for r, taps in sorted(by_residue.items())))


def phases_of(structure: Structure) -> tuple[AxisPhases, ...]:
    """The phases of every axis of a structure."""
    return tuple(
        axis_phases(structure.direction, k, s, d)
        for k, s, d in zip(structure.kernel, structure.stride, structure.dilation, strict=True)
    )
