"""Sums over all pixels of each channel: the gradient by a bias, up to a last small step.

    fold(job, task, slot)     pixel-major: lines of whole vectors that hold whole pixels, added element by element
    reduce(job, task, slot)   channel-major: each segment of a channel's pixels becomes one number

What a task sums does not depend on threads.
"""

from __future__ import annotations

from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import I32, I64, PTR, Emitter, Int, Ptr, vector
from unstride.codegen.numbers import Numbers, constant
from unstride.plan.gradient_job import BiasJob

__all__ = ["SYMBOLS", "bias_ir"]

SYMBOLS = ("fold", "reduce")
_SUMS = 4  # lines added at once, and independent sums that hide the latency of an addition


def bias_ir(numbers: Numbers) -> str:
    """The module of both functions."""
    module = ir.Module(name=f"bias {numbers.dtype}")
    module.triple = numbers.isa.triple
    _emit_fold(module, numbers)
    _emit_reduce(module, numbers)
    return str(module)


def _emit_fold(module: Any, numbers: Numbers) -> None:
    """A task adds LINES lines of LINE elements (the last task what is left) into its own line of partial sums."""
    e = Emitter(module, "fold", [PTR, I64, I64])
    job, task, lanes = e.arg_ptr(0, I64), e.arg_int(1), numbers.lanes
    line, lines = job.int(BiasJob.LINE), job.int(BiasJob.LINES)
    first = task * lines
    count = e.min(lines, job.int(BiasJob.TOTAL) - first)
    source = e.ptr(job.int(BiasJob.SOURCE), numbers.stored) + first * line
    target = e.ptr(job.int(BiasJob.PARTIAL), numbers.computed) + task * line

    def add(start: Int, lines_at_once: int) -> None:
        for column in e.range(0, line, lanes):
            value = target.load(column, lanes)
            for i in range(lines_at_once):
                value = e.b.fadd(value, numbers.load(source, (start + i) * line + column, lanes))
            target.store(column, value)

    for column in e.range(0, line, lanes):
        target.store(column, constant(vector(numbers.computed, lanes), 0.0))
    whole = count - (count & (_SUMS - 1))
    for i in e.range(0, whole, _SUMS):
        add(i, _SUMS)
    for i in e.range(whole, count):
        add(i, 1)
    e.ret()


def _emit_reduce(module: Any, numbers: Numbers) -> None:
    """A task sums LINES segments of at most LINE elements; SEGMENTS of them make up one channel of TOTAL elements."""
    e = Emitter(module, "reduce", [PTR, I64, I64])
    job, task, lanes = e.arg_ptr(0, I64), e.arg_int(1), numbers.lanes
    line, lines, segments = (job.int(f) for f in (BiasJob.LINE, BiasJob.LINES, BiasJob.SEGMENTS))
    partial = e.ptr(job.int(BiasJob.PARTIAL), numbers.computed)
    sums = [e.stack(vector(numbers.computed, lanes)) for _ in range(_SUMS)]
    rest = e.stack(numbers.computed)
    for index in e.range(task * lines, e.min((task + 1) * lines, job.int(BiasJob.COUNT))):
        start = index % segments * line
        count = e.min(line, job.int(BiasJob.TOTAL) - start)
        source = e.ptr(job.int(BiasJob.SOURCE), numbers.stored) + index // segments * job.int(BiasJob.TOTAL) + start
        for slot in sums:
            _store(slot, constant(vector(numbers.computed, lanes), 0.0))
        _store(rest, constant(numbers.computed, 0.0))
        step = _SUMS * lanes
        whole = count - (count & (step - 1))
        for i in e.range(0, whole, step):
            for s, slot in enumerate(sums):
                _store(slot, e.b.fadd(_load(slot), numbers.load(source, i + s * lanes, lanes)))
        for i in e.range(whole, count):
            _store(rest, e.b.fadd(_load(rest), numbers.load(source, i)))
        value = _load(sums[0])
        for slot in sums[1:]:
            value = e.b.fadd(value, _load(slot))
        partial.store(index, e.b.fadd(_across(e, value, lanes), _load(rest)))
    e.ret()


def _across(e: Emitter, value: Any, lanes: int) -> Any:
    """The sum of all lanes: halves are added until one is left."""
    while lanes > 1:
        lanes //= 2
        halves = [ir.Constant(vector(I32, lanes), list(range(start, start + lanes))) for start in (0, lanes)]
        low, high = (e.b.shuffle_vector(value, value, half) for half in halves)
        value = e.b.fadd(low, high)
    return e.b.extract_element(value, ir.Constant(I32, 0))


def _load(slot: Ptr) -> Any:
    return slot.e.b.load(slot.value, typ=slot.element)


def _store(slot: Ptr, value: Any) -> None:
    slot.e.b.store(value, slot.value)
