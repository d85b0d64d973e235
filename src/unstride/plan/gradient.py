"""The gradient with respect to the weights: sums over positions, cut into boxes, chunks and blocks of the result.

    w[g, ci, co, k] = sum over n, i of small[n, g*Ci + ci, i] * large[n, g*Co + co, i*s + k*d - begin]

For each tap this is a matrix product whose long side, the positions, is summed over. One side's channels lie along
vectors; the other side's, and where that fills the tile better also the taps of the last axis, are the rows of a
register tile. Blocks (parts of the result) are independent; chunks (parts of the positions) have sums of their own,
which are added in order. Neither depends on the number of threads, so neither does the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import isqrt, prod

from unstride.plan.gradient_job import Block, Finish, GradientJob, Item, RowAxis, StripPanel, VectorPanel
from unstride.plan.machine import ISA, Machine
from unstride.problem import Problem

__all__ = ["GradientPlan", "GradientTile", "plan_gradient"]

_BOX_POSITIONS = 256  # long enough to pay for adding a tile to memory, short enough for its operands to stay in L1
_SUMS_BYTES = 1 << 20
_PARTIAL_BYTES = 8 << 20
_CHUNK_POSITIONS = 512
_TASKS = 16
_TASK_MACS = 1 << 20


@dataclass(frozen=True)
class GradientTile:
    """Sums of the inner loop: up to `height` rows by `width` vectors of `lanes` channels."""

    height: int
    width: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.width * self.lanes


@dataclass(frozen=True)
class GradientPlan:
    """One problem, ready to launch but for its addresses."""

    problem: Problem
    tile: GradientTile
    depthwise: bool
    vectors_over: str  # "small" or "large" channels
    fields: tuple[int, ...]
    tables: tuple[int, ...]
    tasks: int
    finish_tasks: int  # 0 if tasks finish their own block
    slot_bytes: int
    partial_bytes: int


@dataclass(frozen=True)
class _Axis:
    x: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    y: int

    @property
    def span(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    def positions(self, k: int) -> tuple[int, int]:
        """The positions [low, high) at which tap k falls inside the large side; both fall as k rises."""
        shift = k * self.dilation - self.begin
        return max(0, -(shift // self.stride)), min(self.x, (self.y - 1 - shift) // self.stride + 1)


_POINT = _Axis(1, 1, 1, 1, 0, 1)


def plan_gradient(problem: Problem, machine: Machine) -> GradientPlan:
    """The weight gradient of a problem (of either direction: the formula is the same)."""
    return _Planner(problem, machine).plan()


@dataclass(frozen=True)
class _Cut:
    """How the result is cut: channels of rows and vectors per block, and taps of the row axes per block."""

    a: int
    b: int
    row_taps: int


class _Planner:
    def __init__(self, problem: Problem, machine: Machine) -> None:
        p = self.problem = problem
        self.machine = machine
        self.compute_bytes = 8 if p.dtype == "f64" else 4
        self.depthwise = p.groups > 1 and p.ci == p.co == 1
        self.tile = _tile(machine.isa, machine.isa.lanes(self.compute_bytes), self.depthwise)
        axes = [_Axis(*v) for v in zip(p.x, p.kernel, p.stride, p.dilation, p.begin, p.y, strict=True)]
        strides = _strides(p, p.large_shape)
        self.large_n, self.large_c = strides[:2]
        self.rows, self.x, self.large_x = axes[:-1], axes[-1], strides[-1]
        self.row_strides = strides[2:-1]
        if self.x.span * self._widest() > self.strip_bytes // 2:
            # A strip could not hold even one position: let the last axis be a row axis too, and rows be single pixels.
            self.rows, self.x, self.large_x, self.row_strides = axes, _POINT, 1, strides[2:]
        if self.x.x == 1:
            # One position has no next one; this step makes rows follow each other without a gap.
            self.x = _Axis(1, self.x.kernel, self.x.span, self.x.dilation, self.x.begin, self.x.y)
        self.row_count = p.batch * prod(axis.x for axis in self.rows)
        self.row_tap_count = prod(axis.kernel for axis in self.rows)
        self.vector_is_large = not self.depthwise and self._cost(True) <= self._cost(False)
        self.placed = self.vector_is_large and self.x.stride > 1
        self.cut = self._cut()
        self.row_unit, self.x_unit = self._box()
        self.boxes = -(-self.row_count // self.row_unit) * -(-self.x.x // self.x_unit)
        self.tables: list[int] = []

    def _widest(self) -> int:
        channels = self.tile.columns if self.depthwise else min(max(self.problem.co, self.tile.lanes), 128)
        return channels * self.compute_bytes

    # -- decisions

    @cached_property
    def strip_bytes(self) -> int:
        """What both strips may take: half of L2, and less where many threads share the bound on all scratch."""
        return min(self.machine.l2_bytes // 2, (8 << 20) // max(4, self.machine.cores))

    def _cost(self, vector_is_large: bool) -> float:
        """Cycles for one group and one tap of the row axes, if vectors run over the channels of this side."""
        p = self.problem
        vectors, rows, repeat = (p.co, p.ci, self.x.kernel) if vector_is_large else (p.ci, p.co, 1)
        if not vector_is_large:
            rows, repeat = (rows * self.x.kernel, 1) if self._joined_taps else (rows, self.x.kernel)
        widths = [-(-width // self.tile.lanes) for _, width in _even(vectors, self.tile.columns, self.tile.lanes)]
        heights = [height for _, height in _even(rows, self.tile.height)]
        cycles = repeat * sum(_tile_cycles(height, width) for width in widths for height in heights)
        if not vector_is_large and self.x.stride * p.co * self.compute_bytes >= 512:
            cycles *= 1.15  # rows of consecutive positions then compete for the same lines of L1
        innermost = p.filter_layout[-1] == ("O" if vector_is_large else "I")
        finish = (0.2 if innermost else 0.5) * p.ci * p.co * self.x.kernel
        return cycles * self.row_count * self.x.x + finish

    @property
    def _joined_taps(self) -> bool:
        """Whether the large side's channels at consecutive taps are consecutive elements of a strip."""
        return self.x.dilation == 1 or self.x.kernel == 1

    @property
    def _channels(self) -> tuple[int, int]:
        """(a, b): channels of the rows and of the vectors, of one group."""
        p = self.problem
        if self.depthwise:
            return 1, p.groups
        return (p.ci, p.co) if self.vector_is_large else (p.co, p.ci)

    @property
    def _groups(self) -> int:
        return 1 if self.depthwise else self.problem.groups

    def _cut(self) -> _Cut:
        """Blocks whose sums stay near the core, and enough of them to share."""
        a, b = self._channels
        taps = self.row_tap_count * self.x.kernel
        room = min(_SUMS_BYTES, self.machine.l2_bytes) // self.compute_bytes
        cut = _Cut(a, b, self.row_tap_count)
        if taps * a * _up(b, self.tile.lanes) > room:
            side = max(2 * self.tile.columns, isqrt(room // taps))
            b = _share(b, max(side, room // (taps * a)), self.tile.columns)
            a = _share(a, max(2 * self.tile.height, room // (taps * _up(b, self.tile.lanes))), 1)
            row_taps = room // (a * _up(b, self.tile.lanes) * self.x.kernel)
            cut = _Cut(a, b, max(1, min(self.row_tap_count, row_taps)))
        work = self.problem.macs
        while self._blocks(cut) < 4 and work > self._blocks(cut) * _TASK_MACS and not self._chunks(cut) > 2:
            smaller = self._halved(cut)
            if smaller == cut:
                break
            cut = smaller
        return cut

    def _halved(self, cut: _Cut) -> _Cut:
        if cut.b >= 2 * self.tile.columns and cut.b >= cut.a:
            return _Cut(cut.a, _up(-(-cut.b // 2), self.tile.lanes), cut.row_taps)
        if cut.a >= 2 * self.tile.height:
            return _Cut(-(-cut.a // 2), cut.b, cut.row_taps)
        return _Cut(cut.a, cut.b, max(1, -(-cut.row_taps // 2)))

    def _blocks(self, cut: _Cut) -> int:
        a, b = self._channels
        return self._groups * -(-a // cut.a) * -(-b // cut.b) * -(-self.row_tap_count // cut.row_taps)

    def _sums(self) -> int:
        """Elements of all sums of one chunk, at most."""
        a, b = self._channels
        return self._groups * self.row_tap_count * self.x.kernel * a * (b + self.tile.columns)

    def _chunks(self, cut: _Cut) -> int:
        positions = self.row_count * self.x.x
        room = _PARTIAL_BYTES // (self._sums() * self.compute_bytes)
        return max(1, min(positions // _CHUNK_POSITIONS, room, -(-_TASKS // self._blocks(cut))))

    def _box(self) -> tuple[int, int]:
        """(rows, columns) of positions whose pixels fit the strips."""
        small, large = self._strip_channels()

        def fits(rows: int, columns: int) -> bool:
            pixels = rows * columns * small + rows * self._large_columns(columns) * large
            return rows * columns <= _BOX_POSITIONS and pixels * self.compute_bytes <= self.strip_bytes

        columns = _largest(self.x.x, lambda n: fits(1, n))
        rows = _largest(self.row_count, lambda n: fits(n, columns)) if columns == self.x.x else 1
        return rows, columns

    def _large_columns(self, columns: int) -> int:
        """Pixels of one row of the large strip: whole steps, so that rows may follow each other without a gap."""
        return (columns - 1 + -(-self.x.span // self.x.stride)) * self.x.stride

    def _places(self) -> list[int]:
        """Where the pixels of a row go in the strip: those that one tap reads at consecutive positions side by side."""
        if not self.placed:
            return []
        step, row = self.x.stride, self._large_columns(self.x_unit) // self.x.stride
        pixels = (self.x_unit - 1) * step + self.x.span
        return [pixel % step * (row * self.row_unit) + pixel // step for pixel in range(pixels)]

    def _strip_channels(self) -> tuple[int, int]:
        """Elements per pixel of the small and the large strip."""
        b = _up(min(self.cut.b, self._channels[1]), self.tile.columns if self.depthwise else self.tile.lanes)
        a = b if self.depthwise else min(self.cut.a, self._channels[0])
        return (a, b) if self.vector_is_large else (b, a)

    # -- tables

    def _place(self, rows: Iterable[Sequence[int]]) -> int:
        """Append a table; where it starts."""
        start = len(self.tables)
        for row in rows:
            self.tables += row
        return start

    def plan(self) -> GradientPlan:
        p = self.problem
        chunks = min(self._chunks(self.cut), self.boxes)
        axes = list(zip(self.rows, self.row_strides, strict=True))[::-1]
        row_axes = self._place([(axis.x, axis.stride, axis.y, stride) for axis, stride in axes])
        assert len(RowAxis) == 4
        shifts = [[k * axis.dilation - axis.begin for k in range(axis.kernel)] for axis in self.rows]
        row_taps = self._place(taps[::-1] for taps in product(*shifts))
        x_ranges = self._place(self.x.positions(k) for k in range(self.x.kernel))
        self.places = self._places()
        blocks, sums = self._block_table()
        parts = max(1, min(8, self.cut.a // 8)) if chunks > 1 else 1
        small, large = self._strip_channels()
        small_pixels = self.row_unit * self.x_unit
        large_pixels = self.row_unit * self._large_columns(self.x_unit)
        slack = self.tile.columns + self.tile.height + (self.tile.height * self.x.span * large if self.depthwise else 0)
        offset_large = _round((small_pixels * small + slack) * self.compute_bytes)
        offset_sums = offset_large + _round((large_pixels * large + slack) * self.compute_bytes)
        own = _round((self._largest_sums() + slack) * self.compute_bytes) if chunks == 1 else 0
        slot = _round(offset_sums + own + 3 * 8 * self.row_unit)
        partial = _round((sums * chunks + slack) * self.compute_bytes) if chunks > 1 else 0
        fields = {
            **dict.fromkeys(GradientJob, 0),
            **self._array_fields(),
            **self._result_fields(),
            GradientJob.SLOT_BYTES: slot,
            GradientJob.PARTIAL_BYTES: partial,
            GradientJob.OFFSET_LARGE: offset_large,
            GradientJob.OFFSET_SUMS: offset_sums,
            GradientJob.OFFSET_ROWS: offset_sums + own,
            GradientJob.CHUNKS: chunks,
            GradientJob.SUMS: sums,
            GradientJob.BOXES: self.boxes,
            GradientJob.X_BLOCKS: -(-self.x.x // self.x_unit),
            GradientJob.X_UNIT: self.x_unit,
            GradientJob.ROW_UNIT: self.row_unit,
            GradientJob.SMALL_PIXELS: small_pixels,
            GradientJob.LARGE_PIXELS: large_pixels,
            GradientJob.STRIP_STEP: 1 if self.placed else self.x.stride,
            GradientJob.STRIP_ROW: self._large_columns(self.x_unit) // (self.x.stride if self.placed else 1),
            GradientJob.PLACED: int(self.placed),
            GradientJob.PLACES: self._place([self.places]),
            GradientJob.ROW_AXES: row_axes,
            GradientJob.ROW_AXIS_COUNT: len(self.rows),
            GradientJob.ROW_TAPS: row_taps,
            GradientJob.X_RANGES: x_ranges,
            GradientJob.BLOCKS: self._place(blocks),
            GradientJob.VECTOR_IS_LARGE: int(self.vector_is_large),
            GradientJob.ROWS_PER_TAP: 1 if self.depthwise else self.cut.a,
            GradientJob.ROW_STEP: self.x.dilation * self.tile.columns if self.depthwise else 1,
            GradientJob.PARTS: parts,
        }
        return GradientPlan(
            problem=p,
            tile=self.tile,
            depthwise=self.depthwise,
            vectors_over="large" if self.vector_is_large else "small",
            fields=tuple(fields[f] for f in GradientJob),
            tables=tuple(self.tables),
            tasks=chunks * len(blocks),
            finish_tasks=parts * len(blocks) if chunks > 1 else 0,
            slot_bytes=slot,
            partial_bytes=partial,
        )

    def _array_fields(self) -> dict[GradientJob, int]:
        p = self.problem
        small = _strides(p, p.small_shape)
        channel_major = p.data_layout == "NCX"
        per_image = prod(axis.x for axis in self.rows)
        return {
            GradientJob.X_SIZE: self.x.x,
            GradientJob.ROWS: self.row_count,
            GradientJob.ROWS_PER_IMAGE: per_image,
            GradientJob.SEGMENT_ROWS: per_image if channel_major else self.row_count,
            GradientJob.SEGMENT_STRIDE: small[0] if channel_major else 0,
            GradientJob.SMALL_X_STRIDE: small[-1],
            GradientJob.SMALL_C_STRIDE: small[1],
            GradientJob.LARGE_N_STRIDE: self.large_n,
            GradientJob.LARGE_X_STRIDE: self.large_x,
            GradientJob.LARGE_C_STRIDE: self.large_c,
            GradientJob.LARGE_X_SIZE: self.x.y,
            GradientJob.X_STEP: self.x.stride,
            GradientJob.X_BEGIN: self.x.begin,
            GradientJob.X_SPAN: self.x.span,
        }

    def _result_fields(self) -> dict[GradientJob, int]:
        _, t, a, b = self._result_strides()
        kind = Finish.COPY if b == 1 else Finish.TAPS_INNERMOST if t == 1 else Finish.A_INNERMOST
        return {GradientJob.FINISH: kind, GradientJob.RESULT_T: t, GradientJob.RESULT_A: a, GradientJob.RESULT_B: b}

    def _result_strides(self) -> tuple[int, int, int, int]:
        """Of a group, a tap, a and b."""
        sizes = {"G": self.problem.groups, "I": self.problem.ci, "O": self.problem.co, "X": prod(self.problem.kernel)}
        layout = self.problem.filter_layout
        of = {letter: prod(sizes[later] for later in layout[i + 1 :]) for i, letter in enumerate(layout)}
        if self.depthwise:
            return 0, of["X"], 0, of["G"]
        a, b = ("I", "O") if self.vector_is_large else ("O", "I")
        return of["G"], of["X"], of[a], of[b]

    def _largest_sums(self) -> int:
        return self.cut.row_taps * self.x.kernel * self.cut.a * _up(self.cut.b, self.tile.lanes)

    def _block_table(self) -> tuple[list[list[int]], int]:
        """The blocks, and the elements of all their sums."""
        stride_g, stride_t, stride_a, stride_b = self._result_strides()
        a_total, b_total = self._channels
        blocks: list[list[int]] = []
        sums = 0
        known: dict[tuple[int, int], dict[Block, int]] = {}
        cuts = product(range(self._groups), range(0, a_total, self.cut.a), range(0, b_total, self.cut.b))
        for group, a0, b0 in cuts:
            a, b = min(self.cut.a, a_total - a0), min(self.cut.b, b_total - b0)
            if (a, b) not in known:
                known[a, b] = self._panel_tables(a, b)
            rows_first, vectors_first = group * a_total + a0, group * b_total + b0
            if self.depthwise:
                rows_first = vectors_first
            small, large = (rows_first, vectors_first) if self.vector_is_large else (vectors_first, rows_first)
            for tap in range(0, self.row_tap_count, self.cut.row_taps):
                last = min(tap + self.cut.row_taps, self.row_tap_count)
                taps = (last - tap) * self.x.kernel
                fields = {
                    **known[a, b],
                    Block.SMALL_CHANNEL: small,
                    Block.LARGE_CHANNEL: large,
                    Block.FIRST_TAP: tap,
                    Block.LAST_TAP: last,
                    Block.TAPS: taps,
                    Block.SUMS: sums,
                    Block.RESULT: group * stride_g + tap * self.x.kernel * stride_t + a0 * stride_a + b0 * stride_b,
                }
                sums += taps * a * known[a, b][Block.PITCH]
                blocks.append([fields[f] for f in Block])
        return blocks, sums

    def _panel_tables(self, a: int, b: int) -> dict[Block, int]:
        """The tables of all blocks of one shape."""
        pitch = _up(b, self.tile.lanes)
        wide = self.tile.columns
        vectors = [
            (start, width, wide if self.depthwise else _up(width, self.tile.lanes), start)
            for start, width in _even(b, wide, self.tile.lanes)
        ]
        vector_panels = [
            (start, span, -(-width // self.tile.lanes), column, start if self.depthwise else 0)
            for column, width, span, start in vectors
        ]
        assert len(VectorPanel) == 5
        if self.depthwise:
            rows, items = vectors, self._depthwise_items()
        elif self.vector_is_large:
            rows = [(start, height, height, start) for start, height in _even(a, self.tile.height)]
            items = self._panel_items(rows, a)
        else:
            rows = [(0, a, a, 0)]
            items = self._window_items(a)
        small, large = (rows, vectors) if self.vector_is_large else (vectors, rows)
        assert len(StripPanel) == 4
        return {
            Block.A: a,
            Block.B: b,
            Block.PITCH: pitch,
            Block.ROWS_PER_ROW_TAP: a * self.x.kernel,
            Block.SMALL_PANELS: self._place(small),
            Block.SMALL_COUNT: len(small),
            Block.LARGE_PANELS: self._place(large),
            Block.LARGE_COUNT: len(large),
            Block.VECTOR_PANELS: self._place(vector_panels),
            Block.VECTOR_COUNT: len(vector_panels),
            Block.ITEMS: self._place(_items(items)),
            Block.ITEM_COUNT: len(items),
        }

    def _panel_items(self, rows: list[tuple[int, int, int, int]], a: int) -> list[dict[Item, int]]:
        """Rows are channels of the small side: one item for each tap and panel."""
        return [
            {
                Item.VECTOR_SHIFT: self.places[k * self.x.dilation] if self.placed else k * self.x.dilation,
                Item.ROW_START: start,
                Item.ROW_PITCH: pitch,
                Item.ROW_SHIFT: 0,
                Item.ROWS: height,
                Item.SUMS_ROW: k * a + channel,
                Item.FIRST_TAP: k,
                Item.LAST_TAP: k,
            }
            for k in range(self.x.kernel)
            for channel, height, pitch, start in rows
        ]

    def _window_items(self, a: int) -> list[dict[Item, int]]:
        """Rows are channels of the large side, at consecutive taps where those are consecutive in the strip."""
        taps = self.x.kernel if self._joined_taps else 1
        return [
            {
                Item.VECTOR_SHIFT: 0,
                Item.ROW_START: 0,
                Item.ROW_PITCH: a,
                Item.ROW_SHIFT: k * self.x.dilation * a + row,
                Item.ROWS: height,
                Item.SUMS_ROW: k * a + row,
                Item.FIRST_TAP: k + row // a,
                Item.LAST_TAP: k + (row + height - 1) // a,
            }
            for k in range(0, self.x.kernel, taps)
            for row, height in _even(taps * a, self.tile.height)
        ]

    def _depthwise_items(self) -> list[dict[Item, int]]:
        """Rows are taps."""
        return [
            {
                Item.VECTOR_SHIFT: 0,
                Item.ROW_START: 0,
                Item.ROW_PITCH: self.tile.columns,
                Item.ROW_SHIFT: k * self.x.dilation * self.tile.columns,
                Item.ROWS: height,
                Item.SUMS_ROW: k,
                Item.FIRST_TAP: k,
                Item.LAST_TAP: k + height - 1,
            }
            for k, height in _even(self.x.kernel, self.tile.height)
        ]


def _items(items: list[dict[Item, int]]) -> Iterable[list[int]]:
    return ([item[f] for f in Item] for item in items)


def _tile(isa: ISA, lanes: int, depthwise: bool) -> GradientTile:
    if depthwise:
        return GradientTile(4 if isa.registers == 16 else 8, 2, lanes)
    return GradientTile({16: 6, 32: 14}[isa.registers], 2, lanes)


def _tile_cycles(height: int, width: int) -> float:
    """What one position costs: two multiply-adds or two loads a cycle, and no sum twice within the latency of four."""
    return max(height * width / 2, (height + width) / 2, 4) + 0.5


def _even(count: int, most: int, multiple: int = 1) -> list[tuple[int, int]]:
    """(start, size) of the fewest parts of at most `most`, of about equal size, all but the last whole multiples."""
    parts = -(-count // most)
    size = -(-count // parts)
    if multiple == 1:
        bounds = [i * count // parts for i in range(parts + 1)]
        return [(low, high - low) for low, high in pairwise(bounds)]
    size = min(most, _up(size, multiple)) if parts == 1 else most
    return [(start, min(size, count - start)) for start in range(0, count, size)]


def _share(count: int, most: int, multiple: int) -> int:
    """A part of `count`: at most about `most`, whole multiples, and of about equal size."""
    parts = -(-count // max(multiple, most))
    return min(count, _up(-(-count // parts), multiple))


def _largest(limit: int, fits: object) -> int:
    """The largest value in [1, limit] that fits (1 if none does), made even over the pieces it cuts."""
    assert callable(fits)
    low, high = 1, max(1, limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    pieces = -(-max(1, limit) // low)
    return -(-max(1, limit) // pieces)


def _strides(problem: Problem, shape: tuple[int, ...]) -> list[int]:
    """Element strides of a contiguous array, in the order n, c, spatial..."""
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    return strides if problem.data_layout == "NCX" else [strides[0], strides[-1], *strides[1:-1]]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _round(count: int) -> int:
    return _up(count, 256)
