"""Halves on their way into blocks of 32 channels, and sums on their way out to either layout.

strip   [image][block of channels][plane][row][column][32]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import F32, I16, I32, I64, PTR, VOID, Emitter, Int, Ptr, mangle, vector
from unstride.codegen.numbers import constant
from unstride.codegen.strips import transpose_block
from unstride.plan.matrix import DEPTH, SIDE

__all__ = ["PIXEL", "emit_channels_in", "emit_channels_out", "emit_pixels_in", "emit_windows_in", "smaller"]

PIXEL = vector(I16, DEPTH)  # a pixel of a block
_Both = Callable[[Emitter, Any, Any], Any]


def smaller(e: Emitter, smallest: Any, values: Any) -> Any:
    """The smallest magnitudes of halves so far, lane by lane, less one step: zeros count as the largest."""
    size = e.b.sub(e.b.and_(values, constant(PIXEL, 0x7FFF)), constant(PIXEL, 1))
    return e.intrinsic(f"llvm.umin.{mangle(PIXEL)}", PIXEL, (smallest, size))


def emit_pixels_in(module: Any, *, looks: bool) -> Any:
    """pixels_in(target, source, pixels, stride, channels, smallest): so many channels of pixels, that far apart.

    `looks`: notes the smallest magnitudes.
    """
    e = Emitter(module, "pixels_in", [PTR, PTR, I64, I64, I64, PTR], internal=True)
    target, source = e.arg_ptr(0, I16, noalias=True), e.arg_ptr(1, I16, noalias=True)
    pixels, stride, channels = (e.arg_int(i) for i in (2, 3, 4))
    smallest = e.arg_ptr(5, I16)
    lanes = ir.Constant(PIXEL, list(range(DEPTH)))
    number = e.splat(e.b.trunc(channels.value, I16), DEPTH)
    mask = e.b.icmp_signed("<", lanes, number)
    seen = [e.b.load(smallest.value, typ=PIXEL)] if looks else []
    for pixel, carried in e.fold(0, pixels, 1, seen):
        values = _load_under(e, source + pixel * stride, mask, PIXEL)
        (target + pixel * DEPTH).store(0, values)
        if looks:
            carried[0] = smaller(e, carried[0], values)
    if looks:
        e.b.store(seen[0], smallest.value)
    e.ret()
    return e.function


def emit_windows_in(module: Any, *, looks: bool) -> Any:
    """windows_in(target, row, pixels, stride, first, run, length, smallest): `run` elements of a row from `first` on,
    from `stride` further on, and so on; what lies outside of [0, length) of the row is zero, and not read."""
    e = Emitter(module, "windows_in", [PTR, PTR, *(I64,) * 5, PTR], internal=True)
    target, row = e.arg_ptr(0, I16, noalias=True), e.arg_ptr(1, I16, noalias=True)
    pixels, stride, first, run, length = (e.arg_int(i) for i in range(2, 7))
    smallest = e.arg_ptr(7, I16)
    lanes = ir.Constant(PIXEL, list(range(DEPTH)))

    def below(bound: Int) -> Any:
        """The lanes below a bound, which may be far away."""
        near = e.max(e.min(bound, DEPTH), 0)
        return e.b.icmp_signed("<", lanes, e.splat(e.b.trunc(near.value, I16), DEPTH))

    seen = [e.b.load(smallest.value, typ=PIXEL)] if looks else []
    for pixel, carried in e.fold(0, pixels, 1, seen):
        start = first + pixel * stride
        before, exist = below(0 - start), below(e.min(run, length - start))
        mask = e.b.and_(exist, e.b.icmp_signed("==", e.b.sext(before, PIXEL), constant(PIXEL, 0)))
        values = _load_under(e, row + start, mask, PIXEL)
        (target + pixel * DEPTH).store(0, values)
        if looks:
            carried[0] = smaller(e, carried[0], values)
    if looks:
        e.b.store(seen[0], smallest.value)
    e.ret()
    return e.function


def emit_channels_in(module: Any, *, looks: bool) -> Any:
    """channels_in(target, source, pixels, stride, channels, smallest): the same of lines of channels, that far apart.

    The target may be written for up to 15 pixels more.
    """
    e = Emitter(module, "channels_in", [PTR, PTR, I64, I64, I64, PTR], internal=True)
    target, source = e.arg_ptr(0, I16, noalias=True), e.arg_ptr(1, I16, noalias=True)
    pixels, stride, channels = (e.arg_int(i) for i in (2, 3, 4))
    smallest = e.arg_ptr(5, I16)
    half, wide = vector(I16, SIDE), vector(I32, SIDE)
    lanes = ir.Constant(half, list(range(SIDE)))
    whole = channels.equals(DEPTH)
    seen = [e.b.load(smallest.value, typ=PIXEL)] if looks else []
    for x, carried in e.fold(0, pixels, SIDE, seen):
        left = e.splat(e.b.trunc(e.min(pixels - x, SIDE).value, I16), SIDE)
        exist = e.b.icmp_signed("<", lanes, left)
        lines, at = [], source + x
        for pair in range(SIDE):
            halves = []
            for c in (2 * pair, 2 * pair + 1):
                # A line that does not exist is not read: none of its lanes is.
                real = e.b.or_(whole, channels > c)
                masked = e.b.select(real, exist, constant(exist.type, 0))
                halves.append(e.b.zext(_load_under(e, at, masked, half), wide))
                # Nor is it looked for: to find that nothing is mapped there takes hundreds of cycles.
                at = at + e.select(channels > c + 1, stride, 0)
            lines.append(e.b.or_(halves[0], e.b.shl(halves[1], constant(wide, 16))))
        for i, line in enumerate(transpose_block(e, lines)):
            values = e.b.bitcast(line, PIXEL)
            (target + (x + i) * DEPTH).store(0, values)
            if looks:
                carried[0] = smaller(e, carried[0], values)
    if looks:
        e.b.store(seen[0], smallest.value)
    e.ret()
    return e.function


def _load_under(e: Emitter, place: Ptr, mask: Any, typ: Any) -> Any:
    name = f"llvm.masked.load.{mangle(typ)}.p0"
    return e.intrinsic(name, typ, (place.value, ir.Constant(I32, 1), mask, constant(typ, 0)))


def emit_channels_out(module: Any, finish: _Both, both: _Both) -> Any:
    """channels_out(target, stride, source, pitch, pixels, channels, bias, job): lines of sums, that far apart, become
    lines of halves of each channel.

    `finish(e, sums, bias)` is what happens to a vector of sums of a pixel, `both(e, first, second)` makes halves of two
    such, element by element in turn. The source is read for up to 31 pixels more.
    """
    e = Emitter(module, "channels_out", [PTR, I64, PTR, I64, I64, I64, PTR, PTR], internal=True)
    target, source, biases = e.arg_ptr(0, I16, noalias=True), e.arg_ptr(2, F32, noalias=True), e.arg_ptr(6, F32)
    stride, pitch, pixels, channels = (e.arg_int(i) for i in (1, 3, 4, 5))
    lanes = ir.Constant(PIXEL, list(range(DEPTH)))
    for c in e.range(0, channels, SIDE):
        bias = biases.load(c, SIDE)
        count = e.min(channels - c, SIDE)
        for x in e.range(0, pixels, DEPTH, inner=True):
            at = source + (x * pitch + c)
            lines = []
            for _ in range(SIDE):
                following = at + pitch
                sums = (finish(e, place.load(0, SIDE), bias) for place in (at, following))
                lines.append(e.b.bitcast(both(e, *sums), vector(I32, SIDE)))
                at = following + pitch
            rows = [e.b.bitcast(line, PIXEL) for line in transpose_block(e, lines)]
            to = target + (c * stride + x)
            with e.either(e.b.and_(count.equals(SIDE), x + DEPTH <= pixels)) as (then, otherwise):
                with then:
                    place = to
                    for row in rows:
                        place.store(0, row)
                        place = place + stride
                with otherwise:
                    left = e.splat(e.b.trunc(e.min(pixels - x, DEPTH).value, I16), DEPTH)
                    exist = e.b.icmp_signed("<", lanes, left)
                    place = to
                    for i, row in enumerate(rows):
                        masked = e.b.select(count > i, exist, constant(exist.type, 0))
                        name = f"llvm.masked.store.{mangle(PIXEL)}.p0"
                        e.intrinsic(name, VOID, (row, place.value, ir.Constant(I32, 1), masked))
                        place = place + e.select(count > i + 1, stride, 0)
    e.ret()
    return e.function
