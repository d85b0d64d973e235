"""Filling a result before a kernel that does not visit all of it."""

from __future__ import annotations

from unstride.codegen import ir
from unstride.codegen.emit import I64, PTR, VOID, Emitter
from unstride.codegen.numbers import Numbers
from unstride.codegen.strips import emit_stream
from unstride.plan.job import Fill

__all__ = ["build_fill"]


def build_fill(numbers: Numbers) -> str:
    """The LLVM IR of `fill(job, task, slot)`: a few patterns, one after the other, past the caches."""
    module = ir.Module(name="fill")
    module.triple = numbers.isa.triple
    stream = emit_stream(module, numbers)
    e = Emitter(module, "fill", [PTR, I64, I64])
    job = e.arg_ptr(0, I64)
    result, pattern = (e.ptr(job.int(field), numbers.stored) for field in (Fill.RESULT, Fill.PATTERN))
    length, turns = job.int(Fill.LENGTH), job.int(Fill.TURNS)
    for turn in e.range(turns):
        at = (e.arg_int(1) * turns + turn) * length
        e.call(stream, result + at, pattern, e.max(e.min(length, job.int(Fill.COUNT) - at), 0))
    if numbers.isa.streams:
        e.intrinsic("llvm.x86.sse.sfence", VOID, ())
    e.ret()
    return str(module)
