"""Layers to measure: a name and a Problem, from the bundled workloads, a problem line or a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from unstride.problem import Problem

__all__ = ["Layer", "as_variant", "family", "kind", "size_class", "unseen", "workloads"]

CANONICAL_FILTER = {"NCX": "GIOX", "NXC": "XGIO"}
"""Weights are packed before anything is timed, so one filter layout for each data layout says everything."""


@dataclass(frozen=True)
class Layer:
    """One case to measure. `source` says where the shape comes from."""

    name: str
    problem: Problem
    source: str = ""


def workloads() -> list[Layer]:
    """The bundled layers of real models and test lists, f32, NCX, scatter."""
    text = files("unstride.bench").joinpath("workloads.json").read_text(encoding="utf-8")
    return [_from_row(row) for row in json.loads(text)]


def as_variant(layer: Layer, *, direction: str, dtype: str, layout: str, batch: int | None = None) -> Layer:
    """The same layer in another direction, element type, data layout or batch size."""
    problem = replace(
        layer.problem,
        direction=direction,
        dtype=dtype,
        data_layout=layout,
        filter_layout=CANONICAL_FILTER[layout],
        batch=layer.problem.batch if batch is None else batch,
    )
    return replace(layer, problem=problem)


def kind(problem: Problem) -> str:
    """The one family that tells most about how a layer can be computed.

    >>> kind(Problem.parse("scatter f32 NCX GIOX n1 g1 i64 o32 x8x8 k4x4 s2x2 d1x1 b1x1 y16x16"))
    'k4s2'
    """
    if problem.groups > 1:
        return "depthwise" if problem.ci == problem.co == 1 else "grouped"
    if any(d > 1 and k > 1 for d, k in zip(problem.dilation, problem.kernel, strict=True)):
        return "dilated"
    if all(k == 1 for k in problem.kernel):
        return "k1"
    if problem.kernel == problem.stride:
        return "k=s"
    if problem.co <= 4:
        return "few outputs"
    if problem.ci <= 4:
        return "few inputs"
    return _kernel_kind(problem)


def _kernel_kind(problem: Problem) -> str:
    if len(set(problem.kernel)) > 1 or len(set(problem.stride)) > 1:
        return "uneven"
    name = f"k{problem.kernel[0]}s{problem.stride[0]}"
    if name in ("k4s2", "k3s1", "k3s2", "k5s1", "k5s2"):
        return name
    return "k=2s" if problem.kernel[0] == 2 * problem.stride[0] else "other"


def size_class(problem: Problem) -> str:
    """How much work one call is: below 10 MFLOP the call itself counts, above 1 GFLOP only the inner loop does."""
    for name, limit in (("under 10 MFLOP", 10**7), ("10 to 100 MFLOP", 10**8), ("0.1 to 1 GFLOP", 10**9)):
        if problem.flops < limit:
            return name
    return "over 1 GFLOP"


def family(problem: Problem) -> dict[str, str]:
    """The groups a layer is counted in."""
    return {
        "rank": f"{problem.rank}D",
        "kind": kind(problem),
        "size": size_class(problem),
        "batch": "batch 1" if problem.batch == 1 else "batch over 1",
    }


def unseen(count: int, seed: int) -> list[Layer]:
    """`count` random layers of the shapes people build, none of them in the bundled workloads.

    A tuning table that only knows the listed shapes shows here. The same seed gives the same layers.
    """
    known = {replace(layer.problem, batch=1) for layer in workloads()}
    found: dict[Problem, Layer] = {}
    for problem in _random_problems(random.Random(seed)):
        if len(found) == count:
            break
        if replace(problem, batch=1) not in known and problem not in found:
            found[problem] = Layer(f"unseen/{seed}/{len(found)}", problem, f"random, seed {seed}")
    return list(found.values())


MAX_UNSEEN_FLOPS = 4 * 10**9
_CHANNELS = (8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 768)
# (kernel, stride) by rank, in the proportions in which decoders, vocoders and volume networks use them
_STEPS = {
    1: ((16, 8), (10, 5), (8, 4), (4, 2), (3, 1), (3, 2), (7, 3), (12, 6), (20, 10), (5, 5)),
    2: ((4, 2), (4, 2), (2, 2), (2, 2), (3, 2), (3, 1), (5, 2), (6, 2), (8, 4), (4, 4), (1, 1), (9, 3), (5, 1)),
    3: ((2, 2), (2, 2), (3, 2), (4, 2), (3, 1)),
}
_EXTENTS = {1: (20, 9000), 2: (3, 260), 3: (3, 48)}


def _random_problems(rng: random.Random) -> Iterator[Problem]:
    while True:
        problem = _random_problem(rng)
        if 10**4 <= problem.flops <= MAX_UNSEEN_FLOPS:
            yield problem


def _random_problem(rng: random.Random) -> Problem:
    rank = rng.choice((1, 1, 2, 2, 2, 2, 3))
    kernel, stride = rng.choice(_STEPS[rank])
    low, high = _EXTENTS[rank]
    first = round(low * (high / low) ** rng.random())
    shape = (1.0, 1.0) if rng.random() < 0.6 else rng.choice(((1.0, 2.0), (0.5, 1.0), (1.0, 1.5), (0.75, 0.75)))
    x = (first, *(max(2, round(first * ratio)) for ratio in shape[: rank - 1]))
    groups, ci, co = _random_channels(rng)
    crop = max(0, kernel - stride)
    begin = rng.choice((crop // 2, crop // 2, crop // 2, 0))
    end = rng.choice((crop - crop // 2, crop - begin))
    y = tuple(stride * (size - 1) + kernel - begin - end for size in x)
    batch = rng.choice((1, 1, 1, 2, 4, 8))
    step = ((kernel,) * rank, (stride,) * rank, (1,) * rank, (begin,) * rank)
    return Problem("scatter", "f32", "NCX", "GIOX", batch, groups, ci, co, x, *step, y)


def _random_channels(rng: random.Random) -> tuple[int, int, int]:
    """groups, and the channels of one group on both sides."""
    style = rng.random()
    if style < 0.12:
        return rng.choice(_CHANNELS), 1, 1
    if style < 0.2:
        return rng.choice((2, 4, 8)), rng.choice(_CHANNELS[:9]), rng.choice(_CHANNELS[:9])
    if style < 0.3:
        return 1, rng.choice(_CHANNELS), rng.choice((1, 2, 3, 4))
    wide = rng.choice(_CHANNELS)
    return 1, wide, rng.choice((wide, max(wide // 2, 4), rng.choice(_CHANNELS)))


def _from_row(row: Mapping[str, Any]) -> Layer:
    kernel, stride, dilation = (tuple(row[key]) for key in ("kernel", "stride", "dilation"))
    x, begin = tuple(row["in_spatial"]), tuple(row["pad_begin"])
    y = tuple(
        s * (size - 1) + (k - 1) * d + 1 - pb - pe + op
        for size, k, s, d, pb, pe, op in zip(
            x, kernel, stride, dilation, begin, row["pad_end"], row["output_padding"], strict=True
        )
    )
    groups = row["groups"]
    channels = (row["n"], groups, row["ic"] // groups, row["oc"] // groups)
    problem = Problem("scatter", "f32", "NCX", "GIOX", *channels, x, kernel, stride, dilation, begin, y)
    return Layer(row["name"], problem, row["source"])
