"""Where the table `SCALE` of `plan/choose.py` comes from: prices held against the clock.

    python -m unstride.bench.learn --layers 120

draws random layers that are in no list, in both directions and layouts, times every kernel that could compute them, and
prints by how much each kind of kernel exceeds its model relative to the direct kernel, and what the planner's choices
lose against the best ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import exp, log
from statistics import median
from time import perf_counter

import numpy as np

from unstride.bench.layers import as_variant, unseen
from unstride.plan.choose import KINDS
from unstride.problem import Problem
from unstride.runtime.buffers import allocated
from unstride.runtime.machine import host
from unstride.runtime.pool import current_threads
from unstride.runtime.program import pack

__all__ = ["main"]

_SECONDS = 0.25  # for the kernels of one layer
_SHOWN = 5


def main(arguments: list[str] | None = None) -> int:
    """Time the kernels of random layers and print what the models leave out."""
    parser = argparse.ArgumentParser(prog="python -m unstride.bench.learn", description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=120, help="random layers (120)")
    parser.add_argument("--seed", type=int, default=1, help="which layers (1)")
    options = parser.parse_args(arguments)
    excess: dict[str, list[float]] = {kind: [] for kind in KINDS}
    losses = []
    for index, problem in enumerate(_problems(options.layers, options.seed)):
        prices, times, chosen = _timed(problem)
        sys.stderr.write(f"\r{index + 1}/{options.layers} ")
        for kind in times if "direct" in times else ():
            excess[kind].append((times[kind] / times["direct"]) / (prices[kind] / prices["direct"]))
        losses.append((times[chosen] / min(times.values()), chosen, min(times, key=lambda kind: times[kind]), problem))
    sys.stderr.write("\n")
    print(f"{host().isa.name}, {current_threads()} threads, {options.layers} layers of seed {options.seed}")
    print("kind      layers  time over price, relative to direct: median (quarter, three quarters)")
    for kind, values in excess.items():
        if values:
            low, high = np.quantile(values, (0.25, 0.75))
            print(f"{kind:9} {len(values):6}  {median(values):.2f} ({low:.2f}, {high:.2f})")
    mean = exp(sum(log(loss) for loss, *_ in losses) / len(losses))
    good = sum(loss < 1.05 for loss, *_ in losses) / len(losses)
    print(f"the planner's choice takes {mean:.3f} times as long as the best (geometric mean);")
    print(f"within 5 % of it in {good:.0%} of the layers; the worst:")
    for loss, chosen, best, problem in sorted(losses, key=lambda row: -row[0])[:_SHOWN]:
        print(f"{loss:5.2f}  {chosen} instead of {best}: {problem}")
    return 0


def _problems(count: int, seed: int) -> Iterator[Problem]:
    for index, layer in enumerate(unseen(count, seed)):
        direction = "gather" if index % 3 == 2 else "scatter"
        yield as_variant(layer, direction=direction, dtype="f32", layout="NXC" if index % 2 else "NCX").problem


def _timed(problem: Problem) -> tuple[dict[str, float], dict[str, float], str]:
    """Prices and least seconds of every kind of kernel, and the planner's choice."""
    threads, draw = current_threads(), np.random.default_rng(0)
    data, filter = (draw.standard_normal(shape, np.float32) for shape in (problem.data_shape, problem.filter_shape))
    result = allocated(problem.result_shape, problem.dtype)
    weights = pack(problem.structure, host(), filter, None)
    program = weights.program
    machine = program.machine
    prices = program.plans.prices(problem, machine)
    steps = {kind: program.step_of(kind, problem, threads) for kind in prices}
    for step in steps.values():
        weights.launch(step, data, result)
    times = dict.fromkeys(prices, float("inf"))
    end = perf_counter() + _SECONDS
    while True:
        for kind, step in steps.items():
            start = perf_counter()
            weights.launch(step, data, result)
            times[kind] = min(times[kind], perf_counter() - start)
        if perf_counter() > end:
            return prices, times, program.plans.cheapest(problem, machine)


if __name__ == "__main__":
    sys.exit(main())
