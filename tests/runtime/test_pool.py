"""The thread pool: every task once, whatever happens around it."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest
from native_tasks import tasks

from unstride.codegen import pool as code
from unstride.errors import AttributeValueError
from unstride.plan.machine import NEON
from unstride.runtime import pool
from unstride.runtime.buffers import address
from unstride.runtime.machine import host

DEFAULT_ENVIRONMENT = 0 if host().isa is NEON else 0x1F80
FLUSHING = 1 << 24 if host().isa is NEON else 0x1F80 | 0x8040  # FTZ and DAZ
STICKY_FLAGS = 0 if host().isa is NEON else 0x3F


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 1000])
def test_every_task_once(count: int, threads: int) -> None:
    words = np.zeros(count + 8, np.int64)
    for turn in range(1, 6):
        pool.parallel(tasks()["count"], address(words), count, threads, short=turn % 2 == 0)
        assert (words[:count] == turn).all()
        assert not words[count:].any()


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_slots_are_apart_and_in_range(threads: int) -> None:
    words = np.zeros(8 + 300, np.int64)
    words[8 + threads :] = 1  # a slot out of range would collide
    for _ in range(20):
        pool.parallel(tasks()["occupy"], address(words), 500, threads)
    assert words[0] == 0
    assert not words[8 : 8 + threads].any()


def test_launches_from_many_threads_at_once() -> None:
    failures: list[int] = []

    def launch(seed: int) -> None:
        words = np.zeros(64, np.int64)
        for turn in range(1, 300):
            pool.parallel(tasks()["count"], address(words), 64, 2 + seed % 3, short=bool(seed % 2))
            if not (words == turn).all():
                failures.append(seed)

    workers = [threading.Thread(target=launch, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not failures
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_tasks_see_the_default_float_environment_and_the_caller_keeps_his(threads: int) -> None:
    read = ctypes.PYFUNCTYPE(ctypes.c_int64)(tasks()["get_environment"])
    write = ctypes.PYFUNCTYPE(None, ctypes.c_int64)(tasks()["set_environment"])
    seen = np.zeros(4000, np.int64)
    before = read()
    try:
        write(FLUSHING)
        pool.parallel(tasks()["environment"], address(seen), len(seen), threads, short=True)
        after = read()
    finally:
        write(before)
    assert set(seen & ~STICKY_FLAGS) == {DEFAULT_ENVIRONMENT}
    assert after & ~STICKY_FLAGS == FLUSHING  # Python itself raises flags


def test_subnormal_results_do_not_depend_on_the_thread() -> None:
    write = ctypes.PYFUNCTYPE(None, ctypes.c_int64)(tasks()["set_environment"])
    before = ctypes.PYFUNCTYPE(ctypes.c_int64)(tasks()["get_environment"])()
    floats = np.full(4000, 2.0**-126, np.float32)
    try:
        write(FLUSHING)
        for _ in range(20):
            pool.parallel(tasks()["halve"], address(floats), len(floats), 2, short=True)
    finally:
        write(before)
    assert set(floats.view(np.int32)) == {1 << 3}  # 2**-146


def test_other_python_threads_run_while_a_long_job_does() -> None:
    words = np.zeros(8 + 200, np.int64)
    words[0] = 3_000_000
    turns, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    other = threading.Thread(target=count)
    other.start()
    pool.parallel(tasks()["burn"], address(words), 200, 1)
    at_end = turns[0]
    stop.set()
    other.join(10)
    assert at_end > 1
    assert (words[8:] == 1).all()


def test_a_hot_fork_and_join_takes_microseconds() -> None:
    words = np.zeros(16, np.int64)
    job = ctypes.create_string_buffer(pool._JOB.pack(tasks()["count"], address(words), 2, 1, 0, 2, 0))
    start, launch = ctypes.addressof(job), pool.prepare(2, short=True)
    first = ctypes.c_int64.from_address(start + pool.PROGRESS_OFFSET)
    times = []
    for _ in range(3000):
        first.value = 0
        begin = time.perf_counter()
        assert launch(start) == 0
        times.append(time.perf_counter() - begin)
    assert words[0] == words[1] == 3000
    assert min(times) < 3e-6, f"{min(times) * 1e6:.2f} us"


def test_idle_workers_sleep() -> None:
    words = np.zeros(64, np.int64)
    pool.parallel(tasks()["count"], address(words), 64, 2)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.05


def test_nobody_is_woken_for_a_single_short_job_but_for_a_burst() -> None:
    words = np.zeros(64, np.int64)
    pool.parallel(tasks()["count"], address(words), 64, 2)
    running = pool._pool
    assert running is not None
    workers = ctypes.c_int32.from_address(running.page + code._WORKERS)
    asleep = ctypes.c_int32.from_address(running.page + code._SLEEPERS)

    def somebody_wakes(seconds: float) -> bool:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            if asleep.value < workers.value:
                return True
        return False

    def launch(*, short: bool) -> None:
        pool.parallel(tasks()["count"], address(words), 64, 2, short)

    def wait_until_all_sleep() -> None:
        for _ in range(1000):
            time.sleep(0.01)
            if asleep.value == workers.value:
                return
        raise AssertionError("workers do not go to sleep")

    def woken_by(*, short: bool) -> bool:
        wait_until_all_sleep()
        for _ in range(200):
            launch(short=short)
            if somebody_wakes(0.0001):
                return True
        return False

    for _ in range(5):
        wait_until_all_sleep()
        launch(short=True)
        assert not somebody_wakes(0.01)
    assert any(woken_by(short=True) for _ in range(20))
    assert any(woken_by(short=False) for _ in range(20))


def test_many_launches_leak_nothing() -> None:
    words = np.zeros(8, np.int64)

    def resident_pages() -> int:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1])

    def launch(times: int) -> None:
        for _ in range(times):
            pool.parallel(tasks()["count"], address(words), 8, 2, short=True)

    launch(2000)
    before = resident_pages()
    launch(20_000)
    assert resident_pages() - before < 100


# --- how many -------------------------------------------------------------------------------------------------------


def test_the_innermost_choice_of_threads_counts() -> None:
    pool.set_threads(5)
    try:
        assert pool.current_threads() == 5
        with pool.threads(3):
            assert pool.current_threads() == 3
            with pool.threads(1):
                assert pool.current_threads() == 1
            assert pool.current_threads() == 3
        assert pool.current_threads() == 5
    finally:
        pool.set_threads(None)


def test_a_block_binds_its_own_thread_only() -> None:
    seen = []
    with pool.threads(1):
        worker = threading.Thread(target=lambda: seen.append(pool.current_threads()))
        worker.start()
        worker.join()
    assert seen == [pool.current_threads()]


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", True, None])
def test_counts_that_are_none(bad: object) -> None:
    with pytest.raises(AttributeValueError, match="threads"), pool.threads(bad):  # type: ignore[arg-type]
        pass
    if bad is not None:
        with pytest.raises(AttributeValueError, match="threads"):
            pool.set_threads(bad)  # type: ignore[arg-type]


def test_absurdly_many_threads_become_the_most_there_can_be() -> None:
    with pool.threads(10**9):
        assert pool.current_threads() == pool.MAX_THREADS


def test_the_environment_and_the_affinity_give_the_default(child: object) -> None:
    assert callable(child)
    ask = "from unstride.runtime.pool import current_threads; print(current_threads())"
    assert child(ask, UNSTRIDE_NUM_THREADS="3") == "3"
    pinned = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});" + ask
    assert child(pinned, UNSTRIDE_NUM_THREADS="") == "1"
    refused = f"""
try:
    {ask}
except ValueError as error:
    print(error)
"""
    assert "UNSTRIDE_NUM_THREADS" in child(refused, UNSTRIDE_NUM_THREADS="many")


def test_workers_stay_where_the_process_may_run(child: object) -> None:
    assert callable(child)
    out = child(
        """
        import os, time
        import numpy as np
        from native_tasks import tasks
        from unstride.runtime import pool
        from unstride.runtime.buffers import address
        words = np.zeros(64, np.int64)
        def launch():
            time.sleep(0.02)   # the workers sleep, so the next launch wakes and places them
            pool.parallel(tasks()["count"], address(words), 64, 3)
        before = set(os.listdir("/proc/self/task"))
        launch()
        workers = set(os.listdir("/proc/self/task")) - before
        one = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(0, one)
        for turn in range(2, 100):
            launch()
            moved = all(os.sched_getaffinity(int(tid)) == one for tid in workers)
            if moved:
                break
        print(len(workers), moved, (words == turn).all())
        """
    )
    assert out == "2 True True"
