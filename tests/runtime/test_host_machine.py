"""What the runtime learns of the machine it runs on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unstride.errors import AttributeValueError
from unstride.plan.machine import AMX, AVX2, AVX512, DOTS, ISA, SSE2
from unstride.runtime import machine, tiles

HASWELL = machine._V3 | {"sse2", "fpu"}


@pytest.mark.parametrize(
    ("features", "isa"),
    [
        (frozenset({"sse2"}), SSE2),
        (HASWELL - {"fma"}, SSE2),
        (HASWELL - {"f16c"}, SSE2),
        (HASWELL, AVX2),
        (HASWELL | {"avx512f"}, AVX2),
        (HASWELL | machine._V4, AVX512),
        (frozenset(), SSE2),
    ],
)
def test_the_widest_instruction_set_that_is_complete(
    features: frozenset[str], isa: ISA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "cpu_features", lambda: features)
    monkeypatch.delenv("UNSTRIDE_ISA", raising=False)
    assert machine._isa() is isa


def test_a_narrower_one_may_be_chosen_a_wider_one_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "cpu_features", lambda: HASWELL)
    for wanted, isa in (("sse2", SSE2), ("AVX2", AVX2), ("", AVX2)):
        monkeypatch.setenv("UNSTRIDE_ISA", wanted)
        assert machine._isa() is isa
    for wanted in ("avx512", "neon", "mmx"):
        monkeypatch.setenv("UNSTRIDE_ISA", wanted)
        with pytest.raises(AttributeValueError, match=r"UNSTRIDE_ISA: .*sse2, avx2"):
            machine._isa()


def test_arm_is_neon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    monkeypatch.delenv("UNSTRIDE_ISA", raising=False)
    assert machine._isa().name == "neon"


def test_narrower_vectors_only_where_wide_ones_take_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "cpu_features", lambda: HASWELL | machine._V4)
    for family, wanted, narrower in (("25", "", AVX2), ("25", "avx512", None), ("25", "avx2", None), ("26", "", None)):
        processor = {"vendor_id": "AuthenticAMD", "cpu family": family}
        monkeypatch.setattr(machine, "_first_processor", lambda processor=processor: processor)
        monkeypatch.setenv("UNSTRIDE_ISA", wanted)
        assert machine.host.__wrapped__().narrower is narrower


def test_this_machine() -> None:
    here = machine.host()
    assert 1 <= here.cores <= len(os.sched_getaffinity(0))
    assert 8 * 1024 <= here.l1_bytes <= here.l2_bytes


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"a/b/cpu.max": "max 100000"}, None),
        ({"a/b/cpu.max": "150000 100000"}, 2),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "100000 100000"}, 1),
        ({"a/b/cpu.max": "5000 100000"}, 1),
        ({"a/b/cpu.max": "nonsense"}, None),
        ({"a/b/cpu.max": "100000 0"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_control_group(files: dict[str, str], cores: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert machine._tightest(tmp_path, "/a/b", "cpu.max") == cores


def test_the_machine_is_known_without_llvm(child: object) -> None:
    assert callable(child)
    ask = "import sys; from unstride.runtime.machine import host; host(); print('llvmlite' in sys.modules)"
    assert child(ask) == "False"


@pytest.mark.parametrize(("family", "passes"), [("25", 2), ("26", 1)])
def test_zen_4_takes_wide_vectors_in_two_passes(family: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    says = {"vendor_id": "AuthenticAMD", "cpu family": family}
    monkeypatch.setattr(machine, "_first_processor", lambda: says)
    assert machine._pace(AVX512) == passes
    assert machine._pace(AVX2) == 1
    assert machine._is_amd("26") == (family == "26")


def test_tiles_only_where_there_are_and_nothing_else_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "tile_types", lambda: ("bf16",))
    for more, wanted, found in (("amx_bf16", "", ("bf16",)), ("amx_bf16", "avx512", ()), ("sse2", "", ())):
        monkeypatch.setattr(machine, "cpu_features", lambda more=more: HASWELL | machine._V4 | {more})
        monkeypatch.setenv("UNSTRIDE_ISA", wanted)
        assert machine.host.__wrapped__().matrix == found


@pytest.mark.parametrize(
    ("vendor", "family", "wanted", "found"),
    [
        ("AuthenticAMD", "25", "", (("bf16",), DOTS)),
        ("AuthenticAMD", "26", "", (("bf16",), DOTS)),
        ("AuthenticAMD", "26", "avx512", ((), AMX)),
        ("GenuineIntel", "6", "", ((), AMX)),  # not tried
    ],
)
def test_pairs_where_they_are_faster(
    vendor: str, family: str, wanted: str, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "cpu_features", lambda: HASWELL | machine._V4 | {"avx512_bf16"})
    monkeypatch.setattr(machine, "_first_processor", lambda: {"vendor_id": vendor, "cpu family": family})
    monkeypatch.setenv("UNSTRIDE_ISA", wanted)
    here = machine.host.__wrapped__()
    assert (here.matrix, here.matrix_isa) == found


@pytest.mark.skipif(machine.platform.machine() != "x86_64", reason="CPUID is an instruction of x86")
def test_the_processor_is_asked_itself() -> None:
    found = tiles._leaf_7()
    assert found is not None
    assert bool(found[0] >> tiles._TILES & 1) == ("amx_tile" in machine.cpu_features())
    assert bool(found[1] >> tiles._AVX512_BF16 & 1) == ("avx512_bf16" in machine.cpu_features())


def test_no_tiles_where_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def syscall(self, *_: int) -> int:
            return -1

    every_bit = 2**32 - 1
    monkeypatch.setattr(tiles, "_leaf_7", lambda: (every_bit, every_bit))
    monkeypatch.setattr(tiles.ctypes, "CDLL", lambda _: Refusing())
    assert tiles.tile_types.__wrapped__() == ()
    monkeypatch.setattr(Refusing, "syscall", lambda *_: 0)
    assert tiles.tile_types.__wrapped__() == ("bf16", "f16")
    monkeypatch.setattr(tiles, "_leaf_7", lambda: (every_bit, every_bit & ~(1 << tiles._F16)))
    assert tiles.tile_types.__wrapped__() == ("bf16",)
    for none in ((0, every_bit), (every_bit, 0), None):
        monkeypatch.setattr(tiles, "_leaf_7", lambda none=none: none)
        assert tiles.tile_types.__wrapped__() == ()
