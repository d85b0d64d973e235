"""Algorithms A, B and C: everything is one dense product per stride phase, driven by tables.

For a fixed phase of all axes but the last, the result columns of the last axis' phases and channels form the N side
of a matrix product, positions are its M side, and (tap, channel) its K side. Neighbouring x-phases with equal source
offsets are *merged* into one run of columns when that fills vectors better: in NXC memory they are adjacent anyway.
Where the taps of an axis read consecutive pixels, all their channels are one contiguous run of K.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from unstride.plan.job import Panel
from unstride.plan.machine import ISA, LINE_BYTES
from unstride.plan.phases import ONE_ROW, AxisPhases, Phase, phases_of
from unstride.plan.shares import kept_apart
from unstride.plan.tables import Interned
from unstride.problem import DTYPE_BYTES, Structure

__all__ = ["ColumnClass", "DirectPlan", "PanelSource", "Tile", "plan_direct"]

# The rows of a tile of one, two and three vectors.
_ROWS = {
    "sse2": {2: 5},
    "avx2": {1: 10, 2: 6, 3: 4},
    "neon": {2: 12},
    "avx512": {1: 10, 2: 14, 3: 9},
    "amx": {2: 32},
    "dots": {2: 32},
}


@dataclass(frozen=True)
class Tile:
    """Accumulators of the inner loop: up to `rows` positions by `vectors` vectors of `lanes` columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class ColumnClass:
    """Consecutive x-phases [first_phase, first_phase + phases) that read the same source pixels."""

    first_phase: int
    phases: int
    taps: Phase


@dataclass(frozen=True)
class PanelSource:
    """Where a panel's weights come from: kernel indices of its K steps in packing order, and its columns."""

    group: int
    steps: tuple[tuple[int, ...] | None, ...]  # None for a step of zeros, which only some packers know
    columns: tuple[tuple[tuple[int, int], int], ...]  # (kernel shift along v and x, channel) of each column


@dataclass(frozen=True)
class DirectPlan:
    """All that code and packed weights need, for every size."""

    structure: Structure
    isa: ISA
    algorithm: str
    reason: str
    tile: Tile
    axes: tuple[AxisPhases, ...]
    merged: bool
    shaped: bool  # the tile is as wide as the columns want
    banded: bool  # positions at which the same taps read the source are computed together, without padding
    overlapping: bool  # all products of a pixel at once, added afterwards
    clipped: bool  # each tap runs over just the positions at which it reads the source, never padding
    through_strip: bool  # results pass through an L2 strip and are transposed on the way out
    reduce_channels: int  # source channels per group
    result_channels: int  # result channels per group
    pixel_pitch: int
    classes: tuple[ColumnClass, ...]
    sources: tuple[PanelSource, ...]
    panels: tuple[tuple[int, ...], ...]
    flush_ends: tuple[int, ...]  # panel index after each flush (or after each column block)
    inner_taps: tuple[tuple[int, int], ...]  # (a along v, a along x), from each axis' first
    outer_taps: tuple[int, ...]  # plane index
    planes: tuple[tuple[int, ...], ...]  # a per outer axis
    outer_phases: tuple[tuple[int, ...], ...]  # r per outer axis
    x_ranges: tuple[tuple[int, int, int], ...]  # (class, first column in the class, columns)
    v_phases: tuple[int, ...]
    packed_elements: int
    bias_elements: int

    @property
    def depthwise(self) -> bool:
        return _is_depthwise(self.structure)

    @property
    def in_place(self) -> bool:
        """Whether source pixels may be read where they lie, if there is no padding among them.

        Not those whose distance makes them share one cache set; depthwise, only whole vectors of channels.
        """
        s, channels = self.structure, self.reduce_channels * self.structure.groups
        if s.data_layout != "NXC" or s.dtype not in ("f32", "f64"):
            return False
        return channels % self.tile.lanes == 0 if self.depthwise else channels * DTYPE_BYTES[s.dtype] % 4096 != 0

    @property
    def best_in_bands(self) -> bool:
        """Whether bands are best whatever the sizes: depthwise, copying the source takes as long as multiplying it."""
        return self.depthwise and self.in_place and not self.needs_prefill

    @property
    def needs_prefill(self) -> bool:
        """Whether some residue has no taps, so that the result must start as bias alone."""
        return not all(axis.complete for axis in self.axes)

    @property
    def phase_count(self) -> int:
        return prod(len(axis.phases) for axis in self.axes)


def plan_direct(
    structure: Structure,
    isa: ISA,
    *,
    clipped: bool = False,
    banded: bool = False,
    merge: bool = True,
    shaped: bool = True,
    deep: int = 1,
) -> DirectPlan:
    """The direct plan of a structure.

    A `clipped` plan never multiplies padding: every tap is added on its own, over the positions at which it reads the
    source. Weights that are not finite need that, and small maps under wide kernels gain by it. Nor does a `banded`
    plan, which takes together the positions at which the same taps read the source. The tile of a `shaped` plan is as
    wide as its columns want; plans that share packed weights must agree on that. Where products take channels `deep` at
    a time, their number is padded, and so are columns.
    """
    return _Builder(structure, isa, clipped, merge, banded, shaped, deep).build()


class _Builder:
    def __init__(
        self, structure: Structure, isa: ISA, clipped: bool, merge: bool, banded: bool, shaped: bool, deep: int
    ) -> None:
        s = self.structure = structure
        self.isa = isa
        scatter = s.direction == "scatter"
        self.reduce, self.result = (s.ci, s.co) if scatter else (s.co, s.ci)
        self.deep, self.depth = deep, _padded(self.reduce, deep)
        self.axes = phases_of(s)
        # A 1D case is a 2D case with one row.
        self.rows = self.axes[-2] if s.rank > 1 else ONE_ROW
        self.depthwise = _is_depthwise(s)
        compute_bytes = 8 if s.dtype == "f64" else 4
        self.tile = _tile(isa, isa.lanes(compute_bytes), 2, depthwise=self.depthwise)
        self.through_strip = s.data_layout == "NCX" or clipped or deep > 1
        self.clipped, self.banded = clipped, banded
        self.merged = (
            merge and not clipped and not banded and not self.depthwise and s.groups == 1 and self._merging_pays()
        )
        self.pixel_pitch = self._pixel_pitch(compute_bytes)
        self.classes = self._classes()
        self.shaped = shaped and not self.depthwise and 1 in _ROWS[isa.name]
        if self.shaped:
            self.tile = _tile(isa, self.tile.lanes, self._width())

    def _width(self) -> int:
        """Vectors of the tile: one, two or three, so that hardly any columns are left to a narrower one."""
        vectors = [_padded(c.phases * self.result, self.tile.lanes) // self.tile.lanes for c in self.classes]
        if all(count % 2 == 0 for count in vectors):
            return 2
        return 1 if min(vectors) == 1 else 3

    def _merging_pays(self) -> bool:
        """Merging wins when channels alone leave lanes of the last vector empty, have one vector only, or end within a
        line that phases share."""
        lanes = self.tile.lanes
        alone = _padded(self.result, lanes) / self.result
        classes = _merge_classes(self.axes[-1])
        columns = sum(c.phases for c in classes) * self.result
        together = sum(_padded(c.phases * self.result, lanes) for c in classes) / columns
        wider = self.result <= lanes and all(c.phases * self.result > lanes for c in classes)
        return together < alone or (together == alone and (wider or self._shares_lines(classes)))

    def _shares_lines(self, classes: tuple[ColumnClass, ...]) -> bool:
        """Whether phases write parts of lines that are whole together, and only so may go past the caches.

        That counts where sums are short. With several taps a phase, bands may be better, and they are not merged.
        """
        s = self.structure
        pixel = self.result * DTYPE_BYTES[s.dtype]
        if not self.isa.streams or s.data_layout != "NXC" or s.dtype not in ("f32", "f64") or pixel % LINE_BYTES == 0:
            return False
        one_tap = all(len(phase.taps) == 1 for axis in self.axes for phase in axis.phases)
        return one_tap and all(c.phases * pixel % LINE_BYTES == 0 for c in classes)

    def _classes(self) -> tuple[ColumnClass, ...]:
        if self.merged:
            return _merge_classes(self.axes[-1])
        return tuple(ColumnClass(phase.r, 1, phase) for phase in self.axes[-1].phases)

    def _pixel_pitch(self, compute_bytes: int) -> int:
        """Channels of a strip pixel; deep pixels are kept off powers of two, which would share one cache set."""
        channels = self.structure.groups * self.depth
        if self.depthwise:
            channels = _padded(channels, self.tile.columns)
        return kept_apart(channels, max(self.deep, LINE_BYTES // compute_bytes))

    def _run_taps(self, column_class: ColumnClass) -> int:
        """How many x-taps of a class are one contiguous run of source elements: all of them, or 1."""
        taps = column_class.taps.taps
        consecutive = taps[-1].a - taps[0].a == len(taps) - 1
        dense = self.structure.groups == 1 and self.pixel_pitch == self.reduce
        dense = dense and not self.clipped and not self.banded and self.deep == 1
        return len(taps) if dense and consecutive else 1

    def build(self) -> DirectPlan:
        s = self.structure
        outer_axes = self.axes[:-2]
        planes = tuple(product(*(sorted({t.a for p in axis.phases for t in p.taps}) for axis in outer_axes)))
        plane_index = {plane: i for i, plane in enumerate(planes)}
        outer_phases = tuple(product(*(axis.phases for axis in outer_axes)))
        panels: list[tuple[int, ...]] = []
        sources: list[PanelSource] = []
        flush_ends: list[int] = []
        inner: Interned[tuple[int, int]] = Interned()
        outer: Interned[int] = Interned()
        x_ranges: dict[tuple[int, int, int], int] = {}
        weights = bias = 0
        x_first = self.axes[-1].first
        for group in range(1 if self.depthwise else s.groups):
            for blocks, width, channel in self._column_groups(group):
                for outer_index, outer_phase in enumerate(outer_phases):
                    outer_taps = tuple(product(*(phase.taps for phase in outer_phase)))
                    first_panel = len(panels)
                    outer_key = tuple(plane_index[tuple(t.a for t in taps)] for taps in outer_taps)
                    for v_index, v_phase in enumerate(self.rows.phases):
                        for class_index, start, columns in blocks:
                            column_class = self.classes[class_index]
                            run_taps = self._run_taps(column_class)
                            runs = column_class.taps.taps[::run_taps]
                            inner_key = tuple(
                                (v.a - self.rows.first, t.a - x_first) for v in v_phase.taps for t in runs
                            )
                            run = run_taps * (1 if self.depthwise else self.depth)
                            vectors = -(-columns // self.tile.lanes)
                            steps = tuple(
                                (*(t.k for t in taps), *((v.k,) if s.rank > 1 else ()), t.k)
                                for taps in outer_taps
                                for v in v_phase.taps
                                for t in column_class.taps.taps
                            )
                            column = self._column(group, column_class, start, channel, width)
                            x_key = (class_index, start, columns) if self.merged else (class_index, 0, 1)
                            fields = {
                                Panel.WEIGHTS: weights,
                                Panel.INNER_FIRST: inner.place(inner_key),
                                Panel.INNER_COUNT: len(inner_key),
                                Panel.OUTER_FIRST: outer.place(outer_key),
                                Panel.OUTER_COUNT: len(outer_key),
                                Panel.RUN: run,
                                Panel.CHANNEL: start if self.depthwise else group * self.reduce,
                                Panel.COLUMN: column,
                                Panel.COLUMNS: columns,
                                Panel.X_RANGE: x_ranges.setdefault(x_key, len(x_ranges)),
                                Panel.V_RANGE: v_index,
                                Panel.V_PHASES: 1,
                                Panel.OUTER_PHASE: outer_index,
                                Panel.BIAS: bias,
                                Panel.VECTORS: vectors,
                                Panel.GROUP_WIDTH: width,
                                Panel.START: 0,
                                Panel.FLUSH: 0,
                                Panel.FLUSH_CHANNEL: group * self.result + channel,
                                Panel.FLUSH_WIDTH: self.result if self.merged else columns,
                                Panel.SHORT_V: 0,
                                Panel.SHORT_X: 0,
                                Panel.PRODUCTS: 0,
                            }
                            panels.append(tuple(fields[f] for f in Panel))
                            sources.append(PanelSource(group, steps, self._columns(column_class, start, columns)))
                            step_rows = 1 if self.depthwise else self.depth
                            weights += len(steps) * step_rows * vectors * self.tile.lanes
                            bias += vectors * self.tile.lanes
                    panels[first_panel] = _with(panels[first_panel], Panel.START, 1)
                    panels[-1] = _with(panels[-1], Panel.FLUSH, 1)
                flush_ends.append(len(panels))
        return DirectPlan(
            structure=s,
            isa=self.isa,
            algorithm=self._algorithm(),
            banded=self.banded,
            overlapping=False,
            clipped=self.clipped,
            reason=self._reason(),
            tile=self.tile,
            axes=self.axes,
            merged=self.merged,
            shaped=self.shaped,
            through_strip=self.through_strip,
            reduce_channels=self.reduce,
            result_channels=self.result,
            pixel_pitch=self.pixel_pitch,
            classes=self.classes,
            sources=tuple(sources),
            panels=tuple(panels),
            flush_ends=tuple(flush_ends),
            inner_taps=tuple(inner.values),
            outer_taps=tuple(outer.values),
            planes=planes,
            outer_phases=tuple(tuple(phase.r for phase in phases) for phases in outer_phases),
            x_ranges=tuple(x_ranges),
            v_phases=tuple(phase.r for phase in self.rows.phases),
            packed_elements=weights,
            bias_elements=bias,
        )

    def _column_groups(self, group: int) -> list[tuple[list[tuple[int, int, int]], int, int]]:
        """Blocks (class, first column, columns) that share one out strip, its pixel width and first channel."""
        if self.merged:
            blocks = [
                (index, start, columns)
                for index, c in enumerate(self.classes)
                for start, columns in _split(c.phases * self.result, self.tile)
            ]
            return [(blocks, self.result, 0)]
        channels = self.structure.groups if self.depthwise else self.result
        # Clipped sums are read and written as whole vectors: their pixels are padded.
        lanes = self.tile.lanes if self.clipped or self.deep > 1 else 1
        return [
            ([(index, start, columns) for index in range(len(self.classes))], _padded(columns, lanes), start)
            for start, columns in _split(channels, self.tile)
        ]

    def _column(self, group: int, c: ColumnClass, start: int, channel: int, width: int) -> int:
        """Offset of a panel's first column from its position's result element."""
        if self.through_strip:
            return c.first_phase * width + (start if self.merged else start - channel)
        channels = self.structure.groups * self.result
        return c.first_phase * channels + group * self.result + start

    def _columns(self, c: ColumnClass, start: int, columns: int) -> tuple[tuple[tuple[int, int], int], ...]:
        """Which kernel element (as a shift) and channel feed each column."""
        if self.merged:
            return tuple(((0, j // self.result), j % self.result) for j in range(start, start + columns))
        return tuple(((0, 0), start + j) for j in range(columns))

    def _algorithm(self) -> str:
        kind = "depthwise" if self.depthwise else "direct"
        return f"{kind}, clipped" if self.clipped else f"{kind}, in bands" if self.banded else kind

    def _reason(self) -> str:
        if self.clipped:
            return "each tap runs over just the positions at which it reads the source"
        if self.banded:
            return "positions at which the same taps read the source are computed together"
        if self.depthwise:
            return "one channel per group: vectors run over channels"
        how = "x-phases merged into columns" if self.merged else "one column block per x-phase"
        longest = max(self._run_taps(c) for c in self.classes) * self.reduce
        return f"{how}; runs of up to {longest} consecutive source elements"


def _is_depthwise(structure: Structure) -> bool:
    return structure.groups > 1 and structure.ci == 1 and structure.co == 1


def _merge_classes(axis: AxisPhases) -> tuple[ColumnClass, ...]:
    """Runs of neighbouring residues whose taps read the same pixels through neighbouring kernel elements."""
    classes: list[ColumnClass] = []
    for phase in axis.phases:
        if classes:
            last = classes[-1]
            shift = last.phases
            same = [t.a for t in phase.taps] == [t.a for t in last.taps.taps]
            shifted = [t.k for t in phase.taps] == [t.k + shift for t in last.taps.taps]
            if phase.r == last.first_phase + shift and same and shifted:
                classes[-1] = ColumnClass(last.first_phase, shift + 1, last.taps)
                continue
        classes.append(ColumnClass(phase.r, 1, phase))
    return tuple(classes)


def _split(columns: int, tile: Tile) -> list[tuple[int, int]]:
    """Column blocks of at most one tile's width, as even as whole vectors can be."""
    vectors = -(-columns // tile.lanes)
    blocks = -(-vectors // tile.vectors)
    starts = [-(-vectors * i // blocks) * tile.lanes for i in range(blocks)]
    return [(start, min(end, columns) - start) for start, end in pairwise([*starts, columns])]


def _tile(isa: ISA, lanes: int, vectors: int, *, depthwise: bool = False) -> Tile:
    """The largest tile whose inner loop does not spill.

    Beside the sums it needs a row of weights and a broadcast. Where a product cannot be fused with its sum (SSE2) it
    needs a register too, and on ARM the two steps of a turn overlap.
    """
    if depthwise:
        return Tile(6 if isa.registers == 16 else 8, 2, lanes)
    return Tile(_ROWS[isa.name][vectors], vectors, lanes)


def _padded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _with(panel: tuple[int, ...], field: Panel, value: int) -> tuple[int, ...]:
    return (*panel[:field], value, *panel[field + 1 :])
