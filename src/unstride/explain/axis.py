"""One spatial axis of a problem, as a picture needs it: who reaches whom, how often, and what of it to draw.

Everything here is closed-form integer arithmetic: an axis of two thousand million positions costs what nine do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd

from unstride.problem import Problem

__all__ = ["Axis", "Gap", "axes_of", "visible"]


@dataclass(frozen=True)
class Axis:
    """The window of one axis. Positions `f` count from the first one a tap can reach, as in `y[o] = F[o + begin]`.

    >>> axis = Axis(x=3, kernel=3, stride=2, dilation=1, begin=1, y=5)
    >>> [len(axis.taps(f)) for f in range(axis.full)]
    [1, 1, 2, 1, 2, 1, 1]
    >>> axis.pairs(2)
    [(1, 0), (0, 2)]
    """

    x: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    y: int

    @property
    def extent(self) -> int:
        """The dilated kernel size."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def full(self) -> int:
        """The number of positions from the first to the last that a tap can reach."""
        return self.stride * (self.x - 1) + self.extent

    @property
    def stop(self) -> int:
        """The position after the window's last."""
        return self.begin + self.y

    @property
    def low(self) -> int:
        """The first position worth drawing."""
        return min(0, self.begin) if self.y else 0

    @property
    def high(self) -> int:
        """The position after the last one worth drawing."""
        return max(self.full, self.stop) if self.y else self.full

    def phase_taps(self, residue: int) -> range:
        """The taps of every position `f` with `f % stride == residue`."""
        common = gcd(self.stride, self.dilation)
        if residue % common:
            return range(0)
        step = self.stride // common
        first = residue // common * pow(self.dilation // common, -1, step) % step
        return range(first, self.kernel, step)

    def taps(self, position: int) -> range:
        """The taps that reach `position`, each from one existing input."""
        phase = self.phase_taps(position % self.stride)
        lowest = max(0, -((self.stride * (self.x - 1) - position) // self.dilation))
        highest = min(self.kernel - 1, position // self.dilation)
        first = phase.start + phase.step * max(0, -((phase.start - lowest) // phase.step))
        return range(first, highest + 1, phase.step) if len(phase) else phase

    def source(self, position: int, tap: int) -> int:
        """The input that `tap` carries to `position`."""
        return (position - tap * self.dilation) // self.stride

    def pairs(self, position: int, limit: int = 64) -> list[tuple[int, int]]:
        """The first `limit` pairs (input, tap) that meet at `position`."""
        return [(self.source(position, tap), tap) for tap in self.taps(position)[:limit]]

    def reads(self, i: int) -> range:
        """The taps that join input `i` to a position inside the window: what the adjoint sums for `x[i]`."""
        lowest = max(0, -((i * self.stride - self.begin) // self.dilation))
        highest = min(self.kernel - 1, (self.stop - 1 - i * self.stride) // self.dilation)
        return range(lowest, highest + 1)

    @property
    def overlap(self) -> tuple[int, int]:
        """The fewest and the most taps that a position far from the borders receives."""
        common = gcd(self.stride, self.dilation)
        step = self.stride // common
        return (0 if common > 1 else self.kernel // step), -(-self.kernel // step)


@dataclass(frozen=True)
class Gap:
    """Indices that are not drawn."""

    count: int


def axes_of(problem: Problem) -> tuple[Axis, ...]:
    """The axes of a problem, outermost first."""
    fields = (problem.x, problem.kernel, problem.stride, problem.dilation, problem.begin, problem.y)
    return tuple(Axis(*values) for values in zip(*fields, strict=True))


def visible(low: int, high: int, landmarks: tuple[int, ...], limit: int) -> list[int | Gap]:
    """The indices of [low, high) to draw: all, or at most `limit` of them near the landmarks, with gaps between.

    >>> visible(0, 100, (0, 99), 6)
    [0, 1, 2, Gap(count=94), 97, 98, 99]
    """
    if high - low <= limit:
        return list(range(low, high))
    inside = [mark for mark in landmarks if low <= mark < high] or [low]
    for reach in range(limit, -1, -1):
        near = {index for mark in inside for index in range(max(low, mark - reach), min(high, mark + reach + 1))}
        if len(near) <= limit:
            break
    shown = sorted(near)[:limit]
    return _with_gaps(low, high, shown)


def _with_gaps(low: int, high: int, shown: list[int]) -> list[int | Gap]:
    result: list[int | Gap] = []
    for before, index in pairwise([low - 1, *shown, high]):
        missing = index - before - 1
        if missing == 1:
            result.append(index - 1)
        elif missing > 1:
            result.append(Gap(missing))
        if index < high:
            result.append(index)
    return result
