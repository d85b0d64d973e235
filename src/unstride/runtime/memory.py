"""Pages of this process that are never given back: some thread may be running in them, or writing to them."""

from __future__ import annotations

import ctypes
import mmap

__all__ = ["allow_execution", "new_pages", "wipe_on_fork"]

_MADV_WIPEONFORK = 18

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def new_pages(size: int) -> int:
    """The address of `size` bytes of zeros, private to this process."""
    start = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start is None or start == ctypes.c_void_p(-1).value:
        raise MemoryError(f"the system has no {size} bytes to give (errno {ctypes.get_errno()})")
    return int(start)


def allow_execution(start: int, size: int) -> bool:
    """Make whole pages executable and read-only; False if the system forbids it."""
    return not _libc.mprotect(start, size, mmap.PROT_READ | mmap.PROT_EXEC)


def wipe_on_fork(start: int, size: int) -> None:
    """Give a forked child zeros instead of these pages' contents. Kernels before 4.14 do not know how."""
    _libc.madvise(start, size, _MADV_WIPEONFORK)
