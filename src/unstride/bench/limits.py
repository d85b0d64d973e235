"""What this machine can do at most, measured beside the layers: fused multiply-adds, and copying.

No layer computed directly can beat `flops / FMA peak`, and none that misses the caches can beat the time of copying its
bytes. Winograd needs fewer multiplications than the flops counted here, so it may pass 100 % of the FMA peak.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from statistics import median
from threading import Barrier
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from unstride.plan.machine import ISA
from unstride.runtime.engine import kernel_library
from unstride.runtime.machine import host

__all__ = ["Limits", "fma_ir"]

FMA_SECONDS = 0.003
LEAST_COPY_BYTES = 256 * 1024
MOST_COPY_BYTES = 256 * 1024 * 1024
COPY_BYTES = 20_000_000  # per thread and measurement
_LLVM_TYPES = {4: "float", 8: "double"}


class Limits:
    """Measures the limits on `threads` threads at once, a few milliseconds a time, so that it can join every round."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        cpus = sorted(os.sched_getaffinity(0))
        places = [cpus[i % len(cpus)] for i in range(threads)]
        # Two threads that are woken together may land on one processor and wait for each other there.
        self._pool = ThreadPoolExecutor(threads, initializer=lambda: os.sched_setaffinity(0, {places.pop()}))
        self._barrier = Barrier(threads)
        self._iterations: dict[int, int] = {}
        self._blocks: dict[int, list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]] = {}

    def fma_flops_per_second(self, itemsize: int = 4) -> float:
        """Floating-point operations per second of all threads together, in f32 (itemsize 4) or f64 (8)."""
        isa = host().isa
        loop = _fma_loop(itemsize)
        if itemsize not in self._iterations:
            start = perf_counter()
            loop(20_000)
            self._iterations[itemsize] = max(1, round(20_000 * FMA_SECONDS / (perf_counter() - start)))
        count = self._iterations[itemsize]
        flops = 2 * isa.lanes(itemsize) * _accumulators(isa) * count
        return sum(flops / seconds for seconds in self._together(lambda _: loop(count)))

    def fma_for(self, seconds: float, itemsize: int = 4) -> float:
        """What all threads did per second, in the median, while they did nothing else for so long."""
        end, found = perf_counter() + seconds, []
        while perf_counter() < end:
            found.append(self.fma_flops_per_second(itemsize))
        return median(found)

    def copy_bytes_per_second(self, nbytes: int = MOST_COPY_BYTES) -> float | None:
        """Bytes read plus bytes written per second when `nbytes` in all are moved again and again by all threads.

        At a layer's own size that is the cache it lives in; by default, blocks so large that memory moves them. None
        below a size where starting the copy would be measured instead.
        """
        if nbytes < LEAST_COPY_BYTES:
            return None
        share = min(nbytes, MOST_COPY_BYTES) // (2 * self.threads)
        if share not in self._blocks:
            # The large blocks and those of one layer are kept.
            largest = MOST_COPY_BYTES // (2 * self.threads)
            self._blocks = {size: blocks for size, blocks in self._blocks.items() if size == largest}
            self._blocks[share] = [(np.ones(share, np.uint8), np.ones(share, np.uint8)) for _ in range(self.threads)]
        repeats = max(1, round(COPY_BYTES / share))
        pairs = [(target.ctypes.data, source.ctypes.data) for target, source in self._blocks[share]]

        def copy(thread: int) -> None:
            target, source = pairs[thread]
            for _ in range(repeats):
                ctypes.memmove(target, source, share)

        return sum(2 * share * repeats / seconds for seconds in self._together(copy))

    def close(self) -> None:
        self._pool.shutdown()

    def _together(self, work: Callable[[int], object]) -> list[float]:
        """The seconds each thread took for `work(thread)` when all start together."""

        def timed(thread: int) -> float:
            self._barrier.wait()
            start = perf_counter()
            work(thread)
            return perf_counter() - start

        return list(self._pool.map(timed, range(self.threads)))


def fma_ir(isa: ISA, itemsize: int) -> str:
    """A loop of independent fused multiply-adds that fill the register file; nothing else is in it."""
    vector = f"<{isa.lanes(itemsize)} x {_LLVM_TYPES[itemsize]}>"
    fma = f"@llvm.fma.v{isa.lanes(itemsize)}f{8 * itemsize}"
    names = range(_accumulators(isa))
    head = [f"  %a{i} = phi {vector} [ %seed, %entry ], [ %b{i}, %loop ]" for i in names]
    body = [f"  %b{i} = call {vector} {fma}({vector} %a{i}, {vector} %factor, {vector} %seed)" for i in names]
    last = [f"  %s{i} = fadd {vector} %{f's{i - 1}' if i else 'seed'}, %b{i}" for i in names]
    return "\n".join(
        [
            f"declare {vector} {fma}({vector}, {vector}, {vector})",
            "define void @fma_peak(ptr %values, i64 %count) {",
            "entry:",
            f"  %seed = load {vector}, ptr %values, align 64",
            f"  %factor = fmul {vector} %seed, %seed",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *head,
            *body,
            "  %next = add i64 %i, 1",
            "  %more = icmp ult i64 %next, %count",
            "  br i1 %more, label %loop, label %exit",
            "exit:",
            *last,
            f"  store {vector} %s{_accumulators(isa) - 1}, ptr %values, align 64",
            "  ret void",
            "}",
        ]
    )


def _accumulators(isa: ISA) -> int:
    """Enough to hide the latency of two FMA pipes, and few enough to stay in registers beside the two operands."""
    return 12 if isa.registers <= 16 else 24


@cache
def _fma_loop(itemsize: int) -> Callable[[int], None]:
    isa = host().isa
    loaded = kernel_library(f"fma peak {itemsize}", lambda: fma_ir(isa, itemsize), isa, ["fma_peak"])
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.addresses["fma_peak"])

    def loop(count: int) -> None:
        # half powers stay normal numbers: a subnormal operand would slow the loop down
        raw = np.zeros(256, np.uint8)
        start = -raw.ctypes.data % 64
        values = raw[start : start + 64].view(np.float32 if itemsize == 4 else np.float64)
        values[:] = 0.5
        native(values.ctypes.data, count)

    return loop
