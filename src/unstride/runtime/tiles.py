"""Whether this process may multiply tiles of halves (AMX): what the processor can do, and the kernel's permission."""

from __future__ import annotations

import ctypes
import mmap
import struct
from functools import cache

from unstride.runtime.memory import allow_execution, new_pages

__all__ = ["tile_types"]

_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
# cpuid(leaf, subleaf, where): four registers, by the calling convention of Linux.
_CPUID = bytes.fromhex("53 89f8 89f1 4989d0 0fa2 418900 41895804 41894808 4189500c 5b c3".replace(" ", ""))
_TILES, _BF16, _AVX512_BF16, _F16 = 24, 22, 5, 21  # bits: of leaf 7, edx; of leaf 7.1, eax


@cache
def tile_types() -> tuple[str, ...]:
    """The types of which this process may multiply tiles, on a processor with AMX.

    Asks the kernel for the registers, which no process is given unasked, for all of its threads.
    """
    found = _leaf_7()  # /proc/cpuinfo says nothing of f16
    if found is None:
        return ()
    edx, eax = found
    if not edx >> _TILES & edx >> _BF16 & eax >> _AVX512_BF16 & 1:
        return ()
    if ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA):
        return ()
    return ("bf16", "f16") if eax >> _F16 & 1 else ("bf16",)


def _leaf_7() -> tuple[int, int] | None:
    """What the processor says of itself: edx of leaf 7, eax of leaf 7.1; None where no code may be made."""
    page = new_pages(mmap.PAGESIZE)
    ctypes.memmove(page, _CPUID, len(_CPUID))
    if not allow_execution(page, mmap.PAGESIZE):
        return None
    function = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(page)
    registers = [ctypes.create_string_buffer(16) for _ in range(2)]
    for subleaf, room in enumerate(registers):
        function(7, subleaf, room)
    return struct.unpack("4I", registers[0].raw)[3], struct.unpack("4I", registers[1].raw)[0]
