"""The thread pool as LLVM IR: raw threads, one page of shared words, no lock held while work runs.

A *job* is a block of seven 64-bit words that belongs to the caller (`JOB_WORDS`): the task function, its argument, the
number of tasks, whether it is short, the first task not yet taken, the threads allowed, and whether to return to the
caller now and then.
`launch(job)` works on it:

    claim the page -> open the job -> take tasks beside the workers -> close it -> wait until no worker is inside

A launcher that may be interrupted looks up after a *slice* of about 20 ms: it returns 1, and is called again. Workers
go on meanwhile; to wait for them would cost half a task each time. If somebody has to be alone with the caller's memory
then (an exception leaves the launch, the process forks), `pause` closes the job. Closed, its whole state is its word
`next`, so that a launch, in whichever process, goes on from there or never.

Workers join an open job by compare-and-swap on one word that also holds the limit, so nobody waits for a worker that
comes late, and take tasks by fetch-and-add. An idle worker spins for a while, then sleeps on a futex. To wake it takes
longer than a short job: such a job is left to the launcher and to whoever spins. Only if another one came just before,
where more may follow, is somebody woken for those. If the page is taken by another launch, or no worker is there (a
forked child), the launcher simply does all the tasks.

Floating point runs in the default environment (round to nearest, no flushing, nothing trapped); the caller's own
environment is restored.
"""

from __future__ import annotations

from unstride.codegen.pool_placement import TIDS, placement_ir
from unstride.codegen.pool_target import EXTERNALS, target_ir
from unstride.plan.machine import ISA

__all__ = [
    "EXTERNALS",
    "JOB_WORDS",
    "MAX_WORKERS",
    "PAGE_BYTES",
    "SPINNERS_OFFSET",
    "SPIN_OFFSET",
    "SYMBOLS",
    "pool_ir",
]

JOB_WORDS = ("task", "arg", "tasks", "short", "next", "threads", "interruptible")
_NEXT_WORD, _THREADS_WORD, _INTERRUPTIBLE_WORD, _SHORT_WORD = map(
    JOB_WORDS.index, ("next", "threads", "interruptible", "short")
)
SYMBOLS = ("attach", "launch", "pause", "stop", "worker")
MAX_WORKERS = 255
PAGE_BYTES = 4096

# Words of the page, each on its own cache line where two threads write. The first word is the generation, which
# counts launches: a pointer to the page is a pointer to it.
_SLEEPERS, _STATE, _NEXT, _BUSY, _JOB, _STOP = (64 * line for line in range(1, 7))
SPIN_OFFSET = 448  # nanoseconds an idle worker spins before it sleeps
SPINNERS_OFFSET = 456  # how many workers do that; the others sleep at once
_WORKERS = 460
_OWNER = _BUSY + 8  # the job that is open
_LAST_SHORT = _BUSY + 16  # when a short job last found nobody awake

# Bits of the state word: 0-15 workers inside, 16-31 workers that joined, 32-47 how many may, 48 open.
_OPEN = 1 << 48
_JOINED_ONE = 0x10001
_TAKEN = 1 << 62  # what `next` becomes when a slice closes: beyond every task

_SLICE_NS = 20_000_000
# A launcher that waits for a worker yields often: that worker may be on its CPU. An idle worker yields rarely: beside
# somebody else's spinning thread (NumPy's BLAS spins for 30 ms) every yield costs it a slice of some milliseconds.
_WAITING_PAUSES, _IDLE_PAUSES = 64, 1024

_MONOTONIC, _MONOTONIC_COARSE = 1, 6
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


def pool_ir(isa: ISA) -> str:
    """The module: `attach(page)`, `launch(job)` (1 while tasks are left), `pause()` for the thread that may be
    interrupted, between two calls of it, `worker(page)` for a new thread, `stop()`."""
    return "\n".join((target_ir(isa), _COMMON, _LAUNCH, _WAKE, placement_ir(), _WORKER))


_COMMON = f"""
@page = internal global ptr null

define void @attach(ptr %page) {{
  store ptr %page, ptr @page
  ret void
}}

define void @stop() {{
  %page = load ptr, ptr @page
  %flag = getelementptr i8, ptr %page, i64 {_STOP}
  store atomic i32 1, ptr %flag seq_cst, align 4
  %generation = atomicrmw add ptr %page, i32 1 seq_cst
  %woken = call i64 @futex(ptr %page, i32 {_FUTEX_WAKE_PRIVATE}, i32 2147483647)
  ret void
}}

define internal i64 @nanoseconds(i32 %clock) {{
  %time = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}}

define internal i1 @process_ends(ptr %page) {{
  %flag = getelementptr i8, ptr %page, i64 {_STOP}
  %stopping = load atomic i32, ptr %flag monotonic, align 4
  %ending = icmp ne i32 %stopping, 0
  ret i1 %ending
}}

; when a slice that starts now is over: never, if nobody may interrupt
define internal i64 @deadline(i64 %interruptible) {{
  %may = icmp ne i64 %interruptible, 0
  br i1 %may, label %soon, label %never
soon:
  %start = call i64 @nanoseconds(i32 {_MONOTONIC_COARSE})
  %end = add i64 %start, {_SLICE_NS}
  ret i64 %end
never:
  ret i64 {_TAKEN}
}}

define internal i1 @slice_over(i64 %deadline) {{
  %now = call i64 @nanoseconds(i32 {_MONOTONIC_COARSE})
  %late = icmp sge i64 %now, %deadline
  ret i1 %late
}}

; nobody takes another task; returns when nobody is at one. Returns whether tasks are left
define internal i1 @close(ptr %page, ptr %job) {{
entry:
  %state = getelementptr i8, ptr %page, i64 {_STATE}
  %shared_next = getelementptr i8, ptr %page, i64 {_NEXT}
  %busy = getelementptr i8, ptr %page, i64 {_BUSY}
  %owner = getelementptr i8, ptr %page, i64 {_OWNER}
  %tasks_at = getelementptr i64, ptr %job, i64 2
  %next_at = getelementptr i64, ptr %job, i64 {_NEXT_WORD}
  %tasks = load i64, ptr %tasks_at
  %reached = atomicrmw xchg ptr %shared_next, i64 {_TAKEN} monotonic
  %before = atomicrmw and ptr %state, i64 {_OPEN - 1} acquire
  br label %wait
wait:
  %spins = phi i64 [ 0, %entry ], [ %spins_next, %wait_more ]
  %inside_word = load atomic i64, ptr %state acquire, align 8
  %inside = and i64 %inside_word, 65535
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %closed, label %wait_more
wait_more:
  call void @relax_or_yield(i64 %spins, i64 {_WAITING_PAUSES - 1})
  %spins_next = add i64 %spins, 1
  br label %wait
closed:
  %done = call i64 @llvm.smin.i64(i64 %reached, i64 %tasks)
  store i64 %done, ptr %next_at
  store atomic ptr null, ptr %owner monotonic, align 8
  store atomic i32 0, ptr %busy release, align 4
  %unfinished = icmp slt i64 %done, %tasks
  ret i1 %unfinished
}}

; the one thread whose jobs may be interrupted calls this, so such a job is between two slices; others are under way
define void @pause() {{
  %page = load ptr, ptr @page
  %owner = getelementptr i8, ptr %page, i64 {_OWNER}
  %job = load atomic ptr, ptr %owner monotonic, align 8
  %none = icmp eq ptr %job, null
  br i1 %none, label %return, label %some
some:
  %interruptible_at = getelementptr i64, ptr %job, i64 {_INTERRUPTIBLE_WORD}
  %interruptible = load i64, ptr %interruptible_at
  %mine = icmp ne i64 %interruptible, 0
  br i1 %mine, label %stop, label %return
stop:
  %unfinished = call i1 @close(ptr %page, ptr %job)
  br label %return
return:
  ret void
}}
"""

_LAUNCH = f"""
define i64 @launch(ptr %job) {{
entry:
  %callers = call i64 @float_environment()
  call void @default_float_environment()
  %arg_at = getelementptr i64, ptr %job, i64 1
  %tasks_at = getelementptr i64, ptr %job, i64 2
  %short_at = getelementptr i64, ptr %job, i64 {_SHORT_WORD}
  %next_at = getelementptr i64, ptr %job, i64 {_NEXT_WORD}
  %threads_at = getelementptr i64, ptr %job, i64 {_THREADS_WORD}
  %interruptible_at = getelementptr i64, ptr %job, i64 {_INTERRUPTIBLE_WORD}
  %task = load ptr, ptr %job
  %arg = load ptr, ptr %arg_at
  %tasks = load i64, ptr %tasks_at
  %threads = load i64, ptr %threads_at
  %interruptible = load i64, ptr %interruptible_at
  %page = load ptr, ptr @page
  %state = getelementptr i8, ptr %page, i64 {_STATE}
  %shared_next = getelementptr i8, ptr %page, i64 {_NEXT}
  %busy = getelementptr i8, ptr %page, i64 {_BUSY}
  %owner_at = getelementptr i8, ptr %page, i64 {_OWNER}
  %deadline = call i64 @deadline(i64 %interruptible)
  %owner = load atomic ptr, ptr %owner_at monotonic, align 8
  %is_open = icmp eq ptr %owner, %job
  br i1 %is_open, label %take, label %begin

begin:
  %first = load i64, ptr %next_at
  %left = sub i64 %tasks, %first
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %choose, label %finish

choose:
  %useful = call i64 @llvm.smin.i64(i64 %threads, i64 %left)
  %bounded = call i64 @llvm.smin.i64(i64 %useful, i64 {MAX_WORKERS + 1})
  %limit = sub i64 %bounded, 1
  %stopping = call i1 @process_ends(ptr %page)
  %wants_help = icmp sgt i64 %limit, 0
  %by_itself = xor i1 %wants_help, true
  %lonely = or i1 %stopping, %by_itself
  br i1 %lonely, label %alone, label %claim

claim:
  %claimed = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %won = extractvalue {{i32, i1}} %claimed, 1
  br i1 %won, label %open, label %alone

alone:
  %lone = phi i64 [ %first, %choose ], [ %first, %claim ], [ %lone_next, %alone_more ]
  call void %task(ptr %arg, i64 %lone, i64 0)
  %lone_next = add i64 %lone, 1
  store i64 %lone_next, ptr %next_at
  %lone_left = icmp slt i64 %lone_next, %tasks
  br i1 %lone_left, label %alone_more, label %finish

alone_more:
  %late = call i1 @slice_over(i64 %deadline)
  %leaving = call i1 @process_ends(ptr %page)
  %lone_over = or i1 %late, %leaving
  br i1 %lone_over, label %finish, label %alone

open:
  %shared_job = getelementptr i8, ptr %page, i64 {_JOB}
  %shared_arg = getelementptr i8, ptr %page, i64 {_JOB + 8}
  %shared_tasks = getelementptr i8, ptr %page, i64 {_JOB + 16}
  store ptr %task, ptr %shared_job
  store ptr %arg, ptr %shared_arg
  store i64 %tasks, ptr %shared_tasks
  store atomic ptr %job, ptr %owner_at monotonic, align 8
  store atomic i64 %first, ptr %shared_next monotonic, align 8
  %limit_bits = shl i64 %limit, 32
  %open_state = or i64 %limit_bits, {_OPEN}
  store atomic i64 %open_state, ptr %state release, align 8
  %generation = atomicrmw add ptr %page, i32 1 seq_cst
  %short = load i64, ptr %short_at
  call void @wake(ptr %page, i64 %limit, i64 %short)
  br label %take

take:
  %mine = atomicrmw add ptr %shared_next, i64 1 monotonic
  %is_task = icmp slt i64 %mine, %tasks
  br i1 %is_task, label %do, label %close

do:
  call void %task(ptr %arg, i64 %mine, i64 0)
  %ending = call i1 @process_ends(ptr %page)
  br i1 %ending, label %close, label %look_up

look_up:
  %over = call i1 @slice_over(i64 %deadline)
  br i1 %over, label %finish, label %take

close:
  %unfinished = call i1 @close(ptr %page, ptr %job)
  %rest = zext i1 %unfinished to i64
  br label %finish

finish:
  %tasks_left = phi i64 [ 0, %begin ], [ 0, %alone ], [ %rest, %close ], [ 1, %alone_more ], [ 1, %look_up ]
  call void @set_float_environment(i64 %callers)
  ret i64 %tasks_left
}}

declare i64 @llvm.smin.i64(i64, i64)

; every few pauses give the CPU to whoever needs it
define internal void @relax_or_yield(i64 %count, i64 %mask) {{
  %part = and i64 %count, %mask
  %yield = icmp eq i64 %part, %mask
  br i1 %yield, label %give, label %keep
give:
  %r = call i32 @sched_yield()
  ret void
keep:
  call void @relax()
  ret void
}}
"""

_WAKE = f"""
; wake as many sleepers as the awake workers do not make up for
define internal void @wake(ptr %page, i64 %wanted, i64 %short) {{
  %sleepers_at = getelementptr i8, ptr %page, i64 {_SLEEPERS}
  %sleepers = load atomic i32, ptr %sleepers_at seq_cst, align 4
  %none = icmp eq i32 %sleepers, 0
  br i1 %none, label %return, label %count
count:
  %workers_at = getelementptr i8, ptr %page, i64 {_WORKERS}
  %workers = load atomic i32, ptr %workers_at monotonic, align 4
  %awake = sub i32 %workers, %sleepers
  %wanted_narrow = trunc i64 %wanted to i32
  %missing = sub i32 %wanted_narrow, %awake
  %call = icmp sgt i32 %missing, 0
  br i1 %call, label %think, label %return
think:
  %is_short = icmp ne i64 %short, 0
  br i1 %is_short, label %remember, label %wake
remember:
  %last_at = getelementptr i8, ptr %page, i64 {_LAST_SHORT}
  %spin_at = getelementptr i8, ptr %page, i64 {SPIN_OFFSET}
  %now = call i64 @nanoseconds(i32 {_MONOTONIC})
  %last = load i64, ptr %last_at
  store i64 %now, ptr %last_at
  %between = sub i64 %now, %last
  %spin = load i64, ptr %spin_at
  %one_of_many = icmp slt i64 %between, %spin
  br i1 %one_of_many, label %wake, label %return
wake:
  call void @place(ptr %page, i32 %workers)
  %woken = call i64 @futex(ptr %page, i32 {_FUTEX_WAKE_PRIVATE}, i32 %missing)
  br label %return
return:
  ret void
}}
"""

_WORKER = f"""
define ptr @worker(ptr %page) {{
entry:
  call void @default_float_environment()
  %tid = call i32 @thread_id()
  %workers_at = getelementptr i8, ptr %page, i64 {_WORKERS}
  %tids = getelementptr i8, ptr %page, i64 {TIDS}
  %index = atomicrmw add ptr %workers_at, i32 1 seq_cst
  %tid_at = getelementptr i32, ptr %tids, i32 %index
  store i32 %tid, ptr %tid_at
  %sleepers = getelementptr i8, ptr %page, i64 {_SLEEPERS}
  %state = getelementptr i8, ptr %page, i64 {_STATE}
  %next = getelementptr i8, ptr %page, i64 {_NEXT}
  %stop = getelementptr i8, ptr %page, i64 {_STOP}
  %spin_at = getelementptr i8, ptr %page, i64 {SPIN_OFFSET}
  %spinners_at = getelementptr i8, ptr %page, i64 {SPINNERS_OFFSET}
  %task_at = getelementptr i8, ptr %page, i64 {_JOB}
  %arg_at = getelementptr i8, ptr %page, i64 {_JOB + 8}
  %tasks_at = getelementptr i8, ptr %page, i64 {_JOB + 16}
  br label %look

; the stop flag is raised before the generation, so whoever sees the last generation sees the flag, and does not sleep
look:
  %seen = load atomic i32, ptr %page seq_cst, align 4
  %stopping = load atomic i32, ptr %stop seq_cst, align 4
  %ending = icmp ne i32 %stopping, 0
  br i1 %ending, label %exit, label %try

try:
  %now = load atomic i64, ptr %state acquire, align 8
  %open_bit = and i64 %now, {_OPEN}
  %is_open = icmp ne i64 %open_bit, 0
  %joined_high = lshr i64 %now, 16
  %joined = and i64 %joined_high, 65535
  %limit_high = lshr i64 %now, 32
  %limit = and i64 %limit_high, 65535
  %room = icmp slt i64 %joined, %limit
  %may = and i1 %is_open, %room
  br i1 %may, label %join, label %idle

join:
  %with_me = add i64 %now, {_JOINED_ONE}
  %swapped = cmpxchg ptr %state, i64 %now, i64 %with_me acq_rel monotonic
  %in = extractvalue {{i64, i1}} %swapped, 1
  br i1 %in, label %begin, label %try

begin:
  %slot = add i64 %joined, 1
  %task = load ptr, ptr %task_at
  %arg = load ptr, ptr %arg_at
  %tasks = load i64, ptr %tasks_at
  br label %take

take:
  %mine = atomicrmw add ptr %next, i64 1 monotonic
  %is_task = icmp slt i64 %mine, %tasks
  br i1 %is_task, label %do, label %leave

do:
  call void %task(ptr %arg, i64 %mine, i64 %slot)
  br label %take

leave:
  %left = atomicrmw sub ptr %state, i64 1 release
  br label %idle

idle:
  %start = call i64 @nanoseconds(i32 {_MONOTONIC})
  %spin_ns = load i64, ptr %spin_at
  %spinners = load i32, ptr %spinners_at
  %spins = icmp slt i32 %index, %spinners
  %spin = select i1 %spins, i64 %spin_ns, i64 0
  %deadline = add i64 %start, %spin
  br label %spinning

spinning:
  %count = phi i64 [ 0, %idle ], [ %count_next, %spin_more ], [ %count_next, %spin_clock ]
  %generation = load atomic i32, ptr %page seq_cst, align 4
  %news = icmp ne i32 %generation, %seen
  br i1 %news, label %look, label %spin_more

spin_more:
  call void @relax_or_yield(i64 %count, i64 {_IDLE_PAUSES - 1})
  %count_next = add i64 %count, 1
  %part = and i64 %count_next, {_IDLE_PAUSES - 1}
  %read_clock = icmp eq i64 %part, 0
  br i1 %read_clock, label %spin_clock, label %spinning

spin_clock:
  %time = call i64 @nanoseconds(i32 {_MONOTONIC})
  %tired = icmp sge i64 %time, %deadline
  br i1 %tired, label %sleep, label %spinning

; the launcher raises the generation and then counts sleepers; this thread counts itself and then reads the generation
sleep:
  %more = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %slept = call i64 @futex(ptr %page, i32 {_FUTEX_WAIT_PRIVATE}, i32 %seen)
  %fewer = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %look

exit:
  ret ptr null
}}
"""
