"""The inner loop in tiles of halves: some tiles of positions by one or two of result channels, over all taps.

The tile registers: 0 to 3 hold sums, 4 and 5 pixels of the source, 6 and 7 weights. Rows of the source may be any
distance apart; where they are neighbours a tile is one run of 1 KiB, as all tiles of weights are: loads of such tiles
take half as long as others.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import I8, I64, PTR, VOID, Emitter, Int
from unstride.plan.machine import LINE_BYTES

__all__ = ["FETCHED", "TILE_BYTES", "TileJob", "emit_tiles", "give_back", "reserve"]

TILE_BYTES = 1024
FETCHED = 4  # lines that a turn fetches of what will be needed later
_UNROLLED = 8  # turns of the inner loop
_SOURCE, _WEIGHTS = (4, 5), (6, 7)  # registers
_MULTIPLY = {"bf16": "llvm.x86.tdpbf16ps", "f16": "llvm.x86.tdpfp16ps"}
_SHAPE = (1, 0, 0x0040_0040_0040_0040, 0x0040_0040_0040_0040, 0, 0, 0x1010_1010_1010_1010, 0)  # 8 of 16 rows, 64 bytes


class TileJob(IntEnum):
    """What a tile function finds at its one argument. Addresses and distances are bytes."""

    SOURCE = 0
    SOURCE_BY_ROW = auto()
    SOURCE_BY_STEP = auto()  # from block to block of channels
    SOURCE_BY_TILE = auto()
    WEIGHTS = auto()  # [step][tap][vector] tiles
    WEIGHTS_BY_STEP = auto()
    RESULT = auto()
    RESULT_BY_ROW = auto()
    RESULT_BY_TILE = auto()
    STEPS = auto()
    TAP_COUNT = auto()
    TAPS = auto()  # where taps are: of each the distances of source and weights
    LATER = auto()  # what will be needed later: a part of it is fetched at every turn
    COUNT = auto()

    @staticmethod
    def fetched(turns: Int) -> Int:
        """How many bytes are fetched in so many turns."""
        return turns * (FETCHED * LINE_BYTES)


def reserve(e: Emitter) -> None:
    """Give the tile registers their shape."""
    if (shape := e.module.globals.get("shape_of_tiles")) is None:
        shape = ir.GlobalVariable(e.module, ir.ArrayType(I64, len(_SHAPE)), "shape_of_tiles")
        shape.initializer = ir.Constant(shape.value_type, [ir.Constant(I64, word) for word in _SHAPE])
        shape.global_constant, shape.linkage = True, "internal"
    e.intrinsic("llvm.x86.ldtilecfg", VOID, (shape,))


def give_back(e: Emitter) -> None:
    """Clear the tile registers: a thread whose registers are in use is slower to switch away from."""
    e.intrinsic("llvm.x86.tilerelease", VOID, ())


def emit_tiles(module: Any, dtype: str, rows: int, columns: int) -> str:
    """tiles_{rows}x{columns}(job): so many tiles of positions, by so many of result channels."""
    e = Emitter(module, f"tiles_{rows}x{columns}", [PTR], internal=True)
    job = e.arg_ptr(0, I64)
    get = {field: job.int(field) for field in TileJob if field is not TileJob.COUNT}
    taps = e.ptr(get[TileJob.TAPS], I64)

    def tile(name: str, *arguments: Any) -> None:
        e.intrinsic(name, VOID, [ir.Constant(I8, a) if isinstance(a, int) else a.value for a in arguments])

    for i in range(rows * columns):
        tile("llvm.x86.tilezero", i)

    def turn(carried: list[Any]) -> None:
        """One tap of one block of channels."""
        tap, *places = (Int(e, value) for value in carried)
        source, weights, later = (e.ptr(place, I8) for place in places)
        for i in range(FETCHED):
            e.fetch(later + i * LINE_BYTES, near=False)
        pixels, panel = source + taps.int(tap * 2), weights + taps.int(tap * 2 + 1)
        for row in range(rows):
            held = _SOURCE[row % 2]
            place = pixels + get[TileJob.SOURCE_BY_TILE] * row if row else pixels
            tile("llvm.x86.tileloadd64", held, place, get[TileJob.SOURCE_BY_ROW])
            for column in range(columns):
                if row == 0:
                    tile("llvm.x86.tileloadd64", _WEIGHTS[column], panel + column * TILE_BYTES, e.int(LINE_BYTES))
                tile(_MULTIPLY[dtype], row * columns + column, held, _WEIGHTS[column])
        # Taps turn fastest: neighbouring ones read the same lines of the source, which then are near.
        over = (tap + 1).equals(get[TileJob.TAP_COUNT])
        steps = (get[TileJob.SOURCE_BY_STEP], get[TileJob.WEIGHTS_BY_STEP])
        moved = [at + e.select(over, step, 0) for at, step in zip(places[:2], steps, strict=True)]
        after = (e.select(over, 0, tap + 1), *moved, places[2] + FETCHED * LINE_BYTES)
        carried[:] = [value.value for value in after]

    # A branch that is guessed wrongly costs as much as 15 turns while products are under way, and the end of a loop is
    # guessed rightly if it is short: so turns are written out, and are one loop for taps and blocks together.
    turns = get[TileJob.STEPS] * get[TileJob.TAP_COUNT]
    carried = [e.raw(0), *(get[field].value for field in (TileJob.SOURCE, TileJob.WEIGHTS, TileJob.LATER))]
    whole = turns & -_UNROLLED
    for _, inner in e.fold(0, whole, _UNROLLED, carried):
        for _ in range(_UNROLLED):
            turn(inner)
    for _, inner in e.fold(whole, turns, 1, carried):
        turn(inner)
    result = e.ptr(get[TileJob.RESULT], I8)
    for row in range(rows):
        for column in range(columns):
            place = result + get[TileJob.RESULT_BY_TILE] * row + column * LINE_BYTES
            tile("llvm.x86.tilestored64", row * columns + column, place, get[TileJob.RESULT_BY_ROW])
    e.ret()
    return e.function.name
