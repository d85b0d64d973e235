"""The slice of the suite that mutants are held against: small problems for every kernel family, each with a verdict.

A check runs generated code between inaccessible pages, in scratch and on results that start as NaN, and compares with
the float64 reference, exactly, on integers. Most run one task at a time (`tests.hard.apart`). Some hold a kernel to
what its own text promises and results alone cannot show: that a box without padding is read where it lies, that boxes
of one position never multiply padding, and Winograd no weights that vanish, and that large results are streamed by way
of a stage where their pixels are not whole lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from tests.compiler import judge, nonfinite
from tests.compiler.cases import Case, draw
from tests.compiler.guard import Room
from tests.compiler.walled import Wall
from tests.gradients.arrays import integers
from tests.hard.apart import Apart, ApartGradients
from unstride.cases import random_problem
from unstride.plan.across import row_counts, vector_count
from unstride.problem import Problem
from unstride.reference import DTYPES, filter_gradient_reference, rounded
from unstride.runtime import gradients
from unstride.runtime.machine import host

__all__ = ["FAMILIES", "Check", "checks", "checks_of"]

Check = Callable[[], str]
Channels = tuple[int, int, int]


@dataclass(frozen=True)
class Family:
    """Which kernels are meant (a pattern of their keys, the plan's kind), and the problems that lead to them."""

    key: str
    kind: str
    layout: str
    accuracy: str = "strict"
    channels: tuple[Channels, ...] = ()  # groups, ci, co
    dtype: str = "f32"
    weight: int = 1  # rare paths need more problems


_DENSE = ((1, 3, 5), (1, 5, 33), (1, 2, 16), (1, 7, 17), (1, 16, 24), (1, 4, 48), (2, 3, 20), (1, 33, 70), (1, 9, 8))
# Two vectors of columns, or four, the last one cut anywhere; few columns, whose phases are merged. Deep ones: a strip
# padded against cache conflicts, and pixels never read in place.
_EVEN = ((1, 3, 20), (1, 5, 32), (1, 2, 29), (1, 7, 17), (1, 16, 24), (1, 4, 64), (2, 3, 20), (1, 33, 60), (1, 9, 18))
_EVEN_DEEP = (
    *_EVEN,
    (1, 3, 22),
    (1, 4, 31),
    (1, 5, 5),
    (1, 3, 6),
    (1, 128, 22),
    (2, 64, 20),
    (1, 1024, 18),
    (2, 512, 18),
)
_ODD = ((1, 3, 40), (1, 5, 48), (2, 7, 33), (1, 16, 70), (1, 4, 37), (1, 128, 42))
_DEPTHWISE = ((17, 1, 1), (40, 1, 1), (16, 1, 1), (70, 1, 1), (29, 1, 1), (33, 1, 1), (21, 1, 1))
_WINOGRAD = ((1, 16, 64), (1, 17, 70), (1, 27, 64), (1, 32, 80), (1, 35, 65), (1, 128, 64))
_NARROW = ((1, 5, 3), (1, 5, 1), (1, 17, 2), (1, 3, 4), (6, 5, 1), (3, 2, 3), (1, 3, 6), (1, 2, 12), (1, 4, 7))
_FEW = ((1, 5, 3), (1, 17, 1), (1, 3, 17), (2, 3, 5), (1, 128, 2), (3, 2, 7), (1, 9, 16), (1, 4, 33), (1, 40, 2))
_SPREAD = ((17, 1, 1), (6, 1, 1), (1, 1, 1), (3, 2, 2), (5, 1, 3), (2, 3, 1), (1, 2, 1), (40, 1, 1))
_SUMMED = tuple((1, n, n) for n in (*range(1, 19), 31, 32, 33, 40))
FAMILIES = (
    Family("direct f32 nxc *2", "direct", "NXC", channels=_EVEN_DEEP),
    Family("direct f32 ncx *2", "direct", "NCX", channels=_EVEN_DEEP, weight=2),
    Family("direct f16 ncx *2", "direct", "NCX", channels=_EVEN_DEEP, dtype="f16"),
    Family("direct f32 nxc *x2-3", "direct", "NXC", channels=_ODD),
    # f32 is hardly ever copied there
    Family("direct f16 nxc *2 clipped", "clipped", "NXC", channels=_EVEN_DEEP, dtype="f16"),
    Family("direct f16 nxc *2 banded", "banded", "NXC", channels=_EVEN_DEEP, dtype="f16", weight=2),
    Family("direct f32 ncx * overlapping", "overlap", "NCX", "standard", _FEW, weight=4),
    Family("folded f32 *", "folded", "NCX", "standard", _FEW, weight=3),
    Family("spread f32 none scatter k3 s2 d1 rows k3 s2 d1", "spread", "NCX", "standard", _SPREAD, weight=2),
    Family("spread f32 none scatter k9 s8 d1", "spread", "NCX", "standard", _SPREAD, weight=2),
    Family("rows f32 none scatter k3 s2 d1", "rows", "NXC", channels=_DEPTHWISE, weight=2),
    Family("depthwise f32 nxc *", "direct", "NXC", channels=_DEPTHWISE),
    Family("across f32 *", "across", "NCX", "standard", _NARROW, weight=3),
    Family("winograd * f32 nxc *", "winograd", "NXC", "standard", _WINOGRAD, weight=2),
    Family("whole maps * f32 nxc *", "whole", "NXC", "standard", _WINOGRAD, weight=2),
    Family("pack f32", "direct", "NXC", channels=_DENSE),
    Family("gradient dense f32 nxc *", "", "NXC", channels=_SUMMED, weight=3),
    Family("gradient dense f32 ncx *", "", "NCX", channels=_SUMMED, weight=3),
    Family("gradient depthwise f32 nxc *", "", "NXC", channels=_DEPTHWISE),
    Family("bias f32", "", ""),
)


def checks(count: int) -> Iterator[Check]:
    """Checks for every family, `count` of them each (times its weight)."""
    for family in FAMILIES:
        yield from checks_of(family, count)


def checks_of(family: Family, count: int) -> Iterator[Check]:
    rng = Random(f"mutants {family.key}")
    make = _bias if family.key == "bias f32" else _gradient if family.key.startswith("gradient") else _kernel
    for index in range(count * family.weight):
        yield make(family, rng, index)


@cache
def room() -> Apart:
    return Apart()


@cache
def crowded_room() -> Room:
    return Room()


@cache
def gradient_room() -> ApartGradients:
    return ApartGradients()


@cache
def walls() -> tuple[Wall, Wall, Wall]:
    return Wall(2**23), Wall(2**23), Wall(2**23)


# --- kernels --------------------------------------------------------------------------------------------------------


def _kernel(family: Family, rng: Random, index: int) -> Check:
    return partial(by_kind, family.kind, _kernel_check(family, rng, index))


def by_kind(kind: str, check: Check) -> str:
    """A check with the kernel of its family, even where another one would be cheaper."""
    with judge.forced(kind):
        return check()


def _kernel_check(family: Family, rng: Random, index: int) -> Check:
    at_end, kind = bool(index % 2), rng.random()
    if family.key.endswith("clipped"):
        return partial(clipped, _case(family, rng, index), index)
    if family.kind in ("banded", "overlap", "folded"):
        return partial(threaded if kind < 0.15 else apart, _case(family, rng, index), at_end)
    if family.key.startswith("direct f32 nxc") and kind < 0.12:
        return partial(in_place, _without_padding(rng, index), "source", at_end)
    if family.key.startswith("across") and kind < 0.16:
        return partial(in_place, _whole_lines(family, rng, index), "result", at_end)
    if family.key.startswith("across") and kind < 0.26:  # the same in several boxes, which may be too small for it
        cut = {"threads": rng.choice((1, 2, 3)), "l2_bytes": rng.choice((512, 2_048, 8_192, 40_000))}
        return partial(apart, replace(_whole_lines(family, rng, index, beside=True), **cut), at_end)
    if family.key.startswith(("direct", "depthwise")) and kind < 0.24:
        return partial(one_position, _one_position(family, rng, index), index)
    case = _case(family, rng, index)
    if kind < 0.36:
        return partial(not_finite, case, index, kind < 0.30)
    return partial(threaded if kind < 0.46 else apart, case, at_end)


def threaded(case: Case, at_end: bool) -> str:
    """On the pool, tasks in any order and at the same time."""
    return crowded_room().run(case, at_end=at_end)


def apart(case: Case, at_end: bool) -> str:
    return room().check(case, at_end=at_end)


def in_place(case: Case, what: str, at_end: bool) -> str:
    """A problem whose source (or result) can be read (or written) where it lies: nothing goes through scratch."""
    return room().check(case, at_end=at_end, in_place=what)


def not_finite(case: Case, at: int, in_data: bool) -> str:
    """An infinity or a NaN: padding and what a merged panel lacks must not be multiplied with it."""
    operands = list(judge.exact_operands(case))
    changed = operands[0 if in_data else 1]
    if changed is None or not changed.size:
        return ""
    changed.flat[at * 7919 % changed.size] = nonfinite.SPECIALS[at % 3]
    with np.errstate(all="ignore"):
        wanted = rounded(judge.expected(case, *operands), case.problem.dtype)
    return judge.differs(judge.run(case, *operands), wanted)


def one_position(case: Case, at: int) -> str:
    """An infinite weight in the direct kernel itself: a box of one position leaves out the taps that read padding."""
    return _infinite_weight(case, at, clipped=False)


def clipped(case: Case, at: int) -> str:
    """An infinite weight in the kernel for such weights."""
    return _infinite_weight(case, at, clipped=True)


def _infinite_weight(case: Case, at: int, *, clipped: bool) -> str:
    operands = judge.exact_operands(case)
    if at % 3:
        operands[1].flat[at * 7919 % operands[1].size] = np.inf
    with np.errstate(all="ignore"):
        wanted = rounded(judge.expected(case, *operands), case.problem.dtype)
    return judge.differs(room().direct(case, operands, clipped=clipped), wanted)


def _case(family: Family, rng: Random, seed: int) -> Case:
    """A small problem of any geometry with channels of the family."""
    while True:
        groups, ci, co = channels = rng.choice(family.channels)
        p = _for_spread(rng, family.key) if family.kind in ("spread", "rows") else _geometry(rng, channels)
        if channels in _WINOGRAD and p.direction == "gather":
            ci, co = co, ci  # the second are the columns of the product, which must be many
        p = replace(p, dtype=family.dtype, data_layout=family.layout, groups=groups, ci=ci, co=co)
        if p.macs <= 9_000_000 and p.bytes <= 3_000_000:
            l2_bytes = rng.choice(
                (0, 16_000, 40_000, 300_000) if channels in _WINOGRAD else (0, 512, 2_048, 8_192, 40_000)
            )
            return Case(p, "none", rng.random() < 0.5, rng.choice((1, 2, 2, 3)), l2_bytes, seed, family.accuracy)


def _geometry(rng: Random, channels: Channels) -> Problem:
    if channels in _WINOGRAD:
        return _for_winograd(rng)
    return _long_lines(rng) if channels in _NARROW and rng.random() < 0.7 else draw(rng).problem


def _long_lines(rng: Random) -> Problem:
    """Lines of every length around one vector and several tiles."""
    k, s, d, x = rng.randint(1, 5), rng.choice((1, 1, 2, 2, 3, 4, 5)), rng.choice((1, 1, 2)), rng.randint(1, 330)
    b, v = rng.randint(-2, 3), rng.randint(1, 4)
    y = max(0, s * (x - 1) + (k - 1) * d + 1 - b + rng.randint(-3, 3))
    rows = f"x{v}x{x} k2x{k} s{rng.choice((1, 1, 2))}x{s} d1x{d} b0x{b} y{v + 1}x{y}"
    if rng.random() < 0.25:  # phases and borders of two outer axes
        x, y = x % 40 + 1, s * (x % 40) + (k - 1) * d + 1
        (b0, y0), (b1, y1) = ((rng.randint(-2, 2), rng.randint(1, 6)) for _ in range(2))
        rows = f"x2x2x2x{x} k3x2x2x{k} s2x{rng.choice((1, 2))}x1x{s} d1x1x1x{d} b{b0}x{b1}x0x0 y{y0}x{y1}x3x{y}"
    return Problem.parse(f"scatter f32 NCX GIOX n{rng.choice((1, 1, 2))} g1 i1 o1 {rows}")


def _for_spread(rng: Random, key: str) -> Problem:
    """The last axis of the family, with rows of every length; any phases and borders of one to three other axes.

    The one before the last is that of the family, if it has one. Otherwise `spread` wants so large a stride that taps
    along it are listed.
    """
    k, s = (int(word[1:]) for word in key.split()[4:6])
    x, b = rng.randint(1, rng.choice((9, 40, 330))), rng.randint(-s - 1, k + 1)
    # Now and then vectors of padding before the row, or behind it.
    b -= rng.choice((0, 0, 0, 0, rng.randint(0, 40 * s)))
    behind = rng.choice((0, 0, 0, 30 * s)) + rng.randint(-s - 1, s + 1)
    axes = [(x, k, s, b, max(1, s * (x - 1) + k - b + behind))]
    rows = [int(word[1:]) for word in key.partition(" rows ")[2].split()[:2]]
    for index in range(rng.choice((1, 1, 1, 2, 2, 3) if rows else (0, 1, 1, 1, 2, 2, 3))):
        size, kernel, stride, begin = rng.randint(1, 6), rng.randint(1, 4), rng.randint(1, 3), rng.randint(-2, 2)
        if index == 0 and key.startswith("spread"):
            size, (kernel, stride) = rng.randint(1, 9), rows or (rng.randint(1, 9), rng.randint(5, 6))
        axes.insert(0, (size, kernel, stride, begin, rng.randint(1, stride * size + kernel + 1)))
    sizes, kernels, strides, begins, results = ("x".join(map(str, column)) for column in zip(*axes, strict=True))
    ones = "x".join("1" for _ in axes)
    head = f"scatter f32 NCX GIOX n{rng.choice((1, 1, 2))} g1 i1 o1"
    return Problem.parse(f"{head} x{sizes} k{kernels} s{strides} d{ones} b{begins} y{results}")


def _for_winograd(rng: Random) -> Problem:
    """Two taps a phase, with and without the first one; maps of a few tiles and of several units; outer taps, too.

    Windows begin and end inside the map, at its edge, or beyond it, where there is padding alone.
    """
    k, x, v = rng.choice((3, 4)), rng.randint(4, 20), rng.randint(4, 20)
    if rng.random() < 0.2:  # rows that are cut
        x, v = rng.randint(40, 90), rng.randint(3, 6)
    if rng.random() < 0.35:
        return _two_taps(rng, v, x)
    if rng.random() < 0.3:
        return _taps_apart(rng, v % 12 + 4, x % 14 + 4)
    b, c = (rng.choice((0, 0, 1, 1, 2, 2, 5, 6, -1, -3)) for _ in range(2))
    more, n = rng.choice((-2, -1, 0, 0, 3)), rng.choice((1, 1, 2, 3))
    if rng.random() < 0.3:
        x, v = rng.randint(6, 9), rng.randint(5, 9)
        b0, y0 = rng.choice(((0, 4), (0, 4), (1, 3), (-1, 6), (2, 1)))
        y = f"{y0}x{max(1, 2 * (v - 1) + k - b)}x{max(1, 2 * (x - 1) + k - c)}"
        axes = f"x3x{v}x{x} k2x{k}x{k} s{rng.choice((1, 2))}x2x2 d1x1x1 b{b0}x{b}x{c} y{y}"
        if rng.random() < 0.3:  # two outer axes, whose planes are pairs
            axes = f"x2x2x{v}x{x} k2x2x{k}x{k} s1x1x2x2 d1x1x1x1 b0x{b0}x{b}x{c} y3x{y}"
        return Problem.parse(f"scatter f32 NXC GIOX n1 g1 i1 o1 {axes}")
    y = f"{max(1, 2 * (v - 1) + k - b + more)}x{max(1, 2 * (x - 1) + k - c)}"
    return Problem.parse(f"scatter f32 NXC GIOX n{n} g1 i1 o1 x{v}x{x} k{k}x{k} s2x2 d1x1 b{b}x{c} y{y}")


def _two_taps(rng: Random, v: int, x: int) -> Problem:
    """Kernels of two taps with stride 1, in either direction: the first kernel element is the first tap or the last;
    and the strided gather, whose source falls into residues that may lack a tap, in each of its planes."""
    n, (b, c), less = rng.choice((1, 2)), (rng.choice((0, 0, 1, 1, 3)) for _ in range(2)), rng.choice((0, 0, 1, 3))
    if rng.random() < 0.5:
        k = rng.choice((3, 3, 4))
        if rng.random() < 0.4:
            v, x = rng.randint(4, 7), rng.randint(4, 7)
            b0, y0 = rng.choice(((0, 4), (1, 3), (0, 2)))
            y = f"{y0}x{2 * v + k - 2 - b - less}x{2 * x + k - 2 - c}"
            axes = f"x2x{v}x{x} k{rng.choice((2, 3))}x{k}x{k} s{rng.choice((1, 2))}x2x2 d1x1x1 b{b0}x{b}x{c} y{y}"
            return Problem.parse(f"gather f32 NXC GIOX n1 g1 i1 o1 {axes}")
        axes = f"x{v}x{x} k{k}x{k} s2x2 d1x1 b{b}x{c} y{2 * v + k - 2 - b - less}x{2 * x + k - 2 - c}"
        return Problem.parse(f"gather f32 NXC GIOX n{n} g1 i1 o1 {axes}")
    direction, layout = rng.choice(("scatter", "gather", "gather")), rng.choice(("GIOX", "XGIO"))
    axes = f"x{v}x{x} k2x2 s1x1 d1x1 b{b}x{c} y{max(1, v + 1 - b - less)}x{x + 1 - c}"
    return Problem.parse(f"{direction} f32 NXC {layout} n{n} g1 i1 o1 {axes}")


def _taps_apart(rng: Random, v: int, x: int) -> Problem:
    """Stride 1: taps in two parts, or some elements apart, so that tiles of several residues interleave."""
    axes = []
    for size in (v, x):
        k, d = rng.choice(((3, 2), (2, 3), (3, 3), (5, 1), (4, 1), (5, 2)))
        b = rng.choice((0, 1, 2, -1, 4))
        axes.append((size, k, 1, d, b, max(1, size + (k - 1) * d - b - rng.choice((0, 0, 1, 3)))))
    columns = [list(column) for column in zip(*axes, strict=True)]
    text = " ".join(name + "x".join(map(str, values)) for name, values in zip("xksdby", columns, strict=True))
    direction, n = rng.choice(("scatter", "gather")), rng.choice((1, 1, 2))
    return Problem.parse(f"{direction} f32 NXC GIOX n{n} g1 i1 o1 {text}")


def _without_padding(rng: Random, seed: int) -> Case:
    """A strided convolution whose every tap lies inside its source, which is just large enough, or larger."""
    rank = rng.choice((1, 2, 2))
    axes = [(rng.randint(1, 9), rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 2)) for _ in range(rank)]
    words = {"x": [a[0] for a in axes], "k": [a[1] for a in axes], "s": [a[2] for a in axes], "d": [a[3] for a in axes]}
    words["b"] = [0] * rank
    words["y"] = [s * (x - 1) + (k - 1) * d + 1 + rng.choice((0, 0, 1)) for x, k, s, d in axes]
    text = " ".join(name + "x".join(map(str, values)) for name, values in words.items())
    problem = Problem.parse(f"gather f32 NXC GIOX n{rng.choice((1, 2))} g1 i{rng.choice((3, 17))} o5 {text}")
    return Case(problem, "none", False, rng.choice((1, 2)), rng.choice((0, 512, 8_192)), seed, "strict")


def _whole_lines(family: Family, rng: Random, seed: int, *, beside: bool = False) -> Case:
    """Stride 1, or two phases that are woven in registers; rows are all there and as long as the tile that computes
    them, or longer. With `beside`, woven lines may start or end beside the source."""
    groups, ci, co = rng.choice(family.channels)
    k, v = rng.choice(((1, 1), (1, 3), (2, 2), (2, 3))), rng.randint(1, 6)
    isa = host().isa
    if rng.random() < 0.5:
        tallest = max(row_counts(isa))
        x = isa.lanes(4) * (vector_count(isa, tallest) + rng.randint(0, 2))  # rows that fill their vectors are woven
        channels = rng.choice((1, 2)) * tallest // 2 if tallest > 8 else tallest  # of few, v-phases go together
        begin, more = (rng.choice((0, 0, 0, -1, -2, 1)), rng.choice((0, 0, 0, -1, 1))) if beside else (0, 0)
        sizes = f"x{v}x{x} k2x2 s2x2 d1x1 b0x{begin} y{2 * v}x{2 * x - begin + more}"
        problem = Problem.parse(f"scatter f32 NCX GIOX n1 g1 i3 o{channels} {sizes}")
        return Case(problem, "none", rng.random() < 0.5, 1, 0, seed, family.accuracy)
    tile = isa.lanes(4) * vector_count(isa, co if groups == 1 and co in row_counts(isa) else 1)
    x = rng.choice((tile, tile + isa.lanes(4), 2 * tile, tile + rng.randint(1, 150))) - k[1] + 1
    sizes = f"x{v}x{x} k{k[0]}x{k[1]} s1x1 d1x1 b0x0 y{v + k[0] - 1}x{x + k[1] - 1}"
    problem = Problem.parse(f"scatter f32 NCX GIOX n1 g{groups} i{ci} o{co} {sizes}")
    return Case(problem, "none", rng.random() < 0.5, 1, 0, seed, family.accuracy)


def _one_position(family: Family, rng: Random, seed: int) -> Case:
    """Results no larger than the stride, of kernels that reach beyond the source; x-taps that are not one run."""
    depthwise = family.key.startswith("depthwise")
    channels = "g17 i1 o1" if depthwise else rng.choice(("g2 i3 o5", "g1 i128 o6", "g3 i2 o17"))
    axes = []
    for _ in range(2):
        s = rng.choice((1, 1, 2, 3))
        k, x = rng.randint(2, 7), rng.randint(1, 4)
        full = s * (x - 1) + k
        first = rng.randrange(-1, -(-full // s) + 1)
        axes.append((x, k, s, 1, s * first, rng.randint(1, s)))
    columns = [list(column) for column in zip(*axes, strict=True)]
    text = " ".join(name + "x".join(map(str, values)) for name, values in zip("xksdby", columns, strict=True))
    problem = Problem.parse(f"scatter {family.dtype} {family.layout} GIOX n{rng.choice((1, 3))} {channels} {text}")
    return Case(problem, "none", rng.random() < 0.5, 1, 0, seed, "strict")


# --- gradients ------------------------------------------------------------------------------------------------------


def _gradient(family: Family, rng: Random, index: int) -> Check:
    limits: dict[str, Any] = {"max_macs": 400_000, "max_elements": 30_000}
    problem = random_problem(rng, dtypes=("f32",), data_layouts=(family.layout,), **limits)
    groups, ci, _ = rng.choice(family.channels)
    co = rng.choice(family.channels)[2]
    if "depthwise" in family.key:
        problem = _longer_kernel(problem, rng.randint(1, 10))
    elif rng.random() < 0.3:  # rows that are several taps of few channels, not all of which exist at a border
        problem = _longer_kernel(problem, rng.randint(2, 9))
        ci, co = rng.choice((17, 24, 33, 40)), rng.randint(1, 6)
    problem = replace(problem, groups=groups if rng.random() < 0.9 else 2 * groups, ci=ci, co=co)
    while problem.macs > 10**6 or problem.bytes > 10**6:
        problem = replace(problem, ci=max(1, problem.ci // 2), co=max(1, problem.co // 2), batch=1)
        if problem.ci == problem.co == 1:
            break
    return partial(weight_gradient, problem, index, rng.choice((600, 4_000, 2**18)), bool(index % 2), index % 4 > 0)


def _longer_kernel(problem: Problem, kernel: int) -> Problem:
    """Another kernel along the last axis, whose taps are the rows of a tile; the window keeps its size."""
    return replace(problem, kernel=(*problem.kernel[:-1], kernel))


def weight_gradient(problem: Problem, seed: int, l2_bytes: int, at_end: bool, alone: bool) -> str:
    """Cut into many boxes by a small cache; one task at a time, or on the pool."""
    small, large = integers(problem, seed)
    arrays = [wall.array(a.shape, a.dtype, at_end=at_end) for wall, a in zip(walls(), (small, large), strict=False)]
    for array, values in zip(arrays, (small, large), strict=True):
        array[...] = values
    out = walls()[2].array(problem.filter_shape, small.dtype, at_end=at_end)
    out[...] = np.nan
    with mock.patch.object(gradients, "host", return_value=replace(host(), l2_bytes=l2_bytes)):
        if alone:
            with gradient_room().installed(seed):
                gradients.filter_gradient(problem, *arrays, threads=2, out=out)
        else:
            gradients.filter_gradient(problem, *arrays, threads=2, out=out)
    wanted = filter_gradient_reference(problem, small, large).astype(out.dtype)
    return "" if np.array_equal(out, wanted) else "a wrong weight gradient"


def _bias(family: Family, rng: Random, index: int) -> Check:
    """Results of many pixels: a sum is cut into segments, lines and tasks."""
    x = rng.choice((3, 70, 1_500, 9_000, 40_000))
    layout, channels = rng.choice(("NCX", "NXC")), rng.choice((1, 2, 3, 16, 17))
    text = f"scatter f32 {layout} GIOX n{rng.choice((1, 2))} g1 i1 o{channels} x{x} k1 s1 d1 b0 y{x}"
    return partial(bias_gradient, Problem.parse(text), index, bool(index % 2), index % 4 > 0)


def bias_gradient(problem: Problem, seed: int, at_end: bool, alone: bool) -> str:
    delta = walls()[0].array(problem.result_shape, DTYPES[problem.dtype], at_end=at_end)
    delta[...] = np.random.default_rng(seed).integers(-2, 3, problem.result_shape)
    axes = (0, *range(2, delta.ndim)) if problem.data_layout == "NCX" else tuple(range(delta.ndim - 1))
    wanted = delta.astype(np.float64).sum(axis=axes).astype(delta.dtype)
    if alone:
        with gradient_room().installed(seed):
            got = gradients.bias_gradient(problem, delta)
    else:
        got = gradients.bias_gradient(problem, delta)
    return "" if np.array_equal(got, wanted) else "a wrong bias gradient"
