"""Where the workers of the pool run: IR that gives them the launcher's affinity, less the launcher's own CPU.

On small virtual machines a thread that is woken lands on the CPU of the thread that wakes it, and waits for it there.
So before a wake-up the workers are confined to the other CPUs the launcher may use; where CPUs are many the kernel
finds a free one itself, and the workers get the launcher's whole mask. Only a changed mask is passed on.
"""

from __future__ import annotations

__all__ = ["MASK", "MASK_BYTES", "TIDS", "placement_ir"]

# Offsets in the control page.
MASK = 512  # the affinity the workers have now
MASK_BYTES = 128
TIDS = 1024  # the workers' thread ids, 32 bits each

_FEW_WORKERS = 8


def placement_ir() -> str:
    """`place(page, workers)`, to be called before sleeping workers are woken."""
    return _PLACEMENT


_PLACEMENT = f"""
; let the workers run where the launcher may run, and, where CPUs are few, not on the launcher's own CPU
define internal void @place(ptr %page, i32 %workers) {{
entry:
  %mask = alloca [{MASK_BYTES // 8} x i64], align 8
  call void @llvm.memset.inline.p0.i64(ptr %mask, i8 0, i64 {MASK_BYTES}, i1 false)
  %r = call i32 @sched_getaffinity(i32 0, i64 {MASK_BYTES}, ptr %mask)
  %known = icmp sge i32 %r, 0
  %few = icmp sle i32 %workers, {_FEW_WORKERS}
  br i1 %known, label %choose, label %return

choose:
  %alone = call i64 @bits(ptr %mask)
  %several = icmp sgt i64 %alone, 1
  %leave = and i1 %several, %few
  br i1 %leave, label %exclude, label %compare

exclude:
  %cpu = call i32 @sched_getcpu()
  %valid = icmp ult i32 %cpu, {8 * MASK_BYTES}
  br i1 %valid, label %clear, label %compare

clear:
  %word = lshr i32 %cpu, 6
  %bit = and i32 %cpu, 63
  %bit_wide = zext i32 %bit to i64
  %one = shl i64 1, %bit_wide
  %keep = xor i64 %one, -1
  %word_at = getelementptr i64, ptr %mask, i32 %word
  %old = load i64, ptr %word_at
  %new = and i64 %old, %keep
  store i64 %new, ptr %word_at
  br label %compare

compare:
  %i = phi i64 [ 0, %choose ], [ 0, %exclude ], [ 0, %clear ], [ %i_next, %compare ]
  %changed = phi i64 [ 0, %choose ], [ 0, %exclude ], [ 0, %clear ], [ %changed_next, %compare ]
  %mine_at = getelementptr i64, ptr %mask, i64 %i
  %mine = load i64, ptr %mine_at
  %last_offset = mul i64 %i, 8
  %last_byte = add i64 %last_offset, {MASK}
  %last_at = getelementptr i8, ptr %page, i64 %last_byte
  %last = load i64, ptr %last_at
  store i64 %mine, ptr %last_at
  %difference = xor i64 %mine, %last
  %changed_next = or i64 %changed, %difference
  %i_next = add i64 %i, 1
  %compared = icmp eq i64 %i_next, {MASK_BYTES // 8}
  br i1 %compared, label %decide, label %compare

decide:
  %same = icmp eq i64 %changed_next, 0
  br i1 %same, label %return, label %move

move:
  %w = phi i32 [ 0, %decide ], [ %w_next, %move ]
  %tids = getelementptr i8, ptr %page, i64 {TIDS}
  %tid_at = getelementptr i32, ptr %tids, i32 %w
  %tid = load i32, ptr %tid_at
  %moved = call i32 @sched_setaffinity(i32 %tid, i64 {MASK_BYTES}, ptr %mask)
  %w_next = add i32 %w, 1
  %all = icmp sge i32 %w_next, %workers
  br i1 %all, label %return, label %move

return:
  ret void
}}

define internal i64 @bits(ptr %mask) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
  %sum = phi i64 [ 0, %entry ], [ %sum_next, %loop ]
  %at = getelementptr i64, ptr %mask, i64 %i
  %word = load i64, ptr %at
  %count = call i64 @llvm.ctpop.i64(i64 %word)
  %sum_next = add i64 %sum, %count
  %i_next = add i64 %i, 1
  %end = icmp eq i64 %i_next, {MASK_BYTES // 8}
  br i1 %end, label %return, label %loop
return:
  ret i64 %sum_next
}}

declare i64 @llvm.ctpop.i64(i64)
declare void @llvm.memset.inline.p0.i64(ptr, i8, i64, i1)
"""
