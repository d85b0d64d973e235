"""How sizes are cut into even parts, and rounded up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["even_share", "in_blocks", "kept_apart", "largest", "round_up"]


def round_up(value: int, multiple: int = 256) -> int:
    """The next multiple; of 256 bytes for what shares a scratch buffer.

    >>> round_up(17, 16), round_up(1)
    (32, 256)
    """
    return -(-value // multiple) * multiple


def kept_apart(elements: int, line: int) -> int:
    """The distance of neighbours that should not fall into one cache set: not so many times eight lines.

    >>> kept_apart(120, 16), kept_apart(128, 16)
    (120, 144)
    """
    return elements + line if elements % (8 * line) == 0 else elements


def even_share(total: int, most: int) -> int:
    """The largest even share of `total` that is at most `most`.

    >>> even_share(10, 4)  # three pieces
    4
    >>> even_share(10, 6)
    5
    """
    pieces = -(-max(1, total) // max(1, most))
    return -(-max(1, total) // pieces)


def in_blocks(ends: Sequence[int], most: int) -> tuple[int, ...]:
    """Pieces that end there, put together into at most so many blocks of about as many pieces: the blocks' ends.

    >>> in_blocks((2, 3, 7, 8, 9), 2), in_blocks((2, 3), 4)
    ((3, 9), (2, 3))
    """
    count = min(len(ends), most)
    return tuple(ends[(i + 1) * len(ends) // count - 1] for i in range(count))


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest value in [1, limit] that fits (1 if none does), made even over the pieces it cuts.

    >>> largest(10, lambda n: n * n <= 40)
    5
    """
    low, high = 1, max(1, limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return even_share(limit, low)
