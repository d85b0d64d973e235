"""How busy other processes kept the machine meanwhile: the first thing to look at when a number looks odd."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Bystanders"]

_STAT = Path("/proc/stat")


class Bystanders:
    """Counts from its creation on. Engines that spin at barriers suffer most from company, so ratios shift with it."""

    def __init__(self) -> None:
        self._start = _busy_and_total()
        self._own_start = _own_seconds()

    def share(self) -> float | None:
        """The part of all cores' time that other processes took so far, 0 to 1; None where the system does not tell."""
        now = _busy_and_total()
        if self._start is None or now is None or now[1] <= self._start[1]:
            return None
        ticks = os.sysconf("SC_CLK_TCK")
        busy = (now[0] - self._start[0]) / ticks - (_own_seconds() - self._own_start)
        return min(1.0, max(0.0, busy * ticks / (now[1] - self._start[1])))


def _busy_and_total() -> tuple[int, int] | None:
    """Clock ticks of all cores that were not idle, and all of them."""
    try:
        fields = _STAT.read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return None
    ticks = [int(field) for field in fields]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system
