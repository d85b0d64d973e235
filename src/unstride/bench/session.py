"""One run: choose the layers, measure them one after the other within the budget, save each as it is finished."""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from unstride.bench.contender import Contender
from unstride.bench.layers import Layer, as_variant, unseen, workloads
from unstride.bench.limits import Limits
from unstride.bench.measure import Effort, LayerResult, measure_layer
from unstride.bench.ours import OURS, Unstride
from unstride.bench.peers import DEFAULT_PEERS, PEERS, installed
from unstride.bench.probe import Probed
from unstride.bench.records import Run, open_run
from unstride.bench.selection import REPRESENTATIVE_COUNT, matching, representative, shortest
from unstride.errors import AttributeValueError
from unstride.problem import DTYPE_BYTES, Problem
from unstride.runtime.machine import usable_cores

__all__ = ["chosen_layers", "measure", "ours_is_wrong"]

SUBSET_BUDGET_SECONDS = 540.0
QUICK_LAYERS = 16
DEFAULT_FILE = Path("unstride-bench.jsonl")
OPEN_SIZE = 32
"""Stands for a spatial size that a model file leaves open."""


def measure(options: argparse.Namespace) -> Run:
    """Measure what the options ask for; Ctrl-C ends the run early and keeps what is finished."""
    layers = chosen_layers(options)
    peers = _peer_names(options.peers)
    threads = options.threads or usable_cores()
    settings = {
        "peers": list(peers),
        "threads": threads,
        "accuracy": options.accuracy,
        "rounds": _effort(options).rounds,
    }
    run = open_run(settings, options.save or DEFAULT_FILE, resume=options.resume)
    waiting = [layer for layer in layers if str(layer.problem) not in run.finished]
    keep_freed_memory()
    limits = Limits(threads)
    try:
        for layer, effort in _paced(waiting, _effort(options), _budget(options), _say):
            contenders = _contenders(layer, peers, options)
            run.add(measure_layer(layer, contenders, limits, effort))
            _say(f"  {_one_line(run.results[-1])}\n")
    except KeyboardInterrupt:
        _say(f"\nstopped after {len(run.results)} layers; --resume goes on\n")
    finally:
        limits.close()
    _say(f"saved to {run.path}\n")
    return run


def chosen_layers(options: argparse.Namespace) -> list[Layer]:
    """The layers the options name, in every direction, type and layout they name."""
    layers = _named_layers(options)
    if options.filter:
        layers = matching(layers, options.filter)
    if not _explicit(options) and not options.all:
        layers = _sampled(layers, quick=options.quick)
    if not layers:
        raise AttributeValueError("--filter", options.filter, "no layer is left", "try a wider expression, or --all")
    variants = [layer for layer in layers for layer in _variants(layer, options)]
    return list({str(layer.problem): layer for layer in variants}.values())


def _sampled(layers: list[Layer], *, quick: bool) -> list[Layer]:
    """A stratified sample where there are too many; a filter that leaves few keeps all of them."""
    if len(layers) <= (QUICK_LAYERS if quick else REPRESENTATIVE_COUNT):
        return layers
    return shortest(layers, QUICK_LAYERS) if quick else representative(layers)


def ours_is_wrong(run: Run) -> bool:
    """True if a result of this package was outside the bound, or it failed, anywhere."""
    return any(
        OURS in result.outcomes and result.outcomes[OURS].status in ("wrong", "failed") for result in run.results
    )


def keep_freed_memory() -> None:
    """Ask glibc to reuse freed memory instead of giving it back: torch's results would be page faults otherwise.

    Everyone gets this setting; it helps engines that allocate a new result for every call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def _explicit(options: argparse.Namespace) -> bool:
    return bool(options.problem or options.unseen or options.file)


def _named_layers(options: argparse.Namespace) -> list[Layer]:
    if not _explicit(options):
        return workloads()
    lines = [Layer(f"problem/{number}", Problem.parse(line)) for number, line in enumerate(options.problem or ())]
    files = [layer for path in options.file for layer in _file_layers(path)]
    return [*lines, *files, *(unseen(options.unseen, options.seed) if options.unseen else ())]


def _file_layers(path: Path) -> list[Layer]:
    from unstride import formats

    layers = []
    for found in formats.read(path):
        if found.shape_is_computed and found.output_shape is None:
            _say(f"{path.name}: {found.name} is left out: the model computes its output_shape\n")
            continue
        batch, *rest = found.data_shape
        shape = (1 if batch is None else batch, *(OPEN_SIZE if size is None else size for size in rest))
        if None in found.data_shape:
            _say(f"{path.name}: {found.name} leaves sizes open; measured at {shape}\n")
        problem = found.operator.problem(shape, found.filter_shape, found.output_shape, found.dtype)
        layers.append(Layer(f"{path.name}/{found.name}", problem, str(path.name)))
    return layers


def _variants(layer: Layer, options: argparse.Namespace) -> Iterator[Layer]:
    """A problem line keeps its own direction, type and layout where no option says otherwise."""
    own = bool(options.problem) and layer.name.startswith("problem/")
    problem = layer.problem
    for direction in _choice(options.direction, ("scatter", "gather"), problem.direction if own else "scatter"):
        for dtype in _dtypes(options.dtype, problem.dtype if own or options.file else "f32"):
            for layout in _choice(options.layout, ("ncx", "nxc"), problem.data_layout.lower() if own else "both"):
                yield as_variant(layer, direction=direction, dtype=dtype, layout=layout.upper(), batch=options.batch)


def _choice(given: str | None, both: tuple[str, str], default: str) -> tuple[str, ...]:
    value = given or default
    return both if value == "both" else (value,)


def _dtypes(given: str | None, default: str) -> list[str]:
    names = (given or default).split(",")
    for name in names:
        if name not in DTYPE_BYTES:
            raise AttributeValueError("--dtype", name, f"must be of {', '.join(DTYPE_BYTES)}, joined by commas")
    return names


def _peer_names(given: str | None) -> tuple[str, ...]:
    if given is None:
        return installed(DEFAULT_PEERS)
    names = () if given == "none" else tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in PEERS:
            raise AttributeValueError("--peers", name, f"must be of {', '.join(PEERS)}, or none")
        if not installed((name,)):
            raise AttributeValueError("--peers", name, "is not installed", "install it or leave it out")
    return names


def _contenders(layer: Layer, peers: tuple[str, ...], options: argparse.Namespace) -> list[Contender]:
    layout = layer.problem.data_layout
    ours: list[Contender] = [] if options.without_ours else [Unstride(options.accuracy)]
    theirs = [peer for name in peers for peer in PEERS[name] if layout in peer.layouts]
    return ours + [Probed(peer, options.time_limit) if peer.name == "jax" else peer for peer in theirs]


def _effort(options: argparse.Namespace) -> Effort:
    base = Effort(rounds=7, block_seconds=0.006, layer_seconds=2.0) if options.quick else Effort()
    return replace(base, rounds=options.rounds) if options.rounds else base


def _budget(options: argparse.Namespace) -> float | None:
    if options.budget is not None:
        return float(options.budget)
    return None if options.all or _explicit(options) else SUBSET_BUDGET_SECONDS


def _paced(
    layers: list[Layer], effort: Effort, budget: float | None, say: Callable[[str], Any]
) -> Iterator[tuple[Layer, Effort]]:
    """Each layer with its fair share of the time that is left; what does not fit is named, not dropped in silence."""
    start = perf_counter()
    for index, layer in enumerate(layers):
        share = effort.layer_seconds
        if budget is not None:
            left = budget - (perf_counter() - start)
            if left <= 0:
                say(f"budget of {budget:g} s used: {len(layers) - index} layers are not measured\n")
                return
            share = min(share, left / (len(layers) - index))
        elapsed = perf_counter() - start
        say(f"[{index + 1}/{len(layers)}, {elapsed:.0f} s] {layer.name}  {layer.problem}\n")
        yield layer, replace(effort, layer_seconds=share)


def _one_line(result: LayerResult) -> str:
    flops = Problem.parse(result.problem).flops
    parts = [
        f"{name} {flops / outcome.min_seconds / 1e9:.1f}" if outcome.status == "timed" else f"{name} {outcome.status}"
        for name, outcome in result.outcomes.items()
    ]
    return "GFLOP/s: " + ", ".join(parts) + f"; FMA peak {result.fma_flops_per_second / 1e9:.0f}"


def _say(text: str) -> None:
    """Progress goes to the error stream, so that --json stays clean."""
    sys.stderr.write(text)
    sys.stderr.flush()
