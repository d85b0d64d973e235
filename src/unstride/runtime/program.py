"""A planned structure with its machine code, and weights packed for it.

    Program    plan, tables, code and packer of a structure: shared by all weights, kept for eager calls
    Weights    packed weights and bias of one layer: `weights.run(problem, data, result, threads)`

All decisions were made by `plan/`; this file turns them into memory and addresses. One Program serves every size: the tables
of the sizes it has met are kept.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.codegen.direct import DirectFamily
from unstride.codegen.numbers import Numbers
from unstride.errors import SizeLimitError
from unstride.plan.direct import DirectPlan, plan_direct
from unstride.plan.job import Job, Panel
from unstride.plan.launch import Launch, plan_launch
from unstride.plan.machine import Machine
from unstride.problem import Problem, Structure
from unstride.runtime import buffers, engine, pool
from unstride.runtime.packing import Packer

__all__ = ["Program", "Weights", "activated", "pack", "program"]

_SIZES_KEPT = 512
_SCRATCH_KEPT = 16 * 2**20
_CALL = struct.Struct("7q")  # the first fields of Job
_INLINE_WORK = 400_000  # multiply-adds (and quarter bytes) below which a second thread costs more than it gives
_SHORT_WORK = 2_000_000  # the interpreter's lock is kept below this

_free_scratch: list[NDArray[np.uint8]] = []


@dataclass(frozen=True)
class _Ready:
    """One size, ready to launch: its job but for the addresses of a call."""

    launch: Launch
    job: bytes
    sizes: NDArray[np.int64]
    threads: int
    short: bool


class Program:
    """A structure's plan, tables, code and packer."""

    def __init__(self, structure: Structure, machine: Machine, activation: str, exact_borders: bool) -> None:
        self.structure, self.machine, self.activation = structure, machine, activation
        self.exact_borders = exact_borders
        self.plan = plan_direct(structure, machine.isa, exact_borders=exact_borders)
        self.family = DirectFamily.of(self.plan, activation)
        self.loaded = engine.kernel_library(self.family.key, self._build, machine.isa, self.family.symbols)
        self.packer = Packer(self.plan)
        self.task = self.loaded.addresses["run"]
        self._tables, self._starts = _plan_tables(self.plan)
        self._ready: dict[tuple[Problem, int], _Ready] = {}

    def _build(self) -> str:
        return self.family.build(Numbers(self.structure.dtype, self.machine.isa))

    def ready(self, problem: Problem, threads: int) -> _Ready:
        """The launch of one size; made once."""
        key = (problem, threads)
        found = self._ready.get(key)
        if found is None:
            if len(self._ready) >= _SIZES_KEPT:
                self._ready.clear()
            found = self._ready[key] = self._prepare(problem, threads)
        return found

    def _prepare(self, problem: Problem, threads: int) -> _Ready:
        work = problem.macs + 4 * problem.bytes
        launch = plan_launch(
            self.plan,
            problem,
            self.machine,
            1 if work < _INLINE_WORK else threads,
            exact_borders=self.exact_borders,
        )
        sizes = np.array(launch.sizes or (0,), np.int64)
        fields = list(launch.fields)
        fields[Job.PLAN], fields[Job.SIZES] = buffers.address(self._tables), buffers.address(sizes)
        for name, start in self._starts.items():
            fields[name] = start
        used = max(1, min(launch.threads, launch.tasks))
        return _Ready(launch, struct.pack(f"{len(fields)}q", *fields), sizes, used, work < _SHORT_WORK)


@lru_cache(maxsize=256)
def program(structure: Structure, machine: Machine, activation: str, exact_borders: bool = False) -> Program:
    """The Program of a structure; kept for the next layer or eager call of the same structure."""
    return Program(structure, machine, activation, exact_borders)


@dataclass(frozen=True)
class Weights:
    """Packed weights and bias."""

    program: Program
    packed: NDArray[Any]
    bias: NDArray[Any]
    rest: NDArray[Any]  # the bias after the activation: what a result element without taps is
    rest_of_channel: NDArray[Any]  # the same by channel, to broadcast against the result
    slope_bits: int
    constants: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        addresses = (buffers.address(self.packed), buffers.address(self.bias), buffers.address(self.rest))
        object.__setattr__(self, "constants", (*addresses, self.slope_bits))

    def run(self, problem: Problem, data: NDArray[Any], result: NDArray[Any], threads: int) -> None:
        """Compute into `result`; both arrays are contiguous and have the problem's shapes."""
        self.launch(self.program.ready(problem, threads), data, result)

    def launch(self, ready: _Ready, data: NDArray[Any], result: NDArray[Any]) -> None:
        """Run one prepared size."""
        launch = ready.launch
        if launch.prefill:
            result[...] = self.rest_of_channel
        if not launch.tasks:
            return
        scratch = _take_scratch(launch.scratch_per_slot * ready.threads)
        try:
            job = ctypes.create_string_buffer(ready.job, len(ready.job))
            source, target = buffers.address(data), buffers.address(result)
            _CALL.pack_into(job, 0, source, target, -(-buffers.address(scratch) // 64) * 64, *self.constants)
            pool.parallel(self.program.task, ctypes.addressof(job), launch.tasks, ready.threads, ready.short)
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
) -> Weights:
    """Pack a layer's weights (a contiguous array of the structure's filter shape)."""
    made = program(structure, machine, activation)
    packed, finite = made.packer.pack(weights)
    if not finite:
        # An infinite weight must not meet the zeros that pad a border: keep the taps apart, to skip such taps.
        made = program(structure, machine, activation, exact_borders=True)
        packed, _ = made.packer.pack(weights)
    compute = np.float64 if structure.dtype == "f64" else np.float32
    plain = _padded_bias(made.plan, bias, compute)
    rest = activated(plain.astype(np.float64), activation, slope).astype(compute)
    by_channel = activated(_channel_bias(made.plan, bias), activation, slope)
    by_channel = by_channel.astype(buffers.numpy_dtype(structure.dtype))
    if structure.data_layout == "NCX":
        by_channel = by_channel.reshape(-1, *(1,) * structure.rank)
    bits = struct.unpack("<q", struct.pack("<d", slope))[0]
    return Weights(made, packed, plain, rest, by_channel, bits)


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


def _plan_tables(plan: DirectPlan) -> tuple[NDArray[np.int64], dict[Job, int]]:
    tables = {
        Job.PANELS: [value for panel in plan.panels for value in panel],
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
