"""Finds out in a child process whether a peer finishes a layer in time: a call under way cannot be stopped.

Run as `python -m unstride.bench.probe PEER THREADS PROBLEM`; the caller keeps the clock.
"""

from __future__ import annotations

import subprocess
import sys

from unstride.bench.case import Case, make_case
from unstride.bench.contender import Contender, Prepared, Unsupported
from unstride.problem import Problem

__all__ = ["Probed"]


class Probed:
    """A contender that is tried in a child first, and refused where one call takes over `seconds`."""

    def __init__(self, contender: Contender, seconds: float) -> None:
        self._contender = contender
        self._seconds = seconds
        self.name = contender.name
        self.layouts = contender.layouts

    def prepare(self, case: Case) -> Prepared:
        command = [sys.executable, "-m", "unstride.bench.probe", self.name, str(case.threads), str(case.problem)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self._seconds, check=False)
        except subprocess.TimeoutExpired:
            raise Unsupported(f"not ready with one call after {self._seconds:g} s") from None
        if done.returncode:
            raise Unsupported((done.stderr.strip().splitlines() or ["the child died"])[-1][:200])
        return self._contender.prepare(case)


def _child(name: str, threads: str, line: str) -> None:
    from unstride.bench.peers import PEERS

    problem = Problem.parse(line)
    contender = next(peer for peer in PEERS[name] if problem.data_layout in peer.layouts)
    contender.prepare(make_case(problem, int(threads))).call()


if __name__ == "__main__":
    _child(*sys.argv[1:])
