"""A small pen for SVG: shapes with class names, one palette for light and dark, and rows of cells with gaps.

Colours live in one style sheet with plain values: programs that know neither CSS variables nor media queries still show
the light picture. Every class begins with `us-`, so that a picture inlined in a notebook leaves the notebook alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from unstride.explain.axis import Gap

__all__ = [
    "HEAT_LEVELS",
    "PHASE_COLOURS",
    "Drawing",
    "Track",
    "crop_cell",
    "fit",
    "heat_cell",
    "heat_level",
    "phase_class",
]

# (property, light, dark) per class; the phase colours keep a contrast of 4.5 to the text drawn on them.
_PHASES = (
    ("#2f62c9", "#7aa5f8"),
    ("#b4560f", "#f2a867"),
    ("#1e7d5a", "#62cfa5"),
    ("#a83c83", "#e694ca"),
    ("#6c50be", "#b6a3f5"),
    ("#7a6a00", "#ddc650"),
    ("#13768e", "#63c5dc"),
    ("#b23a26", "#f2917f"),
)
_HEAT = (
    ("#e9effa", "#1c2738"),
    ("#cfdef6", "#223553"),
    ("#a9c5f0", "#2b4878"),
    ("#7fa6e6", "#3b62a6"),
    ("#3a68c4", "#7ba3ee"),
    ("#234a9b", "#adc8ff"),
)
PHASE_COLOURS = len(_PHASES)
HEAT_LEVELS = len(_HEAT)
_DARK_TEXT_FROM = 4  # heat levels from here on carry the colour of the paper as text

_INK, _PAPER = ("#1c2230", "#e8ebf1"), ("#ffffff", "#14181f")
_RULES: dict[str, dict[str, tuple[str, str]]] = {
    "us-paper": {"fill": _PAPER, "stroke": ("#e1e5ea", "#2a303a")},
    "us-ink": {"fill": _INK},
    "us-soft": {"fill": ("#5f6877", "#9aa4b4")},
    "us-on": {"fill": ("#ffffff", "#10141b")},
    "us-cell": {"fill": ("#f7f8fa", "#1b2029"), "stroke": ("#c6cdd7", "#3d4654")},
    "us-rule": {"stroke": ("#d9dee5", "#313947"), "fill": ("none", "none")},
    "us-crop": {"fill": ("#f1f2f4", "#1a1e25"), "stroke": ("#d4d9e0", "#333b47")},
    "us-zero": {"fill": _PAPER, "stroke": ("#8f98a6", "#6c7686")},
    "us-window": {"fill": ("none", "none"), "stroke": ("#1c2230", "#e8ebf1")},
    "us-pick": {"fill": ("none", "none"), "stroke": ("#d4380d", "#ff5c3c")},
    "us-band": {"fill": ("#fdeee4", "#33251c")},
    "us-pick-ink": {"fill": ("#b32f0a", "#ffab75")},
    "us-hatch": {"stroke": ("#c3cad4", "#3b4451"), "fill": ("none", "none")},
    "us-warn": {"fill": ("#9a3a00", "#ffb273")},
    "us-good": {"fill": ("#1e7d5a", "#62cfa5")},
    **{f"us-p{n}": {"fill": pair} for n, pair in enumerate(_PHASES)},
    **{f"us-h{n + 1}": {"fill": pair} for n, pair in enumerate(_HEAT)},
    **{f"us-t{n + 1}": {"fill": _INK if n < _DARK_TEXT_FROM else _PAPER} for n in range(HEAT_LEVELS)},
}
_FONTS = (
    ".us-picture{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;max-width:100%;height:auto}"
    ".us-picture .us-mono{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:11px}"
    ".us-picture .us-tiny{font-size:10px}.us-picture .us-small{font-size:12px}"
    ".us-picture .us-title{font-size:17px;font-weight:650}.us-picture .us-head{font-weight:600}"
    ".us-picture .us-mid{text-anchor:middle}.us-picture .us-end{text-anchor:end}"
    ".us-picture .us-zero{stroke-dasharray:3 2}.us-picture .us-window{stroke-width:2.5}"
    ".us-picture .us-pick{stroke-width:3}.us-picture .us-stamp{stroke-width:2;stroke-dasharray:5 3}"
)
# Notebooks say their theme on the body; what they say there counts more than what the system says.
_DARK_HOSTS = ("[data-jp-theme-light=false]", ".vscode-dark", "[data-theme=dark]")
_LIGHT_HOSTS = ("[data-jp-theme-light=true]", ".vscode-light", "[data-theme=light]")


def _sheet(column: int, hosts: tuple[str, ...] = ("",)) -> str:
    rules = []
    for name, properties in _RULES.items():
        selector = ",".join(f"{host} .us-picture .{name}".strip() for host in hosts)
        rules.append(f"{selector}{{{';'.join(f'{key}:{pair[column]}' for key, pair in properties.items())}}}")
    return "".join(rules)


STYLE = (
    f"{_FONTS}{_sheet(0)}@media(prefers-color-scheme:dark){{{_sheet(1)}}}"
    f"{_sheet(0, _LIGHT_HOSTS)}{_sheet(1, _DARK_HOSTS)}"
)


def fit(label: str, letters: int) -> str:
    """The label, or its end where it is too long for its cell."""
    return label if len(label) <= letters else f"…{label[1 - letters :]}"


def phase_class(number: int) -> str:
    """The colour of a phase; colours come round again, the labels tell phases apart."""
    return f"us-p{number % PHASE_COLOURS}"


def heat_level(count: int, most: int) -> int:
    """0 for nothing, else 1 to HEAT_LEVELS."""
    return -(-count * HEAT_LEVELS // most) if count else 0


@dataclass(frozen=True)
class Track:
    """A row of equal cells along one direction; an entry may be a gap, drawn as dots."""

    entries: Sequence[int | Gap]
    cell: int
    start: int = 0

    @property
    def length(self) -> int:
        return len(self.entries) * self.cell

    @property
    def end(self) -> int:
        return self.start + self.length

    def places(self) -> list[tuple[int, int]]:
        """(index, offset) of every drawn index."""
        return [(entry, self._at(n)) for n, entry in enumerate(self.entries) if not isinstance(entry, Gap)]

    def gaps(self) -> list[tuple[int, int]]:
        """(offset, number of missing indices) of every gap."""
        return [(self._at(n), entry.count) for n, entry in enumerate(self.entries) if isinstance(entry, Gap)]

    def offset(self, index: int) -> int | None:
        """Where an index is drawn, None where it is not."""
        return dict(self.places()).get(index)

    def span(self, first: int, stop: int) -> tuple[int, int] | None:
        """The offsets that enclose the drawn part of [first, stop), gaps inside it included."""
        inside = [at for index, at in self.places() if first <= index < stop]
        if not inside:
            return None
        low, high = inside[0], inside[-1] + self.cell
        places = self.places()
        for at, _ in self.gaps():  # a range that runs on into a gap is drawn as running on
            before = [index for index, place in places if place < at]
            after = [index for index, place in places if place > at]
            if at == high and before[-1] + 1 < stop:
                high += self.cell
            if at == low - self.cell and after[0] > first:
                low -= self.cell
        return low, high

    def _at(self, number: int) -> int:
        return self.start + number * self.cell


@dataclass
class Drawing:
    """Collects shapes; `render` wraps them in a document of the size they need."""

    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def rect(self, x: float, y: float, w: float, h: float, name: str, *, round_: float = 4, tip: str = "") -> None:
        self._grow(x + w, y + h)
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round_:g}" class="{name}">{inner}</rect>'
        )

    def text(self, x: float, y: float, words: object, name: str = "us-ink") -> None:
        content = escape(str(words))
        estimate = 0 if "us-mid" in name or "us-end" in name else len(content) * (8.6 if "us-title" in name else 6.9)
        self._grow(x + estimate, y + 4)
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{name}">{content}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, name: str = "us-rule") -> None:
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{name}"/>')

    def path(self, d: str, name: str) -> None:
        self.parts.append(f'<path d="{d}" class="{name}"/>')

    def render(self, title: str, description: str, margin: int = 24) -> str:
        """The whole document, with a card behind the shapes and words for screen readers."""
        width, height = self.width + 2 * margin, self.height + 2 * margin
        body = "".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="us-picture" role="img" '
            f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
            f'aria-label="{escape(f"{title}. {description}")}">'
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{STYLE}</style>"
            f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="12" class="us-paper"/>'
            f'<g transform="translate({margin} {margin})">{body}</g></svg>\n'
        )

    def _grow(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)


def heat_cell(pen: Drawing, x: float, y: float, w: float, h: float, count: int, most: int, where: str) -> None:
    """A cell coloured by how many products meet in it."""
    level = heat_level(count, most)
    name = f"us-h{level}" if level else "us-cell"
    pen.rect(x + 1, y + 1, w - 2, h - 2, name, round_=3, tip=f"{where}: {count} products")
    pen.text(x + w / 2, y + h / 2 + 4, fit(str(count), 4), f"us-mid us-mono {f'us-t{level}' if level else 'us-soft'}")


def crop_cell(pen: Drawing, x: float, y: float, size: float) -> None:
    """A cell that the taps reach and the window leaves out."""
    pen.rect(x, y, size, size, "us-crop")
    pen.path(f"M{x + 4:g} {y + size - 4:g}L{x + size - 4:g} {y + 4:g}", "us-hatch")
