"""Winograd's transforms, as sums of vectors or of single numbers, and the packing of weights, which uses one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unstride.codegen.emit import I64, PTR, Emitter
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.job import Pack, PackPanel
from unstride.plan.winograd import Steps, Transform

__all__ = ["both_sides", "emit_winograd_pack"]


def emit_winograd_pack(module: Any, numbers: Numbers, v: Transform, x: Transform) -> None:
    """Emits `pack(job, task, slot)`: U = G g GT for every channel and column of a panel.

    The panel's steps are its kernel elements, outer taps first, v.taps * x.taps each; -1 stands for a missing one.
    """
    e = Emitter(module, "pack", [PTR, I64, I64])
    job, task = e.arg_ptr(0, I64), e.arg_int(1)
    panel = e.ptr(job.int(Pack.PANELS), I64) + task * len(PackPanel)
    source = e.ptr(job.int(Pack.SOURCE), numbers.stored) + panel.int(PackPanel.SOURCE)
    packed = e.ptr(job.int(Pack.PACKED), numbers.computed) + panel.int(PackPanel.PACKED)
    steps = e.ptr(job.int(Pack.STEPS), I64) + panel.int(PackPanel.STEPS_FIRST)
    columns_at = e.ptr(job.int(Pack.COLUMNS), I64) + panel.int(PackPanel.COLUMNS_FIRST)
    taps = v.taps * x.taps
    outer = panel.int(PackPanel.STEPS) // taps
    columns, width = panel.int(PackPanel.COLUMNS), panel.int(PackPanel.WIDTH)
    channels, channel_stride = job.int(Pack.CHANNELS), job.int(Pack.CHANNEL_STRIDE)
    zero = constant(numbers.computed, 0.0)
    for o in e.range(outer):
        for channel in e.range(channels):
            line = packed + (o * channels + channel) * width
            for column in e.range(columns):
                base = source + (channel * channel_stride + columns_at.int(column))
                kernel = []
                for i in range(v.taps):
                    row = []
                    for j in range(x.taps):
                        step = steps.int(o * taps + (i * x.taps + j))
                        value = numbers.load(base, e.max(step, 0))
                        row.append(e.b.select(step < 0, zero, value))
                    kernel.append(row)
                for i, values in enumerate(both_sides(e, numbers, (v.kernel,), kernel, (x.kernel,))):
                    for j, value in enumerate(values):
                        point = i * x.size + j
                        (line + (outer * channels * width) * point).store(column, value)
            for column in e.range(columns, width):
                for point in range(v.size * x.size):
                    (line + (outer * channels * width) * point).store(column, zero)
    e.ret()


def both_sides(e: Emitter, numbers: Numbers, left: Steps, values: list[list[Any]], right: Steps) -> list[list[Any]]:
    """left . values . right^T, with left and right constant: the products of their steps."""
    for matrix in left:
        columns = range(len(values[0]))
        values = [[_combine(e, numbers, row, [line[j] for line in values]) for j in columns] for row in matrix]
    for matrix in right:
        values = [[_combine(e, numbers, row, line) for row in matrix] for line in values]
    return values


def _combine(e: Emitter, numbers: Numbers, factors: Sequence[float], values: list[Any]) -> Any:
    """A sum with constant factors, those of 1 first; 0, 1 and -1 cost no multiplication."""
    total = None
    for factor, value in sorted(zip(factors, values, strict=True), key=lambda term: (term[0] != 1, -term[0])):
        if factor == 0:
            continue
        if total is None:
            total = value if factor == 1 else e.b.fmul(value, constant(value.type, factor))
        elif factor in (1, -1):
            total = (e.b.fadd if factor == 1 else e.b.fsub)(total, value)
        else:
            total = numbers.multiply_add(e, value, constant(value.type, factor), total)
    return total
