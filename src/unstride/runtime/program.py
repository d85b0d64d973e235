"""A planned structure with its machine code, and weights packed for it.

    Program    plans, tables, code and packers of a structure: shared by all weights, kept for eager calls
    Weights    the weights and bias of one layer, packed: `weights.run(problem, data, result, threads)`

All decisions were made by `plan/`; this file turns them into memory and addresses. One Program serves every size: the
tables of the sizes it has met are kept.
"""

from __future__ import annotations

import ctypes
import math
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unstride._lazy import lazy
from unstride.codegen.family import family_of
from unstride.codegen.numbers import Numbers
from unstride.errors import SizeLimitError
from unstride.plan.across import AcrossPlan
from unstride.plan.choose import Plan, fitting
from unstride.plan.direct import DirectPlan
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch
from unstride.plan.machine import Machine
from unstride.plan.matrix import SMALLEST, MatrixPlan
from unstride.plan.rows import RowsPlan
from unstride.plan.winograd import RANGE_LIMIT, WinogradPlan
from unstride.problem import Problem, Structure
from unstride.runtime import buffers, engine, pool
from unstride.runtime.packing import PackedPanel, Packer
from unstride.runtime.prefill import prefill

__all__ = ["Program", "QuickLaunch", "Weights", "activated", "pack", "program"]

_SIZES_KEPT = 512
_SCRATCH_KEPT = 16 * 2**20
_SAMPLE = 1024  # weights that are looked at first
_CALL = struct.Struct("4q")  # the first fields of Job: what differs from call to call
_CONSTANTS = struct.Struct("5q")  # the next: what belongs to the weights
_ALONE_PRICE = 16_000  # cycles below which a second thread costs more than it gives, awake as it may be
_SHORT_PRICE = 300_000  # below this, the interpreter's lock is kept and no thread is woken for a single call

_PACKED_LIKE = {"banded": "direct", "clipped": "direct", "whole": "winograd", "whole_large": "large"}

_QUICK = struct.Struct("5q")  # the last words of a pool's block and the first of the job behind it
_ROOM, _ROOM_OFFSET = struct.Struct("q"), pool.JOB_BYTES + 16  # the next one: where the scratch starts
_QUICK_SCRATCH = 160 * 1024  # of all threads: it is kept for every size a layer has met

_address_of = ctypes.addressof
_free_scratch: list[NDArray[np.uint8]] = []


class _Flags:
    """Words in which the tasks of a step say what they leave: zeros before and after a call."""

    def __init__(self, tasks: int) -> None:
        self.words = np.zeros(tasks, np.int64)
        self.place, self._none = buffers.address(self.words), bytes(8 * tasks)

    def any(self) -> bool:
        return self.words.tobytes() != self._none


@dataclass(frozen=True, eq=False)
class Step:
    """One launch of one size, ready but for the addresses of a call."""

    kernel: Kernel
    launch: Launch
    job: bytes
    sizes: NDArray[np.int64]
    threads: int
    short: bool
    alone: bool  # so little work that one thread does it, however many may
    then: Step | None = None  # for the units that this step leaves

    @lazy
    def scratch_bytes(self) -> int:
        return self.launch.scratch_per_slot * self.threads + 64

    @lazy
    def task(self) -> int:
        return self.kernel.loaded.addresses["run"]


class Kernel:
    """One kernel of a Program: a plan's tables, its code and its packer."""

    def __init__(self, plan: Plan, activation: str, packs_like: Kernel | None = None) -> None:
        self.plan = plan
        self.packing = packs_like or self  # the kernel for which weights are packed
        base = self.base = plan if isinstance(plan, DirectPlan) else plan.direct
        self.family = family_of(plan, activation)
        inner = plan.inner_taps if isinstance(plan, AcrossPlan) else base.inner_taps
        self._tables, self._starts = _plan_tables(base, plan.panels, inner)

    @lazy
    def loaded(self) -> engine.Loaded:
        """The machine code."""
        symbols = ("run", "pack") if type(self.plan) in (WinogradPlan, MatrixPlan) else ("run",)
        return engine.kernel_library(self.family.key, self._build, self.base.isa, symbols)

    def _build(self) -> str:
        return self.family.build(Numbers(self.base.structure.dtype, self.base.isa))

    @lazy
    def packer(self) -> Packer:
        plan, base, structure = self.plan, self.base, self.base.structure
        elements = plan.packed_elements
        if isinstance(plan, AcrossPlan):
            rows = zip(plan.panels, plan.sources, strict=True)
            panels = [PackedPanel(p[Panel.WEIGHTS], p[Panel.COLUMNS], source, source.steps) for p, source in rows]
            return Packer(structure, base.isa, panels, elements, channels_as_columns=isinstance(plan, RowsPlan))
        winograd = isinstance(plan, WinogradPlan)
        steps = plan.steps if isinstance(plan, WinogradPlan) else tuple(source.steps for source in base.sources)
        panels = [
            PackedPanel(p[Panel.WEIGHTS], p[Panel.VECTORS] * base.tile.lanes, source, rows)
            for p, source, rows in zip(plan.panels, base.sources, steps, strict=True)
        ]
        if winograd:
            return Packer(structure, base.isa, panels, elements, task=self.loaded.addresses["pack"])
        if isinstance(plan, MatrixPlan):
            task = self.loaded.addresses["pack"]
            return Packer(structure, base.isa, panels, elements, task=task, packed_type=np.uint16, window=plan.window)
        return Packer(structure, base.isa, panels, elements, channels_as_columns=base.depthwise)

    @lazy
    def bias_channels(self) -> NDArray[np.int64]:
        """The result channel of each element of the padded bias, or -1."""
        if isinstance(self.plan, AcrossPlan):
            return np.array(self.plan.bias_rows, np.int64)
        base = self.base
        channels = np.full(base.bias_elements + base.tile.columns, -1, np.int64)
        for panel, source in zip(base.panels, base.sources, strict=True):
            start, first = panel[Panel.BIAS], source.group * base.result_channels
            for column, (_, channel) in enumerate(source.columns):
                channels[start + (channel if base.overlapping else column)] = first + channel
        return channels

    def step(self, launch: Launch, price: float, then: Step | None = None) -> Step:
        sizes = np.array(launch.sizes or (0,), np.int64)
        fields = list(launch.fields)
        fields[Job.PLAN], fields[Job.SIZES] = buffers.address(self._tables), buffers.address(sizes)
        for name, start in self._starts.items():
            fields[name] = start
        used = max(1, min(launch.threads, launch.tasks))
        job = struct.pack(f"{len(fields)}q", *fields)
        return Step(self, launch, job, sizes, used, price < _SHORT_PRICE, price < _ALONE_PRICE, then)


class Program:
    """A structure's plans and kernels. `clipped` is for weights that are not finite, which must not meet padding."""

    def __init__(self, structure: Structure, machine: Machine, activation: str, accuracy: str, clipped: bool) -> None:
        self.structure = structure
        self.machine, self.plans = fitting(structure, machine, "strict" if clipped else accuracy)
        self.activation, self.accuracy, self.only_clipped = activation, accuracy, clipped
        self.kinds: dict[Problem, str] = {}  # what computes a size: by price, or by trial
        self._kernels: dict[str, Kernel] = {}
        self._steps: dict[tuple[Problem, int], Step] = {}

    def kernel(self, kind: str) -> Kernel:
        """The kernel of a kind; those that only visit positions in another order share another one's packing."""
        found = self._kernels.get(kind)
        if found is None and kind == "left" and self.plans.left is self.plans.direct:
            return self.kernel("direct")
        if found is None:
            like = _PACKED_LIKE.get(kind) if not self.only_clipped else None
            made = Kernel(self.plans.of(kind), self.activation, self.kernel(like) if like else None)
            found = self._kernels.setdefault(kind, made)  # of two threads, the first one's is used by both
        return found

    @lazy
    def preferred(self) -> Kernel:
        """The kernel that large enough maps will use."""
        return self.kernel("clipped" if self.only_clipped else self.plans.preferred(self.machine))

    def step(self, problem: Problem, threads: int) -> Step:
        """The launch of one size; made once."""
        key = (problem, threads)
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) >= _SIZES_KEPT:
                self._steps.clear()
            kind = self.kinds.get(problem) or self._choose(problem)
            found = self._steps[key] = self.step_of(kind, problem, threads)
        return found

    def _choose(self, problem: Problem) -> str:
        if len(self.kinds) >= _SIZES_KEPT:
            self.kinds.clear()
        kind = "clipped" if self.only_clipped else self.plans.cheapest(problem, self.machine)
        self.kinds[problem] = kind
        return kind

    def step_of(self, kind: str, problem: Problem, threads: int) -> Step:
        """The launch of one size by one kind of kernel."""
        price = self.plans.price(kind, problem, self.machine)
        used = 1 if price < _ALONE_PRICE else threads
        launches = self.plans.launches(kind, problem, self.machine, used)
        left = "left_by_matrix" if kind == "matrix" else "left"
        then = self.kernel(left).step(launches[1], price) if len(launches) > 1 else None
        return self.kernel(kind).step(launches[0], price, then)


@lru_cache(maxsize=256)
def program(
    structure: Structure,
    machine: Machine,
    activation: str,
    accuracy: str = "standard",
    clipped: bool = False,
    tuned: bool = False,
) -> Program:
    """The Program of a structure; kept for the next layer or eager call of the same structure.

    Layers that are tuned have one of their own: what they find out must not change the results of others.
    """
    del tuned
    return Program(structure, machine, activation, accuracy, clipped)


class Weights:
    """Weights and bias of one layer; packed for a kernel when a call first needs it."""

    def __init__(
        self, made: Program, source: NDArray[Any], bias: NDArray[Any] | None, activation: str, slope: float
    ) -> None:
        self.program, self._source = made, source
        structure = made.structure
        channels = structure.groups * (structure.co if structure.direction == "scatter" else structure.ci)
        self._bias = np.zeros(channels) if bias is None else bias.astype(np.float64)
        # The bias after the activation: what a result element without taps is.
        self._rest = activated(self._bias, activation, slope)
        by_channel = self._rest.astype(buffers.numpy_dtype(structure.dtype))
        ncx = structure.data_layout == "NCX"
        self.rest_of_channel = by_channel.reshape(-1, *(1,) * structure.rank) if ncx else by_channel
        self._slope_bits = _bits(slope)
        self._packed: dict[Kernel, tuple[NDArray[Any], ...]] = {}
        self._constants: dict[Kernel, tuple[int, ...]] = {}
        self._jobs: dict[Step, list[Any]] = {}

    @property
    def packed_bytes(self) -> int:
        return sum(int(arrays[0].nbytes) for arrays in self._packed.values())

    def keep(self, kernel: Kernel, packed: NDArray[Any]) -> None:
        """Remember the weights packed for a kernel, with the bias in its order.

        Of two threads that come with the same, the first one's arrays stay: addresses of an array may be in use in
        another thread from the moment it is in the table, so none is ever replaced.
        """
        compute = np.float64 if self.program.structure.dtype == "f64" else np.float32
        index = kernel.bias_channels
        bias, rest = (np.where(index < 0, 0.0, values[index]).astype(compute) for values in (self._bias, self._rest))
        arrays = self._packed.setdefault(kernel, (packed, bias, rest))
        exact = _exact_limit(kernel.plan, self._source) if isinstance(kernel.plan, WinogradPlan) else math.inf
        self._constants[kernel] = (*map(buffers.address, arrays), self._slope_bits, _bits(exact))

    def own(self) -> None:
        """Keep a copy of the source: the caller may change his array before another kernel needs packing."""
        self._source = np.array(self._source)

    def _constants_of(self, kernel: Kernel) -> tuple[int, ...]:
        kernel = kernel.packing
        found = self._constants.get(kernel)
        if found is None:
            self.keep(kernel, kernel.packer.pack(self._source)[0])
            found = self._constants[kernel]
        return found

    def run(self, problem: Problem, data: NDArray[Any], result: NDArray[Any], threads: int) -> None:
        """Compute into `result`; both arrays are contiguous and have the problem's shapes."""
        self.launch(self.program.step(problem, threads), data, result)

    def launch(self, step: Step, data: NDArray[Any], result: NDArray[Any]) -> None:
        """Run one prepared size."""
        if step.launch.prefill:
            machine, dtype = self.program.machine, self.program.structure.dtype
            prefill(result, self.rest_of_channel, dtype, machine.isa, step.launch.threads)
        if not step.launch.tasks:
            return
        source, target = buffers.address(data), buffers.address(result)
        if step.then is None:
            self._launch(step, source, target, 0)
            return
        flags = _Flags(step.launch.tasks)
        self._launch(step, source, target, flags.place)
        self.finish(step, source, target, flags)

    def finish(self, step: Step, source: int, result: int, flags: _Flags) -> None:
        """Compute what a step left, and clear what it noted of that."""
        if flags.any():
            assert step.then is not None
            self._launch(step.then, source, result, flags.place)
            flags.words[:] = 0

    def _launch(self, step: Step, source: int, result: int, flags: int) -> None:
        try:
            job = self._jobs[step].pop()  # one that an earlier call is done with
        except (KeyError, IndexError):
            job = self.new_job(step)
        scratch = _take_scratch(step.scratch_bytes)
        try:
            room = (buffers.address(scratch) + 63) & -64
            _CALL.pack_into(job, 0, source, result, room, flags)
            pool.parallel(step.task, _address_of(job), step.launch.tasks, step.threads, step.short)
        finally:
            _give_back(scratch)
        self._jobs.setdefault(step, []).append(job)

    def new_job(self, step: Step) -> Any:
        """The job of a step with these weights; the addresses of a call are still missing."""
        if len(self._jobs) > _SIZES_KEPT:
            self._jobs.clear()
        job = ctypes.create_string_buffer(step.job, len(step.job))
        _CONSTANTS.pack_into(job, _CALL.size, *self._constants_of(step.kernel))
        return job


class _Block(NamedTuple):
    """What a call under way has for itself."""

    memory: Any  # the pool's words, and the job behind them
    start: int  # its address
    flags: _Flags | None
    scratch: NDArray[np.uint8] | None  # if it is not shared


class QuickLaunch:
    """A launch that was prepared: all but two addresses is ready. Short ones would take as long to prepare as to run.

    Everything lives in one block, the pool's words before the job, so that one stroke writes what differs; blocks are
    used again, one for each call under way.
    """

    def __init__(self, weights: Weights, step: Step, shape: tuple[int, ...]) -> None:
        self.weights, self.step, self.shape = weights, step, shape
        self.threads = 0 if step.alone else step.launch.threads  # it is for callers with so many; 0 for all
        problem = step.launch.problem
        itemsize = buffers.numpy_dtype(problem.dtype).itemsize
        self.source_bytes, self.result_bytes = (
            itemsize * math.prod(sizes) for sizes in (problem.data_shape, problem.result_shape)
        )
        self._is_simple = step.scratch_bytes <= _QUICK_SCRATCH and step.then is None
        self._blocks: list[_Block] = []

    @staticmethod
    def fits(step: Step) -> bool:
        """Whether there is nothing to do before a step."""
        return bool(step.launch.tasks and not step.launch.prefill)

    def run(self, source: int, result: int) -> None:
        """Compute from one address to the other; the caller has looked at both arrays."""
        try:
            block = self._blocks.pop()
        except IndexError:
            block = self._new_block()
        if self._is_simple:
            self._launch(block, source, result)
        else:
            self._launch_with_scratch(block, source, result)
            if block.flags is not None:
                self.weights.finish(self.step, source, result, block.flags)
        self._blocks.append(block)

    def _launch(self, block: _Block, source: int, result: int) -> None:
        threads, short = self.step.threads, self.step.short
        interruptible = not short and get_ident() == pool.main_thread()  # a short one is over before anybody asks
        _QUICK.pack_into(block.memory, pool.PROGRESS_OFFSET, 0, threads, interruptible, source, result)
        launch, start = pool.prepare(threads, short), block.start
        if interruptible:
            pool.finish(launch, start, True)
        else:
            while launch(start):
                pass

    def _launch_with_scratch(self, block: _Block, source: int, result: int) -> None:
        if block.scratch is not None:
            self._launch(block, source, result)
            return
        scratch = _take_scratch(self.step.scratch_bytes)
        _ROOM.pack_into(block.memory, _ROOM_OFFSET, (buffers.address(scratch) + 63) & -64)
        self._launch(block, source, result)
        _give_back(scratch)

    def _new_block(self) -> _Block:
        step, job = self.step, bytes(self.weights.new_job(self.step))
        memory = ctypes.create_string_buffer(bytes(pool.JOB_BYTES) + job, pool.JOB_BYTES + len(job))
        start, flags = _address_of(memory), _Flags(step.launch.tasks) if step.then else None
        kept = np.empty(step.scratch_bytes, np.uint8) if step.scratch_bytes <= _QUICK_SCRATCH else None
        room = 0 if kept is None else (buffers.address(kept) + 63) & -64
        struct.pack_into("4q", memory, 0, step.task, start + pool.JOB_BYTES, step.launch.tasks, step.short)
        _CALL.pack_into(memory, pool.JOB_BYTES, 0, 0, room, flags.place if flags else 0)
        return _Block(memory, start, flags, kept)


def pack(
    structure: Structure,
    machine: Machine,
    weights: NDArray[Any],
    bias: NDArray[Any] | None,
    activation: str = "none",
    slope: float = 0.0,
    accuracy: str = "standard",
    *,
    once: tuple[Problem, int] | None = None,
    tuned: bool = False,
) -> Weights:
    """Pack a layer's weights (a contiguous array of the structure's filter shape).

    With `once`, a problem and a number of threads, they are packed for that one call; otherwise for the kernel that
    large maps use, and a copy is kept if another kernel may need them later.
    """
    made = program(structure, machine, activation, accuracy, tuned=tuned)
    if made.plans.matrix and structure.dtype == "bf16" and _has_tiny(weights, bias):
        machine = replace(machine, matrix=())
        made = program(structure, machine, activation, accuracy, tuned=tuned)
    if (made.plans.winograd or made.plans.large) and not _even_range(weights):
        made = program(structure, machine, activation, "unmixed", tuned=tuned)
    kernel = made.step(*once).kernel.packing if once else made.preferred
    packed, finite = kernel.packer.pack(weights)
    if not finite:
        # An infinite weight must not meet the zeros that pad a border: keep the taps apart, to skip such taps.
        made = program(structure, machine, activation, "strict", clipped=True)
        kernel = made.preferred
        packed, _ = kernel.packer.pack(weights)
    result = Weights(made, weights, bias, activation, slope)
    result.keep(kernel, packed)
    plans = made.plans
    if not once and any((plans.special, plans.overlap, plans.folded, plans.spread, plans.rows, plans.matrix)):
        result.own()
    return result


def _even_range(weights: NDArray[Any]) -> bool:
    """Whether weights are finite and none dwarfs the mean: Winograd mixes them before it multiplies."""
    sizes = np.abs(weights.astype(np.float32, copy=False))
    mean = float(sizes.mean(dtype=np.float64))
    return bool(np.isfinite(mean)) and float(sizes.max()) <= RANGE_LIMIT * mean


def _exact_limit(plan: WinogradPlan, weights: NDArray[Any]) -> float:
    """Up to which magnitude of integers in the source sums are exact; infinite where weights are no integers."""
    structure = plan.direct.structure
    for some in (weights.reshape(-1)[:_SAMPLE], weights):
        values = some.astype(np.float64)
        if not np.array_equal(values, np.rint(values)):
            return math.inf
    scatter = structure.direction == "scatter"
    axes = structure.filter_layout.replace("X", "X" * structure.rank)
    sums = np.abs(values).sum(axis=axes.index("I" if scatter else "O"))
    steps = structure.stride if scatter else (1,) * structure.rank
    taps = math.prod(-(-k // s) for k, s in zip(structure.kernel, steps, strict=True))
    bits = 53 if structure.dtype == "f64" else 24
    return 2.0**bits / max(1.0, taps * float(sums.max()) * plan.magnification)


def _bits(value: float) -> int:
    """A double as it lies in a table of integers."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _has_tiny(weights: NDArray[Any], bias: NDArray[Any] | None) -> bool:
    """Whether some value is so small, but not zero, that sums could be subnormal, which products of tiles cannot be."""
    least = int(np.array(SMALLEST, weights.dtype).view(np.uint16))
    sizes = (weights.view(np.uint16) & 0x7FFF).reshape(-1)
    if sizes.size and int((sizes - np.uint16(1)).min()) < least - 1:
        return True
    # Sums of products are multiples of 2**-126; so must be their sums with a bias of 24 bits.
    return bias is not None and bool(np.any((bias != 0) & (np.abs(bias.astype(np.float64)) < 2.0**-102)))


def activated(values: NDArray[np.float64], activation: str, slope: float) -> NDArray[np.float64]:
    """The activation in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        if activation == "relu":
            return np.where(values < 0, 0.0, values)
        if activation == "leaky_relu":
            return np.where(values < 0, slope * values, values)
        if activation == "tanh":
            return np.tanh(values)
        if activation == "sigmoid":
            return 1 / (1 + np.exp(-values))
    return values


def _take_scratch(count: int) -> NDArray[np.uint8]:
    """Work space of at least `count` bytes: a used one if it is large enough, for its pages are warm."""
    try:
        kept = _free_scratch.pop()
        if kept.size >= count:
            return kept
    except IndexError:
        pass
    try:
        return np.empty(count, np.uint8)
    except MemoryError:
        raise SizeLimitError("scratch", count, "not enough memory for the work space") from None


def _give_back(scratch: NDArray[np.uint8]) -> None:
    if len(_free_scratch) < 4 and scratch.size <= _SCRATCH_KEPT:
        _free_scratch.append(scratch)


def _plan_tables(
    plan: DirectPlan, panels: tuple[tuple[int, ...], ...], inner_taps: tuple[tuple[int, int], ...]
) -> tuple[NDArray[np.int64], dict[Job, int]]:
    tables = {
        Job.PANELS: [value for panel in panels for value in panel],
        Job.INNER_TAPS: [value for tap in inner_taps for value in tap],
        Job.OUTER_TAPS: list(plan.outer_taps),
        Job.PLANES: [value for plane in plan.planes for value in plane],
        Job.OUTER_PHASES: [value for phase in plan.outer_phases for value in phase],
    }
    starts: dict[Job, int] = {}
    flat = [0]  # no table starts at 0, so that no offset can be forgotten unnoticed
    for name, table in tables.items():
        starts[name] = len(flat)
        flat += table
    return np.array(flat, np.int64), starts
