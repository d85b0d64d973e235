"""The thread pool: how many threads a call may use, and the launch of a job on them.

The pool itself is machine code (`codegen.pool`); this file starts its threads, and calls it. Threads are started when a
job first wants them, sleep when there is none, are stopped and joined when the interpreter ends, and are started
afresh in a forked child. Their page and their code are never freed, because a thread may be using them at any moment.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

from unstride.codegen import pool as code
from unstride.errors import AttributeValueError
from unstride.runtime.machine import host, usable_cores
from unstride.runtime.memory import new_pages, wipe_on_fork

__all__ = [
    "MAX_THREADS",
    "borrowed",
    "current_threads",
    "finish",
    "main_thread",
    "own_threads",
    "parallel",
    "prepare",
    "set_threads",
    "threads",
]

MAX_THREADS = code.MAX_WORKERS + 1
_SPIN_NS = 200_000
_ATTRIBUTE_BYTES = 256  # more than a pthread_attr_t on any Linux
_MASK_BYTES = 1024

Launch = Callable[[int], int]
Team = Callable[[int, int, int, int, bool], None]
_JOB = struct.Struct(f"{len(code.JOB_WORDS)}q")
JOB_BYTES, PROGRESS_OFFSET = _JOB.size, _JOB.size - 24  # from there on, words differ from launch to launch
_blocks: list[tuple[ctypes.Array[ctypes.c_char], int]] = []  # job blocks not in use; a nested launch takes another


# --- how many -------------------------------------------------------------------------------------------------------

_scoped: ContextVar[int | None] = ContextVar("unstride_threads", default=None)
_team: ContextVar[Team | None] = ContextVar("unstride_team", default=None)
_chosen: int | None = None


def set_threads(n: int | None) -> None:
    """Use at most `n` threads from now on, in the whole process; None returns to the default.

    Results do not depend on it.

    >>> set_threads(2)
    >>> current_threads()
    2
    >>> set_threads(None)
    """
    global _chosen
    _chosen = None if n is None else _checked(n, "threads")


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    """Use at most `n` threads inside the block, in this thread or task only.

    >>> with threads(1):
    ...     current_threads()
    1
    """
    token = _scoped.set(_checked(n, "threads"))
    try:
        yield
    finally:
        _scoped.reset(token)


def current_threads() -> int:
    """Threads a call made here and now would use.

    The innermost `threads` block decides, else `set_threads`, else `UNSTRIDE_NUM_THREADS`, else the cores this process
    may use.
    """
    return _scoped.get() or _chosen or _from_environment() or usable_cores()


@cache
def _from_environment() -> int | None:
    asked = os.environ.get("UNSTRIDE_NUM_THREADS", "").strip()
    return _checked(int(asked) if asked.isdigit() else asked, "UNSTRIDE_NUM_THREADS") if asked else None


def _checked(n: object, field: str) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise AttributeValueError(field, n, "must be a whole number of threads, 1 or more", "use 1 for no helpers")
    return min(n, MAX_THREADS)


# --- launching ------------------------------------------------------------------------------------------------------


def parallel(task_address: int, arg_address: int, tasks: int, threads: int, short: bool = False) -> None:
    """Call `task(arg, i, slot)` once for every i in [0, tasks), on up to `threads` threads; return when all are done.

    The task is native code of the C type `void (*)(int8_t *arg, int64_t task, int64_t slot)`. Tasks running at the same
    time have different slots in [0, threads); the launcher's is 0. `short` keeps the interpreter's lock and wakes
    nobody for one job alone, which is right below about 100 us. When KeyboardInterrupt comes, no task is running.
    """
    team = _team.get()
    if team is not None and threads > 1 and tasks > 1:
        team(task_address, arg_address, tasks, threads, short)
        return
    try:
        block, start = _blocks.pop()
    except IndexError:
        block = ctypes.create_string_buffer(_JOB.size)
        start = ctypes.addressof(block)
    interruptible = threading.get_ident() == _main_thread
    _JOB.pack_into(block, 0, task_address, arg_address, tasks, short, 0, threads, interruptible)
    try:
        finish(prepare(threads if tasks > 1 else 1, short), start, interruptible)
    finally:
        _blocks.append((block, start))


def finish(launch: Launch, start: int, interruptible: bool) -> None:
    """Run the job block at `start`. When an exception leaves this function, no task of it is running any more."""
    try:
        while launch(start):
            pass  # the interpreter runs signal handlers here: between slices, while workers go on
    except BaseException:
        if interruptible and _pool is not None:
            _pool.pause()  # a native function: no other handler runs before it is done
        raise


def own_threads() -> int:
    """Threads of the pool that a call made here and now would use; 0 if it would use another library's."""
    return 0 if _team.get() is not None else current_threads()


def main_thread() -> int | None:
    """The thread that handles signals: it alone looks up from a long job."""
    return _main_thread


@contextlib.contextmanager
def borrowed(team: Team | None) -> Iterator[None]:
    """Run the jobs of this block on another library's threads; None means on the pool's own.

    `team(task, arg, tasks, threads, short)` does what `parallel` does.
    """
    token = _team.set(team)
    try:
        yield
    finally:
        _team.reset(token)


def prepare(threads: int, short: bool = False) -> Launch:
    """Have workers for jobs of `threads` threads, and return the native launch function for repeated use.

    `launch(address of a job block)` returns 1 while tasks are left: call it again until it returns 0. The block is
    seven 64-bit words, see `codegen.pool`.
    """
    pool = _pool or _start()
    if threads > 1 + pool.workers:
        pool.grow(threads - 1)
    return pool.launch_holding if short else pool.launch_releasing


class _Pool:
    """The native functions, the shared page, and the threads started so far."""

    def __init__(self) -> None:
        from unstride.runtime.engine import kernel_library  # LLVM is loaded when first needed

        isa = host().isa
        wanted = "pool", lambda: code.pool_ir(isa), isa, code.SYMBOLS
        native = kernel_library(*wanted, externals=code.EXTERNALS, quickly=True).addresses
        self.lock = threading.RLock()  # a signal handler may launch, too
        self.workers = 0
        self.handles: list[int] = []
        self.page = new_pages(code.PAGE_BYTES)
        wipe_on_fork(self.page, code.PAGE_BYTES)
        self.worker = native["worker"]
        self.stop = ctypes.CFUNCTYPE(None)(native["stop"])
        self.pause = ctypes.CFUNCTYPE(None)(native["pause"])
        self.attach = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(native["attach"])
        self.launch_releasing: Launch = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(native["launch"])
        self.launch_holding: Launch = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(native["launch"])

    def grow(self, workers: int) -> None:
        """Start threads until there are `workers`, or as many as the system gives."""
        wanted = min(workers, code.MAX_WORKERS)
        with self.lock, _signals_blocked():
            # no more spinning threads than free cores: one more would take the CPU from one that works
            ctypes.c_int64.from_address(self.page + code.SPIN_OFFSET).value = _SPIN_NS
            ctypes.c_int32.from_address(self.page + code.SPINNERS_OFFSET).value = usable_cores() - 1
            with _placed_elsewhere() as attributes:
                while len(self.handles) < wanted and (handle := _new_thread(attributes, self.worker, self.page)):
                    self.handles.append(handle)
            self.workers = max(self.workers, wanted)  # do not ask again for what was refused

    def shut_down(self) -> None:
        """Stop and join the threads. Jobs still under way are finished by their launchers, alone."""
        with self.lock:
            self.stop()
            for handle in self.handles:
                _libc.pthread_join(ctypes.c_size_t(handle), None)
            self.handles.clear()
            self.workers = MAX_THREADS

    def begin_again(self) -> None:
        """In a forked child: no thread exists here and the page is clean."""
        ctypes.memset(self.page, 0, code.PAGE_BYTES)
        self.lock = threading.RLock()
        self.workers = 0
        self.handles.clear()


_pool: _Pool | None = None
_start_lock = threading.RLock()
_main_thread = threading.main_thread().ident
_libc = ctypes.CDLL(None)


def _start() -> _Pool:
    global _pool
    with _start_lock:
        if _pool is None:
            pool = _Pool()
            if _pool is None:  # no signal handler started one meanwhile
                pool.attach(pool.page)
                atexit.register(pool.shut_down)
                _pool = pool
    return _pool


def _new_thread(attributes: Any, function: int, argument: int) -> int:
    """The handle of a thread that calls `function(argument)`; 0 if the system has no thread to give."""
    handle = ctypes.c_size_t()
    start = ctypes.c_void_p(function), ctypes.c_void_p(argument)
    return 0 if _libc.pthread_create(ctypes.byref(handle), attributes, *start) else handle.value


@contextlib.contextmanager
def _placed_elsewhere() -> Iterator[Any]:
    """Attributes of a thread that starts on another CPU than this one, where a small virtual machine would leave it."""
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    _libc.pthread_attr_init(attributes)
    others = os.sched_getaffinity(0) - {_libc.sched_getcpu()}
    if others:
        mask = sum(1 << cpu for cpu in others).to_bytes(_MASK_BYTES, "little")
        _libc.pthread_attr_setaffinity_np(attributes, ctypes.c_size_t(_MASK_BYTES), mask)
    try:
        yield attributes
    finally:
        _libc.pthread_attr_destroy(attributes)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Threads started inside take no signals: those are for the interpreter's own threads."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _before_fork() -> None:
    """A handler may fork between two slices of a job: both processes shall go on with the same tasks left."""
    if _pool is not None and threading.get_ident() == _main_thread:
        _pool.pause()


def _after_fork_in_child() -> None:
    global _start_lock, _main_thread
    _start_lock = threading.RLock()
    _main_thread = threading.get_ident()
    if _pool is not None:
        _pool.begin_again()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
