"""A planned structure with its machine code, and weights packed for it.

    Program    plans, tables, code and packers of a structure: shared by all weights, kept for eager calls
    Weights    the weights and bias of one layer, packed: `weights.run(problem, data, result, threads)`

All decisions were made by `plan/`; this file turns them into memory and addresses. One Program serves every size: the
tables of the sizes it has met are kept.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.codegen.direct import DirectFamily
from unstride.codegen.numbers import Numbers
from unstride.codegen.winograd import WinogradFamily
from unstride.errors import SizeLimitError
from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch, plan_launch, plan_winograd_launch
from unstride.plan.machine import Machine
from unstride.plan.winograd import RANGE_LIMIT, WinogradPlan, plan_winograd
from unstride.problem import Problem, Structure
from unstride.runtime import buffers, engine, pool
from unstride.runtime.packing import Packer

__all__ = ["Program", "Weights", "activated", "pack", "program"]

_SIZES_KEPT = 512
_SCRATCH_KEPT = 16 * 2**20
_CALL = struct.Struct("8q")  # the first fields of Job
_INLINE_WORK = 400_000  # multiply-adds (and quarter bytes) below which a second thread costs more than it gives
_SHORT_WORK = 2_000_000  # the interpreter's lock is kept below this

_free_scratch: list[NDArray[np.uint8]] = []


@dataclass(frozen=True)
class Step:
    """One launch of one size, ready but for the addresses of a call."""

    kernel: Kernel
    launch: Launch
    job: bytes
    sizes: NDArray[np.int64]
    threads: int
    short: bool
    then: Step | None = None  # for the units that this step leaves


class Kernel:
    """One kernel of a Program: a plan's tables and its code."""

    def __init__(self, plan: DirectPlan, panels: tuple[tuple[int, ...], ...], family: Any, winograd: WinogradPlan | None):
        self.plan, self.family, self.winograd = plan, family, winograd
        self.tables, self.starts = _plan_tables(plan, panels)

    @cached_property
    def loaded(self) -> engine.Loaded:
        symbols = ("run", "pack") if self.winograd else ("run",)
        return engine.kernel_library(self.family.key, self._build, self.plan.isa, symbols)

    def _build(self) -> str:
        text: str = self.family.build(Numbers(self.plan.structure.dtype, self.plan.isa))
        return text

    @cached_property
    def packer(self) -> Packer:
        return Packer(self.plan, self.winograd, self.loaded.addresses.get("pack"))

    def step(self, launch: Launch, short: bool, then: Step | None = None) -> Step:
        sizes = np.array(launch.sizes or (0,), np.int64)
        fields = list(launch.fields)
        fields[Job.PLAN], fields[Job.SIZES] = buffers.address(self.tables), buffers.address(sizes)
        for name, start in self.starts.items():
            fields[name] = start
        used = max(1, min(launch.threads, launch.tasks))
        return Step(self, launch, struct.pack(f"{len(fields)}q", *fields), sizes, used, short, then)


class Program:
    """A structure's plans and kernels. `exact_borders` is for weights that are not finite."""

    def __init__(
        self, structure: Structure, machine: Machine, activation: str, accuracy: str, exact_borders: bool
    ) -> None:
        self.structure, self.machine, self.activation = structure, machine, activation
        self.exact_borders = exact_borders
        self.winograd: Kernel | None = None
        plan = None
        if accuracy != "strict" and not exact_borders and structure.dtype != "f64":
            plan = plan_winograd(structure, machine.isa)
        if plan is None:
            direct = plan_direct(structure, machine.isa, exact_borders=exact_borders)
        else:
            direct = plan.direct
            self.winograd = Kernel(direct, plan.panels, WinogradFamily.of(plan, activation), plan)
        self.direct = Kernel(direct, direct.panels, DirectFamily.of(direct, activation), None)
        self._steps: dict[tuple[Problem, int], Step] = {}

    @property
    def plan(self) -> DirectPlan:
        return self.direct.plan

    @property
    def preferred(self) -> Kernel:
        return self.winograd or self.direct

    def step(self, problem: Problem, threads: int) -> Step:
        """The launch of one size; made once."""
        key = (problem, threads)
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) >= _SIZES_KEPT:
                self._steps.clear()
            found = self._steps[key] = self._prepare(problem, threads)
        return found

    def _prepare(self, problem: Problem, threads: int) -> Step:
        work = problem.macs + 4 * problem.bytes
        short = work < _SHORT_WORK
        used = 1 if work < _INLINE_WORK else threads
        if self.winograd and self.winograd.winograd:
            launches = plan_winograd_launch(self.winograd.winograd, problem, self.machine, used)
            if launches is not None:
                first, second = launches
                return self.winograd.step(first, short, self.direct.step(second, short))
        launch = plan_launch(self.plan, problem, self.machine, used, exact_borders=self.exact_borders)
        return self.direct.step(launch, short)


@lru_cache(maxsize=256)
def program(
    structure: Structure, machine: Machine, activation: str, accuracy: str = "standard", exact_borders: bool = False
) -> Program:
    """The Program of a structure; kept for the next layer or eager call of the same structure."""
    return Program(structure, machine, activation, accuracy, exact_borders)


class Weights:
    """Weights and bias of one layer; packed for a kernel when a call first needs it."""

    def __init__(
        self, made: Program, source: NDArray[Any], bias: NDArray[Any] | None, activation: str, slope: float
    ) -> None:
        self.program, self._source = made, source
        structure, plan = made.structure, made.plan
        compute = np.float64 if structure.dtype == "f64" else np.float32
        self.bias = _padded_bias(plan, bias, compute)
        # The bias after the activation: what a result element without taps is.
        self.rest = activated(self.bias.astype(np.float64), activation, slope).astype(compute)
        by_channel = activated(_channel_bias(plan, bias), activation, slope)
        by_channel = by_channel.astype(buffers.numpy_dtype(structure.dtype))
        ncx = structure.data_layout == "NCX"
        self.rest_of_channel = by_channel.reshape(-1, *(1,) * structure.rank) if ncx else by_channel
        bits = struct.unpack("<q", struct.pack("<d", slope))[0]
        self._tail = (buffers.address(self.bias), buffers.address(self.rest), bits)
        self._packed: dict[int, NDArray[Any]] = {}
        self._constants: dict[int, tuple[int, ...]] = {}

    @property
    def packed_bytes(self) -> int:
        return sum(int(packed.nbytes) for packed in self._packed.values())

    def keep(self, kernel: Kernel, packed: NDArray[Any]) -> None:
        self._packed[id(kernel)] = packed
        self._constants[id(kernel)] = (buffers.address(packed), *self._tail)

    def own(self) -> None:
        """Keep a copy of the source: the caller may change his array before another kernel needs packing."""
        self._source = np.array(self._source)

    def _constants_of(self, kernel: Kernel) -> tuple[int, ...]:
        found = self._constants.get(id(kernel))
        if found is None:
            self.keep(kernel, kernel.packer.pack(self._source)[0])
            found = self._constants[id(kernel)]
        return found

    def run(self, problem: Problem, data: NDArray[Any], result: NDArray[Any], threads: int) -> None:
        """Compute into `result`; both arrays are contiguous and have the problem's shapes."""
        self.launch(self.program.step(problem, threads), data, result)

    def launch(self, step: Step, data: NDArray[Any], result: NDArray[Any]) -> None:
        """Run one prepared size."""
        if step.launch.prefill:
            result[...] = self.rest_of_channel
        if not step.launch.tasks:
            return
        if step.then is None:
            self._launch(step, data, result, 0)
            return
        flags = np.zeros(step.launch.tasks, np.int64)
        self._launch(step, data, result, buffers.address(flags))
        if flags.any():
            self._launch(step.then, data, result, buffers.address(flags))

    def _launch(self, step: Step, data: NDArray[Any], result: NDArray[Any], flags: int) -> None:
        constants = self._constants_of(step.kernel)
        scratch = _take_scratch(step.launch.scratch_per_slot * step.threads)
        try:
            job = ctypes.create_string_buffer(step.job, len(step.job))
            room = -(-buffers.address(scratch) // 64) * 64
            _CALL.pack_into(job, 0, buffers.address(data), buffers.address(result), room, flags, *constants)
            task = step.kernel.loaded.addresses["run"]
            pool.parallel(task, ctypes.addressof(job), step.launch.tasks, step.threads, step.short)
        finally:
            if scratch.size <= _SCRATCH_KEPT and len(_free_scratch) < 4:
                _free_scratch.append(scratch)


def pack(
    structure: Structure,
    machine: Machine,
    weights: NDArray[Any],
    bias: NDArray[Any] | None,
    activation: str = "none",
    slope: float = 0.0,
    accuracy: str = "standard",
    *,
    keep: bool = True,
) -> Weights:
    """Pack a layer's weights (a contiguous array of the structure's filter shape).

    `keep` says that the layer outlives the call, so that it must own whatever it may need later.
    """
    made = program(structure, machine, activation, accuracy)
    if made.winograd and not _even_range(weights):
        made = program(structure, machine, activation, "strict")
    if made.winograd is None:
        packed, finite = made.direct.packer.pack(weights)
        if not finite:
            # An infinite weight must not meet the zeros that pad a border: keep the taps apart, to skip such taps.
            made = program(structure, machine, activation, "strict", exact_borders=True)
            packed, _ = made.direct.packer.pack(weights)
        result = Weights(made, weights, bias, activation, slope)
        result.keep(made.direct, packed)
        return result
    result = Weights(made, weights, bias, activation, slope)
    if keep:
        result.own()
        result.keep(made.winograd, made.winograd.packer.pack(weights)[0])
    return result


def _even_range(weights: NDArray[Any]) -> bool:
    """Whether weights are finite and none dwarfs the mean: Winograd mixes them before it multiplies."""
    sizes = np.abs(weights.astype(np.float32, copy=False))
    mean = float(sizes.mean(dtype=np.float64))
    return bool(np.isfinite(mean)) and float(sizes.max()) <= RANGE_LIMIT * mean


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
        if kept.size >= count + 64:
            return kept
    except IndexError:
        pass
    try:
        return np.empty(count + 64, np.uint8)
    except MemoryError:
        raise SizeLimitError("scratch", count, "not enough memory for the work space") from None


def _plan_tables(
    plan: DirectPlan, panels: tuple[tuple[int, ...], ...]
) -> tuple[NDArray[np.int64], dict[Job, int]]:
    tables = {
        Job.PANELS: [value for panel in panels for value in panel],
        Job.INNER_TAPS: [value for tap in plan.inner_taps for value in tap],
        Job.OUTER_TAPS: list(plan.outer_taps),
        Job.PLANES: [value for plane in plan.planes for value in plane],
        Job.OUTER_PHASES: [value for phase in plan.outer_phases for value in phase],
    }
    starts: dict[Job, int] = {}
    flat: list[int] = []
    for name, table in tables.items():
        starts[name] = len(flat)
        flat += table
    return np.array(flat, np.int64), starts


def _channel_bias(plan: DirectPlan, bias: NDArray[Any] | None) -> NDArray[np.float64]:
    channels = plan.result_channels * plan.structure.groups
    return np.zeros(channels) if bias is None else bias.astype(np.float64)


def _padded_bias(plan: DirectPlan, bias: NDArray[Any] | None, compute: Any) -> NDArray[Any]:
    """The bias in panel order, padded to vectors."""
    values = np.zeros(plan.bias_elements + plan.tile.columns, compute)
    if bias is not None:
        for panel, source in zip(plan.panels, plan.sources, strict=True):
            start, first = panel[Panel.BIAS], source.group * plan.result_channels
            channels = [first + channel for _, channel in source.columns]
            values[start : start + len(channels)] = bias[channels]
    return values
