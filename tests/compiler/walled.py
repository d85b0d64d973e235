"""Arrays between inaccessible pages: one byte too far is a signal, not a wrong number."""

from __future__ import annotations

import ctypes
import mmap
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Wall"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NONE, _READ, _WRITE = 0, mmap.PROT_READ, mmap.PROT_WRITE


class Wall:
    """A span of memory that is inaccessible but for the pages of the one array it holds at a time."""

    def __init__(self, capacity_bytes: int) -> None:
        self.bytes = -(-capacity_bytes // mmap.PAGESIZE) * mmap.PAGESIZE + 2 * mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.start = _libc.mmap(None, self.bytes, _NONE, flags, -1, 0)
        if self.start in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no {self.bytes} bytes of address space")
        self.first, self.pages = self.start + mmap.PAGESIZE, 0

    def array(self, shape: tuple[int, ...], dtype: Any, *, at_end: bool) -> npt.NDArray[Any]:
        """A writable array whose last byte (or first byte) touches an inaccessible page. It replaces the one before."""
        size = prod(shape) * np.dtype(dtype).itemsize
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if pages + 2 * mmap.PAGESIZE > self.bytes:
            raise MemoryError(f"{size} bytes do not fit this wall")
        self._protect(self.first, self.pages, _NONE)
        self.pages = pages
        self._protect(self.first, pages, _READ | _WRITE)
        begin = self.first + (pages - size if at_end else 0)
        memory = (ctypes.c_char * size).from_address(begin)
        return np.frombuffer(memory, dtype).reshape(shape) if size else np.empty(shape, dtype)

    def seal(self) -> None:
        """Let the array be read only, by anybody."""
        self._protect(self.first, self.pages, _READ)

    def _protect(self, start: int, size: int, protection: int) -> None:
        if size and _libc.mprotect(start, size, protection):
            raise OSError(ctypes.get_errno(), "mprotect")
