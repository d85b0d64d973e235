"""Activations, applied to an accumulator just before its only store. NaN stays NaN in every one of them."""

from __future__ import annotations

from math import factorial
from typing import Any

from unstride.codegen.emit import F64, I32, I64, Emitter, Ptr, vector
from unstride.codegen.numbers import Numbers, constant

__all__ = ["ACTIVATIONS", "activate", "scalar_constant", "slope_vector"]

ACTIVATIONS = ("none", "relu", "leaky_relu", "tanh", "sigmoid")


def activate(e: Emitter, kind: str, value: Any, slope: Any) -> Any:
    """`slope` is a vector like `value`; only leaky_relu reads it."""
    if kind == "none":
        return value
    zero = constant(value.type, 0.0)
    if kind in ("relu", "leaky_relu"):
        below = zero if kind == "relu" else e.b.fmul(value, slope)
        return e.b.select(e.b.fcmp_ordered("<", value, zero), below, value)
    one, two = constant(value.type, 1.0), constant(value.type, 2.0)
    limit = 700.0 if _is_double(value) else 87.0
    if kind == "sigmoid":
        exponent = _clamp(e, e.b.fsub(zero, value), limit)
        return e.b.fdiv(one, e.b.fadd(two, _expm1(e, exponent)))
    grown = _expm1(e, _clamp(e, e.b.fmul(value, two), 44.0 if _is_double(value) else 30.0))
    return e.b.fdiv(grown, e.b.fadd(grown, two))


def slope_vector(e: Emitter, table: Ptr, field: int, numbers: Numbers) -> Any:
    """leaky_relu's slope, in every lane."""
    return e.splat(scalar_constant(table, field, numbers), numbers.lanes)


def scalar_constant(table: Ptr, field: int, numbers: Numbers) -> Any:
    """A number that is kept in an integer table as the bits of a double."""
    b = table.e.b
    value = b.bitcast(table.load(field), F64)
    return value if numbers.computed == F64 else b.fptrunc(value, numbers.computed)


def _is_double(value: Any) -> bool:
    return bool(value.type.element == F64)


def _clamp(e: Emitter, value: Any, limit: float) -> Any:
    high, low = constant(value.type, limit), constant(value.type, -limit)
    value = e.b.select(e.b.fcmp_ordered(">", value, high), high, value)
    return e.b.select(e.b.fcmp_ordered("<", value, low), low, value)


def _expm1(e: Emitter, x: Any) -> Any:
    """exp(x) - 1 with full relative accuracy near 0: 2**n * (exp(r) - 1) + (2**n - 1), |r| <= ln(2)/2."""
    double = _is_double(x)
    typ, lanes = x.type, x.type.count
    # The added constant pushes the fraction out of the mantissa: a rounding to an integer without a library call.
    magic = constant(typ, 6755399441055744.0 if double else 12582912.0)
    ln2_high, ln2_low = (
        (0.693147180369123816490, 1.90821492927058770002e-10) if double else (0.693359375, -2.12194440e-4)
    )
    shifted = e.b.fadd(e.b.fmul(x, constant(typ, 1.4426950408889634)), magic)
    n = e.b.fsub(shifted, magic)
    r = e.b.fsub(e.b.fsub(x, e.b.fmul(n, constant(typ, ln2_high))), e.b.fmul(n, constant(typ, ln2_low)))
    degree = 13 if double else 7
    tail = constant(typ, 1.0 / factorial(degree))
    for power in range(degree - 1, 0, -1):
        tail = e.b.fadd(e.b.fmul(tail, r), constant(typ, 1.0 / factorial(power)))
    grown = e.b.fmul(tail, r)
    word, bits, bias = (I64, 52, 1023) if double else (I32, 23, 127)
    integer = vector(word, lanes)
    exponent = e.b.add(e.b.bitcast(shifted, integer), constant(integer, bias))
    power_of_two = e.b.bitcast(e.b.shl(exponent, constant(integer, bits)), typ)
    return e.b.fadd(e.b.fmul(power_of_two, grown), e.b.fsub(power_of_two, constant(typ, 1.0)))
