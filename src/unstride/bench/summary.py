"""Arithmetic on finished layers: speed-ups, geometric means, shares. No timing, no printing.

A speed-up is peer time / our time: 2.0 means twice as fast as the peer. The best peer of a layer is the one with the
smallest time of the same kind (minimum or median over rounds).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from typing import Any

from unstride.bench.layers import family
from unstride.bench.measure import LayerResult
from unstride.bench.ours import OURS
from unstride.problem import Problem

__all__ = ["Change", "Group", "Row", "compare", "geometric_mean", "group_rows", "make_row", "share_at_least"]


@dataclass(frozen=True)
class Row:
    """One layer as the report shows it. `speedup` maps each timed peer to peer time / our time, by minima."""

    layer: str
    problem: str
    variant: str
    families: dict[str, str]
    gflops: dict[str, float]
    our_us: float | None = None
    speedup: dict[str, float] = field(default_factory=dict)
    best_peer: str | None = None
    best: float | None = None
    best_by_median: float | None = None
    fma_percent: float | None = None
    copy_percent: float | None = None
    large_copy_percent: float | None = None
    first_result_ms: dict[str, float] = field(default_factory=dict)
    note: str = ""
    trouble: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Group:
    """A family of layers against the best peer of each, and against every peer by name."""

    variant: str
    name: str
    count: int
    best: float
    best_by_median: float
    share_ahead: float
    worst: float
    against: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Change:
    """One layer in two runs; above 1 it became faster against its best peer."""

    layer: str
    variant: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def compare(before: Sequence[Row], after: Sequence[Row]) -> list[Change]:
    """The layers both runs timed against a peer. Speed-ups are compared, not times: machines drift between runs."""
    old = {row.problem: row.best for row in before}
    pairs = [(row, old.get(row.problem), row.best) for row in after]
    return [Change(row.layer, row.variant, a, b) for row, a, b in pairs if a is not None and b is not None]


def make_row(result: LayerResult) -> Row:
    """Everything a layer's row needs, from its times and limits."""
    problem = Problem.parse(result.problem)
    timed = {name: outcome for name, outcome in result.outcomes.items() if outcome.status == "timed"}
    minima = {name: outcome.min_seconds for name, outcome in timed.items()}
    medians = {name: outcome.median_seconds for name, outcome in timed.items()}
    speedup = _speedups(minima)
    by_median = _speedups(medians)
    ours = minima.get(OURS)
    return Row(
        layer=result.layer,
        problem=result.problem,
        variant=f"{problem.direction} {problem.dtype} {problem.data_layout}",
        families=family(problem),
        our_us=None if not ours else 1e6 * ours,
        gflops={name: problem.flops / seconds / 1e9 for name, seconds in minima.items()},
        speedup=speedup,
        best_peer=min(speedup, key=lambda name: speedup[name]) if speedup else None,
        best=min(speedup.values(), default=None),
        best_by_median=min(by_median.values(), default=None),
        fma_percent=None if not ours else 100 * problem.flops / ours / result.fma_flops_per_second,
        copy_percent=_copy_percent(problem, result.copy_bytes_per_second, ours),
        large_copy_percent=_copy_percent(problem, result.large_copy_bytes_per_second, ours),
        first_result_ms={name: 1e3 * outcome.first_result_seconds for name, outcome in timed.items()},
        note=timed[OURS].note if OURS in timed else "",
        trouble={n: f"{o.status}: {o.reason}" for n, o in result.outcomes.items() if o.status != "timed"},
    )


def group_rows(rows: Sequence[Row]) -> list[Group]:
    """All layers of each variant (direction, type, layout), then each of its families, larger ones first."""
    members: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.best is not None:
            members[row.variant, "all"].append(row)
            for key, value in row.families.items():
                members[row.variant, value if key != "kind" else f"kind {value}"].append(row)
    order = sorted(members, key=lambda key: (key[0], key[1] != "all", -len(members[key]), key[1]))
    return [_group(*key, members[key]) for key in order]


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean logarithm; the mean of ratios that treats 2 and 1/2 alike.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    logs = [log(value) for value in values]
    if not logs:
        raise ValueError("the geometric mean of nothing is not defined")
    return exp(sum(logs) / len(logs))


def share_at_least(values: Sequence[float], limit: float) -> float:
    """The part of `values` that is at least `limit`, 0 to 1."""
    return sum(value >= limit for value in values) / len(values)


def _group(variant: str, name: str, rows: list[Row]) -> Group:
    best = [row.best for row in rows if row.best is not None]
    by_median = [row.best_by_median for row in rows if row.best_by_median is not None]
    peers = sorted({peer for row in rows for peer in row.speedup})
    against = {peer: geometric_mean(row.speedup[peer] for row in rows if peer in row.speedup) for peer in peers}
    means = (geometric_mean(best), geometric_mean(by_median))
    return Group(variant, name, len(rows), *means, share_at_least(best, 1.0), min(best), against)


def _speedups(seconds: dict[str, float]) -> dict[str, float]:
    ours = seconds.get(OURS)
    return {name: value / ours for name, value in seconds.items() if name != OURS} if ours else {}


def _copy_percent(problem: Problem, bytes_per_second: float | None, ours: float | None) -> float | None:
    """How close to the time of merely copying the layer's bytes: 100 is the limit of a layer without arithmetic."""
    if not ours or not bytes_per_second:
        return None
    return 100 * problem.bytes / bytes_per_second / ours
