"""Checks that run in forked children: one that dies of a signal, or hangs, is named, and the next ones still run."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator

__all__ = ["alone", "ending", "survey"]

Check = Callable[[int], str]


def survey(count: int, check: Check, *, seconds: int = 60, per_child: int = 1_000_000) -> Iterator[tuple[int, str]]:
    """(index, fault) of every check, in order. The fault is what `check(index)` returns, or how its process ended."""
    first = 0
    while first < count:
        last = min(count, first + per_child)
        reader, pid = _start(range(first, last), check, seconds)
        with os.fdopen(reader, "r") as lines:
            for line in lines:
                index, fault = json.loads(line)
                yield index, fault
                first = index + 1
        status = os.waitpid(pid, 0)[1]
        if first < last:
            yield first, ending(status)
            first += 1


def alone(check: Callable[[], str], *, seconds: int = 60) -> str:
    """The fault of one check in a child of its own."""
    return next(fault for _, fault in survey(1, lambda _: check(), seconds=seconds))


def ending(status: int) -> str:
    """How a process that said nothing ended."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with {code} and without an answer"
    return "hung" if -code == signal.SIGALRM else f"died of {signal.Signals(-code).name}"


def _start(indices: range, check: Check, seconds: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the parent never starts threads of this package
        pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    os.close(reader)
    try:
        for index in indices:
            signal.alarm(seconds)
            os.write(writer, (json.dumps([index, _answer(check, index)]) + "\n").encode())
    finally:
        os._exit(0)


def _answer(check: Check, index: int) -> str:
    try:
        return check(index)
    except BaseException:
        return traceback.format_exc(limit=-3)[-600:]
