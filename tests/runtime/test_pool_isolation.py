"""The pool in processes of their own: signals, forks and the end of the interpreter."""

from __future__ import annotations

import pytest

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from native_tasks import tasks
from unstride.runtime import pool
from unstride.runtime.buffers import address

COUNT = 2000
words = np.zeros(8 + COUNT, np.int64)
words[0] = 1_000_000   # a task of a third of a millisecond or more

def work(threads=2, count=COUNT, array=words):
    pool.parallel(tasks()["burn"], address(array), count, threads)

first = np.zeros(8, np.int64)
pool.parallel(tasks()["count"], address(first), 8, 2)   # threads exist from here on
"""


def program(body: str) -> str:
    lines = body.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return PRELUDE + "\n".join(line[indent:] for line in lines)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_interrupt_comes_soon_and_leaves_nothing_running(child: object, threads: int) -> None:
    assert callable(child)
    out = child(
        program(
            f"""
            def send():
                time.sleep(0.15)
                os.kill(os.getpid(), signal.SIGINT)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            threading.Thread(target=send, daemon=True).start()
            words[0] = 3_000_000
            try:
                work(threads={threads})
                print("not interrupted")
            except KeyboardInterrupt:
                then = words.copy()
                time.sleep(0.1)
                same = (then == words).all()
                once = set(words[8:]) == {{0, 1}}
                fresh = np.zeros(8 + 50, np.int64)
                work(array=fresh, count=50)
                # the whole job takes seconds, on a busy machine more: soon means that most of it was not done
                print(then[8:].sum() < COUNT / 2, same, once, (fresh[8:] == 1).all())
            """
        )
    )
    assert out == "True True True True"


def test_handlers_that_return_do_not_disturb_a_job(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            calls = []
            def handler(*_):
                calls.append(1)
                inner = np.zeros(16, np.int64)
                pool.parallel(tasks()["count"], address(inner), 16, 2)   # a job inside a job
                assert (inner == 1).all()
                signal.setitimer(signal.ITIMER_REAL, 0.01)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            words[0] = 300_000
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(len(calls) > 2, (words[8:] == 1).all())
            """
        )
    )
    assert out == "True True"


def test_two_handlers_that_raise_at_once_leave_nothing_running(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            def raising(number, frame):
                raise RuntimeError(number)
            both = {signal.SIGUSR1, signal.SIGUSR2}
            def send():
                time.sleep(0.1)
                for number in both:
                    os.kill(os.getpid(), number)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, both)  # now they come, one right after the other
            for number in both:
                signal.signal(number, raising)
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            good = 0
            for _ in range(5):
                words[:] = 0
                words[0] = 1_000_000
                threading.Thread(target=send, daemon=True).start()
                try:
                    work()
                except RuntimeError as error:
                    then = words.copy()
                    time.sleep(0.05)
                    good += (then == words).all() and 0 < then[8:].sum() < COUNT and error.__context__ is not None
            print(good)
            """
        )
    )
    assert out == "5"


def test_workers_go_on_while_a_handler_runs(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            seen = []
            def handler(*_):
                before = words[8:].sum()
                time.sleep(0.1)
                seen.append(words[8:].sum() - before)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            words[0] = 3_000_000
            work(threads=2)
            print(seen[0] > 0, (words[8:] == 1).all())
            """
        )
    )
    assert out == "True True"


def test_a_fork_leaves_the_jobs_of_other_threads_alone(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            words[0] = 300_000
            worker = threading.Thread(target=work)
            worker.start()
            while worker.is_alive():
                if (pid := os.fork()) == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
            print((words[8:] == 1).all())
            """
        )
    )
    assert out == "True"


def test_a_fork_inside_a_handler_leaves_both_with_the_whole_job(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            pids = []
            def handler(*_):
                if not pids:
                    pids.append(os.fork())
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            words[0] = 600_000
            work()
            good = (words[8:] == 1).all()
            if pids[0] == 0:
                os._exit(0 if good else 1)
            print(good, os.waitpid(pids[0], 0)[1])
            """
        )
    )
    assert out == "True 0"


def test_forked_children_have_a_pool_of_their_own(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            words[0] = 1000
            good = 0
            for _ in range(20):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(10)
                    work()
                    threads = len(os.listdir("/proc/self/task"))
                    os._exit(0 if (words[8:] == 1).all() and threads == 2 else 1)
                good += os.waitpid(pid, 0)[1] == 0
            work()
            print(good, (words[8:] == 1).all())
            """
        )
    )
    assert out == "20 True"


def test_forks_beside_a_thread_that_launches(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            stop = threading.Event()
            def launch():
                mine = np.zeros(8 + 64, np.int64)
                mine[0] = 2000
                while not stop.is_set():
                    work(array=mine, count=64)
            thread = threading.Thread(target=launch)
            thread.start()
            words[0] = 1000
            good = 0
            for _ in range(20):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(10)
                    work(count=200)
                    os._exit(0 if (words[8:208] == 1).all() else 1)
                good += os.waitpid(pid, 0)[1] == 0
            stop.set()
            thread.join()
            print(good)
            """
        )
    )
    assert out == "20"


def test_the_interpreter_ends_with_work_in_flight(child: object) -> None:
    assert callable(child)
    for _ in range(3):
        child(
            program(
                """
                words[0] = 3_000_000
                threading.Thread(target=work, daemon=True).start()
                time.sleep(0.05)
                """
            ),
        )


def test_the_interpreter_ends_right_after_the_threads_started(child: object) -> None:
    assert callable(child)
    for threads in (2, 3, 40):
        child(f"from unstride.runtime import pool; pool.prepare({threads})")


def test_jobs_launched_while_the_interpreter_ends_are_done(child: object) -> None:
    assert callable(child)
    out = child(
        """
        import atexit
        def last():
            pool.parallel(tasks()["count"], address(words), 100, 2)
            print((words == 2).all())
        atexit.register(last)   # registered first, so called after the pool has stopped
        import numpy as np
        from native_tasks import tasks
        from unstride.runtime import pool
        from unstride.runtime.buffers import address
        words = np.zeros(100, np.int64)
        pool.parallel(tasks()["count"], address(words), 100, 2)
        """
    )
    assert out == "True"


def test_workers_take_no_signals(child: object) -> None:
    assert callable(child)
    out = child(
        program(
            """
            others = [t for t in os.listdir("/proc/self/task") if int(t) != os.getpid()]
            texts = [open(f"/proc/self/task/{t}/status").read() for t in others]
            masks = [int(text.split("SigBlk:")[1].split()[0], 16) for text in texts]
            print(len(masks), all(mask & (1 << (signal.SIGINT - 1)) for mask in masks))
            """
        ),
        OPENBLAS_NUM_THREADS="1",
    )
    assert out == "1 True"
