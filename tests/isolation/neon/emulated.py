"""Puts emulated native code under the real runtime: plans, packing and launching stay what they are.

Three functions of the runtime are replaced. `engine.kernel_library` compiles for AArch64, links the object with a
small C harness and starts it under qemu; `buffers.address` remembers which array lies where; `pool.parallel` sends the
job and the arrays it points to through a pipe, and copies what comes back.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from unstride.plan.job import Fill, Job, Pack
from unstride.plan.machine import ISA, NEON, Machine
from unstride.runtime import buffers, engine, packing, pool, program
from unstride.runtime.engine import Loaded

__all__ = ["MACHINE", "TOOLS", "Emulator"]

TOOLS = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
MACHINE = Machine(NEON, 1)
_HARNESS = Path(__file__).with_name("harness.c")
_FIELDS = {"run": len(Job), "pack": len(Pack), "fill": len(Fill)}
_REMEMBERED = 64  # arrays; a launch points to fewer


class Emulator:
    """Compiles, links and serves kernels from one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: dict[str, Loaded] = {}
        self.served: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self.arrays: OrderedDict[int, Any] = OrderedDict()

    @staticmethod
    def missing() -> list[str]:
        """Tools of Debian's gcc-aarch64-linux-gnu and qemu-user that are not installed."""
        return [tool for tool in TOOLS if shutil.which(tool) is None]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the block the runtime runs on the emulated machine."""
        program.program.cache_clear()
        with (
            mock.patch.object(engine, "kernel_library", self.kernel_library),
            mock.patch.object(buffers, "address", self.address),
            mock.patch.object(pool, "parallel", self.parallel),
            mock.patch.object(packing.pool, "current_threads", return_value=1),
        ):
            try:
                yield
            finally:
                program.program.cache_clear()
                self.close()

    def close(self) -> None:
        for _, process in self.served.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=10)
        self.served.clear()
        self.loaded.clear()

    def kernel_library(
        self, key: str, build_ir: Callable[[], str], isa: ISA, symbols: Sequence[str], **_: Any
    ) -> Loaded:
        if key not in self.loaded:
            obj = engine.compile_object(build_ir(), isa)
            numbers = {symbol: len(self.served) + i for i, symbol in enumerate(symbols, start=1)}
            self.served |= {number: (symbol, self._serve(number, symbol, obj)) for symbol, number in numbers.items()}
            self.loaded[key] = Loaded(numbers, "cold", 0.0)
        return self.loaded[key]

    def _serve(self, number: int, symbol: str, obj: bytes) -> subprocess.Popen[bytes]:
        kernel, program_file = self.folder / f"kernel{number}.o", self.folder / f"kernel{number}"
        kernel.write_bytes(obj)
        compiler, emulator = TOOLS
        command = [compiler, "-O1", "-Wall", "-Werror", "-static", f"-DENTRY={symbol}", str(_HARNESS), str(kernel)]
        subprocess.run([*command, "-o", str(program_file)], check=True)
        return subprocess.Popen([emulator, str(program_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def address(self, array: Any) -> int:
        start = int(array.__array_interface__["data"][0])
        self.arrays.pop(start, None)
        self.arrays[start] = array
        while len(self.arrays) > _REMEMBERED:
            self.arrays.popitem(last=False)
        return start

    def parallel(self, task: int, job_address: int, tasks: int, threads: int, short: bool = False) -> None:
        symbol, process = self.served[task]
        count = _FIELDS[symbol]
        job = struct.unpack(f"{count}q", ctypes.string_at(job_address, 8 * count))
        segments: list[Any] = []
        pointers: list[int] = []
        for field, value in enumerate(job):
            array = next((a for start, a in self.arrays.items() if 0 <= value - start < max(1, a.nbytes)), None)
            if array is not None:
                if not any(array is known for known in segments):
                    segments.append(array)
                index = next(i for i, known in enumerate(segments) if known is array)
                pointers += (field, index, value - int(array.__array_interface__["data"][0]))
        head = (tasks, threads, count, len(segments), len(pointers) // 3)
        numbers = (*head, *job, *(a.nbytes for a in segments), *pointers)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(struct.pack(f"{len(numbers)}q", *numbers))
        for array in segments:
            process.stdin.write(_bytes(array))
        process.stdin.flush()
        for array in segments:
            back = process.stdout.read(array.nbytes)
            if len(back) != array.nbytes:
                raise RuntimeError(f"the emulated {symbol} died with {process.wait()}")
            if array.flags.writeable:
                _bytes(array)[:] = np.frombuffer(back, np.uint8)


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)
