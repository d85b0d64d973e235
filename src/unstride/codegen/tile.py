"""The inner loop: rows x vectors accumulators that live in registers from the first tap to the only store.

A tile reads its rows through one address each, so the rows may be any positions: neighbours, several image rows,
several images. The list of taps says where, relative to those addresses, each run of K starts. Depth of the channels,
distance of rows and number of taps are run-time values; only the shape of the register block is compiled in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from unstride.codegen.activation import activate, slope_vector
from unstride.codegen.emit import I8, I64, PTR, Emitter, Int, Ptr, function_table, int_table, size_of, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.machine import LINE_BYTES
from unstride.plan.winograd import even_heights

__all__ = ["MOST_ROWS", "Sweep", "TileArgs", "TileFamily", "TileKind"]

MOST_ROWS = 32
_AHEAD = 32  # weights are fetched this many steps before they are used


class TileArgs(IntEnum):
    """What a tile function finds at its one argument; addresses of its rows follow."""

    TAPS = 0
    TAP_COUNT = 1
    RUN = 2
    WEIGHTS = 3
    BIAS = 4
    LOW = 5  # the columns to store are [LOW, HIGH)
    HIGH = 6
    SLOPE_BITS = 7
    STREAM = 8  # 1 if rows lie on whole lines that shall go past the caches
    SOURCES = 9
    RESULTS = SOURCES + MOST_ROWS
    COUNT = RESULTS + MOST_ROWS


class Sweep(IntEnum):
    """Instead of the addresses of rows: tiles that lie one after the other. A call for each costs as much as a few
    steps of the inner loop."""

    SOURCE = TileArgs.SOURCES  # address of the first row
    BETWEEN = SOURCE + 1  # bytes from row to row
    BY_TILE = SOURCE + 2  # and from tile to tile
    TILES = SOURCE + 3
    LATER = SOURCE + 4  # address of what will be needed after this sweep
    LATER_BY_TURN = SOURCE + 5  # how many bytes of it are fetched in a turn
    LATER_BY_TILE = SOURCE + 6
    RESULT = TileArgs.RESULTS  # address of the first line
    RESULT_BY_TILE = RESULT + 1


@dataclass(frozen=True)
class TileKind:
    """What is compiled into a family of tiles."""

    depthwise: bool  # the source is a vector of channels instead of one broadcast value
    activation: str
    stores_computed: bool  # results go to a strip in the computed type, to be rounded later
    most_rows: int
    most_vectors: int
    bare: bool = False  # sums of whole vectors; bias and activation come later
    accumulates: bool = False  # one tap is added to what the result holds
    shaped: bool = False  # all panels are as wide as the tile, or two vectors of its three
    # Rows lie evenly, and those of several tiles one after the other: `Sweep` is where and how.
    regular: bool = False

    @property
    def vectors(self) -> tuple[int, ...]:
        """The widths to compile."""
        return tuple(range(min(2, self.most_vectors) if self.shaped else 1, self.most_vectors + 1))

    def rows(self, vectors: int) -> tuple[int, ...]:
        """Heights to compile: all of a short tile, a few of a tall one, fewer of a narrow one.

        Rows in between are doubled up: that costs less than the time to compile every height.
        """
        if self.regular:  # a sweep is cut evenly, so lower tiles than half the height are rare
            return even_heights(self.most_rows) if vectors == self.most_vectors else (self.most_rows,)
        if self.bare and not self.accumulates:  # few calls are not whole
            return (self.most_rows // 2, self.most_rows)
        widest = vectors == self.most_vectors
        if self.most_rows <= 8:
            low: Iterable[int] = range(1, self.most_rows) if widest else (1, 2, 4)
        else:
            low = (rows for rows in (2, 4, 8) if rows < 0.8 * self.most_rows) if widest else (4,)
        return (*(rows for rows in low if rows < self.most_rows), self.most_rows)


@dataclass(frozen=True)
class TileFamily:
    """Emits `tile_{rows}x{vectors}` functions and the tables that find them."""

    module: Any
    numbers: Numbers
    kind: TileKind

    def emit(self) -> None:
        for vectors in self.kind.vectors:
            for rows in self.kind.rows(vectors):
                _Tile(self.module, self.numbers, self.kind, rows, vectors).emit()
            self._tables(vectors)

    def _tables(self, vectors: int) -> None:
        """For each row count the next tile that holds it, and that tile's row count."""
        heights, most = self.kind.rows(vectors), self.kind.most_rows
        fitting = [min(r for r in heights if r >= max(1, m)) for m in range(most + 1)]
        function_table(self.module, f"tiles_{vectors}", (f"tile_{rows}x{vectors}" for rows in fitting))
        int_table(self.module, f"tile_rows_{vectors}", fitting)


class _Tile:
    def __init__(self, module: Any, numbers: Numbers, kind: TileKind, rows: int, vectors: int) -> None:
        self.e = Emitter(module, f"tile_{rows}x{vectors}", [PTR], internal=True)
        self.numbers, self.kind, self.rows, self.vectors = numbers, kind, rows, vectors
        self.args = self.e.arg_ptr(0, I64)
        self.lanes = numbers.lanes
        self.typ = vector(numbers.computed, self.lanes)
        self.width = vectors * self.lanes
        # Where products need registers of their own, those of a second step would push sums out.
        widest = vectors == kind.most_vectors or (kind.bare and not kind.accumulates)
        self.unrolled = numbers.fused and (rows == kind.most_rows or kind.regular) and widest
        self.busy = self.unrolled and vectors == 1  # its loads leave little time for fetching ahead
        # What a turn of two steps fetches of the next tile's rows.
        self.in_one_line = self.busy or 2 * rows * size_of(numbers.computed) <= LINE_BYTES
        # What a strip holds is computed numbers, whatever the type of the result.
        self.kept = numbers.unrounded if kind.stores_computed else numbers

    def emit(self) -> None:
        if self.kind.regular:
            self._sweep = {field: self.args.int(field) for field in Sweep}  # once: stores might change them
            for tile in self.e.range(self._sweep[Sweep.TILES]):
                self.tile = tile
                self._emit_tile()
        else:
            self._emit_tile()
        self.e.ret()

    def _emit_tile(self) -> None:
        self.acc = [constant(self.typ, 0.0)] * (self.rows * self.vectors)
        if self.kind.accumulates:
            results = [self._result(m) for m in range(self.rows)]
            self.acc = [r.load(v * self.lanes, self.lanes) for r in results for v in range(self.vectors)]
        self._accumulate()
        self._finish()

    # -- the sum

    def _accumulate(self) -> None:
        e, args = self.e, self.args
        taps = e.ptr(args.int(TileArgs.TAPS), I64)
        run = args.int(TileArgs.RUN)
        weights = e.ptr(args.int(TileArgs.WEIGHTS), self.numbers.computed)
        addresses = self._sources()
        sources = [e.ptr(address, self.numbers.computed) for address in addresses]
        count = 1 if self.kind.accumulates else args.int(TileArgs.TAP_COUNT)
        for tap, acc in e.fold(0, count, 1, self.acc):
            shift, first = taps.int(tap * 2), taps.int(tap * 2 + 1)
            rows = [source + shift for source in sources]
            panel = weights + first
            if self.kind.depthwise:
                self._depthwise_step(rows, panel, acc)
                continue
            # Two steps a turn in the tile that does most of the work; elsewhere they only cost compile time. The next
            # tile's source is fetched meanwhile, line by line.
            whole = e.int(0)
            if self.unrolled:
                whole = run & -2
                # Rows are even but for the ends of lines, so the next tile's should start here.
                next_rows = e.ptr(addresses[-1] * 2 - addresses[-2], self.numbers.computed) + shift
                if self.kind.regular:
                    self._even_steps(rows, panel, whole, next_rows, tap, acc)
                else:
                    for k, inner in e.fold(0, whole, 2, acc):
                        for u in range(2):
                            if u == 0 or not self.in_one_line:
                                e.fetch(next_rows + (k + u) * self.rows)
                            self._step(rows, panel + (k + u) * self.width, k + u, inner)
            for k, inner in e.fold(whole, run, 1, acc):
                self._step(rows, panel + k * self.width, k, inner)

    def _even_steps(self, rows: list[Ptr], panel: Ptr, whole: Int, next_rows: Ptr, tap: Int, acc: list[Any]) -> None:
        """The same where rows lie evenly: one pointer for three of them, so that all pointers stay in registers.

        LLVM is not shown how pointers grow; it would give every row one of its own again.
        """
        e, sums, by_turn = self.e, len(acc), self._sweep[Sweep.LATER_BY_TURN]
        apart = self._sweep[Sweep.BETWEEN] // size_of(self.numbers.computed)
        first_later = e.ptr(self._of_tile(Sweep.LATER, Sweep.LATER_BY_TILE) + tap * (whole // 2) * by_turn, I8)
        carried = [*acc, *(row.value for row in rows[::3]), next_rows.value, first_later.value]
        for k, inner in e.fold(0, whole, 2, carried):
            *firsts, fetched, _ = (Ptr(e, value, self.numbers.computed) for value in inner[sums:])
            then = Ptr(e, inner[-1], I8)
            e.fetch(then, near=False)
            places = [first + apart * i if i else first for first in firsts for i in range(3)]
            for u in range(2):
                if u == 0 or not self.in_one_line:
                    e.fetch(fetched + u * self.rows)
                self._step(places[: self.rows], panel + (k + u) * self.width, u, inner)
            moved = [*(first + 2 for first in firsts), fetched + 2 * self.rows, then + by_turn]
            inner[sums:] = [e.unseen(pointer.value, "r") for pointer in moved]
        acc[:] = carried[:sums]

    def _sources(self) -> list[Int]:
        args = self.args
        if self.kind.regular:
            first, between = self._of_tile(Sweep.SOURCE, Sweep.BY_TILE), self._sweep[Sweep.BETWEEN]
            return [first + between * m for m in range(self.rows)]
        return [args.int(TileArgs.SOURCES + m) for m in range(self.rows)]

    def _of_tile(self, first: Sweep, by_tile: Sweep) -> Int:
        """An address of this tile of a sweep."""
        return self._sweep[first] + self._sweep[by_tile] * self.tile

    def _result(self, m: int) -> Ptr:
        if self.kind.regular:
            first = self.e.ptr(self._of_tile(Sweep.RESULT, Sweep.RESULT_BY_TILE), self.kept.stored)
            return first + m * self.kind.most_vectors * self.lanes
        return self.e.ptr(self.args.int(TileArgs.RESULTS + m), self.kept.stored)

    def _step(self, rows: list[Ptr], line: Ptr, k: Int | int, acc: list[Any]) -> None:
        """One k: a row of weights against one broadcast value per tile row."""
        e, nv = self.e, self.vectors
        weights = [line.load(v * self.lanes, self.lanes) for v in range(nv)]
        for v in range(0, 0 if self.busy else nv, max(1, LINE_BYTES // self.numbers.isa.vector_bytes)):
            e.fetch(line + (_AHEAD * self.width + v * self.lanes))
        for m, row in enumerate(rows):
            value = e.splat(row.load(k), self.lanes)
            for v, weight in enumerate(weights):
                acc[m * nv + v] = self.numbers.multiply_add(e, value, weight, acc[m * nv + v])

    def _depthwise_step(self, rows: list[Ptr], panel: Ptr, acc: list[Any]) -> None:
        """One tap: a vector of channels against the same channels of the weights."""
        e, nv = self.e, self.vectors
        for v in range(nv):
            weight = panel.load(v * self.lanes, self.lanes)
            for m, row in enumerate(rows):
                value = row.load(v * self.lanes, self.lanes)
                acc[m * nv + v] = self.numbers.multiply_add(e, value, weight, acc[m * nv + v])

    # -- bias, activation, store

    def _finish(self) -> None:
        if self.kind.bare:
            results = [self._result(m) for m in range(self.rows)]
            for i, value in enumerate(self.acc):
                results[i // self.vectors].store(i % self.vectors * self.lanes, value)
            return
        e, args = self.e, self.args
        # Depthwise panels are never merged, so that their columns begin with the first.
        low, high = e.int(0) if self.kind.depthwise else args.int(TileArgs.LOW), args.int(TileArgs.HIGH)
        bias_row = e.ptr(args.int(TileArgs.BIAS), self.numbers.computed)
        bias = [bias_row.load(v * self.lanes, self.lanes) for v in range(self.vectors)]
        whole = e.b.and_(low.equals(0), high.equals(self.width))
        simple = self.kind.activation in ("none", "relu", "leaky_relu")
        if not simple:
            # A long activation is emitted once and looped over, not unrolled over every accumulator.
            self._store_rows_in_a_loop(bias, low, high)
            return
        with e.either(whole) as (then, otherwise):
            with then:
                self._store_whole_rows(bias)
            with otherwise:
                self._store_parts_of_rows(bias, low, high)

    def _store_parts_of_rows(self, bias: list[Any], low: Int, high: Int) -> None:
        """Channels that end within the last vector do so in every row. A mask makes that a store as any other."""
        e, last = self.e, self.vectors - 1
        if not (self.numbers.isa.masked and self._tallest):
            self._store_rows_in_a_loop(bias, low, high)
            return
        with e.either(e.b.and_(low.equals(0), high > last * self.lanes)) as (then, otherwise):
            with then:
                self._store_under_masks({last}, bias, low, high)
            with otherwise:
                self._store_under_masks(set(range(self.vectors)), bias, low, high)

    def _store_under_masks(self, partial: set[int], bias: list[Any], low: Int, high: Int) -> None:
        """All rows; of these vectors only columns in [low, high)."""
        for i, total in enumerate(self.acc):
            m, v = divmod(i, self.vectors)
            row, value = self._result(m), self._epilogue(total, bias[v])
            if v in partial:
                self.kept.store_between(row, v * self.lanes, value, low, high)
            else:
                self.kept.store(row, v * self.lanes, value)

    @property
    def _tallest(self) -> bool:
        """Whether this is the tile that does most of the work; lower ones are rare."""
        return self.rows == max(self.kind.rows(self.vectors))

    def _store_whole_rows(self, bias: list[Any]) -> None:
        nv = self.vectors
        values = [self._epilogue(value, bias[i % nv]) for i, value in enumerate(self.acc)]
        rows = [self._result(m) for m in range(self.rows)]
        if self.kind.stores_computed or not self._tallest:
            for i, value in enumerate(values):
                self.kept.store(rows[i // nv], i % nv * self.lanes, value)
            return
        lines = [(rows[i // nv] + i % nv * self.lanes, value) for i, value in enumerate(values)]
        self.numbers.store_lines(self.e, lines, nv, self.args.int(TileArgs.STREAM))

    def _store_rows_in_a_loop(self, bias: list[Any], low: Int, high: Int) -> None:
        e = self.e
        spill = e.stack(self.typ, self.rows * self.vectors).as_type(self.numbers.computed)
        for i, value in enumerate(self.acc):
            spill.store(i * self.lanes, value)
        for m in e.range(self.rows):
            target = e.ptr(self.args.int(m + TileArgs.RESULTS), self.kept.stored)
            for v in range(self.vectors):
                value = spill.load(m * self.width + v * self.lanes, self.lanes)
                self.kept.store_between(target, v * self.lanes, self._epilogue(value, bias[v]), low, high)

    def _epilogue(self, value: Any, bias: Any) -> Any:
        e = self.e
        return activate(e, self.kind.activation, e.b.fadd(value, bias), self._slope())

    def _slope(self) -> Any:
        if self.kind.activation != "leaky_relu":
            return None
        return slope_vector(self.e, self.args, TileArgs.SLOPE_BITS, self.numbers)
