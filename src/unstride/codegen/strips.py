"""Moving pixels between arrays and strips: copy, widen, pad with zeros, transpose.

A strip is a small scratch array in pixel-major order and computed type. Filling it takes care of borders, layouts and
element types, so that the inner loop need not know of any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import I32, I64, PTR, Emitter, Int, IntLike, Ptr, size_of
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.machine import LINE_BYTES

__all__ = [
    "before_and_in_lines",
    "emit_apart",
    "emit_copy",
    "emit_narrow",
    "emit_padded",
    "emit_stream",
    "emit_transpose",
    "emit_transpose_past",
    "emit_zero",
    "in_vectors",
    "transpose_block",
    "unweave",
    "weave",
]

_NEIGHBOURS = 8  # lines of a column that are streamed one after the other


def in_vectors(e: Emitter, count: Int, lanes: int) -> Iterator[tuple[Int, int]]:
    """Loops over [0, count): vectors, short vectors, then single elements (lanes 0), each body emitted once."""
    start = e.int(0)
    for width in sorted({lanes, min(4, lanes)}, reverse=True):
        whole = count & -width
        if 2 * width == lanes:  # at most one is left
            with e.when((count & width).differs(0)):
                yield start, width
        else:
            for i in e.range(start, whole, width):
                yield i, width
        start = whole
    for i in e.range(start, count):
        yield i, 0


def emit_zero(module: Any, numbers: Numbers) -> Any:
    """zero(target, count): computed elements; may run over by less than a vector, which a strip has room for."""
    e = Emitter(module, "zero", [PTR, I64], internal=True)
    target, lanes = e.arg_ptr(0, numbers.computed), numbers.lanes
    nothing = constant(ir.VectorType(numbers.computed, lanes), 0.0)
    for i in e.range(0, e.arg_int(1), lanes):
        target.store(i, nothing)
    e.ret()
    return e.function


def emit_copy(module: Any, numbers: Numbers) -> Any:
    """copy(target, source, count): stored elements, widened."""
    e = Emitter(module, "copy", [PTR, PTR, I64], internal=True)
    target = e.arg_ptr(0, numbers.computed, noalias=True)
    source = e.arg_ptr(1, numbers.stored, noalias=True)
    count, lanes = e.arg_int(2), numbers.lanes
    for i, width in in_vectors(e, count, lanes):
        target.store(i, numbers.load(source, i, width))
    e.ret()
    return e.function


def emit_padded(module: Any, numbers: Numbers) -> Any:
    """padded(target, source, low, high, pitch, rows, stride): per row, stored elements [low, high), widened, in zeros.

    Rows are `pitch` elements apart in the target, and whole; in the source `stride`, and its element 0 need not exist.
    For numbers that can be loaded under a mask.
    """
    under_mask = _emit_under_mask(module, numbers)
    e = Emitter(module, "padded", [PTR, PTR, *(I64,) * 5], internal=True)
    target = e.arg_ptr(0, numbers.computed, noalias=True)
    source = e.arg_ptr(1, numbers.stored, noalias=True)
    low, high, pitch, rows, stride = (e.arg_int(i) for i in (2, 3, 4, 5, 6))
    lanes = numbers.lanes
    for row in e.range(rows):
        to, line = target + row * pitch, source + row * stride
        if numbers.isa.masked:
            e.call(under_mask, to, line, low, high, 0, pitch)
            continue
        # Where a mask has to be computed, only around the ends.
        first = (low + (lanes - 1)) & -lanes
        e.call(under_mask, to, line, low, high, 0, first)
        end = e.max(high & -lanes, first)
        for i in e.range(first, end, lanes, inner=True):
            to.store(i, numbers.load(line, i, lanes))
        e.call(under_mask, to, line, low, high, end, pitch)
    e.ret()
    return e.function


def emit_apart(module: Any, numbers: Numbers, parts: int) -> Any:
    """apart(target, source, low, high, pitch, rows, stride): as `padded`, for a pitch of so many parts that are whole
    vectors each: element i of a row becomes element i // parts of its part i % parts."""
    e = Emitter(module, "apart", [PTR, PTR, *(I64,) * 5], internal=True)
    target = e.arg_ptr(0, numbers.computed, noalias=True)
    source = e.arg_ptr(1, numbers.stored, noalias=True)
    low, high, pitch, rows, stride = (e.arg_int(i) for i in (2, 3, 4, 5, 6))
    lanes, part = numbers.lanes, pitch // parts
    # Vectors of all parts at once. Around the ends not all of their elements exist, and the same ones in every row.
    first = ((low + (parts - 1)) // parts + (lanes - 1)) & -lanes
    end = e.max((high // parts) & -lanes, first)

    def vectors(row: Int, i: Int, masks: list[Any] | None = None) -> None:
        line, to = source + (row * stride + i * parts), target + (row * pitch + i)
        places = [line + k * lanes for k in range(parts)]
        if masks:
            lines = [numbers.load_masked(place, mask) for place, mask in zip(places, masks, strict=True)]
        else:
            lines = [numbers.load(place, 0, lanes) for place in places]
        for k, value in enumerate(unweave(e, lines)):
            to.store(part * k, value)

    def ends(start: IntLike, stop: Int) -> None:
        for i in e.range(start, stop, lanes):
            starts = [i * parts + k * lanes for k in range(parts)]
            masks = [numbers.mask(e, low - at, high - at) for at in starts]
            for row in e.range(rows):
                vectors(row, i, masks)

    def elements(start: IntLike, stop: Int) -> None:
        for row in e.range(rows):
            for i in e.range(start, stop):
                for k in range(parts):
                    at, to = i * parts + k, target + (row * pitch + part * k + i)
                    to.store(0, constant(numbers.computed, 0.0))
                    with e.when(e.b.and_(at >= low, at < high)):
                        to.store(0, numbers.load(source, row * stride + at))

    outside = ends if numbers.masked_loads else elements
    outside(0, first)
    for row in e.range(rows):
        for i in e.range(first, end, lanes, inner=True):
            vectors(row, i)
    outside(end, part)
    e.ret()
    return e.function


def _emit_under_mask(module: Any, numbers: Numbers) -> Any:
    """under_mask(target, source, low, high, start, stop): elements [low, high) in zeros, of the vectors from start to
    stop."""
    e = Emitter(module, "under_mask", [PTR, PTR, *(I64,) * 4], internal=True, inline=True)
    target, source = e.arg_ptr(0, numbers.computed), e.arg_ptr(1, numbers.stored)
    low, high, start, stop = (e.arg_int(i) for i in (2, 3, 4, 5))
    for i in e.range(start, stop, numbers.lanes):
        target.store(i, numbers.load_between(source + i, low - i, high - i))
    e.ret()
    return e.function


def emit_narrow(module: Any, numbers: Numbers) -> Any:
    """narrow(target, source, count): computed elements, rounded to stored ones; writes not one element more."""
    e = Emitter(module, "narrow", [PTR, PTR, I64], internal=True)
    target = e.arg_ptr(0, numbers.stored, noalias=True)
    source = e.arg_ptr(1, numbers.computed, noalias=True)
    count, lanes = e.arg_int(2), numbers.lanes
    for i, width in in_vectors(e, count, lanes):
        numbers.store(target, i, source.load(i, width))
    e.ret()
    return e.function


def emit_stream(module: Any, numbers: Numbers, *, whole: bool = False) -> Any:
    """stream(target, source, count): stored elements, whole lines of the target past the caches.

    Where the machine has no such stores, it is a copy. With `whole`, a last line that is not whole is left out.
    """
    e = Emitter(module, "stream", [PTR, PTR, I64], internal=True)
    target = e.arg_ptr(0, numbers.stored, noalias=True)
    source = e.arg_ptr(1, numbers.stored, noalias=True)
    count, size = e.arg_int(2), size_of(numbers.stored)
    lanes = numbers.isa.vector_bytes // size
    head, lines = before_and_in_lines(target, count)

    def keep(first: Int, number: Int) -> None:
        for i, width in in_vectors(e, number, min(4, lanes)):
            target.store(first + i, source.load(first + i, width))

    keep(e.int(0), head)
    for i in e.range(head, head + lines, lanes):
        (target.stream if numbers.isa.streams else target.store)(i, source.load(i, lanes))
    if not whole:
        keep(head + lines, count - head - lines)
    e.ret()
    return e.function


def before_and_in_lines(target: Ptr, count: Int) -> tuple[Int, Int]:
    """How many of so many elements lie before the first whole line, and how many in whole lines."""
    e, size = target.e, size_of(target.element)
    address = Int(e, e.b.ptrtoint(target.value, I64))
    head = e.min(((0 - address) & (LINE_BYTES - 1)) // size, count)
    return head, (count - head) & -(LINE_BYTES // size)


def emit_transpose(module: Any, name: str, numbers: Numbers, *, widen: bool) -> Any:
    """name(target, target_pitch, source, source_pitch, rows, columns): target[c, r] = source[r, c].

    `widen` says the direction: stored to computed, or computed to stored.
    """
    e = Emitter(module, name, [PTR, I64, PTR, I64, I64, I64], internal=True)
    stored, computed = numbers.stored, numbers.computed
    target = e.arg_ptr(0, computed if widen else stored, noalias=True)
    source = e.arg_ptr(2, stored if widen else computed, noalias=True)
    target_pitch, source_pitch, rows, columns = (e.arg_int(i) for i in (1, 3, 4, 5))

    def load(at: Ptr, lanes: int) -> Any:
        return numbers.load(at, 0, lanes) if widen else at.load(0, lanes)

    def store(at: Ptr, value: Any) -> None:
        if widen:
            at.store(0, value)
        else:
            numbers.store(at, 0, value)

    def block(size: int) -> None:
        """Blocks of size x size; the last one is moved back to end with the array."""
        for row in e.range(0, rows, size):
            r = e.min(row, rows - size)
            for column in e.range(0, columns, size):
                c = e.min(column, columns - size)
                at, to = source + (r * source_pitch + c), target + (c * target_pitch + r)
                for line in _transposed(e, at, source_pitch, load, size):
                    store(to, line)
                    to = to + target_pitch

    def fits(size: int) -> Any:
        return e.b.and_(rows >= size, columns >= size)

    def by_element() -> None:
        # One channel lies the same in either order.
        one_column = e.b.and_(columns.equals(1), source_pitch.equals(1))
        one_row = e.b.and_(rows.equals(1), target_pitch.equals(1))
        with e.either(e.b.or_(one_column, one_row)) as (then, otherwise):
            with then:
                for i, lanes in in_vectors(e, rows * columns, numbers.lanes):
                    store(target + i, load(source + i, lanes))
            with otherwise:
                for r in e.range(rows):
                    for c in e.range(columns):
                        store(target + (c * target_pitch + r), load(source + (r * source_pitch + c), 0))

    _first_that_fits(e, [size for size in (numbers.lanes, 4) if size <= numbers.lanes], fits, block, by_element)
    e.ret()
    return e.function


def emit_transpose_past(module: Any, numbers: Numbers) -> Any:
    """transpose_past(target, target_pitch, source, source_pitch, rows, columns): target[c, r] = source[r, c], of which
    whole lines go past the caches.

    The target's pitch must be so many lines; there must be as many rows as a line has elements, a vector of columns.
    """
    e = Emitter(module, "transpose_past", [PTR, I64, PTR, I64, I64, I64], internal=True)
    target = e.arg_ptr(0, numbers.stored, noalias=True)
    source = e.arg_ptr(2, numbers.computed, noalias=True)
    target_pitch, source_pitch, rows, columns = (e.arg_int(i) for i in (1, 3, 4, 5))
    address, size = Int(e, e.b.ptrtoint(target.value, I64)), numbers.lanes
    line = LINE_BYTES // size_of(numbers.stored)

    def blocks(first: Int, end: Int, count: int, put: Callable[[Ptr, Any], None]) -> None:
        """The rows from the first on, so many blocks at a time, whose vectors lie side by side in the target."""
        for column in e.range(0, columns, size):
            c = e.min(column, columns - size)
            for row in e.range(first, end, count * size):
                r = e.min(row, rows - count * size)
                to, at = target + (c * target_pitch + r), source + (r * source_pitch + c)
                places = [at + source_pitch * (size * i) for i in range(count)]
                squares = [
                    _transposed(e, place, source_pitch, lambda p, lanes: p.load(0, lanes), size) for place in places
                ]
                for vectors in zip(*squares, strict=True):
                    for i, value in enumerate(vectors):
                        put(to + i * size, value)
                    to = to + target_pitch

    # The first and the last rows may be parts of lines.
    start = ((0 - address) & (LINE_BYTES - 1)) // size_of(numbers.stored)
    end = start + ((rows - start) & -line)
    for first, last in ((e.int(0), start), (end, rows)):
        blocks(first, last, 1, lambda to, value: to.store(0, value))
    # Memory takes several neighbouring lines of a few columns faster than one of each.
    for r in e.range(start, end, _NEIGHBOURS * line):
        blocks(r, e.min(r + _NEIGHBOURS * line, end), line // size, lambda to, value: to.stream(0, value))
    e.ret()
    return e.function


def _transposed(e: Emitter, at: Ptr, pitch: Int, load: Callable[[Ptr, int], Any], size: int) -> list[Any]:
    """The columns of a square, as vectors.

    Halves of lines that change places are loaded where they go: a load does that for nothing, while exchanging halves
    of vectors takes as long as two exchanges within halves.
    """
    half = size // 2
    starts = [at]
    for _ in range(size - 1):
        starts.append(starts[-1] + pitch)
    if size < 8:
        return transpose_block(e, [load(start, size) for start in starts])
    order = ir.Constant(ir.VectorType(I32, size), list(range(size)))
    lines = [
        e.b.shuffle_vector(load(upper + place, half), load(lower + place, half), order)
        for place in (0, half)
        for upper, lower in zip(starts[:half], starts[half:], strict=True)
    ]
    return transpose_block(e, lines, half // 2)


def _first_that_fits(
    e: Emitter, sizes: list[int], fits: Callable[[int], Any], block: Callable[[int], None], last: Callable[[], None]
) -> None:
    if not sizes:
        last()
        return
    with e.either(fits(sizes[0])) as (then, otherwise):
        with then:
            block(sizes[0])
        with otherwise:
            rest = [size for size in sizes[1:] if size < sizes[0]]
            _first_that_fits(e, rest, fits, block, last)


def transpose_block(e: Emitter, lines: list[Any], distance: int | None = None) -> list[Any]:
    """Transpose n vectors of n lanes, n a power of two: exchange ever smaller off-diagonal squares, from those so far
    from the diagonal on."""
    n = len(lines)
    distance = n // 2 if distance is None else distance
    while distance:
        low = ir.Constant(ir.VectorType(I32, n), [i if not i & distance else n + i - distance for i in range(n)])
        high = ir.Constant(ir.VectorType(I32, n), [i + distance if not i & distance else n + i for i in range(n)])
        for i in range(n):
            if not i & distance:
                a, b = lines[i], lines[i + distance]
                lines[i] = e.b.shuffle_vector(a, b, low)
                lines[i + distance] = e.b.shuffle_vector(a, b, high)
        if n == 16 and distance == 4:  # 64 exchanges at once take LLVM half as long again, to find nothing
            lines = [e.unseen(line, "v") for line in lines]
        distance //= 2
    return lines


def weave(e: Emitter, lines: list[Any]) -> list[Any]:
    """Vectors whose elements take turns: the first of each, the second of each, and so on, as so many vectors."""
    count = len(lines)
    if count == 1:
        return lines
    if count % 2 == 0:
        first, second = (weave(e, lines[start::2]) for start in (0, 1))
        return [half for pair in zip(first, second, strict=True) for half in _take_turns(e, *pair)]
    lanes = lines[0].type.count
    turns = [divmod(at, count)[::-1] for at in range(count * lanes)]
    return [_collected(e, lines, turns[start : start + lanes]) for start in range(0, count * lanes, lanes)]


def unweave(e: Emitter, lines: list[Any]) -> list[Any]:
    """The vectors that `weave` would turn into these."""
    count, lanes = len(lines), lines[0].type.count
    if count == 1:
        return lines
    if count % 2 == 0:
        pairs = [lines[i : i + 2] for i in range(0, count, 2)]
        turns = [[divmod(2 * lane + k, lanes) for lane in range(lanes)] for k in range(2)]
        halves = [unweave(e, [_collected(e, pair, places) for pair in pairs]) for places in turns]
        return [value for pair in zip(*halves, strict=True) for value in pair]
    return [_collected(e, lines, [divmod(lane * count + k, lanes) for lane in range(lanes)]) for k in range(count)]


def _collected(e: Emitter, lines: list[Any], places: list[tuple[int, int]]) -> Any:
    """A vector of the elements at these places, (line, element)."""
    value, lanes = lines[0], len(places)
    for k in range(1, len(lines)):
        # Elements of the lines before k are in their lanes already.
        order = [
            lanes + element if line == k else lane if k > 1 else element for lane, (line, element) in enumerate(places)
        ]
        value = e.b.shuffle_vector(value, lines[k], ir.Constant(ir.VectorType(I32, lanes), order))
    return value


def _take_turns(e: Emitter, first: Any, second: Any) -> list[Any]:
    """Two vectors, element by element in turn, as two vectors."""
    lanes = first.type.count
    orders = [[start + i // 2 + (i % 2) * lanes for i in range(lanes)] for start in (0, lanes // 2)]
    return [e.b.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, lanes), order)) for order in orders]
