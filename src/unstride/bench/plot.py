"""The picture of a run as SVG: one dot a layer against its best peer, on a logarithmic axis, slowest first."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log2

from unstride.bench.summary import Row, geometric_mean, share_at_least

__all__ = ["speedup_svg"]

WIDTH, LABELS, RIGHT = 1020, 430, 120
MOST = 5  # powers of two each way; what is beyond sits at the edge and has its number beside it
LINE, HEAD, GAP = 13, 46, 26
AHEAD, BEHIND, INK, FAINT = "#1a7f5a", "#c2410c", "#1f2328", "#d0d7de"


def speedup_svg(rows: Sequence[Row], title: str) -> str:
    """A self-contained SVG text. Rows without a ratio (peers only, or not timed) are left out."""
    rated = [row for row in rows if row.best is not None]
    variants = list(dict.fromkeys(row.variant for row in rated))
    axis = _Axis([row.best or 1.0 for row in rated])
    parts: list[str] = []
    top = 34
    for variant in variants:
        members = sorted((row for row in rated if row.variant == variant), key=lambda row: row.best or 0.0)
        parts += _panel(variant, members, axis, top)
        top += HEAD + LINE * len(members) + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" '
        f'font-family="system-ui, sans-serif" font-size="10" fill="{INK}">'
    )
    back = f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>'
    heading = f'<text x="12" y="22" font-size="15" font-weight="600">{escape(title)}</text>'
    return "\n".join([head, f"<title>{escape(title)}</title>", back, heading, *parts, "</svg>\n"])


class _Axis:
    """Speed-up to pixels: whole powers of two around the data, 1 always inside."""

    def __init__(self, values: list[float]) -> None:
        logs = [log2(value) for value in values]
        self.low = max(-MOST, min(-1, floor(min(logs, default=0.0))))
        self.high = min(MOST, max(1, ceil(max(logs, default=0.0))))

    def x(self, value: float) -> float:
        part = (min(self.high, max(self.low, log2(value))) - self.low) / (self.high - self.low)
        return round(LABELS + part * (WIDTH - LABELS - RIGHT), 1)

    def ticks(self) -> list[float]:
        return [2.0**power for power in range(self.low, self.high + 1)]


def _panel(variant: str, rows: list[Row], axis: _Axis, top: int) -> list[str]:
    best = [row.best for row in rows if row.best is not None]
    summary = (
        f"{variant}: {len(rows)} layers, geometric mean {geometric_mean(best):.2f}, "
        f"{100 * share_at_least(best, 1.0):.0f} % at least as fast as the best peer"
    )
    bottom = top + HEAD + LINE * len(rows)
    parts = [f'<text x="12" y="{top + 18}" font-size="12" font-weight="600">{escape(summary)}</text>']
    for tick in axis.ticks():
        x, colour, width = axis.x(tick), INK if tick == 1 else FAINT, 1.2 if tick == 1 else 0.7
        parts.append(
            f'<line x1="{x}" y1="{top + 36}" x2="{x}" y2="{bottom}" stroke="{colour}" stroke-width="{width}"/>'
        )
        parts.append(f'<text x="{x}" y="{top + 33}" text-anchor="middle">{tick:g}x</text>')
    return parts + [piece for index, row in enumerate(rows) for piece in _dot(row, axis, top + HEAD + LINE * index)]


def _dot(row: Row, axis: _Axis, y: int) -> list[str]:
    value = row.best or 1.0
    x, one = axis.x(value), axis.x(1.0)
    colour = AHEAD if value >= 1.0 else BEHIND
    name = row.layer if len(row.layer) <= 62 else row.layer[:59] + "..."
    label = escape(f"{name}  ({row.families['kind']})")
    hint = f"{row.problem}: {value:.2f}x against {row.best_peer}"
    return [
        f'<text x="{LABELS - 8}" y="{y + 4}" text-anchor="end">{label}</text>',
        f'<line x1="{one}" y1="{y}" x2="{x}" y2="{y}" stroke="{colour}" stroke-width="1.5"/>',
        f'<circle cx="{x}" cy="{y}" r="3.4" fill="{colour}"><title>{escape(hint)}</title></circle>',
        f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4}">{value:.2f} {escape(row.best_peer or "")}</text>',
    ]
