"""Weights in, panels out: the tables for the generated packer, and its launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.codegen import ir
from unstride.codegen.numbers import Numbers
from unstride.codegen.pack import emit_pack
from unstride.errors import SizeLimitError
from unstride.plan.direct import PanelSource
from unstride.plan.job import Pack, PackPanel
from unstride.plan.machine import ISA
from unstride.plan.tables import Interned
from unstride.problem import Structure
from unstride.runtime import buffers, engine, pool

__all__ = ["PackedPanel", "Packer"]


@dataclass(frozen=True)
class PackedPanel:
    """One panel, as the packer sees it: where it goes, how wide its rows are, and what they hold."""

    offset: int
    width: int
    source: PanelSource
    steps: Sequence[tuple[int, ...] | None]  # kernel indices of its rows; None is a row of zeros, for Winograd only


class Packer:
    """Packs the weights for one kernel; made once, used at every eager call.

    `task` is the kernel's own packing function, if it has one; `packed_type` what it makes, if not computed numbers;
    `window` is how many steps hold the channels of neighbouring pixels, which it may put together.
    """

    def __init__(
        self,
        structure: Structure,
        isa: ISA,
        panels: Sequence[PackedPanel],
        elements: int,
        *,
        channels_as_columns: bool = False,
        task: int | None = None,
        packed_type: Any = None,
        window: int = 1,
    ) -> None:
        self._structure, self._elements, self._panels = structure, elements, len(panels)
        self._window = window
        self._packed_type = packed_type or (np.float64 if structure.dtype == "f64" else np.float32)
        strides = _axis_strides(structure.filter_layout, structure.filter_shape, structure.rank)
        scatter = structure.direction == "scatter"
        self._channel_stride = strides["I" if scatter else "O"]
        self._channels = 1 if channels_as_columns else structure.ci if scatter else structure.co
        column_stride = strides["G"] if channels_as_columns else strides["O" if scatter else "I"]
        kernel_strides = strides["X"]
        v_stride = kernel_strides[-2] if structure.rank > 1 else 0
        steps: Interned[int] = Interned()
        columns: Interned[int] = Interned()
        table: list[int] = []
        for panel in panels:
            source = panel.source
            step_offsets = tuple(
                -1 if step is None else sum(k * s for k, s in zip(step, kernel_strides, strict=True))
                for step in panel.steps
            )
            column_offsets = tuple(
                v * v_stride + x * kernel_strides[-1] + c * column_stride for (v, x), c in source.columns
            )
            fields = {
                PackPanel.PACKED: panel.offset,
                PackPanel.SOURCE: source.group * strides["G"],
                PackPanel.STEPS_FIRST: steps.place(step_offsets),
                PackPanel.STEPS: len(step_offsets),
                PackPanel.COLUMNS_FIRST: columns.place(column_offsets),
                PackPanel.COLUMNS: len(column_offsets),
                PackPanel.WIDTH: panel.width,
            }
            table += [fields[f] for f in PackPanel]
        self._tables = [np.array(values or [0], np.int64) for values in (table, steps.values, columns.values)]
        self._task = task or _code(structure.dtype, isa)

    def pack(self, weights: NDArray[Any]) -> tuple[NDArray[Any], bool]:
        """The packed weights, and whether every one of them is finite. `weights` is contiguous."""
        packed = aligned_empty(self._elements, self._packed_type)
        not_finite = np.zeros(self._panels, np.int64)
        job = np.zeros(len(Pack), np.int64)
        job[Pack.SOURCE], job[Pack.PACKED] = buffers.address(weights), buffers.address(packed)
        job[Pack.PANELS], job[Pack.STEPS], job[Pack.COLUMNS] = map(buffers.address, self._tables)
        job[Pack.NOT_FINITE] = buffers.address(not_finite)
        job[Pack.CHANNELS] = self._channels
        job[Pack.CHANNEL_STRIDE] = self._channel_stride
        job[Pack.WINDOW] = self._window
        threads = pool.current_threads() if self._elements > 50_000 else 1
        pool.parallel(self._task, buffers.address(job), self._panels, min(threads, self._panels))
        return packed, not not_finite.any()


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
