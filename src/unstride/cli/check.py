"""This package and every installed engine against the float64 reference, on random legal cases.

Each engine answers in a process of its own with a time limit per case, so that a crash or a hang is an outcome and not
the end. Exit 1 if anything of this package failed; what other engines do is reported.

examples:
  unstride check
  unstride check --cases 1000 --seed 7 --against openvino,onnxruntime
  unstride check --against openvino --seed 7 --only 12
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict
from typing import Any

from unstride.cli.output import Column, note, print_json, progress, table
from unstride.errors import AttributeValueError

__all__ = ["configure", "execute"]

OUTCOMES = ("passed", "failed", "refused", "crashed", "hanging")
_SHOWN = {"refused": 3}  # engines refuse many cases for few reasons
_SHOWN_OTHERS = 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, default=200, metavar="N", help="cases per engine (200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cases (0)")
    parser.add_argument("--against", metavar="LIST", help="engines besides this package (all installed); none for none")
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="seconds per case (20)")
    parser.add_argument("--only", type=int, metavar="INDEX", help="one case again, by its index")


def execute(options: argparse.Namespace) -> int:
    from unstride.vectors.conformance import examine

    if options.cases < 1 or options.time_limit <= 0:
        raise AttributeValueError("cases", options.cases, "cases and time limit must be positive")
    engines = _engines(options.against)
    indices = range(options.cases) if options.only is None else range(options.only, options.only + 1)
    findings = []
    for engine in engines:
        steps = examine(engine, options.seed, indices, options.time_limit)
        findings += list(progress(steps, len(indices), engine, quiet=options.json))
    ours = [finding for finding in findings if finding.engine == "unstride" and finding.outcome != "passed"]
    if options.json:
        told = [asdict(finding) for finding in findings if finding.outcome != "passed"]
        print_json({"seed": options.seed, "cases": len(indices), **_counts(findings), "findings": told})
    else:
        _print(findings, engines)
    return 1 if ours else 0


def _engines(against: str | None) -> list[str]:
    from unstride.vectors.engines import ENGINE_DIALECTS, installed_engines

    if against is None:
        return ["unstride", *installed_engines()]
    names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in (*ENGINE_DIALECTS, "unstride"):
            raise AttributeValueError("against", name, f"the engines are {', '.join(ENGINE_DIALECTS)}")
        if name != "unstride" and name not in installed_engines():
            raise AttributeValueError("against", name, "is not installed here", f"pip install {name}")
    return list(dict.fromkeys(["unstride", *names]))


def _counts(findings: list[Any]) -> dict[str, Any]:
    engines = dict.fromkeys(finding.engine for finding in findings)
    counted = {engine: Counter(f.outcome for f in findings if f.engine == engine) for engine in engines}
    return {"engines": {engine: {name: counts[name] for name in OUTCOMES} for engine, counts in counted.items()}}


def _print(findings: list[Any], engines: list[str]) -> None:
    counts = _counts(findings)["engines"]
    rows = [[engine, *(str(counts[engine][name]) for name in OUTCOMES)] for engine in engines if engine in counts]
    table([Column("engine"), *(Column(name, number=True) for name in OUTCOMES)], rows)
    for engine in engines:
        for outcome in OUTCOMES[1:]:
            _print_told(engine, outcome, [f for f in findings if (f.engine, f.outcome) == (engine, outcome)])


def _print_told(engine: str, outcome: str, findings: list[Any]) -> None:
    shown = _SHOWN.get(outcome, _SHOWN_OTHERS)
    for finding in findings[:shown]:
        note(f"{engine} {outcome}: {finding.detail[:160]}", "bold red" if engine == "unstride" else "yellow")
        note(f"    {finding.problem}")
        note(f"    {finding.reproducer}")
    if len(findings) > shown:
        note(f"... and {len(findings) - shown} more that {engine} {outcome}; --json lists them all")
