"""Element types at their edges: every half-precision pattern, ties, subnormals in a thread that flushes them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.compiler import judge, patterns
from tests.compiler.cases import Case
from unstride.problem import Problem
from unstride.reference import rounded
from unstride.runtime import engine
from unstride.runtime.machine import host

_X86 = host().isa.name in ("sse2", "avx2", "avx512")
_FLUSH = 0x8040  # flush results to zero, take subnormal operands for zero
_ACCESS = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
define void @set(ptr %word) {
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}
define void @get(ptr %word) {
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  ret void
}
"""


def test_every_half_precision_pattern() -> None:
    assert [(what, fault) for what, fault in patterns.failures() if fault] == []


@pytest.mark.skipif(not _X86, reason="only x86 has conversions in software")
def test_every_half_precision_pattern_in_software() -> None:
    command = [sys.executable, "-m", "tests.compiler.patterns"]
    done = subprocess.run(command, env={**os.environ, "UNSTRIDE_ISA": "sse2"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("sse2: 65536 patterns")


@pytest.mark.skipif(not _X86, reason="MXCSR is a register of x86")
@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize(("dtype", "power"), [("f32", -149), ("f64", -1074), ("f16", -24)])
def test_subnormals_survive_a_caller_that_flushes_them(dtype: str, power: int, layout: str, threads: int) -> None:
    problem = Problem.parse(f"scatter {dtype} {layout} GIOX n2 g1 i9 o20 x7x7 k3x3 s2x2 d1x1 b1x1 y13x13")
    case = Case(problem, "none", False, threads, l2_bytes=2000)  # tiny units: every thread gets some
    data, filter, _ = judge.exact_operands(case)
    data = np.ldexp(data.astype(np.float64), power).astype(data.dtype)
    wanted = rounded(judge.expected(case, data, filter, None), dtype)
    assert np.count_nonzero(wanted) > wanted.size // 2
    judge.run(case, data, filter, None)  # compile before the register changes
    with _flushing() as register:
        got = judge.run(case, data, filter, None)
        after = register()
    assert judge.differs(got, wanted) == ""
    assert after & _FLUSH == _FLUSH  # the caller's own setting is back


@contextmanager
def _flushing() -> Iterator:
    loaded = engine.kernel_library("test mxcsr", lambda: _ACCESS, host().isa, ("set", "get"))
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    set_register, get_register = (native(loaded.addresses[name]) for name in ("set", "get"))

    def get() -> int:
        word = ctypes.c_uint32()
        get_register(ctypes.addressof(word))
        return word.value

    def put(value: int) -> None:
        word = ctypes.c_uint32(value)
        set_register(ctypes.addressof(word))

    usual = get()
    put(usual | _FLUSH)
    try:
        yield get
    finally:
        put(usual)
