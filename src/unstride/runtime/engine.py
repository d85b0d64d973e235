"""Text becomes an object, an object becomes code in memory. The only file that touches the LLVM binding.

LLVM is imported by the first compilation, not before: code from the cache runs without it. Everything loaded stays
loaded until the process ends, because a kernel may be running in any thread at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

from unstride._version import __version__
from unstride.plan.machine import ISA
from unstride.runtime import cache as store
from unstride.runtime import elf
from unstride.runtime.machine import cpu_features

__all__ = ["Library", "Loaded", "assembly", "compile_object", "fingerprint", "kernel_library", "load"]

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Loaded:
    """Native functions ready to call. `origin` is "cold" (compiled now), "disk" or "memory"."""

    addresses: dict[str, int]
    origin: str
    milliseconds: float


# --- kernels --------------------------------------------------------------------------------------------------------

# One lock per kernel: who comes second waits. Re-entrant, because a signal handler may ask for the kernel being made.
_locks: dict[str, threading.RLock] = {}


def kernel_library(
    key: str,
    build_ir: Callable[[], str],
    isa: ISA,
    symbols: Sequence[str],
    *,
    externals: frozenset[str] = _NOTHING,
    quickly: bool = False,
) -> Loaded:
    """The functions `symbols` of the kernel `key`: from memory, from disk, or compiled from `build_ir()`.

    `key` must name everything that `build_ir` depends on, apart from the package's own sources, which are part of the
    key on disk anyway. Threads that ask for one key at the same time wait for one compilation. `externals` are the only
    functions of the C library the code may call; `quickly` is for code that has more to wait than to compute.
    """
    start = perf_counter()
    full_key = f"{isa.name} {key}"
    known: Loaded | None = store.memory.get(full_key)  # asked once: another thread may forget it at any moment
    if known is None:
        with _locks.setdefault(full_key, threading.RLock()):
            known = store.memory.get(full_key)
            if known is None:
                addresses, origin = _made(full_key, build_ir, isa, symbols, externals, quickly)
                made = Loaded(addresses, origin, 1e3 * (perf_counter() - start))
                store.memory[full_key] = made
                return made
    return replace(known, origin="memory", milliseconds=1e3 * (perf_counter() - start))


def _made(
    key: str,
    build_ir: Callable[[], str],
    isa: ISA,
    symbols: Sequence[str],
    externals: frozenset[str],
    quickly: bool = False,
) -> tuple[dict[str, int], str]:
    disk_key = f"{fingerprint()} {isa.cpu} {isa.features} {key}"
    obj = store.load(disk_key)
    origin = "disk"
    if obj is None:
        origin = "cold"
        obj = compile_object(build_ir(), isa, externals, quickly=quickly)
        store.store(disk_key, obj)
    try:
        return elf.place(obj, symbols), origin
    except elf.Unsupported:
        library = load(obj, key[:60])
        return {symbol: library.address(symbol) for symbol in symbols}, origin


@cache
def fingerprint() -> str:
    """Everything outside the kernel's key that its object depends on: this package's sources, LLVM, the processor."""
    digest = blake2b(digest_size=16)
    package = Path(__file__).resolve().parent.parent
    for source in sorted((*package.glob("codegen/*.py"), *package.glob("plan/*.py"), Path(__file__))):
        digest.update(source.read_bytes())
    digest.update(" ".join(sorted(cpu_features())).encode())
    digest.update(_llvm_build().encode())
    return f"unstride {__version__} {digest.hexdigest()}"


def _llvm_build() -> str:
    """What tells one build of LLVM from another without loading it: version file, size and date of the library."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("llvmlite is not installed")
    folder = Path(spec.origin).parent
    libraries = [(entry.name, entry.stat()) for entry in sorted(folder.glob("binding/*llvmlite.*"))]
    facts = [f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in libraries]
    return " ".join([(folder / "_version.py").read_text(encoding="utf-8"), *facts])


# --- LLVM -----------------------------------------------------------------------------------------------------------

# One compilation at a time: LLVM's own global lock would serialise them anyway.
_llvm_lock = threading.RLock()
_names = itertools.count()
_forever: list[Any] = []


class Library:
    """Code that LLVM linked into this process; never unloaded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def address(self, symbol: str) -> int:
        """The address of a function. A symbol that is missing, or that needs one that is, raises RuntimeError."""
        with _llvm_lock:
            found = _jit().lookup(self.name, symbol)
            _forever.append(found)
            return int(found[symbol])


def load(obj: bytes, name: str) -> Library:
    """Let LLVM link an object that `compile_object` made (and a digest protected) into this process."""
    unique = f"{name}#{next(_names)}"
    with _llvm_lock:
        builder = _llvm().JITLibraryBuilder().add_object_img(obj).add_current_process()
        _forever.append(builder.link(_jit(), unique))
    return Library(unique)


def compile_object(ir_text: str, isa: ISA, externals: frozenset[str] = _NOTHING, *, quickly: bool = False) -> bytes:
    """Relocatable object code for `isa`. RuntimeError if LLVM refuses the text or it calls more than `externals`.

    `quickly` takes a fifth of the time and makes code that takes a few times longer.
    """
    with _llvm_lock:
        obj = bytes(_target_machine(isa, 0 if quickly else 2).emit_object(_optimised(ir_text, isa)))
    strangers = elf.undefined_symbols(obj) - externals
    if strangers:
        raise RuntimeError(f"generated code for {isa.name} calls {', '.join(sorted(strangers))}, which is not provided")
    return obj


def assembly(ir_text: str, isa: ISA) -> str:
    """The assembler text of what `compile_object` would emit, to read and to test."""
    with _llvm_lock:
        return str(_target_machine(isa).emit_assembly(_optimised(ir_text, isa)))


def _optimised(ir_text: str, isa: ISA) -> Any:
    """The module after the cleaning passes the kernels rely on; they are written vectorised and unrolled already."""
    llvm, machine = _llvm(), _target_machine(isa)
    module = llvm.parse_assembly(_without_builtins(ir_text))
    module.triple = isa.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    # Measured: the kernels gain nothing from a standard pipeline (loops are written as they shall run) nor from
    # combining instructions, and these passes take a twentieth of its time.
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, llvm.create_pass_builder(machine, _tuning()))
    return module


def _tuning() -> Any:
    options = _llvm().create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    return options


def _without_builtins(ir_text: str) -> str:
    """Mark every function so that LLVM does not turn its loops into calls of memset and memcpy."""
    head, *functions = f"\n{ir_text}".split("\ndefine ")
    return "\ndefine ".join([head, *(text.replace("{\n", '"no-builtins" {\n', 1) for text in functions)])


@cache
def _target_machine(isa: ISA, level: int = 2) -> Any:
    target = _llvm().Target.from_triple(isa.triple)
    # "small" keeps constants one RIP-relative load away; the loader puts the sections of an object side by side.
    return target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=level, reloc="pic", codemodel="small")


@cache
def _jit() -> Any:
    _forever.append(_llvm().create_lljit_compiler())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_forever))  # not even the end of the interpreter unloads code
    return _forever[-1]


@cache
def _llvm() -> Any:
    """The binding, ready for every target. Called with `_llvm_lock` held: a fork waits until it is all imported."""
    global _binding_lock
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    _binding_lock = getattr(binding.ffi.lib, "_lock", _binding_lock)
    return binding


# --- fork -----------------------------------------------------------------------------------------------------------


_binding_lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()  # held in each call of the binding


def _enter_llvm() -> None:
    """Let a fork wait until no thread is inside LLVM: a child born in there inherits a lock that nobody releases."""
    _llvm_lock.acquire()
    _binding_lock.__enter__()


def _leave_llvm() -> None:
    _binding_lock.__exit__(None, None, None)
    _llvm_lock.release()


# From the start, and not when LLVM is first used: another thread may be importing it when this one forks.
os.register_at_fork(before=_enter_llvm, after_in_parent=_leave_llvm, after_in_child=_leave_llvm)
os.register_at_fork(after_in_child=_locks.clear)  # their owners do not exist in the child
