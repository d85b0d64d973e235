"""Objects into memory without LLVM: a small loader for the x86-64 ELF objects that LLVM emits for this package.

LLVM is needed to make code, not to run it. Code from the cache is placed here in a fraction of a millisecond, while
LLVM takes tens of them to start. What this loader does not know, it refuses with `Unsupported`, and the
engine lets LLVM link the object instead.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from unstride.runtime.memory import allow_execution, new_pages

__all__ = ["Unsupported", "place", "undefined_symbols"]

_X86_64 = 62
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_WRITE, _ALLOC = 1, 2
_R_64, _R_PC32, _R_PLT32, _R_REX_GOTPCRELX = 1, 2, 4, 42
# jmp *[rip + 0], followed by the address: reaches a function of the C library from anywhere
_STUB = b"\xff\x25\0\0\0\0"
_STUB_BYTES = 16
_PAGE = mmap.PAGESIZE


class Unsupported(Exception):
    """An object this loader does not understand."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    start: int
    size: int
    link: int
    info: int
    align: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


class _Object:
    """The tables of a 64-bit little-endian ELF object."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise Unsupported("not a 64-bit little-endian ELF object")
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 0x12)
        (table,) = struct.unpack_from("<Q", data, 0x28)
        entry_bytes, count, names = struct.unpack_from("<HHH", data, 0x3A)
        headers = (struct.unpack_from("<IIQQQQIIQQ", data, table + entry_bytes * i) for i in range(count))
        self.sections = [_Section(h[0], h[1], h[2], h[4], h[5], h[6], h[7], max(1, h[8])) for h in headers]
        self.names = self.sections[names]
        self.symbols = list(self._read_symbols())

    def text(self, strings: _Section, offset: int) -> str:
        begin = strings.start + offset
        return self.data[begin : self.data.index(b"\0", begin)].decode()

    def relocations(self, section: int) -> Iterator[tuple[int, int, int, int]]:
        """(offset, type, symbol, addend) of everything to be patched in a section."""
        for table in self.sections:
            if table.kind == _RELA and table.info == section:
                entries = struct.iter_unpack("<QQq", self.data[table.start : table.start + table.size])
                for offset, info, addend in entries:
                    yield offset, info & 0xFFFFFFFF, info >> 32, addend

    def _read_symbols(self) -> Iterator[_Symbol]:
        for table in self.sections:
            if table.kind == _SYMTAB:
                strings = self.sections[table.link]
                entries = struct.iter_unpack("<IBBHQQ", self.data[table.start : table.start + table.size])
                for name, _, _, section, value, _ in entries:
                    yield _Symbol(self.text(strings, name), section, value)


def undefined_symbols(obj: bytes) -> set[str]:
    """Names an object needs from outside."""
    return {symbol.name for symbol in _Object(obj).symbols if symbol.section == 0} - {"", "_GLOBAL_OFFSET_TABLE_"}


def place(obj: bytes, symbols: Iterable[str]) -> dict[str, int]:
    """Load an object for ever and return the addresses of `symbols`. Code and constants are not writable afterwards.

    The object must come from `engine.compile_object`, by way of a digest if it was on disk.
    """
    image = _Object(obj)
    if image.machine != _X86_64:
        raise Unsupported(f"ELF machine {image.machine}")
    return _Placement(image).addresses(symbols)


class _Placement:
    """One mapping per object: stubs, code and constants first, then, on pages of their own, variables."""

    def __init__(self, image: _Object) -> None:
        self.image = image
        self.strangers = sorted(undefined_symbols(image.data))
        self.offsets: dict[int, int] = {}
        end = self._lay_out(_STUB_BYTES * len(self.strangers), writable=False)
        self.read_only_bytes = -(-end // _PAGE) * _PAGE
        self.base = new_pages(max(_PAGE, self._lay_out(self.read_only_bytes, writable=True)))
        self.strange_addresses = {name: self._write_stub(i, name) for i, name in enumerate(self.strangers)}
        for section in self.offsets:
            self._copy(section)
        for section in self.offsets:
            self._relocate(section)
        if self.read_only_bytes and not allow_execution(self.base, self.read_only_bytes):
            raise Unsupported("the system forbids new executable pages")

    def addresses(self, symbols: Iterable[str]) -> dict[str, int]:
        defined = {s.name: s for s in self.image.symbols if s.section in self.offsets}
        missing = [name for name in symbols if name not in defined]
        if missing:
            raise RuntimeError(f"the object defines no {', '.join(missing)}")
        return {name: self._address(defined[name]) for name in symbols}

    def _lay_out(self, end: int, writable: bool) -> int:
        for index, section in enumerate(self.image.sections):
            if section.flags & _ALLOC and bool(section.flags & _WRITE) == writable and not self._unwinds(section):
                end = -(-end // section.align) * section.align
                self.offsets[index] = end
                end += section.size
        return end

    def _unwinds(self, section: _Section) -> bool:
        """Tables for exceptions, of which generated code throws none."""
        return self.image.text(self.image.names, section.name) == ".eh_frame"

    def _copy(self, index: int) -> None:
        section = self.image.sections[index]
        if section.kind != _NOBITS:
            data = self.image.data[section.start : section.start + section.size]
            ctypes.memmove(self.base + self.offsets[index], data, section.size)

    def _write_stub(self, index: int, name: str) -> int:
        target = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
        stub = self.base + index * _STUB_BYTES
        ctypes.memmove(stub, _STUB + struct.pack("<Q", target), len(_STUB) + 8)
        return stub

    def _relocate(self, index: int) -> None:
        start = self.base + self.offsets[index]
        for offset, kind, symbol, addend in self.image.relocations(index):
            where = start + offset
            target = self._address(self.image.symbols[symbol]) + addend
            if kind == _R_REX_GOTPCRELX:
                self._relax(where)
            if kind in (_R_PC32, _R_PLT32, _R_REX_GOTPCRELX):
                ctypes.memmove(where, struct.pack("<i", target - where), 4)
            elif kind == _R_64:
                ctypes.memmove(where, struct.pack("<Q", target), 8)
            else:
                raise Unsupported(f"relocation type {kind}")

    def _relax(self, where: int) -> None:
        """Turn the load of an address from a table, `mov reg, [rip + x]`, into `lea reg, [rip + x]`."""
        if ctypes.string_at(where - 2, 1) != b"\x8b":
            raise Unsupported("a reference through a table of addresses that is not a plain load")
        ctypes.memmove(where - 2, b"\x8d", 1)

    def _address(self, symbol: _Symbol) -> int:
        if symbol.section == 0:
            return self.strange_addresses[symbol.name]
        if symbol.section not in self.offsets:
            raise Unsupported(f"symbol {symbol.name!r} outside the loaded sections")
        return self.base + self.offsets[symbol.section] + symbol.value
