"""Algorithm E: Winograd for transposed convolution.

Within one stride phase a transposed convolution is an ordinary correlation with q taps, q = ceil(k / s), and all phases
read the same pixels. So one transform of an input tile serves all s**2 phases, and the product in the transformed
domain has s**2 * OC columns. With t = m + q - 1 points a tile of m outputs costs t multiplications per axis, not m*q:

    y = AT [ (G g) * (BT d) ]      F(3, 2) for two taps (k4 s2), F(2, 3) for three (k3 s1, k5 s2, k6 s2), t = 4

A phase that lacks its first tap (k3 s2) has a zero in front: its first coefficient vanishes and is skipped.
The last two axes are transformed; outer axes stay as taps. Accuracy is that of a norm, not of each component, so a
unit whose values range too wide, or are not finite, is left to the direct kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod

from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.job import Panel
from unstride.plan.machine import ISA
from unstride.plan.phases import AxisPhases, phases_of
from unstride.problem import Structure

__all__ = ["IDENTITY", "RANGE_LIMIT", "Transform", "WinogradPlan", "plan_winograd"]

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
class WinogradPlan:
    """The direct plan it replaces (phases, panels, fallback), the two transforms, and the panels' new weights."""

    direct: DirectPlan
    v: Transform
    x: Transform
    panels: tuple[tuple[int, ...], ...]
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


def plan_winograd(structure: Structure, isa: ISA, *, fast: bool = False) -> WinogradPlan | None:
    """The Winograd plan of a structure, or None where it cannot be used or would not pay.

    `fast` allows F(4, 3), whose error is a few times larger. The thresholds were measured: a gain of 1.25 in
    multiplications, 16 channels in, and 64 columns cover the cost of the transforms; in 1D, where the gain is 1.5 at
    most, 128 channels.
    """
    transforms = _transforms(structure, _FAST if fast else _STANDARD)
    if transforms is None:
        return None
    direct = plan_direct(structure, isa, merge=False)
    v, x = transforms
    columns = direct.result_channels * prod(len(axis.phases) for axis in direct.axes[-2:])
    least = 16 if v.size > 1 and x.size > 1 else 128
    padding = sum(p[Panel.VECTORS] for p in direct.panels) * direct.tile.lanes
    fill = padding / sum(p[Panel.COLUMNS] for p in direct.panels)
    panels, elements, products = _panels(direct, v, x)
    taps = sum(len(source.steps) * p[Panel.VECTORS] for p, source in zip(direct.panels, direct.sources, strict=True))
    gain = taps * v.outputs * x.outputs / products
    if direct.reduce_channels < least or columns < 64 or gain < 1.25 or fill > 1.34:
        return None
    reason = f"{gain:.2f} times fewer multiplications; one input transform for {direct.phase_count} phases"
    return WinogradPlan(direct, v, x, panels, elements, gain, reason)


def _transforms(structure: Structure, by_taps: dict[int, Transform]) -> tuple[Transform, Transform] | None:
    """The transforms of the last two axes, if their phases are dense correlations of at most three taps."""
    if structure.direction == "gather" and any(s != 1 for s in structure.stride[-2:]):
        return None
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
    if not axis.complete or axis.span > 3:
        return None
    for phase in axis.phases:
        last = phase.taps[-1].a
        dense = all(tap.a == last - len(phase.taps) + 1 + i for i, tap in enumerate(phase.taps))
        if not dense or last != axis.first + axis.span - 1:
            return None
    return by_taps[axis.span]


def _panels(direct: DirectPlan, v: Transform, x: Transform) -> tuple[tuple[tuple[int, ...], ...], int, int]:
    """The direct panels with new weights, and which lack the first tap; elements of weights, products per tile."""
    rows = {phase.r: phase for phase in direct.axes[-2].phases} if direct.structure.rank > 1 else None
    panels: list[tuple[int, ...]] = []
    offset = products = 0
    for panel in direct.panels:
        x_class = direct.classes[direct.x_ranges[panel[Panel.X_RANGE]][0]]
        short_x = int(len(x_class.taps.taps) < x.taps)
        phase = rows[direct.v_phases[panel[Panel.V_RANGE]]] if rows else None
        short_v = int(phase is not None and len(phase.taps) < v.taps)
        changed = list(panel)
        changed[Panel.WEIGHTS] = offset
        changed[Panel.RUN] = direct.reduce_channels
        changed[Panel.SHORT_V] = short_v
        changed[Panel.SHORT_X] = short_x
        panels.append(tuple(changed))
        width = panel[Panel.VECTORS] * direct.tile.lanes
        offset += v.size * x.size * panel[Panel.OUTER_COUNT] * direct.reduce_channels * width
        products += (v.size - short_v) * (x.size - short_x) * panel[Panel.OUTER_COUNT] * panel[Panel.VECTORS]
    return tuple(panels), offset, products
