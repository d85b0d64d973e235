"""The tables: rich's where it is installed and somebody looks, plain text otherwise."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from unstride.bench.records import Run
from unstride.bench.summary import Group, Row, compare, geometric_mean, group_rows, make_row

__all__ = ["as_json", "print_change", "print_report"]

Cells = list[list[str]]
WORST = 12
QUIET = 0.05
_LIMITS = ("% FMA", "% copy", "% large copy")  # of as many bytes as the layer has, and of very many


def as_json(run: Run) -> dict[str, Any]:
    """Everything the tables say, and the times behind it."""
    rows = [make_row(result) for result in run.results]
    return {
        "settings": run.settings,
        "machine": run.machine,
        "groups": [group.as_dict() for group in group_rows(rows)],
        "layers": [row.as_dict() for row in rows],
        "results": [result.as_dict() for result in run.results],
    }


def print_report(run: Run, *, layers: bool = True) -> None:
    """Layers, families, the worst layers and everything that could not be timed."""
    rows = [make_row(result) for result in run.results]
    groups = group_rows(rows)
    print(_machine_line(run))
    if layers:
        _table("Layers: GFLOP/s by minimum over rounds", *_layer_table(rows))
    if groups:
        _table("Families: speed-up (peer time / our time, geometric mean)", *_group_table(groups))
        behind = sorted((row for row in rows if row.best is not None), key=lambda row: row.best or 0.0)[:WORST]
        _table("Where this package is slowest against the best peer", *_worst_table(behind))
    if rows:
        _table("From weights to the first result (compilation and packing, and one call)", *_readiness_table(rows))
    if any(row.trouble for row in rows):
        _table("Not timed", *_trouble_table(rows))


def print_change(before: Run, after: Run) -> None:
    """What became of each layer between two runs, as speed-ups against the best peer: the machine's drift cancels."""
    changes = compare(*([make_row(result) for result in run.results] for run in (before, after)))
    if not changes:
        print("the two runs share no layer that was timed against a peer")
        return
    body = [
        [c.layer, c.variant, f"{c.before:.2f}", f"{c.after:.2f}", f"{c.ratio:.2f}"]
        for c in sorted(changes, key=lambda c: c.ratio)
    ]
    _table("Speed-up against the best peer, before and after", ["layer", "variant", "before", "after", "ratio"], body)
    ratios = [c.ratio for c in changes]
    print(f"\n{len(ratios)} layers, geometric mean of the ratios {geometric_mean(ratios):.3f}, least {min(ratios):.2f}")


def _machine_line(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.machine["versions"].items())
    peaks = [result.fma_flops_per_second / 1e9 for result in run.results]
    peak = f"FMA peak measured {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s; " if peaks else ""
    threads = run.settings.get("threads")
    return f"{run.machine['processor']}, {run.machine['isa']}, {threads} threads; {peak}{versions}{_company(run)}"


def _company(run: Run) -> str:
    """A warning where other processes took a noticeable part of the machine."""
    shares = [result.others_busy for result in run.results if result.others_busy is not None]
    if not shares or median(shares) < QUIET:
        return ""
    return f"\nNOT A QUIET MACHINE: other processes took {100 * median(shares):.0f} % of it (median over layers)"


def _layer_table(rows: Sequence[Row]) -> tuple[list[str], Cells]:
    names = list(dict.fromkeys(name for row in rows for name in row.gflops))
    head = ["layer", "variant", "kind", *names, "our us", "best peer", "speed-up", "(median)", *_LIMITS]
    body = [
        [
            row.layer,
            row.variant,
            f"{row.families['rank']} {row.families['kind']}",
            *(_number(row.gflops.get(name), ".3g") for name in names),
            _number(row.our_us, ".1f"),
            row.best_peer or "",
            _number(row.best, ".2f"),
            _number(row.best_by_median, ".2f"),
            *_of_limits(row),
        ]
        for row in rows
    ]
    return head, body


def _of_limits(row: Row) -> list[str]:
    return [_number(value, ".0f") for value in (row.fma_percent, row.copy_percent, row.large_copy_percent)]


def _group_table(groups: Sequence[Group]) -> tuple[list[str], Cells]:
    peers = list(dict.fromkeys(peer for group in groups for peer in group.against))
    head = ["variant", "family", "layers", "best peer", "(median)", ">= 1.0", "worst", *(f"vs {p}" for p in peers)]
    body = [
        [
            group.variant,
            group.name,
            str(group.count),
            f"{group.best:.2f}",
            f"{group.best_by_median:.2f}",
            f"{100 * group.share_ahead:.0f} %",
            f"{group.worst:.2f}",
            *(_number(group.against.get(peer), ".2f") for peer in peers),
        ]
        for group in groups
    ]
    return head, body


def _worst_table(rows: Sequence[Row]) -> tuple[list[str], Cells]:
    head = ["speed-up", "best peer", "layer", "kind", *_LIMITS, "note", "problem"]
    body = [
        [
            _number(row.best, ".2f"),
            row.best_peer or "",
            row.layer,
            row.families["kind"],
            *_of_limits(row),
            row.note,
            row.problem,
        ]
        for row in rows
    ]
    return head, body


def _readiness_table(rows: Sequence[Row]) -> tuple[list[str], Cells]:
    names = list(dict.fromkeys(name for row in rows for name in row.first_result_ms))
    body = []
    for name in names:
        times = sorted(row.first_result_ms[name] for row in rows if name in row.first_result_ms)
        body.append([name, str(len(times)), f"{median(times):.1f}", f"{times[-1]:.1f}"])
    return ["contender", "layers", "median ms", "most ms"], body


def _trouble_table(rows: Sequence[Row]) -> tuple[list[str], Cells]:
    """One line for each reason, with the first layer it was met on."""
    cases: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in rows:
        for name, text in row.trouble.items():
            cases[row.variant, name, text].append(row.layer)
    body = [[*case, str(len(layers)), layers[0]] for case, layers in cases.items()]
    return ["variant", "who", "why", "layers", "first met on"], body


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _table(title: str, head: list[str], body: Cells) -> None:
    """A rich table on a terminal that has it; aligned plain text otherwise, so that a log stays readable."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        _rich_table(title, head, body)
    else:
        print(f"\n{title}\n\n{plain_table(head, body)}")


def plain_table(head: list[str], body: Cells) -> str:
    """Columns padded to their widest cell; numbers to the right."""
    rows = [head, *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = [all(_is_number(row[column]) for row in body) for column in range(len(head))]
    lines = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)) for row in rows
    ]
    return "\n".join(line.rstrip() for line in (lines[0], "  ".join("-" * width for width in widths), *lines[1:]))


def _is_number(cell: str) -> bool:
    return not cell or cell.removesuffix(" %").replace(".", "", 1).isdigit()


def _rich_table(title: str, head: list[str], body: Cells) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column, name in enumerate(head):
        numeric = all(_is_number(row[column]) for row in body)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold" if not numeric else "ellipsis")
    for row in body:
        table.add_row(*map(escape, row))
    Console().print(table)
