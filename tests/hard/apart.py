"""One task at a time: what a single task of generated code stores, and what it leaves alone.

Kernels promise that every element is stored by one task, once, and that a task works in the scratch of its slot only.
Results alone cannot show a task that also does its neighbour's work, or reads what an earlier task left behind. So here
tasks run one by one, in any order and on any slot; scratch and packed weights start as NaN, and what a task stores is
collected before the next one runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from tests.compiler import judge
from tests.compiler.cases import Case
from tests.compiler.guard import Room
from tests.compiler.walled import Wall
from unstride.plan.gradient_job import BiasJob, GradientJob
from unstride.plan.job import Job, Panel
from unstride.plan.machine import LINE_BYTES
from unstride.plan.winograd import WinogradPlan
from unstride.problem import DTYPE_BYTES
from unstride.runtime import cache as store
from unstride.runtime import gradients, packing, pool, program

__all__ = ["Apart", "ApartGradients"]

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_BYTE = 0xFF  # all ones: a NaN of any type, which no arithmetic gives
_IN_PLACE = {"source": " direct f32 nxc ", "result": " across "}
_MOST_BYTES = 2**24  # written again between tasks; beyond it, tasks run as usual

Parallel = Callable[..., None]


class Stored:
    """How often each element of a span of memory is stored."""

    def __init__(self, address: int, count: int, element_bytes: int) -> None:
        self.words = _memory(address, count * element_bytes).view(f"u{element_bytes}")
        self.values, self.times = self.words.copy(), np.zeros(count, np.int64)
        self.blank = self.words.dtype.type(2 ** (8 * element_bytes) - 1)

    def wipe(self) -> None:
        self.words[...] = self.blank

    def collect(self) -> None:
        stored = self.words != self.blank
        self.times += stored
        self.values[stored] = self.words[stored]

    def finish(self, what: str, least: int = 0) -> None:
        """Put everything back; fail if an element was stored twice (or fewer than `least` times)."""
        self.words[...] = self.values
        if self.times.size and (self.times.max() > 1 or self.times.min() < least):
            raise AssertionError(f"{what}: an element is stored {self.times.min()} to {self.times.max()} times")


def _memory(address: int, size: int) -> Any:
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, np.uint8) if size else np.empty(0, np.uint8)


def _fields(kind: Any, address: int) -> Any:
    return _memory(address, 8 * len(kind)).view(np.int64)


def _one_by_one(
    task: int, arg: int, tasks: int, threads: int, rng: Random, slots: Any, stored: list[Stored], after: Any = None
) -> None:
    """Run every task by itself. `slots` is the scratch of all slots, one row each."""
    call, order = _TASK(task), list(range(tasks))
    rng.shuffle(order)
    for index in order:
        slot = rng.randrange(max(1, threads))
        slots[...] = _BYTE
        for span in stored:
            span.wipe()
        call(arg, index, slot)
        for span in stored:
            span.collect()
        if after:
            after(slots[slot])
        slots[slot] = _BYTE
        if slots.size and slots.min() != _BYTE:
            raise AssertionError("a task writes into the scratch of another slot")


def _is_code_of(kernels: str, address: int) -> bool:
    """Whether an address is that of a function of one of these kernels."""
    return any(kernels in key and address in loaded.addresses.values() for key, loaded in store.memory.items())


def _stub(parallel: Parallel) -> SimpleNamespace:
    return SimpleNamespace(parallel=parallel, current_threads=pool.current_threads)


def _spoil_what_vanishes(plan: WinogradPlan, packed: Any) -> None:
    """Make NaN of the weights that are zero for every kernel: Winograd promises not to multiply them."""
    in_v, in_x = plan.residues
    for panel in plan.panels:
        shape = (plan.v.size, plan.x.size, panel[Panel.OUTER_COUNT], in_v.count, in_x.count)
        size = int(np.prod(shape)) * panel[Panel.RUN] * panel[Panel.VECTORS] * plan.direct.tile.lanes
        points = packed[panel[Panel.WEIGHTS] :][:size].reshape(*shape, -1)
        points[: panel[Panel.SHORT_V]] = np.nan
        points[:, : panel[Panel.SHORT_X]] = np.nan
        points[-1, :, :, in_v.full :] = np.nan
        points[:, -1, :, :, in_x.full :] = np.nan


class Apart(Room):
    """A room whose kernels run one task at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.rng, self.launches = Random(0), 0
        self.in_place, self.calm = "", False
        self.result_bytes, self.element_bytes = 0, 4
        self.packed_now: Any = None

    def check(self, case: Case, *, at_end: bool, in_place: str = "") -> str:
        """What is wrong with a case, as `run` says it.

        `in_place` names a part of the scratch that must stay as it was: "source", the strip that is filled, or
        "result", what waits there to be flushed. Other kernels than `_IN_PLACE` says promise no such thing. Without
        outliers no unit may be left by Winograd.
        """
        self._begin(case)
        self.in_place = in_place
        return self.run(case, at_end=at_end)

    def direct(self, case: Case, operands: Any, *, clipped: bool = False) -> Any:
        """The result of a direct kernel, whatever the weights are, and however much of its work is padding."""
        self._begin(case)
        p, machine = case.problem, judge.machine(case)
        at_end = bool(case.seed % 2)
        walls = zip((self.data, self.filter, self.bias), operands, strict=True)
        data, filter, bias = (self._sealed(wall, values, at_end) for wall, values in walls)
        result = self.result.array(p.result_shape, data.dtype, at_end=at_end)
        result[...] = np.nan
        with self.private_buffers():
            made = program.program(p.structure, machine, "none", "strict", clipped)
            kind, weights = "clipped" if clipped else "direct", program.Weights(made, filter, bias, "none", 0.0)
            weights.keep(made.kernel(kind), made.kernel(kind).packer.pack(filter)[0])
            weights.launch(made.step_of(kind, p, case.threads), data, result)
        return result

    def _begin(self, case: Case) -> None:
        self.rng, self.launches = Random(case.seed), 0
        self.element_bytes = DTYPE_BYTES[case.problem.dtype]
        self.result_bytes = int(np.prod(case.problem.result_shape)) * self.element_bytes
        data = judge.exact_operands(case)[0]
        self.calm, self.in_place = bool(data.size) and bool(np.abs(data).max() <= 8), ""

    @contextmanager
    def private_buffers(self) -> Iterator[None]:
        with super().private_buffers():
            packed, scratch = packing.aligned_empty, program._take_scratch

            def nan_packed(count: int, dtype: Any) -> Any:
                array = packed(count, dtype)
                array.view(np.uint8)[...] = _BYTE
                self.packed_now = array[:count]
                return array

            def nan_scratch(count: int) -> Any:
                array = scratch(count)
                array[...] = _BYTE
                return array

            keep = program.Weights.keep

            def spoilt(weights: program.Weights, kernel: program.Kernel, array: Any) -> None:
                if isinstance(kernel.plan, WinogradPlan):
                    _spoil_what_vanishes(kernel.plan, array)
                keep(weights, kernel, array)

            with (
                mock.patch.object(program.Weights, "keep", spoilt),
                mock.patch.object(packing, "aligned_empty", nan_packed),
                mock.patch.object(program, "_take_scratch", nan_scratch),
                mock.patch.object(packing, "pool", _stub(self._pack)),
                mock.patch.object(program, "pool", _stub(self._kernel)),
            ):
                yield

    def _pack(self, task: int, arg: int, tasks: int, threads: int, short: bool = False) -> None:
        """Every element of the packed weights is stored, by one task."""
        now = self.packed_now
        if tasks * now.nbytes > _MOST_BYTES:
            pool.parallel(task, arg, tasks, threads, short)
            return
        span = Stored(now.ctypes.data, now.size, now.itemsize)
        _one_by_one(task, arg, tasks, threads, self.rng, np.empty((max(1, threads), 0), np.uint8), [span])
        span.finish("packed weights", 1)

    def _kernel(self, task: int, arg: int, tasks: int, threads: int, short: bool = False) -> None:
        job, self.launches = _fields(Job, arg), self.launches + 1
        per_slot = int(job[Job.SCRATCH_PER_SLOT])
        if tasks * (self.result_bytes + per_slot * threads) > _MOST_BYTES:
            pool.parallel(task, arg, tasks, threads, short)
            return
        slots = _memory(int(job[Job.SCRATCH]), per_slot * threads).reshape(threads, -1)
        span = Stored(int(job[Job.RESULT]), self.result_bytes // self.element_bytes, self.element_bytes)

        ends = (Job.OFFSET_STRIP, Job.OFFSET_OUT) if self.in_place == "source" else (Job.OFFSET_OUT, Job.OFFSET_TAPS)
        first, last = (int(job[end]) for end in ends)

        def untouched(slot: Any) -> None:
            if last > first and slot[first:last].min() != _BYTE:
                raise AssertionError(f"a {self.in_place} that could be used in place was copied")

        def staged(slot: Any) -> None:
            if (span.words != span.blank).any() and slot[int(job[Job.OFFSET_OUT]) :].min() == _BYTE:
                raise AssertionError("results that should have been streamed were stored")

        after = None
        if self.in_place and _is_code_of(_IN_PLACE[self.in_place], task):
            after = untouched
        elif (pixel := job[Job.RESULT_X_STRIDE]) > 1 and job[Job.STAGE] and pixel * self.element_bytes % LINE_BYTES:
            after = staged  # row by row: pixels that are not whole lines go past the caches by way of a stage
        _one_by_one(task, arg, tasks, threads, self.rng, slots, [span], after)
        span.finish("result")
        flags = int(job[Job.FLAGS])
        if flags and self.launches == 1 and self.calm and _memory(flags, 8 * tasks).any():
            raise AssertionError("a unit without outliers was left to the direct kernel")


class ApartGradients:
    """Inside `installed()`, gradients run one task at a time, in scratch that ends at an inaccessible page."""

    def __init__(self) -> None:
        self.wall, self.rng, self.plan = Wall(2**25), Random(0), None
        self.launches = 0

    @contextmanager
    def installed(self, seed: int) -> Iterator[None]:
        self.rng, self.plan = Random(seed), None
        usual = gradients._Ready.run

        def run(ready: Any, *args: Any) -> None:
            self.plan, self.launches = ready.plan, 0
            usual(ready, *args)

        with (
            mock.patch.object(gradients, "_take_scratch", self._scratch),
            mock.patch.object(gradients, "_free_scratch", [None] * 4),  # full: nothing is kept for the next call
            mock.patch.object(gradients, "pool", _stub(self._parallel)),
            mock.patch.object(gradients._Ready, "run", run),
        ):
            yield

    def _scratch(self, count: int) -> Any:
        array = self.wall.array((-(-count // 64) * 64,), np.uint8, at_end=True)
        array[...] = _BYTE
        return array

    def _parallel(self, task: int, arg: int, tasks: int, threads: int, short: bool = False) -> None:
        (self._bias if self.plan is None else self._weights)(task, arg, tasks, threads)

    def _weights(self, task: int, arg: int, tasks: int, threads: int) -> None:
        plan: Any = self.plan
        job, self.launches = _fields(GradientJob, arg), self.launches + 1
        partial_bytes, slot_bytes = int(job[GradientJob.PARTIAL_BYTES]), int(job[GradientJob.SLOT_BYTES])
        size, scratch = DTYPE_BYTES[plan.problem.dtype], int(job[GradientJob.SCRATCH])
        spans = [Stored(int(job[GradientJob.RESULT]), int(np.prod(plan.problem.filter_shape)), size)]
        if self.launches == 1 and partial_bytes:  # afterwards they are added in place
            element = 8 if plan.problem.dtype == "f64" else 4
            spans.append(Stored(scratch, partial_bytes // element, element))
        if tasks * (partial_bytes + slot_bytes * threads) > _MOST_BYTES:
            pool.parallel(task, arg, tasks, threads)
            return
        # The second launch has as many slots as it likes, but no use for any.
        threads = threads if self.launches == 1 else 1
        slots = _memory(scratch + partial_bytes, slot_bytes * threads).reshape(threads, -1)
        _one_by_one(task, arg, tasks, threads, self.rng, slots, spans)
        for span, name in zip(spans, ("weight gradient", "partial sums"), strict=False):
            span.finish(name)

    def _bias(self, task: int, arg: int, tasks: int, threads: int) -> None:
        job = _fields(BiasJob, arg)
        lines = job[BiasJob.LINE] == gradients._BIAS_LINE  # `reduce`, whose tasks store one number per segment
        count = int(job[BiasJob.COUNT] if lines else tasks * job[BiasJob.LINE])
        span = Stored(int(job[BiasJob.PARTIAL]), count, 4)
        _one_by_one(task, arg, tasks, threads, self.rng, np.empty((max(1, threads), 0), np.uint8), [span])
        span.finish("partial sums", 1)
