"""Bytes of untrusted files: regular files only, offset and size checked against the real length, read by pread.

A mapped file that shrinks later kills the process with SIGBUS; a named pipe would hang it. Neither can happen here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.errors import FormatError, SizeLimitError

__all__ = ["memory_budget", "open_regular", "read_array", "read_exactly"]

_CHUNK_BYTES = 1 << 26


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[int, int]]:
    """The descriptor and the length of a regular file; anything else (missing, directory, pipe) is a FormatError."""
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to must not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FormatError("file", str(path), f"cannot be opened ({reason})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("file", str(path), "is not a regular file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def memory_budget() -> int:
    """Bytes that one array may take: half of what this machine has free, so that a file's claim cannot exhaust it."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return 1 << 32


def read_exactly(path: Path, offset: int, size: int, field: str) -> NDArray[np.uint8]:
    """`size` bytes at `offset`; a range that leaves the file is a FormatError before anything is allocated."""
    with open_regular(path) as (descriptor, length):
        if offset < 0 or size < 0 or offset + size > length:
            raise FormatError(field, f"bytes {offset}..{offset + size}", f"{path.name} has {length} bytes only")
        if size > memory_budget():
            raise SizeLimitError(field, size, "more bytes than half of the free memory")
        buffer = np.empty(size, np.uint8)
        view = buffer.data
        done = 0
        while done < size:
            count = os.preadv(descriptor, [view[done : done + _CHUNK_BYTES]], offset + done)
            if count == 0:
                raise FormatError(field, f"bytes {offset}..{offset + size}", f"{path.name} became shorter while read")
            done += count
    return buffer


def read_array(path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], field: str) -> NDArray[Any]:
    """An array stored raw, little-endian and in C order; `offset` need not be aligned."""
    raw = read_exactly(path, offset, prod(shape) * dtype.itemsize, field)
    return raw.view(dtype).reshape(shape)
