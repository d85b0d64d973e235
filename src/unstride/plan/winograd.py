"""Algorithm E: Winograd for transposed convolution.

Within one stride phase a transposed convolution is an ordinary correlation with q taps, q = ceil(k / s), and all phases
read the same pixels. So one transform of an input tile serves all s**2 phases, and the product in the transformed
domain has s**2 * OC columns. With t = m + q - 1 points a tile of m outputs costs t multiplications per axis, not m*q:

    y = AT [ (G g) * (BT d) ]      F(3, 2) for two taps (k4 s2), F(2, 3) for three (k3 s1, k5 s2, k6 s2), t = 4

A phase that lacks its first tap (k3 s2) has a zero in front: its first coefficient vanishes and is skipped.

The points are 0, 1, -1 and infinity: more real ones bring in thirds and a larger error. But i and -i lie on the unit
circle, too. The two take three real products, so that t is one more:

    F(4, 3; i) for three taps, F(3, 4; i) for four, t = 7      2.94 times fewer products in 2D, where F(2, 3) saves 2.25

Two taps have nothing to gain from those. F(4, 2), t = 5, with the points 0, 1, -1/2, -2 and infinity, saves 2.4 times
instead of 2.25 if F(3, 2) stays along the other axis, which keeps errors near those of direct sums. Its ninths are left
to the end, where sums of integers are multiples of nine: a ninth of such a number, rounded, is exact.

A gather with stride s is the mirror image: the source falls into s residues, each a correlation with q taps and step 1,
whose sums are added. So every residue is a plane of its own, and the product in the transformed domain has s**2 * IC
rows. A residue that lacks its last tap has a zero behind: its last coefficient vanishes. Four to six taps in a row
(k5 s1) are treated alike: as two planes of at most three taps, the second one starting where the first one ends.

Taps that are d elements apart (k3 s1 d2) leave d residues of positions that have nothing to do with each other: the
outputs of a tile are then d positions apart, too.
The last two axes are transformed; outer axes stay as taps. Accuracy is that of a norm, not of each component, so a
unit whose values range too wide, or are not finite, is left to the direct kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from math import lcm, prod

from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.job import Panel
from unstride.plan.machine import ISA
from unstride.plan.phases import AxisPhases, Phase, Tap, phases_of
from unstride.problem import Structure

__all__ = [
    "IDENTITY",
    "RANGE_LIMIT",
    "Matrix",
    "Residues",
    "Steps",
    "Transform",
    "WinogradPlan",
    "even_heights",
    "height_step",
    "plan_winograd",
]

RANGE_LIMIT = 256.0  # largest value against the mean, beyond which a unit is computed directly
# By their number, beside infinity. With up to three, coefficients stay 0, +-1 and 1/2; of four, these err least.
_POINTS = {
    2: (Fraction(0), Fraction(1)),
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1), Fraction(-1, 2), Fraction(-2)),
    5: (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2)),
}


Matrix = tuple[tuple[float, ...], ...]
Steps = tuple[Matrix, ...]


@dataclass(frozen=True)
class Transform:
    """F(outputs, taps) along one axis; on the circle, with the points i and -i."""

    outputs: int
    taps: int
    circle: bool = False

    @property
    def reach(self) -> int:
        """Pixels that a tile of outputs needs; results that a tile of pixels has a part in."""
        return self.outputs + self.taps - 1

    @property
    def size(self) -> int:
        """Products of a tile. In a complex one of two numbers there are three."""
        return self.reach + self.circle

    @property
    def _matrices(self) -> tuple[Steps, Matrix, Steps]:
        return (_on_circle if self.circle else _on_line)(self.outputs, self.taps)

    @property
    def source_steps(self) -> Steps:
        """BT, size x reach, as matrices that are applied one after the other: they share sums."""
        return self._matrices[0]

    @property
    def kernel(self) -> Matrix:
        """G, size x taps."""
        return self._matrices[1]

    @property
    def result_steps(self) -> Steps:
        """AT, outputs x size, in the same way, without the division."""
        return self._matrices[2]

    @property
    def divisor(self) -> float:
        """What results of AT are still to be divided by: the matrices hold no thirds, so that integers stay exact."""
        return 1.0 if self.circle else float(_divisor(self.reach - 1))

    @property
    def source(self) -> Matrix:
        return _product(self.source_steps)

    @property
    def result(self) -> Matrix:
        return _product(self.result_steps)

    @property
    def magnification(self) -> float:
        """How much sooner sums of integers stop being exact than direct ones: by their size, and because they are
        multiples of a part of one."""
        matrices = (self.source, self.kernel, self.result)
        parts = prod(max(factor.as_integer_ratio()[1] for row in matrix for factor in row) for matrix in matrices)
        return self.growth * self.divisor * parts

    @property
    def growth(self) -> float:
        """How much larger than the result the terms of its sum can be: max over outputs of |AT| |G| |BT|."""
        weight = [max(map(abs, g)) * sum(map(abs, b)) for g, b in zip(self.kernel, self.source, strict=True)]
        return max(sum(abs(a) * w for a, w in zip(row, weight, strict=True)) for row in self.result) / self.divisor

    def __str__(self) -> str:
        return f"F({self.outputs},{self.taps}{';i' * self.circle})"


IDENTITY = Transform(1, 1)
# By the number of taps, along v and x. Small tiles fit small maps, and have fewer weights than large ones; coarse ones
# have an error that is a few times larger.
_Tiles = dict[int, Transform]
_SMALL: _Tiles = {1: IDENTITY, 2: Transform(3, 2), 3: Transform(2, 3)}
_LARGE: _Tiles = {**_SMALL, 3: Transform(4, 3, circle=True), 4: Transform(3, 4, circle=True)}
_COARSE: _Tiles = {**_LARGE, 2: Transform(4, 2), 3: Transform(4, 3)}
_TILES = {"small": (_SMALL, _SMALL), "large": (_LARGE, {**_LARGE, 2: Transform(4, 2)}), "coarse": (_COARSE, _COARSE)}
_LARGE_GAIN = 1.8
_MOST_TAPS = 6  # in a row

# With the points i and -i. In polynomials: the product s = g d, of six coefficients, is known modulo x, x - 1, x + 1,
# x**2 + 1, and by its highest one. Modulo x**2 + 1, g is a + bi and d is u + vi, of which Gauss makes three products,
#     a(u + v), (a + b)v, (b - a)u;      the first less the second is the real part, with the third the imaginary one.
# Points in order: 0, 1, -1, these three, infinity. A filter is the transpose of it: BT puts together, AT evaluates.
_FROM_CIRCLE: Steps = (
    (
        (1, 0, 0, 0, -1, 0),
        (0, 1, 0, 1, 0, 0),
        (0, 0, 1, 0, 1, 0),
        (0, 1, 0, -1, 0, 0),
        (0, 0, 1, 0, -1, 0),
        (0, -1, 0, 0, 0, 1),
    ),
    (
        (1, 0, 0, 0, 0, 0),
        (0, 1, 1, 0, 0, 0),
        (0, -1, 1, 0, 0, 0),
        (0, 0, 0, 1, -1, 0),
        (0, 0, 0, 0, 1, 0),
        (0, 0, 0, 1, 0, 0),
        (0, 0, 0, 0, 0, 1),
    ),
)
_SUMS_ON_CIRCLE: Matrix = (
    (1, 0, 0, 0, 0, 0, 0),
    (0, 1, 1, 0, 0, 0, 0),
    (0, 1, -1, 0, 0, 0, 0),
    (0, 0, 0, 1, 0, 1, 0),
    (0, 0, 0, 1, 1, 0, 0),
    (0, 0, 0, 0, 0, 0, 1),
)


# AT of F(3, 2): the first and the last output share a sum.
_SHARED_SUMS: Steps = (
    ((1, 0, 0, 0), (0, 1, 1, 0), (0, 1, -1, 0), (0, 0, 0, 1)),
    ((1, 1, 0, 0), (0, 0, 1, 0), (0, 1, 0, 1)),
)


@cache
def _on_circle(outputs: int, taps: int) -> tuple[Steps, Matrix, Steps]:
    """(BT, G, AT) with the points 0, 1, -1, i, -i and infinity."""
    assert outputs + taps - 1 == len(_FROM_CIRCLE[0])
    # Real and imaginary part of i**j, halved, and of 1 a quarter: what BT would have to divide by.
    real, imaginary = ([(0.5, 0.0, -0.5, 0.0)[(j + shift) % 4] for j in range(taps)] for shift in (0, 3))
    kernel = [
        [float(j == 0) for j in range(taps)],
        [0.25] * taps,
        [0.25 * (-1) ** j for j in range(taps)],
        real,
        [a + b for a, b in zip(real, imaginary, strict=True)],
        [b - a for a, b in zip(real, imaginary, strict=True)],
        [float(j == taps - 1) for j in range(taps)],
    ]
    result = [[0.0] * len(_SUMS_ON_CIRCLE) for _ in range(outputs)]
    for j, row in enumerate(result):
        row[1 + j % 2], row[3 + j % 2] = 1.0, (1.0, 1.0, -1.0, -1.0)[j % 4]
    result[0][0] = result[-1][-1] = 1.0
    return _FROM_CIRCLE, tuple(map(tuple, kernel)), (_SUMS_ON_CIRCLE, tuple(map(tuple, result)))


def _product(steps: Steps) -> Matrix:
    """One matrix for those that are applied one after the other, the first one first."""
    total = steps[0]
    for step in steps[1:]:
        columns = list(zip(*total, strict=True))
        total = tuple(tuple(sum(a * b for a, b in zip(row, c, strict=True)) for c in columns) for row in step)
    return total


@cache
def _on_line(outputs: int, taps: int) -> tuple[Steps, Matrix, Steps]:
    """(BT, G, AT) of Cook and Toom, AT for results that are `divisor` times as large. AT is whole; for the points 0, 1,
    -1 and infinity, BT is as well."""
    size = outputs + taps - 1
    if size == 1:
        return (((1.0,),),), ((1.0,),), (((1.0,),),)
    points, divisor = _POINTS[size - 1], _divisor(size - 1)
    bt, g, at = [], [], []
    for p in points:
        others, whole = [q for q in points if q != p], p.denominator ** (outputs - 1)
        scale = divisor / prod(p - q for q in others) / whole
        bt.append(_roots(others, size))
        g.append(tuple(float(scale * p**j) for j in range(taps)))
        at.append([float(whole * p**i) for i in range(outputs)])
    bt.append(_roots(list(points), size))
    g.append((*(0.0,) * (taps - 1), float(divisor)))
    at.append([float(i == outputs - 1) for i in range(outputs)])
    shared = size == 4 and outputs == 3
    return (tuple(bt),), tuple(g), _SHARED_SUMS if shared else (tuple(zip(*at, strict=True)),)


@cache
def _divisor(count: int) -> int:
    """The odd part of what weights would have to be divided by, with so many points beside infinity."""
    points = _POINTS.get(count, ())
    scales = [Fraction(1, prod(p - q for q in points if q != p)).denominator for p in points]
    return lcm(*(scale // (scale & -scale) for scale in scales))


def _roots(roots: list[Fraction], size: int) -> tuple[float, ...]:
    """Coefficients of the polynomial with these roots, from the constant up."""
    poly = [Fraction(1)]
    for root in roots:
        poly = [a - root * b for a, b in zip([Fraction(0), *poly], [*poly, Fraction(0)], strict=True)]
    return tuple(float(c) for c in poly) + (0.0,) * (size - len(poly))


def even_heights(most: int) -> tuple[int, ...]:
    """Heights of tiles of the inner loop that are compiled: what rows in blocks of about equal height need.

    >>> even_heights(6), even_heights(14)
    ((4, 5, 6), (8, 10, 12, 14))
    """
    step = height_step(most)
    return tuple(range(-(-(most + 1) // (2 * step)) * step, most + 1, step))


def height_step(most: int) -> int:
    """What those heights differ by."""
    return 2 if most > 8 else 1


@dataclass(frozen=True)
class Residues:
    """Into how many planes an axis of the source falls, and where their elements lie."""

    count: int = 1
    full: int = 1  # planes that have all taps
    step: int = 1  # elements from tap to tap
    apart: int = 1  # elements from the start of a plane to that of the next one
    spread: int = 1  # positions from output to output of a tile

    def extra(self, taps: int) -> int:
        """Elements of the source that tiles need, beside `step` for every output."""
        return self.step * (taps - 2) + (self.count - 1) * self.apart + self.spread


Step = tuple[int, ...] | None


@dataclass(frozen=True)
class WinogradPlan:
    """The direct plan it replaces (phases, panels, fallback), the two transforms, and the panels' new weights."""

    direct: DirectPlan
    v: Transform
    x: Transform
    residues: tuple[Residues, Residues]  # along v and x
    panels: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[Step, ...], ...]  # by panel: the kernel index of every tap of every plane, None for a zero
    packed_elements: int
    gain: float  # multiplications saved: direct / Winograd
    reason: str

    @property
    def algorithm(self) -> str:
        return f"winograd {self.v}x{self.x}" if self.v != IDENTITY else f"winograd {self.x}"

    @property
    def growth(self) -> float:
        """The factor of the error bound: |y - exact| <= growth * g(n + 8) * max|x| * sum|w|, over one unit's x."""
        return self.v.growth * self.x.growth

    @property
    def magnification(self) -> float:
        return self.v.magnification * self.x.magnification

    @property
    def points(self) -> int:
        return self.v.size * self.x.size

    @property
    def planes(self) -> int:
        """How many source planes are transformed: those of the outer axes, times the residues of the last two."""
        return len(self.direct.planes) * prod(residues.count for residues in self.residues)


def plan_winograd(structure: Structure, isa: ISA, tiles: str = "small") -> WinogradPlan | None:
    """The Winograd plan of a structure, or None where it cannot be used or would not pay.

    Tiles are small, large or coarse. The thresholds were measured: a gain of 1.25 in multiplications, 16 channels in,
    and 64 columns (32 where the gain is large) cover the cost of the transforms; in 1D, where the gain is smaller, 24
    channels.
    """
    axes = _axes(structure, _TILES[tiles])
    if axes is None:
        return None
    direct = plan_direct(structure, isa, merge=False, shaped=False)
    (v, v_residues), (x, x_residues) = axes
    residues = (v_residues, x_residues)
    columns = direct.result_channels * prod(len(axis.phases) for axis in direct.axes[-2:])
    least = 16 if v.size > 1 and x.size > 1 else 24
    padding = sum(p[Panel.VECTORS] for p in direct.panels) * direct.tile.lanes
    fill = padding / sum(p[Panel.COLUMNS] for p in direct.panels)
    panels, elements, products = _panels(direct, v, x, residues)
    taps = sum(len(source.steps) * p[Panel.VECTORS] for p, source in zip(direct.panels, direct.sources, strict=True))
    gain = taps * v.outputs * x.outputs / products
    narrowest = 32 if gain > _LARGE_GAIN else 64
    if direct.reduce_channels < least or columns < narrowest or gain < 1.25 or fill > 1.34:
        return None
    planes = prod(axis.count for axis in residues)
    phases = direct.phase_count
    shared = f"one input transform for {phases} phase{'s' * (phases > 1)}"
    if structure.direction == "gather" or planes > 1:
        shared = f"the source as {planes} planes"
    reason = f"{gain:.2f} times fewer multiplications; {shared}"
    steps = tuple(_steps(direct, v, x, residues, panel) for panel in panels)
    return WinogradPlan(direct, v, x, residues, panels, steps, elements, gain, reason)


Split = tuple[Transform, Residues]


def _axes(structure: Structure, tiles: tuple[_Tiles, _Tiles]) -> tuple[Split, Split] | None:
    """The transforms of the last two axes, if their phases are correlations of few taps, and what they read."""
    axes = phases_of(structure)[-2:]
    found = [_split(axis, by_taps) for axis, by_taps in zip(axes, tiles[-len(axes) :], strict=True)]
    if None in found or all(split is not None and split[0] == IDENTITY for split in found):
        return None
    x = found[-1]
    v = found[0] if len(found) > 1 else (IDENTITY, Residues())
    assert v is not None
    assert x is not None
    return v, x


def _split(axis: AxisPhases, by_taps: _Tiles) -> Split | None:
    if axis.source_step > 1:
        return _strided(axis, by_taps)
    if axis.result_step == 1:
        return _in_parts(axis, by_taps)
    if not axis.complete or axis.span not in by_taps:
        return None
    for phase in axis.phases:
        last = phase.taps[-1].a
        dense = all(tap.a == last - len(phase.taps) + 1 + i for i, tap in enumerate(phase.taps))
        if not dense or last != axis.first + axis.span - 1:
            return None
    return by_taps[axis.span], Residues()


def _strided(axis: AxisPhases, by_taps: _Tiles) -> Split | None:
    """A gather with a stride: every residue of the source is a plane."""
    stride, taps = axis.source_step, [tap.a for tap in axis.phases[0].taps]
    longest = -(-len(taps) // stride)
    if longest not in by_taps or taps != list(range(len(taps))):
        return None
    return by_taps[longest], Residues(min(stride, len(taps)), len(taps) - stride * (longest - 1), step=stride)


def _in_parts(axis: AxisPhases, by_taps: _Tiles) -> Split | None:
    """Stride 1: taps in one part, or two of two or three, which may be several elements apart."""
    taps = [tap.a for tap in axis.phases[0].taps]
    step = taps[1] - taps[0] if len(taps) > 1 else 1
    if len(taps) > _MOST_TAPS or taps != list(range(taps[0], taps[0] + len(taps) * step, step)):
        return None
    size = len(taps) if len(taps) in by_taps else 2 if len(taps) == 4 else 3
    parts = -(-len(taps) // size)
    return by_taps[size], Residues(parts, len(taps) // size, step, size * step, step)


def _panels(
    direct: DirectPlan, v: Transform, x: Transform, residues: tuple[Residues, Residues]
) -> tuple[tuple[tuple[int, ...], ...], int, int]:
    """The direct panels with new weights, and which lack the first tap; elements of weights, products per tile."""
    scatter = direct.structure.direction == "scatter"
    panels: list[tuple[int, ...]] = []
    offset = products = 0
    for panel in direct.panels:
        v_phase, x_phase = _phases(direct, panel)
        short_v, short_x = (
            int(scatter and len(phase.taps) < transform.taps) for phase, transform in ((v_phase, v), (x_phase, x))
        )
        changed = list(panel)
        changed[Panel.WEIGHTS] = offset
        changed[Panel.RUN] = direct.reduce_channels
        changed[Panel.SHORT_V] = short_v
        changed[Panel.SHORT_X] = short_x
        panels.append(tuple(changed))
        width = panel[Panel.VECTORS] * direct.tile.lanes
        planes = panel[Panel.OUTER_COUNT] * residues[0].count * residues[1].count
        offset += v.size * x.size * planes * direct.reduce_channels * width
        by_axis = [
            transform.size * r.count - (r.count - r.full) - short
            for transform, r, short in ((v, residues[0], short_v), (x, residues[1], short_x))
        ]
        products += by_axis[0] * by_axis[1] * panel[Panel.OUTER_COUNT] * panel[Panel.VECTORS]
    return tuple(panels), offset, products


def _phases(direct: DirectPlan, panel: tuple[int, ...]) -> tuple[Phase, Phase]:
    """The phases of the last two axes that a panel computes; a 1D case has a row of one tap."""
    x_phase = direct.classes[direct.x_ranges[panel[Panel.X_RANGE]][0]].taps
    if direct.structure.rank == 1:
        return Phase(0, (Tap(0, 0),)), x_phase
    v_phase = next(p for p in direct.axes[-2].phases if p.r == direct.v_phases[panel[Panel.V_RANGE]])
    return v_phase, x_phase


def _steps(
    direct: DirectPlan, v: Transform, x: Transform, residues: tuple[Residues, Residues], panel: tuple[int, ...]
) -> tuple[Step, ...]:
    """The kernel index of every tap of every plane: outer taps, residues of v and x, taps of v and x."""
    outer_phases = direct.outer_phases[panel[Panel.OUTER_PHASE]]
    outer_taps = [
        next(p.taps for p in axis.phases if p.r == r) for axis, r in zip(direct.axes[:-2], outer_phases, strict=True)
    ]
    v_phase, x_phase = _phases(direct, panel)
    v_first = direct.axes[-2].first if direct.structure.rank > 1 else 0
    rows = _kernel_indices(v_phase, v_first, v.taps, residues[0])
    columns = _kernel_indices(x_phase, direct.axes[-1].first, x.taps, residues[1])
    return tuple(
        None if i is None or j is None else (*(tap.k for tap in outer), *((i,) if direct.structure.rank > 1 else ()), j)
        for outer in product(*outer_taps)
        for row in rows
        for column in columns
        for i in row
        for j in column
    )


def _kernel_indices(phase: Phase, first: int, taps: int, residues: Residues) -> list[list[int | None]]:
    """By plane, the kernel index of each of its taps, or None."""
    by_offset = {tap.a - first: tap.k for tap in phase.taps}
    offsets = [[r * residues.apart + j * residues.step for j in range(taps)] for r in range(residues.count)]
    return [[by_offset.get(offset) for offset in plane] for plane in offsets]
