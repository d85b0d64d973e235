"""Winograd's guard: which boxes are tame enough for an algorithm whose error is that of a norm.

And which hold integers only, so large ones that direct sums of them may be exact where these are not.
"""

from __future__ import annotations

from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import I32, Emitter, Int, Ptr, mangle, size_of, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.winograd import RANGE_LIMIT

__all__ = ["Guard"]

_LOOKS = 4  # vectors that are looked over at a time
_MANTISSA = {4: 23, 8: 52}  # bits of an element of so many bytes


class Guard:
    """What was seen of the source: the largest magnitudes and their sums, lane by lane, and of how many elements."""

    def __init__(self, e: Emitter, numbers: Numbers, exact: Any) -> None:
        """`exact`: the largest magnitude at which sums of integers are exact; infinite if that does not matter."""
        self.e, self.numbers, self.exact = e, numbers, exact
        self.typ = vector(numbers.computed, numbers.lanes)
        self.largest, self.total, self.count = e.stack(self.typ), e.stack(self.typ), e.var(0)
        for sums in (self.largest, self.total):
            e.b.store(constant(self.typ, 0.0), sums.value)
        matters = e.b.fcmp_ordered("<", exact, ir.Constant(numbers.computed, 1e37))
        self.integers = e.var(e.select(matters, 1, 0))  # whether nothing else was seen

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
                size = self._magnitude(value)
                carried[2 * k] = self._larger(size, carried[2 * k])
                carried[2 * k + 1] = e.b.fadd(carried[2 * k + 1], size)
        for k in range(1, _LOOKS):
            sums[0] = self._larger(sums[2 * k], sums[0])
            sums[1] = e.b.fadd(sums[1], sums[2 * k + 1])
        e.b.store(sums[0], self.largest.value)
        e.b.store(sums[1], self.total.value)
        self.count.set(self.count.get() + count)
        with e.when(self.integers.get().differs(0)):
            self._look_for_fractions(base, length)

    def _look_for_fractions(self, base: Ptr, length: Int) -> None:
        """Adding a number whose last bit is one rounds to an integer. (To infinity, larger ones are such already.)"""
        e, b, lanes = self.e, self.e.b, self.numbers.lanes
        last_is_one = constant(self.typ, 2.0 ** _MANTISSA[size_of(self.numbers.computed)])
        fractions = [constant(self.typ, 0.0)]
        for i, carried in e.fold(0, length, lanes, fractions):
            size = self._magnitude(base.load(e.min(i, length - lanes), lanes))
            whole = b.fsub(b.fadd(size, last_is_one), last_is_one)
            carried[0] = b.fadd(carried[0], self._magnitude(b.fsub(size, whole)))
        rest, *others = self._lanes(fractions[0])
        for other in others:
            rest = b.fadd(rest, other)
        none = b.fcmp_ordered("==", rest, ir.Constant(self.numbers.computed, 0.0))
        self.integers.set(e.select(none, 1, 0))

    def _magnitude(self, value: Any) -> Any:
        return self.e.intrinsic(f"llvm.fabs.{mangle(self.typ)}", self.typ, (value,))

    def tame(self) -> Any:
        """Whether every value is finite and none is more than RANGE_LIMIT times the mean magnitude, or too large for
        exact sums of integers."""
        e, typ = self.e, self.numbers.computed
        seen = (e.b.load(sums.value, typ=self.typ) for sums in (self.largest, self.total))
        magnitudes, sums = map(self._lanes, seen)
        peak, total = magnitudes[0], sums[0]
        for magnitude, part in zip(magnitudes[1:], sums[1:], strict=True):
            peak, total = self._larger(magnitude, peak), e.b.fadd(total, part)
        scale = e.b.sitofp(self.count.get().value, typ)
        allowed = e.b.fmul(total, ir.Constant(typ, RANGE_LIMIT))
        # A sum that is infinite or NaN fails the first test; a box of zeros passes both.
        finite = e.b.fcmp_ordered("<", total, ir.Constant(typ, 1e37))
        even = e.b.and_(finite, e.b.fcmp_ordered("<=", e.b.fmul(peak, scale), allowed))
        exact = e.b.or_(self.integers.get().equals(0), e.b.fcmp_ordered("<=", peak, self.exact))
        return e.b.and_(even, exact)

    def _larger(self, value: Any, other: Any) -> Any:
        return self.e.b.select(self.e.b.fcmp_ordered(">", value, other), value, other)

    def _lanes(self, value: Any) -> list[Any]:
        return [self.e.b.extract_element(value, ir.Constant(I32, i)) for i in range(self.numbers.lanes)]
