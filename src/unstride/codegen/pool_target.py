"""What the thread pool needs of a processor and of Linux, as IR: pauses, the float environment, futexes, thread ids."""

from __future__ import annotations

from unstride.plan.machine import ISA

__all__ = ["EXTERNALS", "target_ir"]

EXTERNALS = frozenset(
    {"clock_gettime", "sched_getaffinity", "sched_getcpu", "sched_setaffinity", "sched_yield", "syscall"}
)


def target_ir(isa: ISA) -> str:
    """`relax`, `float_environment`, `set_float_environment`, `default_float_environment`, `futex` and `thread_id`."""
    if isa.triple.startswith("x86_64"):
        return _DECLARATIONS + _X86 + _system_calls(futex=202, gettid=186)
    return _DECLARATIONS + _ARM + _system_calls(futex=98, gettid=178)


_DECLARATIONS = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @sched_getcpu()
declare i32 @sched_yield()
declare i64 @syscall(i64, ...)
"""

# The default of MXCSR is 0x1F80: all exceptions masked, round to nearest, neither FTZ nor DAZ.
_X86 = """
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal void @relax() alwaysinline {
  call void @llvm.x86.sse2.pause()
  ret void
}

define internal i64 @float_environment() alwaysinline {
  %word = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %now = load i32, ptr %word
  %wide = zext i32 %now to i64
  ret i64 %wide
}

define internal void @set_float_environment(i64 %value) alwaysinline {
  %word = alloca i32
  %narrow = trunc i64 %value to i32
  store i32 %narrow, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}

define internal void @default_float_environment() alwaysinline {
  call void @set_float_environment(i64 8064)
  ret void
}
"""

# The default of FPCR is 0.
_ARM = """
declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal void @relax() alwaysinline {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}

define internal i64 @float_environment() alwaysinline {
  %now = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %now
}

define internal void @set_float_environment(i64 %value) alwaysinline {
  call void @llvm.aarch64.set.fpcr(i64 %value)
  ret void
}

define internal void @default_float_environment() alwaysinline {
  call void @set_float_environment(i64 0)
  ret void
}
"""


def _system_calls(futex: int, gettid: int) -> str:
    return f"""
define internal i64 @futex(ptr %word, i32 %operation, i32 %value) {{
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 %operation, i32 %value, ptr null)
  ret i64 %r
}}

define internal i32 @thread_id() {{
  %id = call i64 (i64, ...) @syscall(i64 {gettid})
  %narrow = trunc i64 %id to i32
  ret i32 %narrow
}}
"""
