"""What each thread of a borrowed team runs, as LLVM IR: threads of another library, say OpenMP's, do one of our jobs.

A *team job* is a block of five 64-bit words: the task function, its argument, the number of tasks, the first task not
yet taken, and the slots given out. Floating point runs in the default environment; each thread's own is restored.
"""

from __future__ import annotations

from unstride.codegen.pool_target import EXTERNALS, target_ir
from unstride.plan.machine import ISA

__all__ = ["EXTERNALS", "TEAM_WORDS", "team_ir"]

TEAM_WORDS = ("task", "arg", "tasks", "next", "slots")


def team_ir(isa: ISA) -> str:
    """The module: `team(job)`, which returns when no task is left to take."""
    return target_ir(isa) + _TEAM


_TEAM = """
define void @team(ptr %job) {
entry:
  %callers = call i64 @float_environment()
  call void @default_float_environment()
  %arg_at = getelementptr i64, ptr %job, i64 1
  %tasks_at = getelementptr i64, ptr %job, i64 2
  %next_at = getelementptr i64, ptr %job, i64 3
  %slots_at = getelementptr i64, ptr %job, i64 4
  %task = load ptr, ptr %job
  %arg = load ptr, ptr %arg_at
  %tasks = load i64, ptr %tasks_at
  %slot = atomicrmw add ptr %slots_at, i64 1 monotonic
  br label %take

take:
  %mine = atomicrmw add ptr %next_at, i64 1 monotonic
  %some = icmp slt i64 %mine, %tasks
  br i1 %some, label %work, label %finish

work:
  call void %task(ptr %arg, i64 %mine, i64 %slot)
  br label %take

finish:
  call void @set_float_environment(i64 %callers)
  ret void
}
"""
