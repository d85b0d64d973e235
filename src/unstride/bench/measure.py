"""Interleaved timing: in each round every contender runs a calibrated number of times, and the order turns.

A contender is timed only after the judge has accepted its result. Its figure in a round is the median of its calls, so
that one that was interrupted does not count; its time is the minimum, and the median, over rounds. A ratio is taken
between figures of the same rounds, never between runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

from unstride.bench.bystanders import Bystanders
from unstride.bench.case import Case, Verdict, judge, make_case
from unstride.bench.contender import Contender, Prepared, Unsupported
from unstride.bench.layers import Layer
from unstride.bench.limits import Limits

__all__ = ["Effort", "LayerResult", "Outcome", "measure_layer", "plan_rounds"]

SETTLE_SECONDS = 0.1
"""Thread pools spin for a while after their last call, and take a core from whoever comes next: let them go to sleep.
Measured with three peers on two cores: after 2 ms a contender lost up to a quarter of its speed, after 100 ms nothing.

The cores do not sleep meanwhile, for that is when the limit of multiply-adds is measured, as every contender is: by the
median over a block, of which the best round counts. Virtual processors that had slept would share a core with somebody
for the next 40 ms and more: a layer of 102 us then took 155 in the median, and the limit was that of another state.
Half a block of calls is not timed, after which caches are warm: 17 MB of weights were back after five.
"""


@dataclass(frozen=True)
class Effort:
    """How much time a layer may take: at most `rounds` rounds of about `block_seconds` for each contender."""

    rounds: int = 15
    block_seconds: float = 0.015
    layer_seconds: float = 12.0
    least_rounds: int = 3

    @property
    def slow_seconds(self) -> float:
        """A call longer than this is timed once: in rounds it would eat the time of everyone else."""
        return self.layer_seconds / (2 * self.least_rounds)


@dataclass
class Outcome:
    """What became of one contender on one layer. `status`: timed, unsupported, wrong, failed."""

    status: str
    reason: str = ""
    note: str = ""
    first_result_seconds: float = 0.0
    min_seconds: float = 0.0
    median_seconds: float = 0.0
    iterations: int = 0
    error: float = 0.0

    def add_note(self, text: str) -> None:
        self.note = f"{self.note}; {text}" if self.note else text


@dataclass
class LayerResult:
    """One row of the benchmark; `as_dict` is one line of the saved file."""

    layer: str
    problem: str
    threads: int
    rounds: int
    fma_flops_per_second: float
    copy_bytes_per_second: float | None
    others_busy: float | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    large_copy_bytes_per_second: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LayerResult:
        outcomes = {name: Outcome(**outcome) for name, outcome in values["outcomes"].items()}
        return cls(**{**values, "outcomes": outcomes})


def measure_layer(layer: Layer, contenders: Sequence[Contender], limits: Limits, effort: Effort) -> LayerResult:
    """Prepare, judge and time every contender on one layer."""
    case = make_case(layer.problem, limits.threads)
    outcomes, prepared = _prepare_all(case, contenders)
    _judge_all(case, prepared, outcomes, effort.slow_seconds)
    running = {name: ready.call for name, ready in prepared.items() if _takes_part(outcomes[name])}
    others = Bystanders()
    with _no_collection():
        counts = {name: _calibrate(call, effort.block_seconds) for name, call in running.items()}
        block = sum(count.seconds for count in counts.values())
        rounds = plan_rounds(block, effort)
        times, fma, copy, large_copy = _rounds(running, counts, rounds, limits, layer)
    for name, values in times.items():
        outcome = outcomes[name]
        outcome.min_seconds, outcome.median_seconds = min(values), median(values)
        outcome.iterations = counts[name].iterations
    figures = (limits.threads, rounds, fma, copy, others.share(), outcomes, large_copy)
    return LayerResult(layer.name, str(layer.problem), *figures)


def plan_rounds(block_seconds: float, effort: Effort) -> int:
    """As many rounds as asked for and as the layer's time allows, but never fewer than `least_rounds`.

    >>> plan_rounds(0.1, Effort(rounds=9)), plan_rounds(3.0, Effort(rounds=9)), plan_rounds(60.0, Effort(rounds=9))
    (9, 4, 3)
    """
    affordable = int(effort.layer_seconds / block_seconds) if block_seconds else effort.rounds
    return max(min(effort.least_rounds, effort.rounds), min(effort.rounds, affordable))


def _prepare_all(case: Case, contenders: Sequence[Contender]) -> tuple[dict[str, Outcome], dict[str, Prepared]]:
    outcomes: dict[str, Outcome] = {}
    prepared: dict[str, Prepared] = {}
    for contender in contenders:
        start = perf_counter()
        try:
            ready = contender.prepare(case)
            ready.call()
        except Unsupported as refusal:
            outcomes[contender.name] = Outcome("unsupported", str(refusal))
        except Exception as error:  # a peer's own error types are as many as the peers
            outcomes[contender.name] = Outcome("failed", f"{type(error).__name__}: {error}"[:300])
        else:
            prepared[contender.name] = ready
            outcomes[contender.name] = Outcome("timed", note=ready.note(), first_result_seconds=perf_counter() - start)
    return outcomes, prepared


def _takes_part(outcome: Outcome) -> bool:
    return outcome.status == "timed" and not outcome.iterations


def _judge_all(case: Case, prepared: dict[str, Prepared], outcomes: dict[str, Outcome], slow_seconds: float) -> None:
    """Mark what is wrong, and time once, here, what is too slow for rounds."""
    results = {}
    for name, ready in prepared.items():
        start = perf_counter()
        try:
            results[name] = ready.result()
            _note_if_slow(outcomes[name], ready.call, perf_counter() - start, slow_seconds)
        except Exception as error:
            outcomes[name] = Outcome("failed", f"{type(error).__name__}: {error}"[:300])
    verdicts: dict[str, Verdict] = judge(case, results) if results else {}
    for name, verdict in verdicts.items():
        outcome = outcomes[name]
        outcome.error = verdict.error
        if verdict.wrong:
            outcome.status, outcome.reason = "wrong", verdict.wrong
        elif verdict.coarse:
            outcome.add_note("rounds partial sums to the 16-bit type")


def _note_if_slow(outcome: Outcome, call: Callable[[], object], seconds: float, limit: float) -> None:
    """A second call decides: the first may have been interrupted."""
    if seconds > limit and (seconds := min(seconds, *_block(call, 1))) > limit:
        outcome.min_seconds = outcome.median_seconds = seconds
        outcome.iterations = 1
        outcome.add_note("not interleaved, the better of two calls: too slow for rounds")


@dataclass(frozen=True)
class _Calibration:
    iterations: int
    seconds: float  # of one block


def _calibrate(call: Callable[[], object], block_seconds: float) -> _Calibration:
    """How many calls fill a block: doubled until the block is long enough to trust, then scaled."""
    iterations = 1
    while True:
        seconds = sum(_block(call, iterations))
        if seconds >= block_seconds / 4:
            break
        iterations *= 2
    wanted = max(1, round(iterations * block_seconds / seconds))
    return _Calibration(wanted, seconds * wanted / iterations)


def _rounds(
    running: dict[str, Callable[[], object]],
    counts: dict[str, _Calibration],
    rounds: int,
    limits: Limits,
    layer: Layer,
) -> tuple[dict[str, list[float]], float, float | None, float | None]:
    """Seconds per call of each contender in each round, and the best of the limits seen between them."""
    names = list(running)
    times: dict[str, list[float]] = {name: [] for name in names}
    itemsize = 8 if layer.problem.dtype == "f64" else 4
    peaks: list[float] = []
    copies, large_copies = [], []
    for turn in range(rounds):
        for name in _rotated(names, turn):
            peaks.append(limits.fma_for(SETTLE_SECONDS, itemsize))
            iterations = counts[name].iterations
            _block(running[name], (iterations + 1) // 2)
            times[name].append(median(_block(running[name], iterations)))
        peaks.append(limits.fma_for(SETTLE_SECONDS, itemsize))
        copies.append(limits.copy_bytes_per_second(layer.problem.bytes))
        large_copies.append(limits.copy_bytes_per_second())
    return times, max(peaks), _most(copies), _most(large_copies)


def _most(speeds: list[float | None]) -> float | None:
    return max((speed for speed in speeds if speed is not None), default=None)


def _rotated(names: list[str], turn: int) -> list[str]:
    """Every contender comes after every other in turn, so that no one always follows the one that warms the machine."""
    shift = turn % len(names) if names else 0
    return names[shift:] + names[:shift]


def _block(call: Callable[[], object], iterations: int) -> list[float]:
    """The seconds of each of `iterations` calls in a row."""
    stamps = [perf_counter()]
    for _ in range(iterations):
        call()
        stamps.append(perf_counter())
    return [end - start for start, end in pairwise(stamps)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector must not run in one contender's block for garbage of another."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
