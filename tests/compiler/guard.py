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
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.compiler import judge
from tests.compiler.cases import Case
from tests.compiler.lattice import cases
from tests.compiler.walled import Wall
from unstride.codegen.box import Box
from unstride.codegen.numbers import Numbers
from unstride.plan.job import Job
from unstride.problem import DTYPE_BYTES, Problem
from unstride.runtime import packing, program
from unstride.runtime.machine import host

THREADS = (1, 2, 7)
PLANTS = ("pack+1", "pack-1", "load+1", "load-1", "store+1", "store-1")
_ROOM = 32 * 2**20
_CHUNK = 500


class Room:
    """One wall for every array of a call."""

    def __init__(self) -> None:
        self.data, self.filter, self.bias, self.result = (Wall(_ROOM) for _ in range(4))
        self.packed, self.scratch = cycle([Wall(8 * _ROOM) for _ in range(3)]), Wall(2 * _ROOM)

    @contextmanager
    def private_buffers(self) -> Iterator[None]:
        """Packed weights and scratch end exactly where the runtime's own request ends."""

        def aligned_empty(count: int, dtype: Any) -> Any:
            size = np.dtype(dtype).itemsize
            whole = next(self.packed).array((-(-count * size // 64) * 64 + 64,), np.uint8, at_end=True)
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
    """Kernels generated inside the block read (or write) user memory one element off."""
    what, shift = plant[:-2], int(plant[-2:])
    with _wrong_packer(shift) if what == "pack" else _wrong_kernel(what, shift):
        if what != "pack":
            packing._code(dtype, host().isa)  # right, since the kernel's own loads go through Box
        yield


def _wrong_packer(shift: int) -> Any:
    right = Numbers.load

    def load(self: Numbers, memory: Any, *rest: Any) -> Any:
        return right(self, memory + shift, *rest)

    return mock.patch.object(Numbers, "load", load)


def _wrong_kernel(what: str, shift: int) -> Any:
    right, wrong_field = Box.get, {"load": Job.SOURCE, "store": Job.RESULT}[what]

    def get(self: Box, field: Job) -> Any:
        value = right(self, field)
        return value + shift * DTYPE_BYTES[self.numbers.dtype] if field == wrong_field else value

    return mock.patch.object(Box, "get", get)


_PLANTED = (
    "scatter f32 NXC GIOX n1 g1 i64 o64 x7x7 k1x1 s1x1 d1x1 b0x0 y7x7",
    "scatter f32 NCX GIOX n2 g1 i24 o24 x5x6 k3x3 s2x2 d1x1 b0x0 y11x13",
    "gather f64 NXC GIOX n1 g1 i20 o9 x8 k3 s1 d1 b0 y10",
    "scatter f32 NXC GIOX n1 g40 i1 o1 x6x6 k2x2 s2x2 d1x1 b0x0 y12x12",
    "scatter f16 NCX GIOX n1 g1 i8 o2 x40 k2 s2 d1 b0 y80",
    "scatter f32 NXC GIOX n1 g1 i64 o64 x24x24 k3x3 s1x1 d1x1 b0x0 y26x26",
)


def planted_case(index: int) -> Case:
    """Problems of every kernel family, each element read and written: an element off is outside on one side."""
    return Case(Problem.parse(_PLANTED[index % len(_PLANTED)]), seed=2 + index)


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
    missed = [f"{plant} {index}" for plant in PLANTS for index in range(len(_PLANTED)) if not caught(plant, index)]
    seconds = time.perf_counter() - start
    print(f"{options.problems} problems, {runs} runs between walls: {faults} faults, {seconds:.0f} s")
    print(f"{len(_PLANTED) * len(PLANTS)} planted errors: {len(missed)} missed {missed or ''}")
    return 1 if faults or missed else 0


if __name__ == "__main__":
    sys.exit(main())
