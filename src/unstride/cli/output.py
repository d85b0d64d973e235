"""Tables, headings and progress: rich on a terminal that has it, plain aligned text everywhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from unstride.errors import printable

__all__ = ["Column", "heading", "note", "print_json", "progress", "sizes", "table"]

T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """A heading, and whether the cells are numbers (set to the right)."""

    name: str
    number: bool = False


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, default=str))


def sizes(values: Sequence[int | None]) -> str:
    """
    >>> sizes((1, 64, None))
    '1x64x?'
    """
    return "x".join("?" if value is None else str(value) for value in values)


def heading(text: str) -> None:
    """A line that opens a section."""
    console, text = _console(), printable(text)
    if console is None:
        print(f"\n{text}")
    else:
        console.print(f"\n[bold]{_escaped(text)}[/bold]")


def note(text: str, style: str = "dim") -> None:
    """A line of text; `style` is a rich style and has no effect on plain output."""
    console, text = _console(), printable(text)
    if console is None:
        print(text)
    else:
        console.print(_escaped(text), style=style, highlight=False, soft_wrap=True)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
    """Print rows under columns; `styles` colours whole rows on a terminal."""
    console = _console()
    rows = [[printable(cell) for cell in row] for row in rows]
    if console is None:
        print("\n".join(_plain(columns, rows)))
        return
    from rich.table import Table

    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold cyan")
    for column in columns:
        grid.add_column(column.name, justify="right" if column.number else "left", overflow="fold")
    for index, row in enumerate(rows):
        grid.add_row(*map(_escaped, row), style=styles[index] if index < len(styles) else "")
    console.print(grid)


def progress(items: Iterable[T], total: int, what: str, quiet: bool = False) -> Iterator[T]:
    """The items again, with a progress bar on stderr if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield from items
        return
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        yield from items
        return
    yield from track(items, description=what, total=total, console=Console(stderr=True), transient=True)


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[column.name for column in columns], *[list(row) for row in rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    lines = []
    for row in cells:
        parts = [
            text.rjust(width) if column.number else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def _console() -> Any:
    """A rich console if stdout is a terminal and rich is installed, else None."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
