"""Tables of integers, laid end to end."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Interned"]

T = TypeVar("T")


class Interned(Generic[T]):
    """Runs of values laid end to end, equal runs only once.

    >>> table = Interned()
    >>> table.place((1, 2)), table.place((3,)), table.place((1, 2)), table.values
    (0, 2, 0, [1, 2, 3])
    """

    def __init__(self) -> None:
        self.values: list[T] = []
        self._known: dict[tuple[T, ...], int] = {}

    def place(self, run: tuple[T, ...]) -> int:
        """Where the run starts; it is added if it is new."""
        if run not in self._known:
            self._known[run] = len(self.values)
            self.values += run
        return self._known[run]
