"""Runs every program of this folder, two at a time, and writes the score card of README.md from what they counted.

python -m tests.hard                  everything, within 30 minutes on two cores
python -m tests.hard --quick          slices; README.md is left alone
python -m tests.hard --only cache     one of them
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.hard.card import written
from unstride.runtime.machine import host

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "hard"
# The longest first, so that the two workers end together.
PROGRAMS = (
    "mutants",
    "guard",
    "targets",
    "floats",
    "processes",
    "cache",
    "fuzzers",
    "memory",
    "replay",
    "files",
    "geometry",
    "attributes",
)
MINUTES = 30


def run(name: str, full: bool, cache: str, deadline: float) -> dict[str, Any]:
    """One program's record; one that is killed at the deadline, or leaves no record, is a failure."""
    record = RESULTS / f"{name}.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"tests.hard.{name}", "--full" if full else "--quick", f"--json={record}"]
    start = time.monotonic()
    try:
        left = max(1.0, deadline - start)
        environment = {**os.environ, "UNSTRIDE_CACHE_DIR": cache}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        said = f"not done after {(time.monotonic() - start) / 60:.0f} minutes\n"
    if record.exists():
        print(said, end="", flush=True)
        result: dict[str, Any] = json.loads(record.read_text())
        return result
    print(f"{name}: FAILED\n{said[-2000:]}", flush=True)
    seconds = time.monotonic() - start
    return {"name": name, "kinds": {"the program itself": [1, 1]}, "faults": [said[-300:]], "notes": [], "runs": 1} | {
        "failures": 1,
        "seconds": seconds,
        "full": full,
    }


def _machine() -> str:
    return f"{host().isa.name}, {host().cores} cores"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="slices; README.md is left alone")
    parser.add_argument("--only", action="append", choices=PROGRAMS, help="this program (and others named so)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"when to give up ({MINUTES})")
    parser.add_argument(
        "--card", action="store_true", help="write the card from records that the programs left, each run by itself"
    )
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    if options.card:
        records = [json.loads((RESULTS / f"{name}.json").read_text()) for name in PROGRAMS]
        how = f"one after the other on a busy machine ({_machine()})"
        minutes = sum(record["seconds"] for record in records) / 60
    else:
        how = _machine()
        with tempfile.TemporaryDirectory(prefix="unstride-hard-") as folder, ThreadPoolExecutor(2) as workers:
            job = (not options.quick, str(Path(folder, "cache")), start + 60 * options.minutes)
            records = list(workers.map(lambda name: run(name, *job), options.only or PROGRAMS))
        minutes = (time.monotonic() - start) / 60
    failures = sum(record["failures"] for record in records)
    print(f"hard: {sum(record['runs'] for record in records)} runs, {failures} failures, {minutes:.0f} minutes")
    if not options.quick and not options.only:
        readme = ROOT / "README.md"
        readme.write_text(written(readme.read_text(), records, how, minutes))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
