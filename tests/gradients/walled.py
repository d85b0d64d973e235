"""Weight gradients between inaccessible pages: `python -m tests.gradients.walled --problems 300 --seed 0`.

Both operands are read-only, flush with the end and then with the start of their pages; so are the result and the
scratch, which is as small as the runtime asks for. One element too far kills the process, whose last line then names
the problem. `--plant 1` makes the strips' fill read one element too many: that must kill it.
"""

from __future__ import annotations

import argparse
import os
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from tests.compiler.walled import Wall
from tests.gradients.arrays import integers
from unstride.cases import random_problem
from unstride.codegen.numbers import Numbers
from unstride.problem import Problem
from unstride.reference import filter_gradient_reference
from unstride.runtime import gradients

_ROOM = 4 << 20


class Room:
    """A wall for each array."""

    def __init__(self) -> None:
        self.small, self.large, self.result, self.scratch = Wall(_ROOM), Wall(_ROOM), Wall(_ROOM), Wall(32 << 20)

    def run(self, problem: Problem, seed: int, threads: int, *, at_end: bool) -> None:
        operands = integers(problem, seed)
        sealed = []
        for wall, values in zip((self.small, self.large), operands, strict=True):
            array = wall.array(values.shape, values.dtype, at_end=at_end)
            array[...] = values
            wall.seal()
            sealed.append(array)
        out = self.result.array(problem.filter_shape, operands[0].dtype, at_end=at_end)
        out[...] = np.nan
        with (
            mock.patch.object(gradients, "_take_scratch", self._scratch),
            mock.patch.object(gradients, "_free_scratch", [None] * 9),  # full: nothing is kept for the next call
        ):
            gradients.filter_gradient(problem, *sealed, threads=threads, out=out)
        expected = filter_gradient_reference(problem, *operands).astype(out.dtype)
        if not np.array_equal(out, expected):
            raise AssertionError(f"wrong numbers: {problem}")

    def _scratch(self, count: int) -> Any:
        return self.scratch.array((-(-count // 64) * 64,), np.uint8, at_end=True)


def survey(problems: int, seed: int) -> None:
    room, rng = Room(), Random(f"walled gradients {seed}")
    for index in range(problems):
        channels = (1, 2, 3, 7, 8, 13, 16, 17, 31, 33) if index % 2 else (1, 2, 4, 5)
        problem = random_problem(rng, channels=channels, dtypes=("f32", "bf16"), max_macs=500_000)
        print(problem, flush=True)
        for at_end in (True, False):
            room.run(problem, index, 1 + index % 3, at_end=at_end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", type=int, default=0)
    options = parser.parse_args()
    if options.plant:
        os.environ["UNSTRIDE_CACHE_DIR"] = os.devnull  # what is compiled here must not be found by others
        true_load = Numbers.load
        shift = options.plant
        Numbers.load = lambda self, source, offset, lanes=0: true_load(self, source + shift, offset, lanes)  # type: ignore[method-assign]
        mock.patch.object(
            Room, "run", lambda room, problem, seed, threads, at_end: _unchecked(room, problem, at_end)
        ).start()
    survey(options.problems, options.seed)


def _unchecked(room: Room, problem: Problem, at_end: bool) -> None:
    """Run for the signal alone."""
    small = room.small.array(problem.small_shape, integers(problem, 0)[0].dtype, at_end=at_end)
    large = room.large.array(problem.large_shape, small.dtype, at_end=at_end)
    gradients.filter_gradient(problem, small, large, threads=1)


if __name__ == "__main__":
    main()
