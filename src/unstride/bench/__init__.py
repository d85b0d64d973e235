"""The side-by-side harness: this package and every installed peer on the same layers, interleaved, in one process.

Only ratios taken in one run count: machines drift by tens of percent within minutes, so the contenders of a layer take
turns in rounds, and the limits they are held against (FMA peak, copy bandwidth) are measured again in every round.
"""

from __future__ import annotations

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """`unstride bench`: 0 done, 1 our result was wrong somewhere, 2 bad input."""
    from unstride.bench.cli import main as run

    return run(argv)
