"""Memory that is given up shows it: whoever still computes with it gets NaN."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from unstride.runtime import packing

__all__ = ["given_up_weights_are_nan"]

_KEPT = 64  # arrays that stay NaN for a while, instead of becoming the next call's memory at once


@contextmanager
def given_up_weights_are_nan() -> Iterator[None]:
    """Inside, packed weights that nobody refers to any more become NaN."""
    made, given_up = packing.aligned_empty, deque[NDArray[Any]](maxlen=_KEPT)

    def spoil(memory: NDArray[Any]) -> None:
        memory.fill(np.nan)
        given_up.append(memory)

    def empty(count: int, dtype: Any) -> NDArray[Any]:
        memory = made(count, dtype)
        given = memory[:]
        weakref.finalize(given, spoil, memory)
        return given

    with mock.patch.object(packing, "aligned_empty", empty):
        yield
