"""Weight gradients beside torch's, layer by layer: `python -m unstride.bench.gradients --every 3 --threads 1`.

torch computes `convolution_backward` with only the weights asked for, in the same layout. Both sides run in turns; a
layer counts by its minima, and only after both gave the same numbers. With `--cpu-time` the processor's time of the
calling thread is taken instead of the clock's, which other processes disturb less (for `--threads 1` only).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.bench.contender import Unsupported, crops
from unstride.bench.layers import as_variant, kind, workloads
from unstride.bench.summary import geometric_mean
from unstride.bench.torch_peer import to_torch
from unstride.problem import Problem
from unstride.runtime.gradients import filter_gradient

__all__ = ["main"]

Call = Callable[[], Any]


def main() -> None:
    """Print a line for each layer and the geometric means."""
    options = _options()
    import torch

    torch.set_num_threads(options.threads)
    clock = thread_time if options.cpu_time else perf_counter
    for layout in options.layout.split(","):
        ratios: dict[str, list[float]] = defaultdict(list)
        for problem in _problems(layout, options.every, options.max_gflop):
            try:
                ours, theirs = _contenders(problem, options.threads)
            except Unsupported:
                continue
            mine, other = _minima((ours, theirs), clock, options.seconds)
            ratios[kind(problem)].append(other / mine)
            rate = problem.flops / mine / 1e9
            print(
                f"{problem}  {mine * 1e6:.0f} us  {rate:.1f} GFLOP/s  torch {other * 1e6:.0f} us  {other / mine:.2f}x"
            )
        _report(layout, ratios)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", default="NXC,NCX")
    parser.add_argument("--every", type=int, default=1, help="take every n-th layer of the workloads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each layer, at least three rounds")
    parser.add_argument("--max-gflop", type=float, default=20.0)
    parser.add_argument("--cpu-time", action="store_true")
    return parser.parse_args()


def _problems(layout: str, every: int, max_gflop: float) -> Iterator[Problem]:
    for layer in workloads()[::every]:
        problem = as_variant(layer, direction="scatter", dtype="f32", layout=layout).problem
        if problem.flops <= max_gflop * 1e9:
            yield problem


def _contenders(problem: Problem, threads: int) -> tuple[Call, Call]:
    """Both calls, on the same numbers, after their results were compared."""
    rng = np.random.default_rng(0)
    small, large = (rng.standard_normal(s, dtype=np.float32) for s in (problem.small_shape, problem.large_shape))
    theirs = _torch_call(problem, small, large)
    expected = theirs().numpy().reshape(problem.groups, problem.ci, problem.co, *problem.kernel)
    got = _as_torch(problem, filter_gradient(problem, small, large))
    scale = np.abs(expected).max() or 1.0
    if np.abs(got - expected).max() > 1e-3 * scale:
        raise RuntimeError(f"two different gradients: {problem}")
    return lambda: filter_gradient(problem, small, large, threads=threads), theirs


def _as_torch(problem: Problem, gradient: NDArray[Any]) -> NDArray[Any]:
    """[G, ci, co, K...], from GIOX or XGIO."""
    return gradient if problem.filter_layout == "GIOX" else np.moveaxis(gradient, (-3, -2, -1), (0, 1, 2))


def _torch_call(problem: Problem, small: NDArray[Any], large: NDArray[Any]) -> Call:
    import torch

    axes = list(zip(crops(problem), problem.stride, problem.dilation, strict=True))
    if any(begin < 0 or not 0 <= begin - end < max(s, d) for (begin, end), s, d in axes):
        raise Unsupported("torch pads both ends alike")
    data, delta = to_torch(small), to_torch(large)
    weights = torch.zeros(problem.groups * problem.ci, problem.co, *problem.kernel)
    lists = [list(problem.stride), list(problem.begin), list(problem.dilation), [b - e for (b, e), _, _ in axes]]
    if problem.data_layout == "NXC":
        data, delta = data.movedim(-1, 1), delta.movedim(-1, 1)
        if problem.rank == 1:  # torch has no channels-last of rank 1
            data, delta, weights = data.unsqueeze(2), delta.unsqueeze(2), weights.unsqueeze(2)
            lists = [[neutral, *values] for neutral, values in zip((1, 0, 1, 0), lists, strict=True)]
        memory = torch.channels_last_3d if problem.rank == 3 else torch.channels_last
        data, delta, weights = (tensor.contiguous(memory_format=memory) for tensor in (data, delta, weights))
    stride, padding, dilation, extra = lists
    arguments = (None, stride, padding, dilation, True, extra, problem.groups, [False, True, False])
    return lambda: torch.ops.aten.convolution_backward(delta, data, weights, *arguments)[1]


def _minima(calls: tuple[Call, Call], clock: Callable[[], float], seconds: float) -> list[float]:
    best = [float("inf")] * len(calls)
    start, rounds = clock(), 0
    while rounds < 3 or clock() - start < seconds:
        for index, call in enumerate(calls):
            before = clock()
            call()
            best[index] = min(best[index], clock() - before)
        rounds += 1
    return best


def _report(layout: str, ratios: dict[str, list[float]]) -> None:
    every = [ratio for values in ratios.values() for ratio in values]
    print(f"{layout}: {geometric_mean(every):.2f}x torch in the geometric mean of {len(every)} layers")
    for name, values in sorted(ratios.items()):
        print(f"  {name:12} {geometric_mean(values):6.2f}x  {len(values)} layers")


if __name__ == "__main__":
    main()
