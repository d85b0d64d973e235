"""Random cases over the whole lattice of what a kernel can meet, each with a one-line text form.

A case is a Problem and what else the compiler depends on: epilogue, threads, and the L2 size that the plan is told (a
tiny one makes small data split into many units, as big data would on a real machine).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from random import Random

from unstride.problem import DATA_LAYOUTS, DTYPE_BYTES, FILTER_LAYOUTS, Problem

__all__ = ["WINOGRAD", "Case", "draw"]

SLOPE = 0.25  # a power of two: leaky_relu stays exact on integers
MAX_ELEMENTS = 60_000
MAX_MACS = 1_500_000
EXACT_ACTIVATIONS = ("none", "leaky_relu", "none", "relu", "none", "none")
ALL_ACTIVATIONS = ("none", "leaky_relu", "tanh", "relu", "none", "sigmoid")


@dataclass(frozen=True)
class Case:
    """One run. `l2_bytes` 0 means the machine's own cache, and the runtime's own choice of threads for small work."""

    problem: Problem
    activation: str = "none"
    bias: bool = False
    threads: int = 1
    l2_bytes: int = 0
    seed: int = 0
    accuracy: str = "standard"

    def __str__(self) -> str:
        tail = f"{self.activation} bias{int(self.bias)} threads{self.threads} l2:{self.l2_bytes} seed{self.seed}"
        return f"{self.problem} | {tail} {self.accuracy}"

    @classmethod
    def parse(cls, text: str) -> Case:
        problem, _, tail = text.partition("|")
        activation, bias, threads, l2, seed, accuracy = tail.split()
        numbers = (bool(int(bias[4:])), int(threads[7:]), int(l2[3:]), int(seed[4:]))
        return cls(Problem.parse(problem), activation, *numbers, accuracy)


@dataclass(frozen=True)
class _Style:
    """One region of the lattice: what sizes and channels to choose from."""

    ranks: tuple[int, ...]
    batches: tuple[int, ...]
    sizes: tuple[int, ...]
    kernels: tuple[int, ...]  # empty: two or three taps in each phase
    strides: tuple[int, ...]
    channels: str
    dilations: tuple[int, ...] = (1, 1, 1, 2, 3, 4)
    room: int = 1  # how many times larger than the usual limits


_CORNERS = _Style(
    (1, 1, 2, 2, 3, 3, 4, 5), (0, 1, 1, 2, 3, 5), (1, 2, 3, 4, 5, 7, 9), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5), "few"
)
_TILES = _Style((1, 2, 2, 3), (1, 1, 2, 5), (1, 2, 3, 5, 8, 13), (1, 2, 3, 4), (1, 1, 2, 2, 3), "wide")
_LINES = _Style((1, 1, 1, 2), (1, 2), (17, 40, 63, 100, 257), (1, 2, 3, 5, 16), (1, 2, 3, 8), "few")
_DEEP = _Style((1, 2), (1, 1, 2), (1, 2, 3), (1, 2, 3), (1, 2), "deep")
_PLANES = _Style((2, 2, 3), (1, 2), (3, 7, 14, 20, 31), (1, 2, 3, 4), (1, 2, 2), "middle")
_STYLES = (_CORNERS, _CORNERS, _CORNERS, _TILES, _TILES, _LINES, _DEEP, _PLANES)
# Dense kernels of at most three taps per phase, with channels enough to transform them.
WINOGRAD = _Style((1, 2, 2, 2, 3), (1, 1, 2), (2, 6, 9, 12), (), (1, 1, 2), "many", (1,), 12)
_WINOGRAD_SHARE = 0.12
# Now and then a layer that fills the real caches, so that strips, images and panels split as they do for users.
_LAYERS = _Style((1, 2, 2, 3), (1, 1, 3), (9, 16, 28, 56, 90, 2000), (2, 3, 3, 4), (1, 2, 2), "layer", room=30)
_LAYER_SHARE = 0.004


def draw(
    rng: Random,
    *,
    activations: tuple[str, ...] = EXACT_ACTIVATIONS,
    few_kernels: bool = False,
    style: _Style | None = None,
) -> Case:
    """Any case of the lattice that is small enough to check.

    `few_kernels` ties activation and accuracy to element type and layout: a short run need not compile every family.
    """
    style = style or _style(rng)
    while True:
        problem = _problem(rng, style)
        elements = max(prod(shape) for shape in (problem.data_shape, problem.filter_shape, problem.result_shape))
        if elements <= style.room * MAX_ELEMENTS and problem.macs <= style.room * MAX_MACS:
            break
    l2_bytes = rng.choice((0, 0, 512, 2048, 8192, 40_000))
    threads = rng.choice((1, 1, 2, 3, 7))
    activation = rng.choice(activations)
    if few_kernels:
        activation = activations[2 * list(DTYPE_BYTES).index(problem.dtype) % 5 + (problem.data_layout == "NCX")]
    accuracy = rng.choice(("strict", "standard", "standard", "fast"))
    if few_kernels:
        accuracy = {"f32": "standard", "bf16": "fast"}.get(problem.dtype, "strict")
    return Case(problem, activation, rng.random() < 0.5, threads, l2_bytes, rng.randrange(10**6), accuracy)


def _style(rng: Random) -> _Style:
    share = rng.random()
    if share < _LAYER_SHARE:
        return _LAYERS
    return WINOGRAD if share < _LAYER_SHARE + _WINOGRAD_SHARE else rng.choice(_STYLES)


def _problem(rng: Random, style: _Style) -> Problem:
    rank = rng.choice(style.ranks)
    axes = [_axis(rng, style) for _ in range(rank)]
    x, kernel, stride, dilation, begin, y = (tuple(column) for column in zip(*axes, strict=True))
    dtype = rng.choice(("f32", "f32", "f16", "bf16", "f64"))
    direction = rng.choice(("scatter", "gather"))
    if style is WINOGRAD and max(stride) > 1:
        direction = "scatter"
    head = (direction, dtype, rng.choice(DATA_LAYOUTS), rng.choice(FILTER_LAYOUTS))
    channels = _channels(rng, style.channels)
    return Problem(*head, rng.choice(style.batches), *channels, x, kernel, stride, dilation, begin, y)


def _axis(rng: Random, style: _Style) -> tuple[int, ...]:
    """x, kernel, stride, dilation, begin, y of one axis."""
    x, stride = rng.choice(style.sizes), rng.choice(style.strides)
    kernel = rng.choice(style.kernels or range(stride + 1, 3 * stride + 1))
    dilation = rng.choice(style.dilations)
    full = stride * (x - 1) + (kernel - 1) * dilation + 1
    begin = rng.choice((0, 0, 1, 2, rng.randint(0, full), -1, -rng.randint(1, 9), full + 2))
    ends = (full - begin, full - begin, rng.randint(0, full), full - begin + rng.randint(1, 12), full - begin - 1)
    y = rng.choice((*ends, stride * x, 0)) if rng.random() < 0.5 else full - begin
    return x, kernel, stride, dilation, begin, max(0, y)


def _channels(rng: Random, kind: str) -> tuple[int, int, int]:
    """groups, ci, co."""
    form = 1.0 if kind == "many" else rng.random()
    if form < 0.12:
        return rng.choice((2, 3, 8, 15, 16, 17, 31, 33, 64, 70)), 1, 1
    if form < 0.27:
        return rng.choice((2, 3, 5, 16)), rng.randint(1, 4), rng.randint(1, 4)
    few, wide = (1, 1, 2, 3, 4, 5, 7, 8, 9), (1, 3, 8, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 96)
    pools = {"few": few, "wide": wide, "middle": (1, 2, 3, 4, 8, 16, 17), "deep": (16, 64, 100, 128, 160, 256)}
    pools |= {"layer": (3, 16, 32, 64, 80, 128), "many": (16, 64, 64, 72, 128)}
    pool = pools[kind]
    groups = 2 if form < 0.33 else 1
    return groups, rng.choice(pool), rng.choice(pool)
