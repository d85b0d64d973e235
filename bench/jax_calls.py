"""JAX layers three ways, in turns: here through XLA's FFI, here through jax.pure_callback, and JAX's own convolution.

    python bench/jax_calls.py [--rounds 9]

The table of docs/bridges/jax.md: median milliseconds of a jitted call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import unstride
from unstride.bridges.jax import conv_transpose

LAYERS = {
    "1D, 8 to 4 channels, 100 long, k16 s8": ((1, 8, 100), (8, 4, 16), 8, 1),
    "1D, 256 to 128 channels, 700 long, k16 s8": ((1, 256, 700), (256, 128, 16), 8, 1),
    "2D, 64 to 32 channels, 128 x 128, k4 s2": ((1, 64, 128, 128), (64, 32, 4, 4), 2, 1),
    "2D depthwise, 64 channels, 64 x 64, k4 s2": ((1, 64, 64, 64), (64, 1, 4, 4), 2, 64),
    "3D, 32 to 16 channels, 16 x 16 x 16, k2 s2": ((1, 32, 16, 16, 16), (32, 16, 2, 2, 2), 2, 1),
}


def own(x: Any, w: Any, stride: int, groups: int) -> Any:
    """The same layer as a convolution of zero-stuffed data with a flipped filter, as JAX users write it."""
    rank = w.ndim - 2
    blocks = w.reshape(groups, -1, *w.shape[1:])
    kernel = jnp.flip(jnp.concatenate(jnp.swapaxes(blocks, 1, 2)), range(2, w.ndim))
    pads = [(k - 1, k - 1) for k in w.shape[2:]]
    letters = "XYZ"[:rank]
    order = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    ones = (1,) * rank
    return jax.lax.conv_general_dilated(x, kernel, ones, pads, (stride,) * rank, ones, order, groups)


def called_back(x: Any, w: Any, stride: int, groups: int) -> Any:
    shape = jax.eval_shape(lambda x, w: own(x, w, stride, groups), x, w)

    def run(x: Any, w: Any) -> Any:
        return unstride.conv_transpose(np.asarray(x), np.asarray(w), stride=stride, groups=groups)

    return jax.pure_callback(run, shape, x, w)


def through_ffi(x: Any, w: Any, stride: int, groups: int) -> Any:
    return conv_transpose(x, w, stride=stride, groups=groups)


def measure(
    shape: tuple[int, ...], filter_shape: tuple[int, ...], stride: int, groups: int, rounds: int
) -> list[float]:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(size, dtype=np.float32)) for size in (shape, filter_shape))
    ways: list[Callable[..., Any]] = [through_ffi, called_back, own]
    calls = [jax.jit(lambda x, w, way=way: way(x, w, stride, groups)) for way in ways]
    results = [np.asarray(call(x, w)) for call in calls]
    for result in results[:2]:
        np.testing.assert_allclose(result, results[2], rtol=1e-3, atol=1e-3)
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for call, seconds in zip(calls, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call(x, w))
            seconds.append(time.perf_counter() - start)
    return [1e3 * statistics.median(seconds) for seconds in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print("| layer | here, FFI | here, pure_callback | JAX's own |")
    print("|---|---|---|---|")
    for name, case in LAYERS.items():
        print(f"| {name} | " + " | ".join(f"{ms:.2f}" for ms in measure(*case, options.rounds)) + " |", flush=True)


if __name__ == "__main__":
    main()
