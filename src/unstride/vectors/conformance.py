"""Cases of one engine, answered by a worker process that may die or hang without harm."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from unstride.vectors.worker import drawn_problem

__all__ = ["Finding", "examine"]

# -P: a file in the working directory must not pose as an engine
_COMMAND = [sys.executable, "-P", "-m", "unstride.vectors.worker"]
_START_LIMIT_S = 120.0  # importing an engine may take long on a busy machine


@dataclass(frozen=True)
class Finding:
    """What became of one case: passed, failed, refused, crashed or hanging, and the command that repeats it."""

    engine: str
    index: int
    outcome: str
    detail: str
    problem: str
    call: str
    reproducer: str


def examine(engine: str, seed: int, indices: Sequence[int], time_limit: float) -> Iterator[Finding]:
    """One finding per index; the worker is started again whenever a case took it down."""
    worker = _Worker(engine, seed)
    try:
        for index in indices:
            reply = worker.ask(index, time_limit)
            if reply is None:
                reply = worker.obituary(time_limit)
                worker = _Worker(engine, seed)
            repeat = f"unstride check --against {engine} --seed {seed} --only {index}"
            case = reply.get("problem") or str(drawn_problem(engine, seed, index))
            yield Finding(engine, index, reply["outcome"], reply["detail"], case, reply.get("call", ""), repeat)
    finally:
        worker.stop()


class _Worker:
    def __init__(self, engine: str, seed: int) -> None:
        command = [*_COMMAND, engine, str(seed)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
        self.answered = False
        self.hung = False

    def ask(self, index: int, time_limit: float) -> dict[str, str] | None:
        """The worker's reply, or None if it died or did not answer in time."""
        try:
            self.process.stdin.write(f"{index}\n".encode())
            self.process.stdin.flush()
        except OSError:
            return None
        line = _read_line(self.process.stdout, time_limit if self.answered else max(time_limit, _START_LIMIT_S))
        self.hung = line is None
        if not line:
            return None
        self.answered = True
        reply: dict[str, str] = json.loads(line)
        return reply

    def obituary(self, time_limit: float) -> dict[str, str]:
        """Why there was no reply; the worker is over afterwards."""
        if self.hung:
            self.stop()
            return {"outcome": "hanging", "detail": f"no answer within {time_limit:g} s"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.stop()
        code = self.process.returncode
        return {"outcome": "crashed", "detail": f"signal {-code}" if code < 0 else f"exit code {code}"}

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def _read_line(pipe: IO[bytes], time_limit: float) -> bytes | None:
    """A whole line; b"" at the end of the stream, None when the time is up."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        line = b""
        while not line.endswith(b"\n"):
            if not selector.select(time_limit):
                return None
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                return b""
            line += piece
    return line
