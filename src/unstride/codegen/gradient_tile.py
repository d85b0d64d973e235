"""The inner loop of weight gradients: rows x vectors sums that stay in registers while positions go by.

At each position a tile reads a vector of one side's channels and, for each of its rows, one value of the other side
(depthwise: a vector of the same channels at another tap). Positions come in runs of equal length; where a run starts in
either strip is read from two lists. What was summed is written or added to memory at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

from unstride.codegen.emit import I64, PTR, Callee, Emitter, Int, Ptr, function_table, vector
from unstride.codegen.numbers import Numbers, constant

__all__ = ["GradientTiles", "TileArgs"]


class TileArgs(IntEnum):
    """What a tile function finds at its one argument."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    VECTORS = auto()  # addresses of the first position, but for the run
    ROWS = auto()
    VECTOR_PITCH = auto()  # elements per pixel of the strip
    ROW_PITCH = auto()  # depthwise, there is one pitch: the same channels lie on both sides
    VECTOR_STEP = auto()  # elements from one position to the next
    ROW_STEP = auto()
    VECTOR_RUNS = auto()  # addresses of lists of pixels where runs start
    ROW_RUNS = auto()
    RUNS = auto()
    LENGTH = auto()  # positions of each run
    HEIGHT = auto()  # rows that count
    SUMS = auto()
    SUMS_PITCH = auto()
    FRESH = auto()  # 1 if the sums in memory start here
    TAP_STEP = auto()  # depthwise: elements from one row's vector to the next


@dataclass(frozen=True)
class GradientTiles:
    """Emits tiles of every height and width, and calls the one that holds a given number of rows."""

    module: Any
    numbers: Numbers
    depthwise: bool
    heights: Sequence[int]
    widths: Sequence[int]

    def emit(self) -> None:
        for width in self.widths:
            for height in self.heights:
                _Tile(self.module, self.numbers, self.depthwise, height, width).emit()
        most = max(self.heights)
        fitting = [min(h for h in self.heights if h >= max(1, m)) for m in range(most + 1)]
        function_table(self.module, "tiles", (f"sum_{height}x{width}" for width in self.widths for height in fitting))

    def call(self, e: Emitter, width: Int, height: Int, args: Ptr) -> None:
        """Run the tile for `height` rows of `width` vectors."""
        table = Ptr(e, self.module.globals["tiles"], PTR)
        function = table.load((width - 1) * (max(self.heights) + 1) + height)
        e.call(Callee(function), args)


class _Tile:
    def __init__(self, module: Any, numbers: Numbers, depthwise: bool, height: int, width: int) -> None:
        self.e = Emitter(module, f"sum_{height}x{width}", [PTR], internal=True)
        self.numbers, self.depthwise, self.height, self.width = numbers, depthwise, height, width
        self.args = self.e.arg_ptr(0, I64)
        self.lanes = numbers.lanes
        self.typ = vector(numbers.computed, self.lanes)
        # A small tile has its sums twice, for positions in turn: the latency of an addition is longer than its turn.
        self.sets = 2 if height * width <= 6 and not depthwise else 1
        self.all_sums = [
            [[self.e.stack(self.typ) for _ in range(width)] for _ in range(height)] for _ in range(self.sets)
        ]

    def emit(self) -> None:
        e = self.e
        for slot in (slot for sums in self.all_sums for row in sums for slot in row):
            e.b.store(constant(self.typ, 0.0), slot.value)
        self._accumulate()
        with e.either(self.args.int(TileArgs.FRESH).differs(0)) as (then, otherwise):
            with then:
                self._write(add=False)
            with otherwise:
                self._write(add=True)
        e.ret()

    def _accumulate(self) -> None:
        e, get = self.e, self.args.int
        vectors = e.ptr(get(TileArgs.VECTORS), self.numbers.computed)
        rows = e.ptr(get(TileArgs.ROWS), self.numbers.computed)
        vector_runs, row_runs = e.ptr(get(TileArgs.VECTOR_RUNS), I64), e.ptr(get(TileArgs.ROW_RUNS), I64)
        vector_pitch = get(TileArgs.VECTOR_PITCH)
        row_pitch = vector_pitch if self.depthwise else get(TileArgs.ROW_PITCH)
        vector_step, row_step = get(TileArgs.VECTOR_STEP), get(TileArgs.ROW_STEP)
        length = get(TileArgs.LENGTH)
        for run in e.range(get(TileArgs.RUNS)):
            from_vectors = vectors + vector_runs.int(run) * vector_pitch
            from_rows = rows + row_runs.int(run) * row_pitch
            whole = length - length % self.sets
            for position in e.range(0, whole, self.sets, inner=True):
                for i, sums in enumerate(self.all_sums):
                    at = position + i
                    self._step(from_vectors + at * vector_step, from_rows + at * row_step, sums)
            if self.sets > 1:
                for at in e.range(whole, length, inner=True):
                    self._step(from_vectors + at * vector_step, from_rows + at * row_step, self.all_sums[0])

    def _step(self, vectors: Ptr, rows: Ptr, all_sums: list[list[Ptr]]) -> None:
        """One position."""
        values = [vectors.load(v * self.lanes, self.lanes) for v in range(self.width)]
        tap_step = self.args.int(TileArgs.TAP_STEP) if self.depthwise else None
        for m, sums in enumerate(all_sums):
            if tap_step is not None:
                row = rows + tap_step * m if m else rows
                factors = [row.load(v * self.lanes, self.lanes) for v in range(self.width)]
            else:
                factors = [self.e.splat(rows.load(m), self.lanes)] * self.width
            for value, factor, slot in zip(values, factors, sums, strict=True):
                old = self.e.b.load(slot.value, typ=self.typ)
                self.e.b.store(self.numbers.multiply_add(self.e, factor, value, old), slot.value)

    def _write(self, *, add: bool) -> None:
        e = self.e
        height, pitch = self.args.int(TileArgs.HEIGHT), self.args.int(TileArgs.SUMS_PITCH)
        target = e.ptr(self.args.int(TileArgs.SUMS), self.numbers.computed)
        for m in range(self.height):
            with e.when(height > m):
                line = target + pitch * m if m else target
                for v in range(self.width):
                    value, *others = (e.b.load(sums[m][v].value, typ=self.typ) for sums in self.all_sums)
                    for other in others:
                        value = e.b.fadd(value, other)
                    if add:
                        value = e.b.fadd(line.load(v * self.lanes, self.lanes), value)
                    line.store(v * self.lanes, value)
