"""Counting: what was tried, what failed, one line at the end, and the same as JSON for the score card."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["Tally", "main"]

_FAULTS_KEPT = 50


class Tally:
    """Runs and failures by kind; `note` keeps what a reader of the score card should know."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds: dict[str, list[int]] = {}
        self.faults: list[str] = []
        self.notes: list[str] = []

    def add(self, kind: str, fault: str = "", *, runs: int = 1) -> None:
        """Count `runs` runs of one kind; a fault that is not empty is one failure among them."""
        counts = self.kinds.setdefault(kind, [0, 0])
        counts[0] += runs
        if fault:
            counts[1] += 1
            self.faults.append(f"{kind}: {fault}")
            if len(self.faults) <= _FAULTS_KEPT:
                print(f"  {self.faults[-1]}", flush=True)

    def add_all(self, kind: str, runs: int, faults: Iterable[str]) -> None:
        """Count `runs` runs, and one failure for each fault."""
        self.add(kind, runs=runs)
        for fault in faults:
            self.add(kind, fault, runs=0)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def runs(self) -> int:
        return sum(runs for runs, _ in self.kinds.values())

    @property
    def failures(self) -> int:
        return sum(failures for _, failures in self.kinds.values())

    def __str__(self) -> str:
        return f"{self.name}: {self.runs} runs, {self.failures} failures"


def main(name: str, run: Callable[..., None], description: str | None, *, seeded: bool = False) -> None:
    """The command line of one program; does not return. A program that is `seeded` is told a seed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a slice, in seconds (the default)")
    size.add_argument("--full", action="store_true", help="every count of the score card")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts here, too")
    if seeded:
        parser.add_argument("--seed", type=int, default=0, help="another draw (0)")
    options = parser.parse_args()
    tally, start = Tally(name), time.perf_counter()
    run(tally, options.full, **({"seed": options.seed} if seeded else {}))
    if not tally.runs:
        tally.add("nothing", "no run was made")
    if options.json:
        seconds = time.perf_counter() - start
        fields = ("name", "kinds", "faults", "notes", "runs", "failures")
        record = {field: getattr(tally, field) for field in fields} | {"seconds": seconds, "full": options.full}
        options.json.write_text(json.dumps(record, indent=1))
    print(tally)
    sys.exit(1 if tally.failures else 0)
