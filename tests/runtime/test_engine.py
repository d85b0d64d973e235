"""LLVM and the loader: right code from every origin, nothing unknown linked, no lock lost in a fork."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from native_tasks import task_ir

from unstride.codegen.pool import EXTERNALS, pool_ir
from unstride.plan.machine import AVX2, ISA, ISAS, NEON, SSE2
from unstride.runtime import cache, elf, engine
from unstride.runtime.machine import host

ADD = """
define i64 @add(i64 %a, i64 %b) {
  %sum = add i64 %a, %b
  ret i64 %sum
}
"""

# constants, a jump table and a variable: every kind of reference the loader patches
REFERENCES = """
@counter = internal global i64 40
define i64 @bump(i64 %by) {
  %old = load i64, ptr @counter
  %new = add i64 %old, %by
  store i64 %new, ptr @counter
  ret i64 %new
}
define i64 @choose(i64 %i) {
entry:
  switch i64 %i, label %other [ i64 0, label %a
    i64 1, label %b
    i64 2, label %c
    i64 3, label %d
    i64 4, label %e ]
a:
  %ra = call i64 @bump(i64 1)
  ret i64 %ra
b:
  %rb = call i64 @bump(i64 -1)
  ret i64 %rb
c:
  ret i64 1111
d:
  ret i64 31
e:
  ret i64 -5
other:
  ret i64 7
}
define double @scale(double %x) {
  %y = fmul double %x, 0x400921FB54442D18
  ret double %y
}
@table = constant [3 x ptr] [ptr @choose, ptr @bump, ptr @scale]
define ptr @entry(i64 %i) {
  %at = getelementptr ptr, ptr @table, i64 %i
  %p = load ptr, ptr %at
  ret ptr %p
}
"""

ZERO_AND_COPY = """
define void @zero(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr float, ptr %p, i64 %i
  store float 0.0, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}
define void @copy(ptr noalias %p, ptr noalias %q, i64 %n)
{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %p, i64 %i
  %to = getelementptr float, ptr %q, i64 %i
  %x = load float, ptr %from
  store float %x, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


def call(address: int, *values: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(values))(address)(*values))


def test_the_three_origins(fresh_cache: Path) -> None:
    origins = []
    for forget in (False, False, True):
        if forget:
            cache.memory.clear()
        loaded = engine.kernel_library("add", lambda: ADD, host().isa, ["add"])
        assert call(loaded.addresses["add"], 40, 2) == 42
        assert loaded.milliseconds >= 0
        origins.append(loaded.origin)
    assert origins == ["cold", "memory", "disk"]


def test_a_damaged_object_is_compiled_again(fresh_cache: Path) -> None:
    engine.kernel_library("add", lambda: ADD, host().isa, ["add"])
    (path,) = fresh_cache.glob("*.obj")
    path.write_bytes(path.read_bytes()[:-1])
    cache.memory.clear()
    with pytest.warns(cache.CacheWarning):
        loaded = engine.kernel_library("add", lambda: ADD, host().isa, ["add"])
    assert (loaded.origin, call(loaded.addresses["add"], 1, 2)) == ("cold", 3)


def test_one_compilation_for_many_threads(fresh_cache: Path) -> None:
    built, origins = [], []

    def build() -> str:
        built.append(1)
        time.sleep(0.1)
        return ADD

    def want() -> None:
        origins.append(engine.kernel_library("add", build, host().isa, ["add"]).origin)

    workers = [threading.Thread(target=want) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert len(built) == 1
    assert sorted(origins) == ["cold"] + ["memory"] * 7


def test_a_failed_compilation_is_tried_by_the_next(fresh_cache: Path) -> None:
    entered, results = threading.Event(), []

    def fail() -> str:
        entered.set()
        time.sleep(0.1)
        raise ZeroDivisionError

    def first() -> None:
        with pytest.raises(ZeroDivisionError):
            engine.kernel_library("add", fail, host().isa, ["add"])
        results.append("failed")

    worker = threading.Thread(target=first)
    worker.start()
    assert entered.wait(10)
    assert engine.kernel_library("add", lambda: ADD, host().isa, ["add"]).origin == "cold"
    worker.join(10)
    assert results == ["failed"]


@pytest.mark.parametrize("isa", ISAS.values(), ids=ISAS)
def test_loops_stay_loops(isa: ISA) -> None:
    text = engine.assembly(ZERO_AND_COPY, isa)
    assert "memset" not in text
    assert "memcpy" not in text
    assert engine.compile_object(ZERO_AND_COPY, isa)
    assert text.count("\n") < 80, "neither unrolled nor vectorised: the kernels do that themselves"


@pytest.mark.parametrize("isa", ISAS.values(), ids=ISAS)
def test_the_pool_compiles_for_every_target(isa: ISA) -> None:
    assert elf.undefined_symbols(engine.compile_object(pool_ir(isa), isa, EXTERNALS)) == EXTERNALS


@pytest.mark.parametrize(
    ("body", "isa", "name"),
    [
        (
            "declare float @sinf(float)\ndefine float @f(float %x) {\n"
            " %y = call float @sinf(float %x)\n ret float %y\n}",
            AVX2,
            "sinf",
        ),
        ("define bfloat @f(float %x) {\n %y = fptrunc float %x to bfloat\n ret bfloat %y\n}", AVX2, "__truncsfbf2"),
        ("define half @f(double %x) {\n %y = fptrunc double %x to half\n ret half %y\n}", AVX2, "__truncdfhf2"),
        (
            "declare float @llvm.fma.f32(float, float, float)\ndefine float @f(float %x) {\n"
            " %y = call float @llvm.fma.f32(float %x, float %x, float %x)\n ret float %y\n}",
            SSE2,
            "fmaf",
        ),
    ],
    ids=["libm", "bf16", "f64 to f16", "fma"],
)
def test_calls_of_unknown_functions_are_refused(body: str, isa: ISA, name: str) -> None:
    with pytest.raises(RuntimeError, match=name):
        engine.compile_object(body, isa)


@pytest.mark.parametrize("text", ["", "define i32 @f() { ret i64 0 }", "nonsense"])
def test_text_that_llvm_refuses(text: str) -> None:
    with pytest.raises(RuntimeError):
        engine.kernel_library("bad" + text, lambda: text, host().isa, ["f"])


@pytest.mark.skipif(host().isa is NEON, reason="the small loader knows x86-64; elsewhere LLVM links")
def test_the_small_loader_and_llvm_agree() -> None:
    names = ["choose", "bump", "scale", "entry"]
    obj = engine.compile_object(REFERENCES, host().isa)
    library = engine.load(obj, "references")
    for at in (elf.place(obj, names), {name: library.address(name) for name in names}):
        assert [call(at["choose"], i) for i in range(7)] == [41, 40, 1111, 31, -5, 7, 7]
        assert call(at["bump"], 2) == 42
        assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(at["scale"])(2.0) == 2 * 3.141592653589793
        assert [call(at["entry"], i) for i in range(3)] == [at["choose"], at["bump"], at["scale"]]


@pytest.mark.skipif(host().isa is NEON, reason="the small loader knows x86-64; elsewhere LLVM links")
def test_loaded_code_cannot_be_written() -> None:
    address = elf.place(engine.compile_object(REFERENCES, host().isa), ["choose"])["choose"]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            assert rights == "r-xp"
            return
    raise AssertionError("the code is mapped nowhere")


def test_the_loader_refuses_what_it_does_not_know() -> None:
    with pytest.raises(elf.Unsupported, match="machine"):
        elf.place(engine.compile_object(ADD, NEON), ["add"])
    with pytest.raises(elf.Unsupported, match="ELF"):
        elf.place(b"\x7fELF\x01\x01" + bytes(100), ["add"])
    with pytest.raises(RuntimeError, match="missing"):
        elf.place(engine.compile_object(ADD, host().isa), ["missing"])


def test_objects_it_cannot_place_are_linked_by_llvm(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(obj: bytes, symbols: object) -> dict[str, int]:
        raise elf.Unsupported("for the test")

    monkeypatch.setattr(elf, "place", refuse)
    loaded = engine.kernel_library("add", lambda: ADD, host().isa, ["add"])
    assert call(loaded.addresses["add"], 20, 3) == 23


def test_code_from_disk_runs_without_llvm(child: object) -> None:
    assert callable(child)
    program = """
        import sys
        from native_tasks import task_ir, SYMBOLS
        from unstride.runtime.engine import kernel_library
        from unstride.runtime.machine import host
        loaded = kernel_library("test tasks", task_ir, host().isa, SYMBOLS)
        print(loaded.origin, "llvmlite" in sys.modules)
        """
    child(program)
    assert child(program) == "disk False"


def test_loading_from_disk_is_quick(fresh_cache: Path) -> None:
    functions = "\n".join(task_ir().replace("@", f"@f{i}_").replace(f"@f{i}_llvm", "@llvm") for i in range(60))
    lines = dict.fromkeys(line for line in functions.splitlines() if line.startswith("declare"))
    text = "\n".join([*lines, *(line for line in functions.splitlines() if not line.startswith("declare"))])
    names = [f"f{i}_count" for i in range(60)]
    obj_bytes = len(engine.compile_object(text, host().isa))
    assert obj_bytes > 40_000
    engine.kernel_library("large", lambda: text, host().isa, names)
    times = []
    for _ in range(5):
        cache.memory.clear()
        loaded = engine.kernel_library("large", lambda: text, host().isa, names)
        assert loaded.origin == "disk"
        times.append(loaded.milliseconds)
    assert min(times) < 3, times


def test_forks_while_another_thread_compiles(child: object) -> None:
    """Without care every such child hangs on a lock whose owner does not exist there."""
    assert callable(child)
    out = child(
        """
        import os, threading, time
        from unstride.plan.machine import AVX2
        from unstride.runtime import engine
        from native_tasks import task_ir
        text, stop = task_ir(), threading.Event()
        def compile_for_ever():
            while not stop.is_set():
                engine.compile_object(text, AVX2)
        engine.compile_object(text, AVX2)
        threads = [threading.Thread(target=compile_for_ever, daemon=True) for _ in range(2)]
        [t.start() for t in threads]
        good = 0
        for n in range(12):
            time.sleep(0.003 * n)
            pid = os.fork()
            if pid == 0:
                import signal
                signal.alarm(10)
                loaded = engine.kernel_library(f"in child {n}", lambda: text, AVX2, ["count"])
                os._exit(0 if loaded.addresses["count"] else 1)
            good += os.waitpid(pid, 0)[1] == 0
        stop.set()
        print(good)
        """,
        timeout=60,
    )
    assert out == "12"


def test_a_child_does_not_wait_for_its_parents_kernel(child: object) -> None:
    assert callable(child)
    assert (
        child(
            """
        import os, signal, threading
        from unstride.runtime import engine
        from unstride.runtime.machine import host
        from native_tasks import task_ir
        building, go_on = threading.Event(), threading.Event()
        def slow():
            building.set(); go_on.wait(); return task_ir()
        t = threading.Thread(target=lambda: engine.kernel_library("same", slow, host().isa, ["count"]))
        t.start(); building.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            engine.kernel_library("same", task_ir, host().isa, ["count"])
            os._exit(0)
        print(os.waitpid(pid, 0)[1])
        go_on.set(); t.join()
        """
        )
        == "0"
    )


def test_a_child_does_not_wait_for_its_parents_layer(child: object) -> None:
    """Not even in what all layers have in common, such as the properties that are made once."""
    assert callable(child)
    out = child(
        """
        import os, signal, threading
        import numpy as np
        from unstride import openvino
        from unstride.runtime.program import Kernel
        building, go_on, build = threading.Event(), threading.Event(), Kernel._build
        def slow(self):
            building.set(); go_on.wait(); return build(self)
        def layer(dtype):
            return openvino.ConvolutionBackpropData([2]).compile(np.ones((3, 70, 3), dtype), activation="sigmoid")
        Kernel._build = slow
        t = threading.Thread(target=layer, args=("f8",))
        t.start(); building.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            Kernel._build = build
            layer("f4")(np.ones((1, 3, 5), "f4"))
            os._exit(0)
        print(os.waitpid(pid, 0)[1])
        go_on.set(); t.join()
        """
    )
    assert out == "0"


def test_a_fork_waits_for_the_import_of_llvm(child: object) -> None:
    """A child born in the middle of it would wait for its end for ever."""
    assert callable(child)
    out = child(
        """
        import os, signal, sys, threading, time
        from unstride.plan.machine import AVX2
        from unstride.runtime import engine
        from native_tasks import task_ir
        importing = threading.Event()
        class Slow:
            def find_spec(self, name, path=None, target=None):
                if name == "llvmlite":
                    importing.set(); time.sleep(0.3)
        sys.meta_path.insert(0, Slow())
        t = threading.Thread(target=engine.compile_object, args=(task_ir(), AVX2))
        t.start(); importing.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            engine.compile_object(task_ir(), AVX2)
            os._exit(0)
        print(os.waitpid(pid, 0)[1])
        t.join()
        """
    )
    assert out == "0"


class _Forgetful(dict[str, Any]):
    """Another thread clears the cache whenever this one has seen that something is there."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.clear()
        return found


def test_a_kernel_may_be_forgotten_at_any_moment(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "memory", _Forgetful())
    origins = [engine.kernel_library("forgotten", task_ir, host().isa, ["count"]).origin for _ in range(2)]
    assert origins[0] == "cold"
    assert origins[1] in ("disk", "memory")


def test_the_symbol_table_is_read_rightly() -> None:
    obj = engine.compile_object(pool_ir(AVX2), AVX2, EXTERNALS)
    assert elf.undefined_symbols(obj) == EXTERNALS
    assert struct.unpack_from("<H", obj, 0x12) == (62,)
