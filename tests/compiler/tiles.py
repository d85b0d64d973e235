"""Tiles of halves (AMX) on processors that have none: what the instructions compute, written out in plain vectors.

Only the text of a kernel is changed, after it has been made: strips, plans, packing and launching stay what they are.
Sums are those of the processor: even and odd products apart, both added to the tile at the end, and numbers that are
subnormal in f32 are zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

from tests.compiler import judge
from unstride.codegen.matrix import MatrixFamily
from unstride.plan.machine import AMX, AVX512, DOTS, Machine
from unstride.runtime import machine, program

__all__ = ["WAYS", "available", "can_be_had", "host"]

_REGISTERS = 8
_ENTRY = f"entry:\n  %tiles = alloca [{_REGISTERS} x [16 x <16 x i32>]], align 64"
_TILE = "  %{0} = getelementptr [16 x <16 x i32>], ptr %tiles, i8 %{1}"


WAYS = (AMX.name, DOTS.name)  # in which products of halves are computed

_way = AMX.name


def can_be_had(way: str) -> bool:
    """Whether there are such tiles, or the vectors that can stand in for them; for pairs nothing stands in."""
    here = machine.host()
    return here.isa is AVX512 if way == AMX.name else bool(here.matrix) and here.matrix_isa is DOTS


def host() -> Machine:
    """This machine, if need be with tiles in its software."""
    here = machine.host()
    return here if _is_own(_way) else replace(here, matrix=("bf16", "f16"), matrix_isa=AMX)


def _is_own(way: str) -> bool:
    here = machine.host()
    return bool(here.matrix) and here.matrix_isa.name == way


@contextmanager
def available(way: str) -> Iterator[None]:
    """Inside the block kernels that go this way can run, and the tests' machine has them."""
    global _way
    _way = way
    try:
        with _standing_in(way):
            yield
    finally:
        _way = AMX.name


@contextmanager
def _standing_in(way: str) -> Iterator[None]:
    if _is_own(way):
        yield
        return
    build, key = MatrixFamily.build, MatrixFamily.key.fget
    assert key is not None
    with ExitStack() as changes:
        for change in (
            mock.patch.object(MatrixFamily, "build", lambda family, numbers: _in_software(build(family, numbers))),
            mock.patch.object(MatrixFamily, "key", property(lambda family: f"{key(family)} in software")),
            mock.patch.object(judge, "host", host),
        ):
            changes.enter_context(change)
        program.program.cache_clear()
        yield
    program.program.cache_clear()


def _in_software(text: str) -> str:
    """The kernel with calls of functions in place of instructions, and registers on the stack of who uses them."""
    head, *functions = text.split("\ndefine ")
    for i, function in enumerate(functions):
        if "@llvm.x86.tile" in function or "@llvm.x86.tdp" in function:
            changed = re.sub(r"call void @llvm\.x86\.(tile\w+|tdp\w+)\(", r"call void @soft_\1(ptr %tiles, ", function)
            functions[i] = re.sub(r"^entry:", _ENTRY, changed, count=1, flags=re.M)
    changed = "\ndefine ".join([head, *functions])
    changed = re.sub(r"^.*@llvm\.x86\.ldtilecfg.*$|^.*@soft_tilerelease.*$", "", changed, flags=re.M)
    changed = re.sub(r"^declare .*@llvm\.x86\.t.*$", "", changed, flags=re.M)
    return changed + ("" if "@llvm.fma.v16f32" in changed else _FMA) + _SOFTWARE


def _loop(body: str) -> str:
    """Sixteen turns over %i."""
    return f"""
  br label %turn
turn:
  %i = phi i64 [ 0, %entry ], [ %next, %turn ]
{body}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %turn, label %end
end:
  ret void
}}
"""


def _function(name: str, arguments: str, *lines: str) -> str:
    head = f"define internal void @soft_{name}(ptr %tiles, {arguments}) noinline nounwind {{"
    return "\n".join((head, "entry:", *lines))


def _move(name: str, source: str, target: str) -> str:
    """`tileloadd64` or `tilestored64`."""
    row = (
        "  %at = mul i64 %i, %stride",
        "  %there = getelementptr i8, ptr %p, i64 %at",
        "  %here = getelementptr <16 x i32>, ptr %t, i64 %i",
        f"  %row = load <16 x i32>, ptr {source}, align 1",
        f"  store <16 x i32> %row, ptr {target}, align 1",
    )
    return _function(name, "i8 %r, ptr %p, i64 %stride", _TILE.format("t", "r"), _loop("\n".join(row)))


def _product(name: str, halves: tuple[str, str]) -> str:
    """`tdp...`: for each of 16 rows the sums of 16 pairs of products. `halves` widen the even and odd halves of %{}."""

    def widened(name: str, side: int) -> str:
        return halves[side].format(name=name, side="even" if side == 0 else "odd")

    rows = (
        "  br label %turn",
        "turn:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %done ]",
        "  br label %inner",
        "inner:",
        "  %k = phi i64 [ 0, %turn ], [ %k1, %inner ]",
        "  %even = phi <16 x float> [ zeroinitializer, %turn ], [ %even1, %inner ]",
        "  %odd = phi <16 x float> [ zeroinitializer, %turn ], [ %odd1, %inner ]",
        "  %pa = getelementptr [16 x [16 x i32]], ptr %ta, i64 0, i64 %i, i64 %k",
        "  %one = load i32, ptr %pa",
        "  %first = insertelement <16 x i32> undef, i32 %one, i32 0",
        "  %a = shufflevector <16 x i32> %first, <16 x i32> undef, <16 x i32> zeroinitializer",
        "  %pb = getelementptr <16 x i32>, ptr %tb, i64 %k",
        "  %b = load <16 x i32>, ptr %pb",
        *(widened(name, side) for side in (0, 1) for name in ("a", "b")),
    )
    sums = [
        line
        for side in ("even", "odd")
        for line in (
            f"  %{side}2 = call <16 x float> @llvm.fma.v16f32("
            f"<16 x float> %a_{side}, <16 x float> %b_{side}, <16 x float> %{side})",
            f"  %{side}1 = call <16 x float> @soft_normal(<16 x float> %{side}2)",
        )
    ]
    end = (
        "  %k1 = add i64 %k, 1",
        "  %again = icmp ult i64 %k1, 16",
        "  br i1 %again, label %inner, label %done",
        "done:",
        "  %pd = getelementptr <16 x float>, ptr %td, i64 %i",
        "  %old2 = load <16 x float>, ptr %pd",
        "  %old = call <16 x float> @soft_normal(<16 x float> %old2)",
        "  %both2 = fadd <16 x float> %even1, %odd1",
        "  %both = call <16 x float> @soft_normal(<16 x float> %both2)",
        "  %new2 = fadd <16 x float> %old, %both",
        "  %new = call <16 x float> @soft_normal(<16 x float> %new2)",
        "  store <16 x float> %new, ptr %pd",
        "  %next = add i64 %i, 1",
        "  %more = icmp ult i64 %next, 16",
        "  br i1 %more, label %turn, label %end",
        "end:",
        "  ret void",
        "}\n",
    )
    tiles = [_TILE.format(*pair) for pair in (("td", "d"), ("ta", "x"), ("tb", "y"))]
    return _function(name, "i8 %d, i8 %x, i8 %y", *tiles, *rows, *sums, *end)


def _splat(value: str) -> str:
    return f"<{', '.join([f'i32 {value}'] * 16)}>"


_BF16 = tuple(
    f"  %{{name}}_{side}_bits = {shift}\n"
    f"  %{{name}}_{side}_any = bitcast <16 x i32> %{{name}}_{side}_bits to <16 x float>\n"
    f"  %{{name}}_{side} = call <16 x float> @soft_normal(<16 x float> %{{name}}_{side}_any)"
    for side, shift in (
        ("even", f"shl <16 x i32> %{{name}}, {_splat('16')}"),
        ("odd", f"and <16 x i32> %{{name}}, {_splat('-65536')}"),
    )
)
_F16 = tuple(
    f"  %{{name}}_{side}_low = lshr <16 x i32> %{{name}}, {_splat(bits)}\n"
    f"  %{{name}}_{side}_short = trunc <16 x i32> %{{name}}_{side}_low to <16 x i16>\n"
    f"  %{{name}}_{side}_half = bitcast <16 x i16> %{{name}}_{side}_short to <16 x half>\n"
    f"  %{{name}}_{side} = fpext <16 x half> %{{name}}_{side}_half to <16 x float>"
    for side, bits in (("even", "0"), ("odd", "16"))
)
# Numbers below the smallest normal one become zero of their sign.
_NORMAL = f"""
define internal <16 x float> @soft_normal(<16 x float> %x) alwaysinline nounwind {{
  %bits = bitcast <16 x float> %x to <16 x i32>
  %exponent = and <16 x i32> %bits, {_splat(str(0x7F800000))}
  %small = icmp eq <16 x i32> %exponent, zeroinitializer
  %sign = and <16 x i32> %bits, {_splat(str(-(2**31)))}
  %kept = select <16 x i1> %small, <16 x i32> %sign, <16 x i32> %bits
  %y = bitcast <16 x i32> %kept to <16 x float>
  ret <16 x float> %y
}}
"""
_FMA = "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)\n"
_SOFTWARE = "\n".join(
    (
        _NORMAL,
        _function(
            "tilezero",
            "i8 %r",
            _TILE.format("t", "r"),
            _loop("  %here = getelementptr <16 x i32>, ptr %t, i64 %i\n  store <16 x i32> zeroinitializer, ptr %here"),
        ),
        _move("tileloadd64", "%there", "%here"),
        _move("tilestored64", "%here", "%there"),
        _product("tdpbf16ps", _BF16),
        _product("tdpfp16ps", _F16),
    )
)
