"""Filling the strips of weight gradients: channels of pixels, widened, in the order in which positions will read them.

A strip pixel need not follow its neighbour: with a stride of s, the pixels of one tap at consecutive positions are s
apart, so a table puts those with the same remainder next to each other.
"""

from __future__ import annotations

from typing import Any

from unstride.codegen.emit import I64, PTR, Emitter, Int, Ptr
from unstride.codegen.numbers import Numbers
from unstride.codegen.strips import transpose_block

__all__ = ["emit_pack", "emit_transpose_out", "emit_transposing_pack"]


def emit_pack(module: Any, name: str, numbers: Numbers, *, placed: bool) -> Any:
    """name(target, pitch, places, source, stride, width, pixels) for pixels whose channels lie side by side.

    The `width` elements of pixel p go to target[places[p]*pitch], or target[p*pitch] if not `placed`. The width is cut
    into powers of two, each copied for all pixels in turn: no masks, no loop over elements, nothing else is read.
    """
    e = Emitter(module, name, [PTR, I64, PTR, PTR, I64, I64, I64], internal=True)
    target, at = _placed_target(e, numbers, placed)
    source = e.arg_ptr(3, numbers.stored, noalias=True)
    pitch, stride, width, pixels = (e.arg_int(i) for i in (1, 4, 5, 6))
    lanes = numbers.lanes

    def copy(column: Int, piece: int, first: Int) -> None:
        for pixel in e.range(first, pixels):
            target.store(at(pixel) + column, numbers.load(source, pixel * stride + column, piece if piece > 1 else 0))

    def by_pixel() -> None:
        whole = width - (width & (lanes - 1))
        for column in e.range(0, whole, lanes):
            copy(column, lanes, e.int(0))
        # A pixel short of a vector: what is written beyond it the next one writes again, what is read is in that one.
        narrow = e.b.and_(e.b.and_(width < lanes, width > lanes // 2), (stride + width) >= lanes)
        ahead = e.int(0)
        if not placed:
            ahead = e.select(e.b.and_(narrow, pitch.equals(width)), e.max(pixels - 1, 0), 0)
            for pixel in e.range(ahead):
                target.store(at(pixel), numbers.load(source, pixel * stride, lanes))
        piece = lanes // 2
        while piece:
            with e.when((width & piece).differs(0)):
                copy(width - (width & (2 * piece - 1)), piece, ahead)
            piece //= 2

    if placed:
        by_pixel()
    else:
        with e.either(e.b.and_(pitch.equals(width), stride.equals(width))) as (then, otherwise):
            with then:
                _copy_all(e, numbers, target, source, pixels * width)
            with otherwise:
                by_pixel()
    e.ret()
    return e.function


def _copy_all(e: Emitter, numbers: Numbers, target: Ptr, source: Ptr, count: Int) -> None:
    whole = count - (count & (numbers.lanes - 1))
    for i in e.range(0, whole, numbers.lanes):
        target.store(i, numbers.load(source, i, numbers.lanes))
    for i in e.range(whole, count):
        target.store(i, numbers.load(source, i))


def emit_transposing_pack(module: Any, name: str, numbers: Numbers, *, placed: bool) -> Any:
    """As `emit_pack`, for channels `stride` apart whose pixels lie side by side."""
    e = Emitter(module, name, [PTR, I64, PTR, PTR, I64, I64, I64], internal=True)
    target, at = _placed_target(e, numbers, placed)
    source = e.arg_ptr(3, numbers.stored, noalias=True)
    stride, channels, pixels = (e.arg_int(i) for i in (4, 5, 6))

    def load(channel: Int, pixel: Int, lanes: int) -> Any:
        return numbers.load(source, channel * stride + pixel, lanes)

    def store(pixel: Int, channel: Int, value: Any) -> None:
        target.store(at(pixel) + channel, value)

    _transposed(e, numbers, channels, pixels, load, store)
    e.ret()
    return e.function


def emit_transpose_out(module: Any, name: str, numbers: Numbers) -> Any:
    """name(target, target_pitch, source, source_pitch, rows, columns): target[c, r] = source[r, c], rounded."""
    e = Emitter(module, name, [PTR, I64, PTR, I64, I64, I64], internal=True)
    target = e.arg_ptr(0, numbers.stored, noalias=True)
    source = e.arg_ptr(2, numbers.computed, noalias=True)
    target_pitch, source_pitch, rows, columns = (e.arg_int(i) for i in (1, 3, 4, 5))

    def load(row: Int, column: Int, lanes: int) -> Any:
        return source.load(row * source_pitch + column, lanes)

    def store(column: Int, row: Int, value: Any) -> None:
        numbers.store(target, column * target_pitch + row, value)

    _transposed(e, numbers, rows, columns, load, store)
    e.ret()
    return e.function


def _placed_target(e: Emitter, numbers: Numbers, placed: bool) -> tuple[Ptr, Any]:
    """The target, and where in it a pixel goes."""
    target, pitch = e.arg_ptr(0, numbers.computed, noalias=True), e.arg_int(1)
    places = e.arg_ptr(2, I64, noalias=True)

    def at(pixel: Int) -> Int:
        return (places.int(pixel) if placed else pixel) * pitch

    return target, at


def _transposed(e: Emitter, numbers: Numbers, rows: Int, columns: Int, load: Any, store: Any) -> None:
    """Blocks of the largest square that fits; the last of a row or column is moved back to end with the array."""

    def blocks(sizes: list[int]) -> None:
        size, *smaller = sizes
        if size == 1:
            for r in e.range(rows):
                for c in e.range(columns):
                    store(c, r, load(r, c, 0))
            return
        with e.either(e.b.and_(rows >= size, columns >= size)) as (then, otherwise):
            with then:
                for row in e.range(0, rows, size):
                    r = e.min(row, rows - size)
                    for column in e.range(0, columns, size):
                        c = e.min(column, columns - size)
                        lines = [load(r + i, c, size) for i in range(size)]
                        for i, line in enumerate(transpose_block(e, lines)):
                            store(c + i, r, line)
            with otherwise:
                blocks(smaller)

    blocks([size for size in (16, 8, 4, 2, 1) if size <= numbers.lanes])
