"""Packing weights: any filter layout becomes panels `[tap][channel][column]` in computed type, zero-padded to vectors.

A panel is one task. The same pass notes whether a panel holds an infinity or a NaN, since those must not meet the zeros
that pad a border.
"""

from __future__ import annotations

from typing import Any

from unstride.codegen.emit import I64, PTR, Emitter
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.job import Pack, PackPanel

__all__ = ["emit_pack"]


def emit_pack(module: Any, numbers: Numbers) -> None:
    """Emits `pack(job, task, slot)`."""
    e = Emitter(module, "pack", [PTR, I64, I64])
    job, task = e.arg_ptr(0, I64), e.arg_int(1)
    panel = e.ptr(job.int(Pack.PANELS), I64) + task * len(PackPanel)
    source = e.ptr(job.int(Pack.SOURCE), numbers.stored) + panel.int(PackPanel.SOURCE)
    packed = e.ptr(job.int(Pack.PACKED), numbers.computed) + panel.int(PackPanel.PACKED)
    step_offsets = e.ptr(job.int(Pack.STEPS), I64) + panel.int(PackPanel.STEPS_FIRST)
    column_offsets = e.ptr(job.int(Pack.COLUMNS), I64) + panel.int(PackPanel.COLUMNS_FIRST)
    steps, columns, width = (panel.int(f) for f in (PackPanel.STEPS, PackPanel.COLUMNS, PackPanel.WIDTH))
    channels, channel_stride = job.int(Pack.CHANNELS), job.int(Pack.CHANNEL_STRIDE)
    zero = constant(numbers.computed, 0.0)
    doubt = e.stack(numbers.computed)
    doubt.store(0, zero)
    for channel in e.range(channels):
        from_channel = source + channel * channel_stride
        for step in e.range(steps):
            line = packed + (step * channels + channel) * width
            from_step = from_channel + step_offsets.int(step)
            for column in e.range(columns):
                value = numbers.load(from_step, column_offsets.int(column))
                line.store(column, value)
                # 0 * value is 0 unless value is infinite or NaN; a NaN then stays in the sum.
                doubt.store(0, e.b.fadd(doubt.load(), e.b.fmul(value, zero)))
            for column in e.range(columns, width):
                line.store(column, zero)
    bad = e.b.zext(e.b.fcmp_unordered("uno", doubt.load(), zero), I64)
    e.ptr(job.int(Pack.NOT_FINITE), I64).store(task, bad)
    e.ret()
