"""Algorithm E: Winograd for transposed convolution.

Within one stride phase a transposed convolution is an ordinary correlation with q taps, q = ceil(k / s), and all phases
read the same pixels. So one transform of an input tile serves all s**2 phases, and the product in the transformed
domain has s**2 * OC columns. With t = m + q - 1 points a tile of m outputs costs t multiplications per axis, not m*q:

    y = AT [ (G g) * (BT d) ]      F(3, 2) for two taps (k4 s2), F(2, 3) for three (k3 s1, k5 s2, k6 s2), t = 4

A phase that lacks its first tap (k3 s2) has a zero in front: its first coefficient vanishes and is skipped.

A gather with stride s is the mirror image: the source falls into s residues, each a correlation with q taps and step 1,
whose sums are added. So every residue is a plane of its own, and the product in the transformed domain has s**2 * IC
rows. A residue that lacks its last tap has a zero behind: its last coefficient vanishes.
The last two axes are transformed; outer axes stay as taps. Accuracy is that of a norm, not of each component, so a
unit whose values range too wide, or are not finite, is left to the direct kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod

from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.job import Panel
from unstride.plan.machine import ISA
from unstride.plan.phases import AxisPhases, Phase, Tap, phases_of
from unstride.problem import Structure

__all__ = ["IDENTITY", "RANGE_LIMIT", "Residues", "Transform", "WinogradPlan", "plan_winograd"]

RANGE_LIMIT = 256.0  # largest value against the mean, beyond which a unit is computed directly
# And infinity. With the first three, coefficients stay 0, +-1 and 1/2; the others are for the larger tiles of "fast".
_POINTS = (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2))


@dataclass(frozen=True)
class Transform:
    """F(outputs, taps) along one axis."""

    outputs: int
    taps: int

    @property
    def size(self) -> int:
        return self.outputs + self.taps - 1

    @property
    def source(self) -> tuple[tuple[float, ...], ...]:
        """BT, size x size."""
        return _matrices(self.outputs, self.taps)[0]

    @property
    def kernel(self) -> tuple[tuple[float, ...], ...]:
        """G, size x taps."""
        return _matrices(self.outputs, self.taps)[1]

    @property
    def result(self) -> tuple[tuple[float, ...], ...]:
        """AT, outputs x size."""
        return _matrices(self.outputs, self.taps)[2]

    @property
    def growth(self) -> float:
        """How much larger than the result the terms of its sum can be: max over outputs of |AT| |G| |BT|."""
        weight = [max(map(abs, g)) * sum(map(abs, b)) for g, b in zip(self.kernel, self.source, strict=True)]
        return max(sum(abs(a) * w for a, w in zip(row, weight, strict=True)) for row in self.result)

    def __str__(self) -> str:
        return f"F({self.outputs},{self.taps})"


IDENTITY = Transform(1, 1)
_STANDARD = {1: IDENTITY, 2: Transform(3, 2), 3: Transform(2, 3)}
_FAST = {1: IDENTITY, 2: Transform(3, 2), 3: Transform(4, 3)}


@cache
def _matrices(
    outputs: int, taps: int
) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """(BT, G, AT) of Cook and Toom; for the points 0, 1, -1 and infinity every fraction sits in G."""
    size = outputs + taps - 1
    if size == 1:
        return ((1.0,),), ((1.0,),), ((1.0,),)
    points = _POINTS[: size - 1]
    bt, g = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = Fraction(1, prod(p - q for q in others))
        bt.append(_roots(others, size))
        g.append(tuple(float(scale * p**j) for j in range(taps)))
    bt.append(_roots(list(points), size))
    g.append((*(0.0,) * (taps - 1), 1.0))
    at = [(*(float(p**i) for p in points), float(i == outputs - 1)) for i in range(outputs)]
    return tuple(bt), tuple(g), tuple(at)


def _roots(roots: list[Fraction], size: int) -> tuple[float, ...]:
    """Coefficients of the polynomial with these roots, from the constant up."""
    poly = [Fraction(1)]
    for root in roots:
        poly = [a - root * b for a, b in zip([Fraction(0), *poly], [*poly, Fraction(0)], strict=True)]
    return tuple(float(c) for c in poly) + (0.0,) * (size - len(poly))


@dataclass(frozen=True)
class Residues:
    """Into how many interleaved planes an axis of the source falls, and how many of them have all taps."""

    count: int = 1
    full: int = 1


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
    def points(self) -> int:
        return self.v.size * self.x.size

    @property
    def planes(self) -> int:
        """How many source planes are transformed: those of the outer axes, times the residues of the last two."""
        return len(self.direct.planes) * prod(residues.count for residues in self.residues)


def plan_winograd(structure: Structure, isa: ISA, *, fast: bool = False) -> WinogradPlan | None:
    """The Winograd plan of a structure, or None where it cannot be used or would not pay.

    `fast` allows F(4, 3), whose error is a few times larger. The thresholds were measured: a gain of 1.25 in
    multiplications, 16 channels in, and 64 columns cover the cost of the transforms; in 1D, where the gain is 1.5 at
    most, 128 channels.
    """
    transforms = _transforms(structure, _FAST if fast else _STANDARD)
    if transforms is None:
        return None
    direct = plan_direct(structure, isa, merge=False, shaped=False)
    v, x = transforms
    columns = direct.result_channels * prod(len(axis.phases) for axis in direct.axes[-2:])
    least = 16 if v.size > 1 and x.size > 1 else 128
    padding = sum(p[Panel.VECTORS] for p in direct.panels) * direct.tile.lanes
    fill = padding / sum(p[Panel.COLUMNS] for p in direct.panels)
    residues = _residues(structure, v, x)
    panels, elements, products = _panels(direct, v, x, residues)
    taps = sum(len(source.steps) * p[Panel.VECTORS] for p, source in zip(direct.panels, direct.sources, strict=True))
    gain = taps * v.outputs * x.outputs / products
    if direct.reduce_channels < least or columns < 64 or gain < 1.25 or fill > 1.34:
        return None
    shared = f"one input transform for {direct.phase_count} phases"
    if structure.direction == "gather":
        shared = f"the source as {prod(axis.count for axis in residues)} planes"
    reason = f"{gain:.2f} times fewer multiplications; {shared}"
    steps = tuple(_steps(direct, v, x, panel) for panel in panels)
    return WinogradPlan(direct, v, x, residues, panels, steps, elements, gain, reason)


def _transforms(structure: Structure, by_taps: dict[int, Transform]) -> tuple[Transform, Transform] | None:
    """The transforms of the last two axes, if their phases are dense correlations of at most three taps."""
    axes = phases_of(structure)[-2:]
    found = [_axis_transform(axis, by_taps) for axis in axes]
    if None in found or all(t == IDENTITY for t in found):
        return None
    x = found[-1]
    v = found[0] if len(found) > 1 else IDENTITY
    assert v is not None
    assert x is not None
    return v, x


def _axis_transform(axis: AxisPhases, by_taps: dict[int, Transform]) -> Transform | None:
    taps = -(-axis.span // axis.source_step)
    if not axis.complete or taps > 3:
        return None
    for phase in axis.phases:
        last = phase.taps[-1].a
        dense = all(tap.a == last - len(phase.taps) + 1 + i for i, tap in enumerate(phase.taps))
        if not dense or last != axis.first + axis.span - 1:
            return None
    return by_taps[taps]


def _residues(structure: Structure, v: Transform, x: Transform) -> tuple[Residues, Residues]:
    if structure.direction == "scatter":
        return Residues(), Residues()
    found = [
        Residues(min(s, k), k - s * (transform.taps - 1))
        for k, s, transform in zip(structure.kernel[-2:], structure.stride[-2:], (v, x)[-structure.rank :], strict=True)
    ]
    return (found[0] if structure.rank > 1 else Residues()), found[-1]


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


def _steps(direct: DirectPlan, v: Transform, x: Transform, panel: tuple[int, ...]) -> tuple[Step, ...]:
    """The kernel index of every tap of every plane: outer taps, residues of v and x, taps of v and x."""
    structure = direct.structure
    outer_phases = direct.outer_phases[panel[Panel.OUTER_PHASE]]
    outer_taps = [
        next(p.taps for p in axis.phases if p.r == r) for axis, r in zip(direct.axes[:-2], outer_phases, strict=True)
    ]
    v_phase, x_phase = _phases(direct, panel)
    v_step = structure.stride[-2] if structure.rank > 1 else 1
    rows = _kernel_indices(v_phase, v.taps, v_step, structure.direction)
    columns = _kernel_indices(x_phase, x.taps, structure.stride[-1], structure.direction)
    return tuple(
        None if i is None or j is None else (*(tap.k for tap in outer), *((i,) if structure.rank > 1 else ()), j)
        for outer in product(*outer_taps)
        for row in rows
        for column in columns
        for i in row
        for j in column
    )


def _kernel_indices(phase: Phase, taps: int, stride: int, direction: str) -> list[list[int | None]]:
    """By residue, the kernel index of each of `taps` taps, or None."""
    indices = [tap.k for tap in phase.taps]
    if direction == "scatter":
        return [[*(None,) * (taps - len(indices)), *indices]]
    size = len(indices)
    return [[k if (k := stride * j + r) < size else None for j in range(taps)] for r in range(min(stride, size))]
