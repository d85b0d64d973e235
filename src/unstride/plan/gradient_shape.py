"""How the sums of a weight gradient are cut: which side lies along vectors, blocks, chunks and boxes.

All of it follows from the problem and the machine, nothing from the number of threads: so do the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod

from unstride.plan.machine import ISA, Machine
from unstride.plan.shares import largest, round_up
from unstride.problem import Problem

__all__ = ["GradientAxis", "GradientShape", "GradientTile", "even_parts"]

_BOX_POSITIONS = 256  # long enough to pay for adding a tile to memory, short enough for its operands to stay in L1
_SUMS_BYTES = 1 << 20  # of one block
_PARTIAL_BYTES = 8 << 20  # of all chunks
_TASKS = 8  # or two for each core
_TASK_MACS = 1 << 20
# Positions that pay for another set of sums: more where those sums do not stay in L2 until they are added.
_CHUNK_POSITIONS, _LARGE_CHUNK_POSITIONS = 512, 1024


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
class GradientAxis:
    """One spatial axis, in the letters of Problem."""

    x: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    y: int

    @property
    def span(self) -> int:
        """Pixels of the large side from the first tap of a position to its last."""
        return (self.kernel - 1) * self.dilation + 1

    def positions(self, k: int) -> tuple[int, int]:
        """The positions [low, high) at which tap k falls inside the large side; both fall as k rises."""
        shift = k * self.dilation - self.begin
        return max(0, -(shift // self.stride)), min(self.x, (self.y - 1 - shift) // self.stride + 1)


_POINT = GradientAxis(1, 1, 1, 1, 0, 1)


@dataclass(frozen=True)
class _Cut:
    """How the result is cut: channels of rows and vectors per block, and taps of the row axes per block."""

    a: int
    b: int
    row_taps: int


class GradientShape:
    """The cut of one problem. `a` are channels along the rows of a tile, `b` those along its vectors, of one group."""

    def __init__(self, problem: Problem, machine: Machine) -> None:
        p = self.problem = problem
        self.compute_bytes = 8 if p.dtype == "f64" else 4
        self.depthwise = p.groups > 1 and p.ci == p.co == 1
        self.groups = 1 if self.depthwise else p.groups  # depthwise, groups are what lies along vectors
        self.tile = _tile(machine.isa, machine.isa.lanes(self.compute_bytes), self.depthwise)
        self.tasks = max(_TASKS, 2 * machine.cores)
        self.sums_bytes = min(_SUMS_BYTES, machine.l2_bytes)
        # Half of L2 for both strips, and less where many threads share the bound on all scratch.
        self.strip_bytes = min(machine.l2_bytes // 2, (8 << 20) // max(4, machine.cores))
        self._choose_axes()
        self.row_count = p.batch * prod(axis.x for axis in self.row_axes)
        self.row_taps = prod(axis.kernel for axis in self.row_axes)
        self.taps = self.row_taps * self.x.kernel
        self.vector_is_large = not self.depthwise and self._cost(True) <= self._cost(False)
        # Only vectors are read at one tap at a time, where the pixels between can be put out of the way.
        self.placed = self.vector_is_large and self.x.stride > 1
        self.a, self.b = self._channels()
        self.cut = self._cut()
        self.row_unit, self.x_unit = self._box()
        self.boxes = -(-self.row_count // self.row_unit) * -(-self.x.x // self.x_unit)
        self.chunks = min(self._chunks(self.cut), self.boxes)

    def _choose_axes(self) -> None:
        p = self.problem
        self.axes = [GradientAxis(*v) for v in zip(p.x, p.kernel, p.stride, p.dilation, p.begin, p.y, strict=True)]
        self.row_axes, self.x = self.axes[:-1], self.axes[-1]
        channels = self.tile.columns if self.depthwise else min(max(p.co, self.tile.lanes), 128)
        if self.x.span * channels * self.compute_bytes > self.strip_bytes // 2:
            # A strip could not hold even one position: let the last axis be a row axis too, and rows be single pixels.
            self.row_axes, self.x = self.axes, _POINT
        if self.x.x == 1:
            # One position has no next one; this step makes rows follow each other without a gap.
            self.x = GradientAxis(1, self.x.kernel, self.x.span, self.x.dilation, self.x.begin, self.x.y)

    def _channels(self) -> tuple[int, int]:
        p = self.problem
        if self.depthwise:
            return 1, p.groups
        return (p.ci, p.co) if self.vector_is_large else (p.co, p.ci)

    @property
    def joined_taps(self) -> bool:
        """Whether the large side's channels at consecutive taps are consecutive elements of a strip."""
        return self.x.dilation == 1 or self.x.kernel == 1

    def _cost(self, vector_is_large: bool) -> float:
        """Cycles for one group and one tap of the row axes, if vectors run over the channels of this side."""
        p = self.problem
        if vector_is_large:
            vectors, rows, repeat = p.co, p.ci, self.x.kernel
        elif self.joined_taps:
            vectors, rows, repeat = p.ci, p.co * self.x.kernel, 1
        else:
            vectors, rows, repeat = p.ci, p.co, self.x.kernel
        widths = [-(-width // self.tile.lanes) for _, width in even_parts(vectors, self.tile.columns, self.tile.lanes)]
        heights = [height for _, height in even_parts(rows, self.tile.height)]
        cycles = repeat * sum(_tile_cycles(height, width) for width in widths for height in heights)
        if not vector_is_large and self.x.stride * p.co * self.compute_bytes >= 512:
            cycles *= 1.15  # rows of consecutive positions then compete for the same lines of L1
        innermost = p.filter_layout[-1] == ("O" if vector_is_large else "I")
        finish = (0.2 if innermost else 0.5) * p.ci * p.co * self.x.kernel
        return cycles * self.row_count * self.x.x + finish

    # -- blocks and chunks

    def _cut(self) -> _Cut:
        """Blocks whose sums stay near the core, and enough of them to share."""
        a, b, lanes = self.a, self.b, self.tile.lanes
        room = self.sums_bytes // self.compute_bytes
        cut = _Cut(a, b, self.row_taps)
        if self.taps * a * round_up(b, lanes) > room:
            side = max(2 * self.tile.columns, isqrt(room // self.taps))
            b = _share(b, max(side, room // (self.taps * a)), self.tile.columns)
            a = _share(a, max(2 * self.tile.height, room // (self.taps * round_up(b, lanes))), 1)
            row_taps = room // (a * round_up(b, lanes) * self.x.kernel)
            cut = _Cut(a, b, max(1, min(self.row_taps, row_taps)))
        while self._blocks(cut) < 4 and self._chunks(cut) <= 2 and self._worth_halving(cut):
            smaller = self._halved(cut)
            if smaller == cut:
                break
            cut = smaller
        return cut

    def _worth_halving(self, cut: _Cut) -> bool:
        return self.problem.macs > self._blocks(cut) * self._chunks(cut) * _TASK_MACS

    def _halved(self, cut: _Cut) -> _Cut:
        if cut.b >= 2 * self.tile.columns and cut.b >= cut.a:
            return _Cut(cut.a, round_up(-(-cut.b // 2), self.tile.lanes), cut.row_taps)
        if cut.a >= 2 * self.tile.height:
            return _Cut(-(-cut.a // 2), cut.b, cut.row_taps)
        return _Cut(cut.a, cut.b, max(1, -(-cut.row_taps // 2)))

    def _blocks(self, cut: _Cut) -> int:
        return self.groups * -(-self.a // cut.a) * -(-self.b // cut.b) * -(-self.row_taps // cut.row_taps)

    def _chunks(self, cut: _Cut) -> int:
        wanted = -(-self.tasks // self._blocks(cut))
        sums = self.groups * self.taps * self.a * (self.b + self.tile.columns) * self.compute_bytes  # at most
        positions = _CHUNK_POSITIONS if 2 * sums <= self.sums_bytes else _LARGE_CHUNK_POSITIONS
        return max(1, min(self.row_count * self.x.x // positions, _PARTIAL_BYTES // sums, wanted))

    # -- boxes and strips

    def _box(self) -> tuple[int, int]:
        """(rows, columns) of positions whose pixels fit the strips."""
        small, large = self.strip_channels()

        def fits(rows: int, columns: int) -> bool:
            pixels = rows * columns * small + rows * self.strip_columns(columns) * large
            return rows * columns <= _BOX_POSITIONS and pixels * self.compute_bytes <= self.strip_bytes

        columns = largest(self.x.x, lambda n: fits(1, n))
        rows = largest(self.row_count, lambda n: fits(n, columns)) if columns == self.x.x else 1
        return rows, columns

    def strip_columns(self, columns: int) -> int:
        """Pixels of one row of the large strip: whole steps, so that rows may follow each other without a gap."""
        return (columns - 1 + -(-self.x.span // self.x.stride)) * self.x.stride

    def strip_channels(self) -> tuple[int, int]:
        """Elements per pixel of the small and of the large strip."""
        b = round_up(min(self.cut.b, self.b), self.tile.columns if self.depthwise else self.tile.lanes)
        a = b if self.depthwise else min(self.cut.a, self.a)
        return (a, b) if self.vector_is_large else (b, a)

    def places(self) -> list[int]:
        """Where the pixels of a row go in the strip: those that one tap reads at consecutive positions side by side."""
        if not self.placed:
            return []
        step, row = self.x.stride, self.strip_columns(self.x_unit) // self.x.stride
        pixels = (self.x_unit - 1) * step + self.x.span
        return [pixel % step * (row * self.row_unit) + pixel // step for pixel in range(pixels)]


def _tile(isa: ISA, lanes: int, depthwise: bool) -> GradientTile:
    """The largest tile that leaves registers for a row of vectors and a broadcast; depthwise, loads are the limit."""
    if depthwise:
        return GradientTile(4 if isa.registers == 16 else 8, 2, lanes)
    return GradientTile({16: 6, 32: 14}[isa.registers], 2, lanes)


def _tile_cycles(height: int, width: int) -> float:
    """What a position costs: two multiply-adds or loads a cycle, and the latency of a sum (small tiles have two)."""
    latency = 2 if height * width <= 6 else 4
    return max(height * width / 2, (height + width) / 2, latency) + 0.5


def even_parts(count: int, most: int, multiple: int = 1) -> list[tuple[int, int]]:
    """(start, size) of the fewest parts of at most `most`: of about equal size, or whole multiples but for the last.

    >>> even_parts(16, 14), even_parts(40, 32, 16)
    ([(0, 8), (8, 8)], [(0, 32), (32, 8)])
    """
    if multiple > 1:
        return [(start, min(most, count - start)) for start in range(0, count, most)]
    parts = -(-count // most)
    bounds = [i * count // parts for i in range(parts + 1)]
    return [(low, high - low) for low, high in pairwise(bounds)]


def _share(count: int, most: int, multiple: int) -> int:
    """A part of `count`: at most about `most`, whole multiples, and of about equal size."""
    parts = -(-count // max(multiple, most))
    return min(count, round_up(-(-count // parts), multiple))
