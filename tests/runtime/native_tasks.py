"""Small native tasks to launch: written as LLVM IR, so that the pool is tested with what it really runs."""

from __future__ import annotations

from unstride.plan.machine import NEON
from unstride.runtime.engine import kernel_library
from unstride.runtime.machine import host

_X86_ENVIRONMENT = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i64 @get_environment() {
  %word = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %now = load i32, ptr %word
  %wide = zext i32 %now to i64
  ret i64 %wide
}
define void @set_environment(i64 %value) {
  %word = alloca i32
  %narrow = trunc i64 %value to i32
  store i32 %narrow, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}
"""

_ARM_ENVIRONMENT = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define i64 @get_environment() {
  %now = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %now
}
define void @set_environment(i64 %value) {
  call void @llvm.aarch64.set.fpcr(i64 %value)
  ret void
}
"""

# count: words[task] += 1
# burn: spin words[0] times, then words[8 + task] += 1
# environment: words[task] = the float environment seen by the task
# halve: floats[task] *= 0.5
# occupy: slots[slot] must be free on entry; collisions are counted in words[0], slots start at words[8]
_TASKS = """
define void @count(ptr %words, i64 %task, i64 %slot) {
  %at = getelementptr i64, ptr %words, i64 %task
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  ret void
}

define void @burn(ptr %words, i64 %task, i64 %slot) {
entry:
  %turns = load i64, ptr %words
  %index = add i64 %task, 8
  %at = getelementptr i64, ptr %words, i64 %index
  %old = load i64, ptr %at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  store volatile i64 %old, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %turns
  br i1 %more, label %loop, label %end
end:
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  ret void
}

define void @environment(ptr %words, i64 %task, i64 %slot) {
  %now = call i64 @get_environment()
  %at = getelementptr i64, ptr %words, i64 %task
  store i64 %now, ptr %at
  ret void
}

define void @halve(ptr %floats, i64 %task, i64 %slot) {
  %at = getelementptr float, ptr %floats, i64 %task
  %old = load float, ptr %at
  %new = fmul float %old, 0.5
  store float %new, ptr %at
  ret void
}

define void @occupy(ptr %words, i64 %task, i64 %slot) {
entry:
  %index = add i64 %slot, 8
  %at = getelementptr i64, ptr %words, i64 %index
  %swap = cmpxchg ptr %at, i64 0, i64 1 seq_cst seq_cst
  %free = extractvalue {i64, i1} %swap, 1
  br i1 %free, label %loop, label %collide
collide:
  %n = atomicrmw add ptr %words, i64 1 seq_cst
  ret void
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %seen = load volatile i64, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 300
  br i1 %more, label %loop, label %end
end:
  store atomic i64 0, ptr %at seq_cst, align 8
  ret void
}
"""

SYMBOLS = ("count", "burn", "environment", "halve", "occupy", "get_environment", "set_environment")


def task_ir() -> str:
    return (_ARM_ENVIRONMENT if host().isa is NEON else _X86_ENVIRONMENT) + _TASKS


def tasks() -> dict[str, int]:
    """Addresses of the tasks above."""
    return kernel_library("test tasks", task_ir, host().isa, SYMBOLS).addresses
