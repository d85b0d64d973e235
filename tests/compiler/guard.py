"""Random cases between inaccessible pages: `python -m tests.compiler.guard --problems 5000 --seed 0`.

Every problem runs with its arrays flush with the end, then with the start, of their pages, on 1, 2 and 7 threads. Data,
filter and bias are mapped read-only. Packed weights and scratch lie between walls, too, as small as the runtime asks
for. Results must also be exact. The runs happen in child processes; a child that dies names the case that killed it.

`--plant load+1` compiles kernels that load one element too far (`pack`: the packer only; `store`: stores): every such
run must be caught.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.compiler import judge
from tests.compiler.cases import Case
from tests.compiler.lattice import cases
from tests.compiler.walled import Wall
from unstride.codegen.numbers import Numbers
from unstride.problem import Problem
from unstride.runtime import packing, program
from unstride.runtime.machine import host

THREADS = (1, 2, 7)
PLANTS = ("pack+1", "pack-1", "load+1", "load-1", "store+1", "store-1")
_ROOM = 4 * 2**20
_CHUNK = 500


class Room:
    """One wall for every array of a call."""

    def __init__(self) -> None:
        self.data, self.filter, self.bias, self.result = (Wall(_ROOM) for _ in range(4))
        self.packed, self.scratch = Wall(16 * _ROOM), Wall(16 * _ROOM)

    @contextmanager
    def private_buffers(self) -> Iterator[None]:
        """Packed weights and scratch end exactly where the runtime's own request ends."""

        def aligned_empty(count: int, dtype: Any) -> Any:
            size = np.dtype(dtype).itemsize
            whole = self.packed.array((-(-count * size // 64) * 64 + 64,), np.uint8, at_end=True)
            return whole[: count * size + 64].view(dtype)

        def take_scratch(count: int) -> Any:
            return self.scratch.array((-(-count // 64) * 64,), np.uint8, at_end=True)

        with (
            mock.patch.object(packing, "aligned_empty", aligned_empty),
            mock.patch.object(program, "_take_scratch", take_scratch),
            mock.patch.object(program, "_free_scratch", [None] * 4),  # full: nothing is kept for the next call
        ):
            yield

    def run(self, case: Case, *, at_end: bool) -> str:
        """What is wrong with the result; empty if nothing is. A byte too far does not return."""
        operands = judge.exact_operands(case)
        walled = [
            self._sealed(wall, values, at_end)
            for wall, values in zip((self.data, self.filter, self.bias), operands, strict=True)
        ]
        result = self.result.array(case.problem.result_shape, walled[0].dtype, at_end=at_end)
        result[...] = np.nan
        with self.private_buffers():
            got = judge.run(case, *walled, result)
        return judge.fault(case, got, *operands)

    def _sealed(self, wall: Wall, values: Any, at_end: bool) -> Any:
        if values is None:
            return None
        array = wall.array(values.shape, values.dtype, at_end=at_end)
        array[...] = values
        wall.seal()
        array.flags.writeable = False
        return array


def variants(case: Case) -> Iterator[tuple[str, Case, bool]]:
    for at_end in (True, False):
        for threads in THREADS:
            yield f"{'end' if at_end else 'start'} {threads} threads", replace(case, threads=threads), at_end


def work(first: int, last: int, seed: int, few_kernels: bool, progress: Path) -> int:
    """The child's part: cases [first, last). Prints one line for each wrong result."""
    room, wrong = Room(), 0
    for index, case in enumerate(cases(last, seed, few_kernels=few_kernels)):
        if index < first:
            continue
        for name, variant, at_end in variants(case):
            progress.write_text(f"{index} {name}")
            if fault := room.run(variant, at_end=at_end):
                wrong += 1
                print(f"{variant} {name}: {fault}", flush=True)
    return 1 if wrong else 0


def survey(problems: int, seed: int, *, few_kernels: bool = False) -> Iterator[str]:
    """One line for each wrong result and each death."""
    with tempfile.TemporaryDirectory() as folder:
        progress, first = Path(folder, "progress"), 0
        while first < problems:
            last = min(first + _CHUNK, problems)
            options = [f"--first={first}", f"--last={last}", f"--seed={seed}", f"--progress={progress}"]
            child = _child([*options, "--few-kernels"] if few_kernels else options)
            yield from child.stdout.splitlines()
            if child.returncode in (0, 1) and not child.stderr.strip():
                first = last
                continue
            at, _, name = progress.read_text().partition(" ")
            case = list(cases(int(at) + 1, seed, few_kernels=few_kernels))[-1]
            yield f"{case} {name}: exit {child.returncode} {child.stderr.strip()[-300:]}"
            first = int(at) + 1


def _child(options: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.compiler.guard", *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


# --- planted errors --------------------------------------------------------------------------------------------------


@contextmanager
def planted(plant: str, dtype: str) -> Iterator[None]:
    """Kernels generated inside the block load from (or store to) user memory one element off."""
    what, shift = plant[:-2], int(plant[-2:])
    if what == "pack":
        what = "load"
    else:
        packing._code(dtype, host().isa)  # the packer runs first: keep it right, to see whether the kernel is caught
    right = getattr(Numbers, what)

    def wrong(self: Numbers, memory: Any, offset: Any, *rest: Any) -> Any:
        return right(self, memory + shift, offset, *rest)

    with mock.patch.object(Numbers, what, wrong):
        yield


def planted_case(index: int) -> Case:
    """Problems whose every element is read and written, so that an element off is outside on one side."""
    direction, layout = ("scatter", "gather")[index & 1], ("NCX", "NXC")[index >> 1 & 1]
    head = (direction, ("f32", "f64")[index >> 2 & 1], layout, "GIOX", 1 + index % 3, 1)
    x, k = 4 + index % 7, 1 + index % 3
    return Case(Problem(*head, 64, 64, (x, x), (k, k), (1, 1), (1, 1), (0, 0), (x + k - 1,) * 2), seed=index)


def caught(plant: str, index: int) -> bool:
    """Whether a child with the planted error dies of a signal."""
    with tempfile.TemporaryDirectory() as folder:
        return _child([f"--plant={plant}", f"--first={index}"], UNSTRIDE_CACHE_DIR=folder).returncode < 0


def run_planted(plant: str, index: int) -> int:
    case = planted_case(index)
    with planted(plant, case.problem.dtype):
        Room().run(case, at_end=plant.endswith("+1"))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--few-kernels", action="store_true", help="tie the activation to type and layout")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--last", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--plant", choices=PLANTS)
    options = parser.parse_args()
    if options.plant:
        return run_planted(options.plant, options.first or 0)
    if options.progress:
        return work(options.first, options.last, options.seed, options.few_kernels, options.progress)
    start, faults = time.perf_counter(), 0
    for line in survey(options.problems, options.seed, few_kernels=options.few_kernels):
        faults += 1
        print(f"  {line}", flush=True)
    runs = options.problems * 2 * len(THREADS)
    missed = [f"{plant} {index}" for plant in PLANTS for index in range(5) if not caught(plant, index)]
    seconds = time.perf_counter() - start
    print(f"{options.problems} problems, {runs} runs between walls: {faults} faults, {seconds:.0f} s")
    print(f"{5 * len(PLANTS)} planted errors: {len(missed)} missed {missed or ''}")
    return 1 if faults or missed else 0


if __name__ == "__main__":
    sys.exit(main())
