"""Rules are values: a name, the document they come from, the formula as text, and a pure function of one axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Axis", "Rule", "Window"]


@dataclass(frozen=True)
class Axis:
    """What a call says about one spatial axis, before any rule was applied."""

    index: int
    size: int
    wanted: int | None
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int
    output_padding: int

    @property
    def extent(self) -> int:
        """The dilated kernel size, (K-1)*d + 1."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def full(self) -> int:
        """The uncropped result of a scatter whose data has this axis' size."""
        return self.stride * (self.size - 1) + self.extent


@dataclass(frozen=True)
class Rule:
    """How one document turns an axis into a window.

    `solve` returns `(begin, size)`, where size is the result's size on the axis; it raises ShapeError when the document
    (or the engine) refuses the call. `formula` says the same as `solve` in the letters of the operator documents:
    X, Y, K, s, d, ke = (K-1)*d+1, full = s*(X-1)+ke, pb, pe, op; `//` is floor division. It is made of statements that
    Python can run, joined by semicolons, and of conditions that begin with "needs"; the tests hold it against `solve`.
    """

    name: str
    document: str
    when: str
    formula: str
    solve: Callable[[Axis], tuple[int, int]]


@dataclass(frozen=True)
class Window:
    """The answer of a rule for one axis: where the result begins in the full extent, and its size."""

    begin: int
    size: int
    rule: Rule

    def same_as(self, other: Window) -> bool:
        """Whether both rules give the same numbers."""
        return (self.begin, self.size) == (other.begin, other.size)
