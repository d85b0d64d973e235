"""Winograd's guard: which boxes are tame enough for an algorithm whose error is that of a norm."""

from __future__ import annotations

from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import I32, Emitter, Int, Ptr, mangle, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.winograd import RANGE_LIMIT

__all__ = ["Guard"]

_LOOKS = 4  # vectors that are looked over at a time


class Guard:
    """What was seen of the source: the largest magnitudes and their sums, lane by lane, and of how many elements."""

    def __init__(self, e: Emitter, numbers: Numbers) -> None:
        self.e, self.numbers = e, numbers
        self.typ = vector(numbers.computed, numbers.lanes)
        self.largest, self.total, self.count = e.stack(self.typ), e.stack(self.typ), e.var(0)
        for sums in (self.largest, self.total):
            e.b.store(constant(self.typ, 0.0), sums.value)

    def look_over(self, base: Ptr, length: Int, count: Int) -> None:
        """Add the magnitudes of so many elements in a row, of which `count` are values and the others 0."""
        e, lanes = self.e, self.numbers.lanes
        # Several sums side by side, since one would wait for its own last addition.
        sums = [e.b.load(self.largest.value, typ=self.typ), e.b.load(self.total.value, typ=self.typ)]
        sums += [constant(self.typ, 0.0)] * (2 * _LOOKS - 2)
        for i, carried in e.fold(0, length, _LOOKS * lanes, sums):
            for k in range(_LOOKS):
                # The last vectors are moved back: looking twice at a value changes nothing that matters.
                value = base.load(e.min(i + k * lanes, length - lanes), lanes)
                size = e.intrinsic(f"llvm.fabs.{mangle(self.typ)}", self.typ, (value,))
                carried[2 * k] = self._larger(size, carried[2 * k])
                carried[2 * k + 1] = e.b.fadd(carried[2 * k + 1], size)
        for k in range(1, _LOOKS):
            sums[0] = self._larger(sums[2 * k], sums[0])
            sums[1] = e.b.fadd(sums[1], sums[2 * k + 1])
        e.b.store(sums[0], self.largest.value)
        e.b.store(sums[1], self.total.value)
        self.count.set(self.count.get() + count)

    def tame(self) -> Any:
        """Whether every value is finite and none is more than RANGE_LIMIT times the mean magnitude."""
        e, typ = self.e, self.numbers.computed
        magnitudes, sums = (self._lanes(seen) for seen in (self.largest, self.total))
        peak, total = magnitudes[0], sums[0]
        for magnitude, part in zip(magnitudes[1:], sums[1:], strict=True):
            peak, total = self._larger(magnitude, peak), e.b.fadd(total, part)
        scale = e.b.sitofp(self.count.get().value, typ)
        allowed = e.b.fmul(total, ir.Constant(typ, RANGE_LIMIT))
        # A sum that is infinite or NaN fails the first test; a box of zeros passes both.
        finite = e.b.fcmp_ordered("<", total, ir.Constant(typ, 1e37))
        return e.b.and_(finite, e.b.fcmp_ordered("<=", e.b.fmul(peak, scale), allowed))

    def _larger(self, value: Any, other: Any) -> Any:
        return self.e.b.select(self.e.b.fcmp_ordered(">", value, other), value, other)

    def _lanes(self, seen: Ptr) -> list[Any]:
        value = self.e.b.load(seen.value, typ=self.typ)
        return [self.e.b.extract_element(value, ir.Constant(I32, i)) for i in range(self.numbers.lanes)]
