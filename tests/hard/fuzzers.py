"""The fuzzers of fuzz/: every seed of the corpus, then a coverage-guided run of each (atheris, libFuzzer)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fuzz.harness import corpus

from tests.hard.tally import Tally, main

NAMES = ("ir", "problem", "npy")
SECONDS = (3, 60)


def guided(name: str, seconds: int) -> tuple[int, str]:
    """How many inputs one fuzzer tried, and what it found."""
    command = [sys.executable, "-m", f"fuzz.{name}", f"-max_total_time={seconds}", "-rss_limit_mb=2048", "-timeout=20"]
    paths = [str(Path(__file__).parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    said = re.search(r"Done (\d+) runs", done.stderr)
    fault = "" if done.returncode == 0 and said else f"exit {done.returncode}: {done.stderr[-600:]}"
    return int(said[1]) if said else 1, fault


def run(tally: Tally, full: bool) -> None:
    for name in NAMES:
        check = import_module(f"fuzz.{name}").load()
        for seed in corpus(name):
            try:
                check(seed)
                fault = ""
            except Exception as error:
                fault = f"{seed[:60]!r}: {type(error).__name__}: {error}"
            tally.add("seeds", fault)
        if not full:
            continue
        if find_spec("atheris") is None:
            tally.note(f"{name}: not fuzzed, atheris is not installed")
            continue
        runs, fault = guided(name, SECONDS[full])
        tally.add(f"inputs for {name}", fault, runs=runs)


if __name__ == "__main__":
    main("fuzzers", run, __doc__)
