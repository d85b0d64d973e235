"""Which layers to measure: a rule, not a list of favourites."""

from __future__ import annotations

import re
from collections import defaultdict
from math import sqrt

from unstride.bench.layers import Layer, kind
from unstride.errors import AttributeValueError

__all__ = ["REPRESENTATIVE_COUNT", "REPRESENTATIVE_MAX_MACS", "matching", "representative", "shortest"]

REPRESENTATIVE_COUNT = 60
REPRESENTATIVE_MAX_MACS = 6 * 10**9


def representative(layers: list[Layer], count: int = REPRESENTATIVE_COUNT) -> list[Layer]:
    """`count` layers stratified by rank and kind, spread over the sizes of each stratum.

    Each stratum gets seats in proportion to the square root of its size (so that rare kinds are seen), at least one
    while there are seats; inside it, layers are taken at even steps of their work. Layers over
    `REPRESENTATIVE_MAX_MACS` are left out: they would take most of the time and teach nothing the next smaller do not.
    """
    strata: dict[tuple[int, str], list[Layer]] = defaultdict(list)
    for layer in layers:
        if layer.problem.macs <= REPRESENTATIVE_MAX_MACS:
            strata[(layer.problem.rank, kind(layer.problem))].append(layer)
    seats = _seats({key: len(members) for key, members in strata.items()}, count)
    chosen = {layer.name for key, members in strata.items() for layer in _evenly(members, seats[key])}
    return [layer for layer in layers if layer.name in chosen]


def shortest(layers: list[Layer], count: int) -> list[Layer]:
    """For a quick look: `count` layers by the same rule, only from those of at most 300 MFLOP."""
    return representative([layer for layer in layers if layer.problem.flops <= 3 * 10**8], count)


def matching(layers: list[Layer], pattern: str) -> list[Layer]:
    """The layers whose name, kind or problem line the regular expression finds."""
    try:
        expression = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise AttributeValueError("--filter", pattern, f"must be a regular expression: {error}") from None
    return [x for x in layers if any(map(expression.search, (x.name, kind(x.problem), str(x.problem))))]


def _seats(sizes: dict[tuple[int, str], int], count: int) -> dict[tuple[int, str], int]:
    """Seats by largest quotient sqrt(size)/(2*held+1), so the result is deterministic and never exceeds a size."""
    held = dict.fromkeys(sizes, 0)
    for _ in range(min(count, sum(sizes.values()))):
        open_keys = [key for key in sizes if held[key] < sizes[key]]
        held[max(open_keys, key=lambda key: (held[key] == 0, sqrt(sizes[key]) / (2 * held[key] + 1)))] += 1
    return held


def _evenly(members: list[Layer], seats: int) -> list[Layer]:
    """`seats` members at even steps of rank by work: the middle of each of `seats` equal parts."""
    ordered = sorted(members, key=lambda layer: (layer.problem.macs, layer.name))
    return [ordered[(2 * seat + 1) * len(ordered) // (2 * seats)] for seat in range(seats)]
