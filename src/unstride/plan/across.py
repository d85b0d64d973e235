"""Algorithm D1: vectors across x, for channel-major memory.

Where a group has few result columns (RGB outputs, depthwise and narrow groups) a vector of channels would be mostly
empty; where a phase has one tap (1x1 kernels, kernel == stride) sums are so short that transposing pixels costs as
much as adding them. In NCX memory the x axis is contiguous, so positions along x fill the vectors instead: the tile's
rows are (x-phase, channel), its weights are broadcast, and the source is read as it lies, only padded. The phases of a
row are woven together on the way out. For a gather with a stride the pixels of a source line are put apart by residue
when it is filled: each tap reads neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from unstride.plan.direct import DirectPlan, PanelSource, plan_direct
from unstride.plan.job import Panel
from unstride.plan.machine import ISA, Machine
from unstride.plan.phases import ONE_ROW, Phase, Tap, phases_of
from unstride.plan.tables import Interned
from unstride.problem import Structure

__all__ = [
    "LAST_WIDTHS",
    "OVERRUN",
    "SLACK",
    "AcrossPlan",
    "find_planes",
    "line_cycles",
    "plan_across",
    "row_counts",
    "vector_count",
]

OVERRUN = 4  # vectors that the last tile of a line may write too many
SLACK = 8  # vectors behind the strip that the last tile of a line may read
LAST_WIDTHS = (1, 2, 3, 4)  # vectors of the last tile of a line, besides the widest
_FEW_ROWS = 8  # result columns of a group, up to which vectors of channels are no match
_SOME_ROWS = 64  # up to which they are not, where their vectors would be a quarter empty
_MOST_PARTS = 4  # into which the pixels of a line are put
_FEW_CHANNELS = 16  # of the source, with which Winograd does not pay either


@dataclass(frozen=True)
class AcrossPlan:
    """The direct plan it may replace, and its own panels: a few rows that share their taps."""

    direct: DirectPlan
    panels: tuple[tuple[int, ...], ...]
    sources: tuple[PanelSource, ...]
    inner_taps: tuple[tuple[int, int], ...]
    chunk_ends: tuple[int, ...]  # panel index after each chunk of channels
    rows_per_chunk: int  # rows that wait for each other: v-phases times x-phases times channels of a chunk
    few: bool  # so few columns that no other kernel need be asked
    packed_elements: int
    bias_rows: tuple[int, ...]  # result channel of every row of every panel
    reason: str

    @property
    def algorithm(self) -> str:
        return "across x"

    @property
    def parts(self) -> int:
        """Into how many the pixels of a source line are put, by their residue."""
        return self.direct.axes[-1].source_step


def row_counts(isa: ISA) -> tuple[int, ...]:
    """Tile heights to compile."""
    return (1, 2, 3, 4, 6, 12) if isa.registers == 32 else (1, 2, 3, 4, 6)


def vector_count(isa: ISA, rows: int) -> int:
    """How many vectors wide a tile of `rows` may be: sums, and a line of the source and one weight, or all weights and
    one vector of the source."""
    by_line, by_weights = (isa.registers - 2) // (rows + 1), (isa.registers - 1 - rows) // rows
    return min(8 if isa.registers == 32 else 6, max(by_line, by_weights))


def line_cycles(machine: Machine, rows: int, vectors: int) -> float:
    """Cycles of one step of a line of so many vectors. Small tiles wait, for their loads or their own last sums."""
    widest = vector_count(machine.isa, rows)
    last = vectors % widest
    widths = [widest] * (vectors // widest) + [w for w in (*LAST_WIDTHS, widest) if w >= last][:1] * (last > 0)
    return sum(max(machine.pace * rows * w / 2, machine.pace * (rows + w) / 2, 4.0) for w in widths)


def plan_across(structure: Structure, isa: ISA) -> AcrossPlan | None:
    """The plan with vectors across x, or None where vectors of channels do better, or x is not contiguous."""
    s = structure
    scatter = s.direction == "scatter"
    columns = (s.co if scatter else s.ci) * (s.stride[-1] if scatter else 1)
    if s.data_layout != "NCX" or (not scatter and s.stride[-1] > _MOST_PARTS):
        return None
    few, short = columns <= _FEW_ROWS, _is_short(s)
    if not few and not short and columns > _SOME_ROWS:
        return None
    direct = plan_direct(structure, isa)
    if not few and not short and _filled(direct) > 0.75:
        return None
    return _Builder(structure, isa, direct, few).build()


def _is_short(s: Structure) -> bool:
    """Whether transposing pixels and results would take as long as multiplying and adding them: each pixel has a part
    in one result of a channel, or there are few channels in and no phases to weave."""
    scatter = s.direction == "scatter"
    axes = zip(phases_of(s)[-2:], s.stride[-2:], strict=True)
    single = all(len(phase.taps) <= (1 if scatter else stride) for axis, stride in axes for phase in axis.phases)
    return single or ((s.ci if scatter else s.co) < _FEW_CHANNELS and (not scatter or s.stride[-1] == 1))


def _filled(direct: DirectPlan) -> float:
    """Which part of the direct plan's vectors is columns."""
    return sum(p[Panel.COLUMNS] for p in direct.panels) / sum(
        p[Panel.VECTORS] * direct.tile.lanes for p in direct.panels
    )


class _Builder:
    def __init__(self, structure: Structure, isa: ISA, direct: DirectPlan, few: bool) -> None:
        self.structure, self.isa, self.direct, self.few = structure, isa, direct, few
        scatter = structure.direction == "scatter"
        self.reduce, self.result = (structure.ci, structure.co) if scatter else (structure.co, structure.ci)
        self.x = direct.axes[-1]
        rows = direct.axes[-2] if structure.rank > 1 else ONE_ROW
        self.v_first = rows.first
        self.x_classes = _classes(self.x.phases)
        # Where all x-phases read the same pixels, v-phases that do so too are computed together: the source line that
        # is loaded serves all of them.
        merge = len(self.x_classes) == 1 and self.x.complete and few
        classes = _classes(rows.phases) if merge else [[phase] for phase in rows.phases]
        starts = [sum(map(len, classes[:i])) for i in range(len(classes))]
        self.v_classes = list(zip(starts, classes, strict=True))
        widest = max(map(len, self.x_classes))
        self.chunk = self.result if few else min(self.result, max(1, max(row_counts(isa)) // widest))

    def build(self) -> AcrossPlan:
        panels: list[tuple[int, ...]] = []
        sources: list[PanelSource] = []
        ends: list[int] = []
        inner: Interned[tuple[int, int]] = Interned()
        bias_rows: list[int] = []
        weights = 0
        outer_lists = list(product(*(axis.phases for axis in self.direct.axes[:-2])))
        plane_index = {plane: i for i, plane in enumerate(self.direct.planes)}
        chunks = [
            (group, first, min(self.chunk, self.result - first))
            for group in range(self.structure.groups)
            for first in range(0, self.result, self.chunk)
        ]
        for group, channel, width in chunks:
            for outer_index, outer_phase in enumerate(outer_lists):
                outer_taps = tuple(product(*(phase.taps for phase in outer_phase)))
                outer_key = tuple(plane_index[tuple(t.a for t in taps)] for taps in outer_taps)
                for v_first, v_class in self.v_classes:
                    rows = self._rows(len(v_class), channel, width)
                    for position, (row, taps, chunk) in enumerate(rows):
                        pairs = [(v, t) for v in v_class[0].taps for t in taps]
                        inner_key = tuple((v.a - self.v_first, t.a - self.x.first) for v, t in pairs)
                        steps = tuple(
                            (*(t.k for t in outer), *((v.k,) if self.structure.rank > 1 else ()), t.k)
                            for outer in outer_taps
                            for v, t in pairs
                        )
                        fields = dict.fromkeys(Panel, 0)
                        fields.update(
                            {
                                Panel.WEIGHTS: weights,
                                Panel.INNER_FIRST: inner.place(inner_key),
                                Panel.INNER_COUNT: len(inner_key),
                                Panel.OUTER_FIRST: find_planes(self.direct.outer_taps, outer_key),
                                Panel.OUTER_COUNT: len(outer_key),
                                Panel.RUN: self.reduce,
                                Panel.CHANNEL: group * self.reduce,
                                Panel.COLUMN: row,
                                Panel.COLUMNS: len(chunk),
                                Panel.V_RANGE: v_first,
                                Panel.V_PHASES: len(v_class),
                                Panel.OUTER_PHASE: outer_index,
                                Panel.BIAS: len(bias_rows),
                                Panel.START: int(position == 0),
                                Panel.FLUSH: int(position == len(rows) - 1),
                                Panel.FLUSH_CHANNEL: group * self.result + channel,
                                Panel.FLUSH_WIDTH: width,
                            }
                        )
                        panels.append(tuple(fields[f] for f in Panel))
                        sources.append(PanelSource(group, steps, tuple(chunk)))
                        bias_rows += [group * self.result + c for _, c in chunk]
                        weights += len(steps) * self.reduce * len(chunk)
            ends.append(len(panels))
        return AcrossPlan(
            self.direct,
            tuple(panels),
            tuple(sources),
            tuple(inner.values),
            tuple(ends),
            self.chunk * self.x.result_step * max(len(v) for _, v in self.v_classes),
            self.few,
            weights,
            tuple(bias_rows),
            self._reason(),
        )

    def _reason(self) -> str:
        columns = self.result * self.x.result_step
        if self.few:
            return f"{columns} result columns a group: vectors run across x"
        return "sums are short: vectors run across x, as the pixels lie"

    def _rows(
        self, v_phases: int, channel: int, width: int
    ) -> list[tuple[int, tuple[Tap, ...], list[tuple[tuple[int, int], int]]]]:
        """(first row, taps, [(kernel shift along v and x, channel)]) of each panel of a chunk, cut to tile heights.

        Rows are numbered (v-phase, x-phase, channel of the chunk).
        """
        heights = row_counts(self.isa)
        result = []
        for phase_class in self.x_classes:
            first = phase_class[0]
            lines = [
                ((v_shift, shift), channel + c)
                for v_shift in range(v_phases)
                for shift in range(len(phase_class))
                for c in range(width)
            ]
            start = 0
            while start < len(lines):
                height = max(h for h in heights if h <= len(lines) - start)
                result.append((first.r * width + start, first.taps, lines[start : start + height]))
                start += height
        return result


def _classes(phases: tuple[Phase, ...]) -> list[list[Phase]]:
    """Neighbouring phases whose taps read the same pixels through neighbouring kernel elements."""
    classes: list[list[Phase]] = []
    for phase in phases:
        if classes:
            first, shift = classes[-1][0], len(classes[-1])
            same = [(t.a, t.k) for t in phase.taps] == [(t.a, t.k + shift) for t in first.taps]
            if same and phase.r == first.r + shift:
                classes[-1].append(phase)
                continue
        classes.append([phase])
    return classes


def find_planes(table: tuple[int, ...], run: tuple[int, ...]) -> int:
    """Where the direct plan keeps this run of planes."""
    return next(i for i in range(len(table)) if table[i : i + len(run)] == run)
