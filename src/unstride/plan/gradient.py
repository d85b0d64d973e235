"""The gradient with respect to the weights: sums over positions, cut into boxes, chunks and blocks of the result.

    w[g, ci, co, k] = sum over n, i of small[n, g*Ci + ci, i] * large[n, g*Co + co, i*s + k*d - begin]

For each tap this is a matrix product whose long side, the positions, is summed over. One side's channels lie along
vectors; the other side's, and where that fills the tile better also the taps of the last axis, are the rows of a
register tile. Blocks (parts of the result) are independent; chunks (parts of the positions) have sums of their own,
which are added in order. This file writes the tables that say so to generated code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from unstride.plan.gradient_job import Block, Finish, GradientJob, Item, RowAxis, Segment, StripPanel, VectorPanel
from unstride.plan.gradient_shape import GradientShape, GradientTile, even_parts
from unstride.plan.machine import Machine
from unstride.plan.shares import round_up
from unstride.problem import Problem

__all__ = ["GradientPlan", "plan_gradient"]


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


def plan_gradient(problem: Problem, machine: Machine) -> GradientPlan:
    """The weight gradient of a problem (of either direction: the formula is the same)."""
    return _Writer(GradientShape(problem, machine)).plan()


class _Writer:
    """Tables are laid end to end; each is known by where it starts."""

    def __init__(self, shape: GradientShape) -> None:
        self.shape, self.problem, self.tile, self.x = shape, shape.problem, shape.tile, shape.x
        self.tables: list[int] = []
        self.places = shape.places()

    def _place(self, rows: Iterable[Sequence[int]]) -> int:
        start = len(self.tables)
        for row in rows:
            self.tables += row
        return start

    def plan(self) -> GradientPlan:
        shape = self.shape
        blocks, sums = self._blocks()
        parts = max(1, min(8, shape.cut.a // 8)) if shape.chunks > 1 else 1
        fields = {
            **self._array_fields(),
            **self._grid_fields(),
            **self._strip_fields(),
            **self._result_fields(),
            **self._scratch_fields(sums),
            GradientJob.SUMS: sums,
            GradientJob.PARTS: parts,
            GradientJob.BLOCKS: self._place(blocks),
        }
        return GradientPlan(
            problem=self.problem,
            tile=self.tile,
            depthwise=shape.depthwise,
            vectors_over="large" if shape.vector_is_large else "small",
            fields=tuple(fields.get(f, 0) for f in GradientJob),
            tables=tuple(self.tables),
            tasks=shape.chunks * len(blocks),
            finish_tasks=parts * len(blocks) if shape.chunks > 1 else 0,
            slot_bytes=fields[GradientJob.SLOT_BYTES],
            partial_bytes=fields[GradientJob.PARTIAL_BYTES],
        )

    # -- fields

    def _array_fields(self) -> dict[GradientJob, int]:
        p, shape = self.problem, self.shape
        small, large = _strides(p, p.small_shape), _strides(p, p.large_shape)
        channel_major = p.data_layout == "NCX"
        per_image = prod(axis.x for axis in shape.row_axes)
        return {
            GradientJob.X_SIZE: self.x.x,
            GradientJob.ROWS: shape.row_count,
            GradientJob.ROWS_PER_IMAGE: per_image,
            GradientJob.SEGMENT_ROWS: per_image if channel_major else shape.row_count,
            GradientJob.SEGMENT_STRIDE: small[0] if channel_major else 0,
            GradientJob.SMALL_X_STRIDE: small[-1],
            GradientJob.SMALL_C_STRIDE: small[1],
            GradientJob.LARGE_N_STRIDE: large[0],
            GradientJob.LARGE_X_STRIDE: large[-1],
            GradientJob.LARGE_C_STRIDE: large[1],
            GradientJob.LARGE_X_SIZE: self.x.y,
            GradientJob.X_STEP: self.x.stride,
            GradientJob.X_BEGIN: self.x.begin,
            GradientJob.X_SPAN: self.x.span,
        }

    def _grid_fields(self) -> dict[GradientJob, int]:
        shape, p = self.shape, self.problem
        strides = _strides(p, p.large_shape)[2 : 2 + len(shape.row_axes)]
        axes = list(zip(shape.row_axes, strides, strict=True))[::-1]  # the innermost first
        assert len(RowAxis) == 4
        shifts = [[k * axis.dilation - axis.begin for k in range(axis.kernel)] for axis in shape.row_axes]
        return {
            GradientJob.CHUNKS: shape.chunks,
            GradientJob.BOXES: shape.boxes,
            GradientJob.X_BLOCKS: -(-self.x.x // shape.x_unit),
            GradientJob.X_UNIT: shape.x_unit,
            GradientJob.ROW_UNIT: shape.row_unit,
            GradientJob.ROW_AXES: self._place((axis.x, axis.stride, axis.y, stride) for axis, stride in axes),
            GradientJob.ROW_AXIS_COUNT: len(shape.row_axes),
            GradientJob.ROW_TAPS: self._place(taps[::-1] for taps in product(*shifts)),
        }

    def _strip_fields(self) -> dict[GradientJob, int]:
        shape = self.shape
        row, step = shape.strip_columns(shape.x_unit), self.x.stride
        return {
            GradientJob.SMALL_PIXELS: shape.row_unit * shape.x_unit,
            GradientJob.LARGE_PIXELS: shape.row_unit * row,
            GradientJob.STRIP_STEP: 1 if shape.placed else step,
            GradientJob.STRIP_ROW: row // step if shape.placed else row,
            GradientJob.PLACED: int(shape.placed),
            GradientJob.PLACES: self._place([self.places]),
            GradientJob.VECTOR_IS_LARGE: int(shape.vector_is_large),
            GradientJob.ROW_STEP: self.x.dilation * self.tile.columns if shape.depthwise else 1,
        }

    def _scratch_fields(self, sums: int) -> dict[GradientJob, int]:
        shape = self.shape
        small, large = shape.strip_channels()
        slack = self.tile.columns + self.tile.height  # zeroing, and the spare rows of a tile, may go on a little

        def room(elements: int) -> int:
            return round_up((elements + slack) * shape.compute_bytes, 256)

        of_block = shape.cut.row_taps * self.x.kernel * shape.cut.a * round_up(shape.cut.b, self.tile.lanes)
        offset_large = room(shape.row_unit * shape.x_unit * small)
        offset_sums = offset_large + room(shape.row_unit * shape.strip_columns(shape.x_unit) * large)
        offset_rows = offset_sums + (room(of_block) if shape.chunks == 1 else 0)
        return {
            GradientJob.SLOT_BYTES: round_up(offset_rows + 3 * 8 * shape.row_unit, 256),
            GradientJob.PARTIAL_BYTES: room(sums * shape.chunks) if shape.chunks > 1 else 0,
            GradientJob.OFFSET_LARGE: offset_large,
            GradientJob.OFFSET_SUMS: offset_sums,
            GradientJob.OFFSET_ROWS: offset_rows,
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
        if self.shape.depthwise:
            return 0, of["X"], 0, of["G"]
        a, b = ("I", "O") if self.shape.vector_is_large else ("O", "I")
        return of["G"], of["X"], of[a], of[b]

    # -- blocks

    def _blocks(self) -> tuple[list[list[int]], int]:
        """The table of blocks, and the elements of all their sums."""
        shape, cut = self.shape, self.shape.cut
        stride_g, stride_t, stride_a, stride_b = self._result_strides()
        blocks: list[list[int]] = []
        sums = 0
        known: dict[tuple[int, int], dict[Block, int]] = {}
        cuts = product(range(shape.groups), range(0, shape.a, cut.a), range(0, shape.b, cut.b))
        for group, a0, b0 in cuts:
            a, b = min(cut.a, shape.a - a0), min(cut.b, shape.b - b0)
            if (a, b) not in known:
                known[a, b] = self._panels(a, b)
            rows_first, vectors_first = group * shape.a + a0, group * shape.b + b0
            if shape.depthwise:
                rows_first = vectors_first
            small, large = (rows_first, vectors_first) if shape.vector_is_large else (vectors_first, rows_first)
            for tap in range(0, shape.row_taps, cut.row_taps):
                last = min(tap + cut.row_taps, shape.row_taps)
                fields = {
                    **known[a, b],
                    Block.SMALL_CHANNEL: small,
                    Block.LARGE_CHANNEL: large,
                    Block.FIRST_TAP: tap,
                    Block.LAST_TAP: last,
                    Block.TAPS: (last - tap) * self.x.kernel,
                    Block.SUMS: sums,
                    Block.RESULT: group * stride_g + tap * self.x.kernel * stride_t + a0 * stride_a + b0 * stride_b,
                }
                sums += fields[Block.TAPS] * a * fields[Block.PITCH]
                blocks.append([fields[f] for f in Block])
        return blocks, sums

    def _panels(self, a: int, b: int) -> dict[Block, int]:
        """The tables of all blocks of one shape."""
        shape, lanes, wide = self.shape, self.tile.lanes, self.tile.columns
        vectors = [
            (start, width, wide if shape.depthwise else round_up(width, lanes), start)
            for start, width in even_parts(b, wide, lanes)
        ]
        vector_panels = [
            (start, pitch, -(-width // lanes), column, start if shape.depthwise else 0)
            for column, width, pitch, start in vectors
        ]
        if shape.depthwise:
            rows, items = vectors, self._depthwise_items()
        elif shape.vector_is_large:
            rows = [(start, height, height, start) for start, height in even_parts(a, self.tile.height)]
            items = self._panel_items(rows, a)
        else:
            rows, items = [(0, a, a, 0)], self._window_items(a)
        small, large = (rows, vectors) if shape.vector_is_large else (vectors, rows)
        assert len(VectorPanel) == 5
        assert len(StripPanel) == 4
        return {
            Block.A: a,
            Block.B: b,
            Block.PITCH: round_up(b, lanes),
            Block.ROWS_PER_ROW_TAP: a * self.x.kernel,
            Block.SMALL_PANELS: self._place(small),
            Block.SMALL_COUNT: len(small),
            Block.LARGE_PANELS: self._place(large),
            Block.LARGE_COUNT: len(large),
            Block.VECTOR_PANELS: self._place(vector_panels),
            Block.VECTOR_COUNT: len(vector_panels),
            Block.ITEMS: self._place([item[f] for f in Item] for item in items),
            Block.ITEM_COUNT: len(items),
        }

    # -- items

    def _panel_items(self, rows: list[tuple[int, int, int, int]], a: int) -> list[dict[Item, int]]:
        """Rows are channels of the small side: one item for each tap and panel."""
        return [
            {
                Item.VECTOR_SHIFT: self.places[k * self.x.dilation] if self.shape.placed else k * self.x.dilation,
                Item.ROW_START: start,
                Item.ROW_PITCH: pitch,
                Item.ROW_SHIFT: 0,
                Item.ROWS: height,
                Item.SUMS_ROW: k * a + channel,
                **self._segments(k, 0, height, height),
            }
            for k in range(self.x.kernel)
            for channel, height, pitch, start in rows
        ]

    def _window_items(self, a: int) -> list[dict[Item, int]]:
        """Rows are channels of the large side, at consecutive taps where those are consecutive in the strip."""
        taps = self.x.kernel if self.shape.joined_taps else 1
        return [
            {
                Item.VECTOR_SHIFT: 0,
                Item.ROW_START: 0,
                Item.ROW_PITCH: a,
                Item.ROW_SHIFT: k * self.x.dilation * a + row,
                Item.ROWS: height,
                Item.SUMS_ROW: k * a + row,
                **self._segments(k + row // a, row % a, height, a),
            }
            for k in range(0, self.x.kernel, taps)
            for row, height in even_parts(taps * a, self.tile.height)
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
                **self._segments(k, 0, height, 1),
            }
            for k, height in even_parts(self.x.kernel, self.tile.height)
        ]

    def _segments(self, tap: int, skipped: int, height: int, per_tap: int) -> dict[Item, int]:
        """Where along x which rows of an item exist: `per_tap` rows a tap, from row `skipped` of `tap` on.

        Both ends of the taps' positions fall as the tap rises, so the taps that exist at a position are consecutive.
        """
        taps = range(tap, tap + -(-(skipped + height) // per_tap))
        ranges = {k: self.x.positions(k) for k in taps}
        segments = []
        for low, high in pairwise(sorted({end for both in ranges.values() for end in both})):
            alive = [k for k, (first, last) in ranges.items() if first <= low < last]
            if alive:
                row0 = max(0, (alive[0] - tap) * per_tap - skipped)
                row1 = min(height, (alive[-1] + 1 - tap) * per_tap - skipped)
                segments.append((low, high, row0, row1 - row0))
        assert len(Segment) == 4
        return {Item.SEGMENTS: self._place(segments), Item.SEGMENT_COUNT: len(segments)}


def _strides(problem: Problem, shape: tuple[int, ...]) -> list[int]:
    """Element strides of a contiguous array, in the order n, c, spatial..."""
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    return strides if problem.data_layout == "NCX" else [strides[0], strides[-1], *strides[1:-1]]
