"""The inner loop of `matrix_tile`, by an instruction that adds two products of bf16 to each of 16 sums (VDPBF16PS).

Source, weights and sums lie as they do for whole tiles: a row of a tile of weights is what one such instruction takes,
the same two channels of 16 result channels. The other operand is two channels of a pixel, in all lanes.
"""

from __future__ import annotations

from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import F32, I8, I32, I64, PTR, Emitter, Int, Ptr, vector
from unstride.codegen.matrix_tile import FETCHED, TILE_BYTES, TileJob
from unstride.codegen.numbers import constant
from unstride.plan.machine import LINE_BYTES
from unstride.plan.matrix import DEPTH, SIDE

__all__ = ["emit_dots"]

_MULTIPLY = "llvm.x86.avx512bf16.dpbf16ps.512"
_PAIRS, _UNROLLED = DEPTH // 2, 2  # of channels in a line, and in a turn of the inner loop
_ROWS = {1: 16, 2: 8}  # by the vectors of columns: rows whose sums stay in registers, and hide how long each takes
_SUM, _HALVES = vector(F32, SIDE), vector(ir.BFloatType(), DEPTH)


def emit_dots(module: Any, rows: int, columns: int) -> str:
    """tiles_{rows}x{columns}(job), as `emit_tiles` makes it."""
    e = Emitter(module, f"tiles_{rows}x{columns}", [PTR], internal=True)
    job, height = e.arg_ptr(0, I64), _ROWS[columns]
    get = {field: job.int(field) for field in TileJob if field is not TileJob.COUNT}
    taps, parts = e.ptr(get[TileJob.TAPS], I64), SIDE // height
    turns = get[TileJob.STEPS] * get[TileJob.TAP_COUNT]
    count, by_row = height * columns, get[TileJob.SOURCE_BY_ROW]
    by_turn = max(1, FETCHED // (rows * parts)) * LINE_BYTES  # of what will be needed later

    def turn(carried: list[Any]) -> None:
        """One tap of one block of channels."""
        tap, source, weights, later = (Int(e, value) for value in carried[:4])
        for line in range(0, by_turn, LINE_BYTES):
            e.fetch(e.ptr(later, I8) + line, near=False)
        pixels = e.ptr(source + taps.int(tap * 2), I8)
        panel = e.ptr(weights + taps.int(tap * 2 + 1), I8)
        # One pointer for three rows. LLVM is not shown how they grow: it would give every row one of its own.
        places = [(pixels + by_row * i).value for i in range(0, height, 3)]
        sums = [*carried[4:], *places, panel.value]
        for _, inner in e.fold(0, _PAIRS, _UNROLLED, sums, some=True):
            *firsts, panel = (Ptr(e, value, I8) for value in inner[count:])
            rows_of_three = [first + by_row * i if i else first for first in firsts for i in range(3)]
            for pair in range(_UNROLLED):
                lines = [panel + (v * TILE_BYTES + pair * LINE_BYTES) for v in range(columns)]
                factors = [e.b.bitcast(line.as_type(I32).load(0, SIDE), _HALVES) for line in lines]
                for i, row in enumerate(rows_of_three[:height]):
                    both = e.b.bitcast(e.splat(row.as_type(I32).load(pair), SIDE), _HALVES)
                    for v, factor in enumerate(factors):
                        at = i * columns + v
                        inner[at] = e.intrinsic(_MULTIPLY, _SUM, (inner[at], factor, both))
            moved = [*(first + _UNROLLED * 4 for first in firsts), panel + _UNROLLED * LINE_BYTES]
            inner[count:] = [e.unseen(pointer.value, "r") for pointer in moved]
        sums = sums[:count]
        # Taps turn fastest: neighbouring ones read the same lines of the source, which then are near.
        over = (tap + 1).equals(get[TileJob.TAP_COUNT])
        after = (
            e.select(over, 0, tap + 1),
            source + e.select(over, get[TileJob.SOURCE_BY_STEP], 0),
            weights + e.select(over, get[TileJob.WEIGHTS_BY_STEP], 0),
            later + by_turn,
        )
        carried[:] = [*(value.value for value in after), *sums]

    for part in e.range(rows * parts):
        tile, first = part // parts, part % parts * height
        source = get[TileJob.SOURCE] + tile * get[TileJob.SOURCE_BY_TILE] + first * get[TileJob.SOURCE_BY_ROW]
        later = get[TileJob.LATER] + part * turns * by_turn
        start = [e.raw(0), *(value.value for value in (source, get[TileJob.WEIGHTS], later))]
        carried = [*start, *[constant(_SUM, 0.0)] * count]
        for _, inner in e.fold(0, turns, 1, carried):
            turn(inner)
        result = get[TileJob.RESULT] + tile * get[TileJob.RESULT_BY_TILE] + first * get[TileJob.RESULT_BY_ROW]
        for i in range(height):
            line = e.ptr(result + get[TileJob.RESULT_BY_ROW] * i, F32)
            for v in range(columns):
                line.store(v * SIDE, carried[4 + i * columns + v])
    e.ret()
    return e.function.name
