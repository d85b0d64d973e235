"""LLVM: text becomes an object, an object becomes code in memory. The only file that touches the LLVM binding.

Everything loaded stays loaded until the process ends: a kernel may be running in any thread at any time, and code
that is unmapped under a thread is a crash.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import llvmlite
from llvmlite import binding as llvm
from llvmlite.binding import ffi

import unstride
from unstride.plan.machine import ISA
from unstride.runtime import cache as store
from unstride.runtime.machine import cpu_features

__all__ = ["Library", "Loaded", "assembly", "compile_object", "kernel_library", "load"]

# One compilation at a time: LLVM's own global lock would serialise them anyway.
_llvm_lock = threading.RLock()
_flight_lock = threading.Lock()
_flights: dict[str, _Flight] = {}
_names = itertools.count()
_forever: list[Any] = []


@dataclass(frozen=True)
class Loaded:
    """Native functions ready to call. `origin` is "cold" (compiled now), "disk" or "memory"."""

    addresses: dict[str, int]
    origin: str
    milliseconds: float


class Library:
    """Code in memory; never unloaded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def address(self, symbol: str) -> int:
        """The address of a function. A symbol that is missing, or that needs one, raises RuntimeError."""
        with _llvm_lock:
            found = _jit().lookup(self.name, symbol)
            _forever.append(found)
            return int(found[symbol])


class _Flight:
    """A kernel under way: the thread that makes it, and a bell for those who wait."""

    def __init__(self) -> None:
        self.done = threading.Event()


def kernel_library(
    key: str,
    build_ir: Callable[[], str],
    isa: ISA,
    symbols: Sequence[str],
    *,
    externals: frozenset[str] = frozenset(),
) -> Loaded:
    """The functions `symbols` of the kernel `key`: from this process's memory, from disk, or compiled from `build_ir()`.

    `key` must name everything that `build_ir` depends on, apart from the package's own sources, which are in the full key
    anyway. Threads that ask for one key at the same time wait for one compilation. `externals` are the only functions
    of the C library the code may call.
    """
    start = perf_counter()
    full_key = f"{isa.name} {key}"
    while True:
        with _flight_lock:
            known = store.memory.get(full_key)
            if isinstance(known, Loaded):
                return replace(known, origin="memory", milliseconds=1e3 * (perf_counter() - start))
            flight = _flights.get(full_key)
            mine = flight is None
            if flight is None:
                flight = _flights[full_key] = _Flight()
        if mine:
            break
        flight.done.wait()  # if that thread fails, this one tries itself
    try:
        addresses, origin = _make(full_key, build_ir, isa, symbols, externals)
        loaded = Loaded(addresses, origin, 1e3 * (perf_counter() - start))
        store.memory[full_key] = loaded
        return loaded
    finally:
        with _flight_lock:
            _flights.pop(full_key, None)
        flight.done.set()


def compile_object(ir_text: str, isa: ISA, externals: frozenset[str] = frozenset()) -> bytes:
    """Relocatable object code for `isa`. Raises RuntimeError for text LLVM refuses, or for a call to anything but `externals`."""
    with _llvm_lock:
        obj = bytes(_target_machine(isa).emit_object(_optimised(ir_text, isa)))
    strangers = undefined_symbols(obj) - externals - _HARMLESS
    if strangers:
        raise RuntimeError(f"generated code calls {', '.join(sorted(strangers))}, which nothing provides")
    return obj


def assembly(ir_text: str, isa: ISA) -> str:
    """The assembler text of what `compile_object` would emit, to read and to test."""
    with _llvm_lock:
        return str(_target_machine(isa).emit_assembly(_optimised(ir_text, isa)))


def load(obj: bytes, name: str) -> Library:
    """Link an object that `compile_object` made (and a digest protected) into this process."""
    unique = f"{name}#{next(_names)}"
    with _llvm_lock:
        builder = llvm.JITLibraryBuilder().add_object_img(obj).add_current_process()
        _forever.append(builder.link(_jit(), unique))
    return Library(unique)


def _make(
    key: str, build_ir: Callable[[], str], isa: ISA, symbols: Sequence[str], externals: frozenset[str]
) -> tuple[dict[str, int], str]:
    disk_key = f"{_fingerprint()} {isa.cpu} {isa.features} {key}"
    obj = store.load(disk_key)
    origin = "disk"
    if obj is None:
        origin = "cold"
        obj = compile_object(build_ir(), isa, externals)
        store.store(disk_key, obj)
    library = load(obj, key[:60])
    return {symbol: library.address(symbol) for symbol in symbols}, origin


@cache
def _fingerprint() -> str:
    """Everything outside the kernel's key that its object depends on: this package's sources, LLVM, the processor."""
    digest = blake2b(digest_size=16)
    package = Path(__file__).resolve().parent.parent
    for source in sorted((*package.glob("codegen/*.py"), *package.glob("plan/*.py"), Path(__file__))):
        digest.update(source.read_bytes())
    digest.update(" ".join(sorted(cpu_features())).encode())
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    version = getattr(unstride, "__version__", "")
    return f"unstride {version} llvmlite {llvmlite.__version__} LLVM {llvm_version} {digest.hexdigest()}"


# --- LLVM --------------------------------------------------------------------------------------------------------------


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _target_machine(isa: ISA) -> Any:
    _initialise()
    target = llvm.Target.from_triple(isa.triple)
    # "small" keeps constants one RIP-relative load away; the loader puts the sections of an object side by side.
    return target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=2, reloc="pic", codemodel="small")


@cache
def _jit() -> Any:
    _initialise()
    jit = llvm.create_lljit_compiler()
    _forever.append(jit)
    return jit


def _optimised(ir_text: str, isa: ISA) -> Any:
    """The module after the cleaning passes the kernels rely on; what they vectorise and unroll, they write out themselves."""
    machine = _target_machine(isa)
    module = llvm.parse_assembly(_without_builtins(ir_text))
    module.triple = isa.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    passes = llvm.create_pass_builder(machine, _tuning())
    inliner = llvm.create_new_module_pass_manager()
    inliner.add_always_inliner_pass()
    inliner.add_global_dead_code_eliminate_pass()
    inliner.run(module, passes)
    cleaner = passes.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            cleaner.run(function, passes)
    return module


def _tuning() -> Any:
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    return options


def _without_builtins(ir_text: str) -> str:
    """Mark every function so that LLVM does not turn its loops into calls of memset and memcpy."""
    return re.sub(r"^(define\b.*?)\s*\{[ \t]*$", r'\1 "no-builtins" {', ir_text, flags=re.MULTILINE)


# --- objects ------------------------------------------------------------------------------------------------------------

_HARMLESS = frozenset({"", "_GLOBAL_OFFSET_TABLE_"})


def undefined_symbols(obj: bytes) -> set[str]:
    """Names a 64-bit little-endian ELF object needs from outside."""
    if obj[:6] != b"\x7fELF\x02\x01":
        raise RuntimeError("LLVM gave an object that is not 64-bit little-endian ELF")
    (table,) = struct.unpack_from("<Q", obj, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", obj, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", obj, table + entry_bytes * i) for i in range(count)]
    names: set[str] = set()
    for kind, start, size, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[link][4]
        for offset in range(start + 24, start + size, 24):  # the first symbol is always empty
            name, _, _, section = struct.unpack_from("<IBBH", obj, offset)
            if section == 0:  # SHN_UNDEF
                begin = strings + name
                names.add(obj[begin : obj.index(b"\0", begin)].decode())
    return names


# --- fork ---------------------------------------------------------------------------------------------------------------


def _before_fork() -> None:
    """Wait until no thread is inside LLVM: a child forked in there would inherit locks that nobody releases."""
    _flight_lock.acquire()
    _llvm_lock.acquire()
    ffi.lib._lock.__enter__()


def _after_fork() -> None:
    ffi.lib._lock.__exit__(None, None, None)
    _llvm_lock.release()
    _flight_lock.release()


def _after_fork_in_child() -> None:
    _flights.clear()  # their threads do not exist here
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
