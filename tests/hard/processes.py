"""Processes and threads: forks at any moment, interrupts, exits with work in flight, many threads, other schedulers.

* forks while the parent's threads idle, run, compile and make a layer from nothing; the child does one of these, too;
* SIGINT during a long launch: KeyboardInterrupt within 100 ms on the wall clock for 99 of 100 at least, nothing
  running any more, the next call right;
* interpreters that end while another thread computes;
* 16 threads with mixed calls: one compilation for each kernel, every result right;
* layers shared by threads that meet their kernels for the first time together (`tests.hard.sharing`);
* calls from the threads of dask and joblib: the pool does not grow with its callers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np

from tests.hard import forks, sharing
from tests.hard.tally import Tally, main
from unstride import openvino
from unstride.runtime import engine, pool
from unstride.runtime.cache import clear_cache
from unstride.runtime.execute import Layer
from unstride.runtime.program import program

FORKS, INTERRUPTS, EXITS, CALLS, ROUNDS = (16, 320), (6, 200), (4, 200), (60, 2_000), (16, 400)
_THREADS = 16
_INTERRUPT_SECONDS = 0.1
_PATIENCE = 120  # seconds: others may use the machine


def small_call(kernel: int = 3) -> tuple[Layer, Any, Any]:
    """A layer large enough to be shared among threads, its data and its result."""
    rng = np.random.default_rng(kernel)
    weights = rng.integers(-4, 5, (16, 24, kernel, kernel)).astype(np.float32)
    layer = openvino.ConvolutionBackpropData([2, 2]).compile(weights, threads=2)
    x = rng.integers(-4, 5, (1, 16, 20, 20)).astype(np.float32)
    return layer, x, layer(x)


@contextmanager
def _empty_cache() -> Iterator[None]:
    """A code cache of our own, with nothing in it."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, UNSTRIDE_CACHE_DIR=f"{folder}/cache"):
        yield


def _ir(name: str) -> str:
    return f"define i64 @{name}(i64 %a) {{\n  %b = add i64 %a, 1\n  ret i64 %b\n}}\n"


# --- forks ----------------------------------------------------------------------------------------------------------


def forking(count: int) -> str:
    """In a process of its own: fork `count` times at random moments; one line for each child that failed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"UNSTRIDE_CACHE_DIR": f"{folder}/cache"}),
    ):
        return "\n".join(_forked(count))


def _forked(count: int) -> list[str]:
    rng, faults, stop = random.Random(0), [], threading.Event()
    layer, x, wanted = small_call()
    states: dict[str, Callable[[], Any]] = {
        "idle": lambda: time.sleep(0.001),
        "run": lambda: layer(x),
        "compile": _compile_something,
        "make a layer": _make_a_layer,
    }
    doing = ["idle"]

    def busy() -> None:
        while not stop.is_set():
            states[doing[0]]()

    thread = threading.Thread(target=busy, daemon=True)
    thread.start()
    for index in range(count):
        doing[0] = list(states)[index % 4]
        child_does = list(states)[index // 4 % 4]
        time.sleep(rng.uniform(0, 0.01))
        pid = os.fork()
        if pid == 0:
            signal.alarm(_PATIENCE)
            try:
                states[child_does]()
                right = np.array_equal(layer(x), wanted)
            except BaseException:
                right = False
            os._exit(0 if right else 1)
        if status := os.waitpid(pid, 0)[1]:
            faults.append(f"fork {index}, parent {doing[0]}, child {child_does}: {forks.ending(status)}")
    stop.set()
    thread.join()
    if not np.array_equal(layer(x), wanted):
        faults.append("the parent's result is wrong afterwards")
    return faults


def _compile_something() -> None:
    engine.compile_object(_ir(f"f{random.randrange(10**9)}"), engine_isa())


def _make_a_layer() -> None:
    """Everything a layer needs, as in a new process: plans, code, tables and packed weights."""
    program.cache_clear()
    clear_cache()
    small_call(1)


def engine_isa() -> Any:
    from unstride.runtime.machine import host

    return host().isa


# --- interrupts -----------------------------------------------------------------------------------------------------


@cache
def long_launch() -> tuple[Layer, Any, Any]:
    """A layer, data that keep one launch busy for about a second of one core, and room for the result."""
    weights = np.random.default_rng(1).integers(-4, 5, (128, 96, 4, 4)).astype(np.float32)
    layer = openvino.ConvolutionBackpropData([2, 2], [1, 1], [1, 1]).compile(weights, threads=2)
    x = np.ones((6, 128, 96, 96), np.float32)
    return layer, x, np.empty((6, 96, 192, 192), np.float32)


def interrupting(seed: int) -> str:
    """One SIGINT at a random moment of a long launch. Returns a fault, or "=" and the milliseconds it took.

    Every other launch is a layer's; the rest are tasks that count how often they ran.
    """
    rng = random.Random(seed)
    launch, after = _of_a_layer() if seed % 2 else _of_counting_tasks((1, 2, 3)[seed // 2 % 3])
    sent = [0.0]

    def send() -> None:
        time.sleep(rng.uniform(0.02, 0.25))
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=send, daemon=True).start()
    try:
        while True:
            launch()
    except KeyboardInterrupt:
        seconds = time.perf_counter() - sent[0]
    return after() or f"={1e3 * seconds:.3f}"


Launch = tuple[Callable[[], Any], Callable[[], str]]


def _of_counting_tasks(threads: int) -> Launch:
    """A launch, and what is wrong after it was interrupted."""
    from tests.runtime.native_tasks import tasks
    from unstride.runtime.buffers import address

    words = np.zeros(8 + 20_000, np.int64)
    words[0] = 400_000  # a task of a tenth of a millisecond or more
    pool.parallel(tasks()["count"], address(np.zeros(8, np.int64)), 8, threads)

    def after() -> str:
        then = words.copy()
        time.sleep(0.01)
        if not np.array_equal(then, words):
            return "a worker still writes"
        fresh = np.zeros(8 + 50, np.int64)
        fresh[0] = 100
        pool.parallel(tasks()["burn"], address(fresh), 50, threads)
        return "" if (fresh[8:] == 1).all() else "the next job is wrong"

    return lambda: pool.parallel(tasks()["burn"], address(words), 20_000, threads), after


def _of_a_layer() -> Launch:
    layer, x, out = long_launch()
    small = np.random.default_rng(2).integers(-4, 5, (1, 128, 5, 5)).astype(np.float32)
    wanted = layer(small)

    def after() -> str:
        out[...] = np.nan
        time.sleep(0.01)
        if not np.isnan(out).all():
            return "a worker still writes"
        return "" if np.array_equal(layer(small), wanted) else "the next call is wrong"

    return lambda: layer(x, out=out), after


def interrupts(tally: Tally, count: int) -> None:
    """By the clock on the wall; at most one in a hundred may be late, and all of them are told."""
    times = []
    for seed, answer in forks.survey(count, interrupting, seconds=_PATIENCE, per_child=20):
        if answer.startswith("="):
            times.append(float(answer[1:]))
        tally.add("interrupts", "" if answer.startswith("=") else f"seed {seed}: {answer}")
    if not times:
        return
    late = [f"{time:.0f} ms" for time in times if time > 1e3 * _INTERRUPT_SECONDS]
    tally.note(
        f"KeyboardInterrupt after {statistics.median(times):.1f} ms (median), {max(times):.0f} ms at most: "
        f"{len(late)} of {len(times)} later than {1e3 * _INTERRUPT_SECONDS:.0f} ms"
    )
    if len(late) > max(1, count // 100):
        tally.add("interrupts", f"too many are late: {', '.join(late)}", runs=0)


# --- exits ----------------------------------------------------------------------------------------------------------

_EXIT = """
import sys, threading, time
import numpy as np
from unstride import openvino
layer = openvino.ConvolutionBackpropData([2, 2]).compile(np.ones((64, 64, 4, 4), np.float32), threads=2)
x = np.ones((4, 64, 64, 64), np.float32)
layer(x[:1, :, :2, :2].copy())
def work():
    while True:
        layer(x)
for _ in range({workers}):
    threading.Thread(target=work, daemon=True).start()
time.sleep({delay})
{end}
"""


def exits(tally: Tally, count: int) -> None:
    rng = random.Random(0)
    for index in range(count):
        end = ("", "sys.exit(0)", "raise SystemExit")[index % 3]
        text = _EXIT.format(workers=1 + index % 2, delay=rng.uniform(0, 0.08), end=end)
        try:
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=_PATIENCE)
            fault = "" if done.returncode == 0 and not done.stderr else f"exit {done.returncode} {done.stderr[-200:]}"
        except subprocess.TimeoutExpired:
            fault = "hung"
        tally.add("exits with work in flight", fault)


# --- many threads ---------------------------------------------------------------------------------------------------


def many_threads(calls: int) -> str:
    """16 threads, `calls` mixed calls each, from an empty cache; faults, one a line."""
    faults: list[str] = []
    compiled: Counter[int] = Counter()
    compile_object = engine.compile_object

    def counted(text: str, *rest: Any, **options: Any) -> bytes:
        compiled[hash(text)] += 1
        return compile_object(text, *rest, **options)

    jobs = _jobs()
    start = threading.Barrier(_THREADS)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        start.wait()
        for _ in range(calls):
            name, call, wanted = rng.choice(jobs)
            if not np.array_equal(call(), wanted):
                faults.append(f"thread {seed}: {name} is wrong")

    with _empty_cache(), mock.patch.object(engine, "compile_object", counted):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    faults += [f"a kernel was compiled {n} times" for n in compiled.values() if n > 1]
    return "\n".join(faults[:20] or ([] if compiled else ["nothing was compiled: the cache was not empty"]))


def _jobs() -> list[tuple[str, Callable[[], Any], Any]]:
    """Eager calls of several types and kernels, each with the reference's answer."""
    from unstride.reference import DTYPES, reference

    jobs: list[tuple[str, Callable[[], Any], Any]] = []
    for dtype in ("f32", "f16", "f64"):
        for kernel, size in ((2, 5), (3, 9), (4, 12)):
            rng = np.random.default_rng(kernel)
            op = openvino.ConvolutionBackpropData([2, 2])
            x = rng.integers(-2, 3, (1, 5, size, size)).astype(DTYPES[dtype])
            w = rng.integers(-2, 3, (5, 3, kernel, kernel)).astype(DTYPES[dtype])
            wanted = reference(op.problem(x.shape, w.shape, dtype=dtype), x, w).astype(DTYPES[dtype])
            jobs.append((f"{dtype} k{kernel}", lambda op=op, x=x, w=w: op(x, w), wanted))  # type: ignore[misc]
    return jobs


# --- other schedulers -----------------------------------------------------------------------------------------------


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def under_scheduler(run: Callable[[list[Callable[[], Any]]], list[Any]], own_threads: int) -> str:
    """64 calls from a scheduler's threads: right, and no more native threads than its own and the pool's."""
    layer, x, wanted = small_call()
    before, most = native_threads(), [0]

    def call() -> Any:
        result = layer(x)
        most[0] = max(most[0], native_threads())
        return result

    results = run([call] * 64)
    if not all(np.array_equal(result, wanted) for result in results):
        return "a wrong result"
    grown = most[0] - before
    return f"{grown} threads more for {own_threads} callers" if grown > own_threads + 2 else ""


def under_dask() -> str:
    import dask

    def run(calls: list[Callable[[], Any]]) -> list[Any]:
        tasks = [dask.delayed(call, pure=False)() for call in calls]
        return list(dask.compute(*tasks, scheduler="threads", num_workers=_THREADS))

    return under_scheduler(run, _THREADS)


def under_joblib() -> str:
    import joblib

    def run(calls: list[Callable[[], Any]]) -> list[Any]:
        return list(joblib.Parallel(n_jobs=_THREADS, backend="threading")(joblib.delayed(call)() for call in calls))

    return under_scheduler(run, _THREADS + 1)


def schedulers(tally: Tally, full: bool) -> None:
    for name, check in (("dask", under_dask), ("joblib", under_joblib)):
        if find_spec(name) is None:
            tally.note(f"{name}: not run, it is not installed")
            continue
        for _ in range(5 if full else 1):
            fault = forks.alone(check, seconds=_PATIENCE)
            tally.add(f"calls under {name}", fault, runs=64)


def run(tally: Tally, full: bool) -> None:
    count = FORKS[full]
    tally.add_all("forks", count, filter(None, forks.alone(lambda: forking(count), seconds=3600).split("\n")))
    interrupts(tally, INTERRUPTS[full])
    exits(tally, EXITS[full])
    calls = CALLS[full]
    said = forks.alone(lambda: many_threads(calls), seconds=3600)
    tally.add_all("calls of 16 threads", calls * _THREADS, filter(None, said.split("\n")))
    rounds = ROUNDS[full]
    answer = forks.alone(lambda: json.dumps(sharing.storm(rounds)), seconds=3600)
    made, faults = json.loads(answer) if answer.startswith("[") else (0, [answer])
    tally.add_all("calls of layers shared by threads", made, faults)
    schedulers(tally, full)


if __name__ == "__main__":
    main("processes", run, __doc__)
