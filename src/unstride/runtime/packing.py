"""Weights in, panels out: the tables for the generated packer, and its launch."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llvmlite import ir
from unstride.codegen.numbers import Numbers
from unstride.codegen.pack import emit_pack
from unstride.errors import SizeLimitError
from unstride.plan.direct import DirectPlan
from unstride.plan.job import Pack, PackPanel, Panel
from unstride.plan.machine import ISA
from unstride.plan.winograd import WinogradPlan
from unstride.runtime import buffers, engine, pool

__all__ = ["Packer"]


class Packer:
    """Packs the weights of one plan; made once, used at every eager call."""

    def __init__(self, plan: DirectPlan, winograd: WinogradPlan | None = None, task: int | None = None) -> None:
        self.plan = plan
        self._elements = winograd.packed_elements if winograd else plan.packed_elements
        structure = plan.structure
        strides = _axis_strides(structure.filter_layout, structure.filter_shape, structure.rank)
        scatter = structure.direction == "scatter"
        self._channel_stride = strides["I" if scatter else "O"]
        column_stride = strides["O" if scatter else "I"]
        if plan.depthwise:
            column_stride = strides["G"]
        kernel_strides = strides["X"]
        steps = _Interned()
        columns = _Interned()
        panels: list[int] = []
        for panel, source in zip(winograd.panels if winograd else plan.panels, plan.sources, strict=True):
            step_offsets: tuple[int, ...] = tuple(sum(k * s for k, s in zip(step, kernel_strides, strict=True)) for step in source.steps)
            if winograd:
                step_offsets = _with_missing(step_offsets, panel, winograd)
            column_offsets = tuple(shift * kernel_strides[-1] + c * column_stride for shift, c in source.columns)
            fields = {
                PackPanel.PACKED: panel[Panel.WEIGHTS],
                PackPanel.SOURCE: source.group * strides["G"],
                PackPanel.STEPS_FIRST: steps.place(step_offsets),
                PackPanel.STEPS: len(step_offsets),
                PackPanel.COLUMNS_FIRST: columns.place(column_offsets),
                PackPanel.COLUMNS: len(column_offsets),
                PackPanel.WIDTH: panel[Panel.VECTORS] * plan.tile.lanes,
            }
            panels += [fields[f] for f in PackPanel]
        self._tables = [np.array(table or [0], np.int64) for table in (panels, steps.values, columns.values)]
        self._task = task or _code(structure.dtype, plan.isa)

    def pack(self, weights: NDArray[Any]) -> tuple[NDArray[Any], bool]:
        """The packed weights, and whether every one of them is finite. `weights` is contiguous."""
        plan = self.plan
        compute = np.float64 if plan.structure.dtype == "f64" else np.float32
        packed = aligned_empty(self._elements, compute)
        not_finite = np.zeros(len(plan.panels), np.int64)
        job = np.zeros(len(Pack), np.int64)
        job[Pack.SOURCE], job[Pack.PACKED] = buffers.address(weights), buffers.address(packed)
        job[Pack.PANELS], job[Pack.STEPS], job[Pack.COLUMNS] = map(buffers.address, self._tables)
        job[Pack.NOT_FINITE] = buffers.address(not_finite)
        job[Pack.CHANNELS] = 1 if plan.depthwise else plan.reduce_channels
        job[Pack.CHANNEL_STRIDE] = self._channel_stride
        threads = pool.current_threads() if self._elements > 50_000 else 1
        pool.parallel(self._task, buffers.address(job), len(plan.panels), min(threads, len(plan.panels)))
        return packed, not not_finite.any()


def _with_missing(steps: tuple[int, ...], panel: tuple[int, ...], plan: WinogradPlan) -> tuple[int, ...]:
    """A full block of taps for every outer tap: -1 where this phase lacks its first row or column of taps."""
    rows, columns = plan.v.taps - panel[Panel.SHORT_V], plan.x.taps - panel[Panel.SHORT_X]
    result: list[int] = []
    for first in range(0, len(steps), rows * columns):
        result += [-1] * (panel[Panel.SHORT_V] * plan.x.taps)
        for row in range(rows):
            start = first + row * columns
            result += [-1] * panel[Panel.SHORT_X] + list(steps[start : start + columns])
    return tuple(result)


class _Interned:
    """Runs of integers laid end to end, equal runs only once."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._known: dict[tuple[int, ...], int] = {}

    def place(self, run: tuple[int, ...]) -> int:
        if run not in self._known:
            self._known[run] = len(self.values)
            self.values += run
        return self._known[run]


def aligned_empty(count: int, dtype: Any) -> NDArray[Any]:
    """An array whose vectors do not straddle cache lines."""
    size = np.dtype(dtype).itemsize
    try:
        raw = np.empty(count * size + 128, np.uint8)
    except MemoryError:
        raise SizeLimitError("filter", count, "not enough memory for the packed weights") from None
    start = -buffers.address(raw) % 64
    return raw[start : start + count * size + 64].view(dtype)


def _axis_strides(layout: str, shape: tuple[int, ...], rank: int) -> dict[str, Any]:
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    result: dict[str, Any] = {}
    for letter in layout:
        width = rank if letter == "X" else 1
        result[letter] = tuple(strides[:width]) if letter == "X" else strides[0]
        strides = strides[width:]
    return result


def _code(dtype: str, isa: ISA) -> int:
    def build() -> str:
        module = ir.Module(name="pack")
        module.triple = isa.triple
        emit_pack(module, Numbers(dtype, isa))
        return str(module)

    return engine.kernel_library(f"pack {dtype}", build, isa, ("pack",)).addresses["pack"]
