"""The score card of README.md: a table between two markers, made of the records of a full run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["BEGIN", "END", "card", "written"]

BEGIN = "<!-- score card: written by `make hard`, not by hand -->"
END = "<!-- end of the score card -->"

TITLES = {
    "replay": "What crashed others: API, command line, model files",
    "attributes": "Hostile attributes, each within 50 ms",
    "geometry": "Degenerate geometry, against brute force",
    "guard": "Arrays between inaccessible pages",
    "cache": "The code cache: damage, foreign entries, doubtful places",
    "files": "Hostile and damaged files",
    "fuzzers": "Coverage-guided fuzzing",
    "processes": "Forks, interrupts, exits, threads",
    "memory": "Memory: limits, refused allocations, leaks",
    "floats": "Numbers: patterns, subnormals, NaN and infinity, equal bits",
    "mutants": "Mutants of the generated code",
    "targets": "Other processors",
}


def card(records: Sequence[dict[str, Any]], machine: str, minutes: float) -> str:
    """The table, one row for each program, in the order of TITLES."""
    by_name = {record["name"]: record for record in records}
    rows = ["| tried | counts | failures |", "|---|---|---|"]
    for name, title in TITLES.items():
        if name in by_name:
            rows.append(_row(title, by_name[name]))
    runs, failures = (sum(record[field] for record in records) for field in ("runs", "failures"))
    rows.append(f"| **together** | **{_number(runs)}** | **{failures}** |")
    rows += ["", f"`make hard`, {machine}: {minutes:.0f} minutes."]
    notes = [note for record in records for note in record["notes"]]
    return "\n".join([*rows, *(["", *(f"* {note}" for note in notes)] if notes else [])])


def _row(title: str, record: dict[str, Any]) -> str:
    kinds = _merged(record["kinds"])
    counts = "; ".join(f"{_number(runs)} {kind}" for kind, runs in kinds.items())
    return f"| {title} | {counts} | {record['failures']} |"


def _merged(kinds: dict[str, list[int]]) -> dict[str, int]:
    """Kinds with their runs; those that differ only in what they are `of` count together."""
    merged: dict[str, int] = {}
    for kind, (runs, _) in kinds.items():
        name = kind.split(" of ")[0] if kind.startswith("mutants of ") else kind
        merged[name] = merged.get(name, 0) + runs
    return {kind: runs for kind, runs in merged.items() if runs}


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def written(readme: str, records: Sequence[dict[str, Any]], machine: str, minutes: float) -> str:
    """The README with its score card replaced.

    >>> written(f"a\\n{BEGIN}\\nold\\n{END}\\nb", [], "avx2, 2 cores", 3).split("\\n")[-2:]
    ['<!-- end of the score card -->', 'b']
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("README.md has lost the markers of its score card")
    return f"{before}{BEGIN}\n{card(records, machine, minutes)}\n{END}{after}"
