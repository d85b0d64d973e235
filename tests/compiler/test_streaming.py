"""Results larger than the caches are stored past them: whole lines only, and not one element more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.judge import allocated
from unstride.codegen.family import family_of
from unstride.codegen.numbers import Numbers
from unstride.plan.choose import Plans
from unstride.plan.job import Job, Panel
from unstride.plan.machine import ISAS, Machine
from unstride.problem import Problem
from unstride.reference import DTYPES, reference
from unstride.runtime import engine
from unstride.runtime.machine import host
from unstride.runtime.program import pack

# Rows and channels that fill lines, with borders, tails and holes that do not.
LINES = [
    "scatter f32 NXC GIOX n2 g1 i5 o48 x9x7 k1x1 s1x1 d1x1 b0x0 y9x7",
    "scatter f32 NXC GIOX n1 g1 i7 o32 x9x21 k2x2 s2x2 d1x1 b0x0 y18x42",
    "scatter f32 NXC GIOX n1 g1 i7 o32 x9x21 k3x3 s2x2 d1x1 b1x1 y17x41",
    "scatter f32 NXC GIOX n1 g64 i1 o1 x5x6x7 k3x3x3 s2x2x2 d1x1x1 b1x1x1 y9x11x13",
    "scatter f32 NXC GIOX n2 g1 i32 o64 x12x13 k4x4 s2x2 d1x1 b1x1 y24x26",
    "scatter f32 NXC GIOX n2 g1 i32 o56 x12x13 k4x4 s2x2 d1x1 b1x1 y24x26",
    "scatter f64 NXC GIOX n1 g1 i32 o32 x12x12 k3x3 s1x1 d1x1 b1x1 y12x12",
    "scatter f32 NXC GIOX n1 g1 i3 o20 x9x21 k2x2 s2x2 d1x1 b0x0 y18x42",
    "scatter f32 NXC GIOX n2 g1 i7 o24 x9x21 k2x2 s2x2 d1x1 b0x0 y18x42",
    "scatter f32 NXC GIOX n2 g1 i7 o24 x9x21 k2x2 s2x2 d1x1 b1x1 y17x40",
    "scatter bf16 NXC GIOX n1 g1 i7 o64 x9x21 k2x2 s2x2 d1x1 b0x0 y18x42",
    "gather f32 NXC GIOX n1 g1 i64 o16 x9x11 k4x4 s2x2 d1x1 b1x1 y18x22",
    # Planes of whole lines: long rows, short ones, parts of planes, and one whose planes are not.
    "scatter f32 NCX GIOX n2 g1 i5 o40 x8x80 k2x2 s2x2 d1x1 b0x0 y16x160",
    "scatter f32 NCX GIOX n2 g1 i32 o70 x12x12 k4x4 s2x2 d1x1 b1x1 y24x24",
    "scatter f32 NCX GIOX n1 g1 i32 o70 x12x14 k4x4 s2x2 d1x1 b1x1 y24x28",
    "scatter f32 NCX GIOX n1 g1 i9 o33 x10x44 k3x3 s1x1 d1x1 b1x1 y10x40",
    "scatter f32 NCX GIOX n1 g1 i9 o33 x10x44 k3x3 s1x1 d1x1 b1x1 y9x41",
    "scatter f64 NCX GIOX n1 g1 i9 o33 x10x44 k3x3 s1x1 d1x1 b1x1 y10x40",
]


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("line", LINES)
def test_streamed_results_are_exact(line: str, isa: str) -> None:
    if host().isa.name not in ("avx512", isa):
        pytest.skip(f"this processor is {host().isa.name}")
    problem, machine = Problem.parse(line), Machine(ISAS[isa], 2, last_bytes=0, pace=2 if isa == "avx512" else 1)
    draw, dtype = np.random.default_rng(0), DTYPES[problem.dtype]
    data = draw.integers(-2, 3, problem.data_shape).astype(dtype)
    filter = draw.integers(-1, 2, problem.filter_shape).astype(dtype)
    expected = reference(problem, data, filter).astype(dtype)
    weights = pack(problem.structure, machine, filter, None)
    for kind in Plans(problem.structure, machine.isa, "standard").prices(problem, machine):
        for on_a_line in (True, False):
            step = weights.program.step_of(kind, problem, 2)
            by_line = kind in ("direct", "banded", "clipped", "winograd", "large", "whole", "whole_large")
            whole_lines = np.prod(problem.y) * problem.itemsize % 64 == 0
            streams = problem.data_layout == "NXC" or (by_line and whole_lines)
            assert step.launch.fields[Job.STREAM] == streams
            result = allocated(problem.result_shape, problem.dtype, on_a_line=on_a_line)
            result[...] = np.nan
            weights.launch(step, data, result)
            np.testing.assert_array_equal(result.astype(float), expected.astype(float), err_msg=f"{kind} {on_a_line}")


@pytest.mark.parametrize("groups", [21, 32])
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_depthwise_rows_wait_on_a_stage_part_by_part(isa: str, groups: int) -> None:
    if host().isa.name not in ("avx512", isa):
        pytest.skip(f"this processor is {host().isa.name}")
    line = f"scatter f32 NXC GIOX n2 g{groups} i1 o1 x5x33 k4x4 s2x2 d1x1 b1x1 y10x66"
    problem, machine = Problem.parse(line), Machine(ISAS[isa], 2, l2_bytes=16384, last_bytes=0)
    draw = np.random.default_rng(0)
    data = draw.integers(-2, 3, problem.data_shape).astype(np.float32)
    filter = draw.integers(-1, 2, problem.filter_shape).astype(np.float32)
    weights = pack(problem.structure, machine, filter, None)
    step = weights.program.step_of("rows", problem, 2)
    assert 0 < step.launch.fields[Job.STAGE] < step.launch.fields[Job.X_UNIT]
    for on_a_line in (True, False):
        result = allocated(problem.result_shape, problem.dtype, on_a_line=on_a_line)
        result[...] = np.nan
        weights.launch(step, data, result)
        np.testing.assert_array_equal(result, reference(problem, data, filter), err_msg=str(on_a_line))


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_planes_of_a_channel_are_streamed_as_one_run(isa: str, dtype: str) -> None:
    """Bursts whose ends are no ends of lines, after each other, and after a gap where another task writes."""
    if host().isa.name not in ("avx512", isa):
        pytest.skip(f"this processor is {host().isa.name}")
    line = f"scatter {dtype} NCX GIOX n2 g3 i1 o1 x5x21x33 k3x3x3 s2x2x2 d1x1x1 b1x1x1 y9x41x65"
    problem, machine = Problem.parse(line), Machine(ISAS[isa], 2, last_bytes=0)
    draw = np.random.default_rng(0)
    data = draw.integers(-2, 3, problem.data_shape).astype(DTYPES[dtype])
    filter = draw.integers(-1, 2, problem.filter_shape).astype(DTYPES[dtype])
    weights = pack(problem.structure, machine, filter, None)
    step = weights.program.step_of("spread", problem, 2)
    assert 0 < step.launch.fields[Job.STAGE] < step.launch.fields[Job.V_UNIT]
    expected = reference(problem, data, filter).astype(float)
    for on_a_line in (True, False):
        result = allocated(problem.result_shape, problem.dtype, on_a_line=on_a_line)
        result[...] = np.nan
        weights.launch(step, data, result)
        np.testing.assert_array_equal(result.astype(float), expected, err_msg=str(on_a_line))


def test_only_results_that_no_cache_keeps_are_streamed() -> None:
    small = Problem.parse(LINES[0])
    for problem, streamed in ((small, 0), (replace(small, batch=3000), 1)):
        launches = Plans(problem.structure, ISAS["avx512"], "standard").launches(
            "direct", problem, Machine(ISAS["avx512"], 2), 2
        )
        assert [launch.fields[Job.STREAM] for launch in launches] == [streamed]
        assert (np.prod(problem.result_shape) * 4 >= Machine(ISAS["avx512"], 2).last_bytes // 4) == bool(streamed)


def test_channels_that_l2_does_not_hold_are_streamed_where_that_gains() -> None:
    usual = Machine(ISAS["avx512"], 2, l2_bytes=2**20)
    early = replace(usual, past_l2=True)
    for layout, size, expected in (("NCX GIOX", 62, (0, 0)), ("NCX GIOX", 66, (0, 1)), ("NXC XGIO", 66, (0, 0))):
        problem = Problem.parse(f"scatter f32 {layout} n1 g1 i64 o64 x{size}x64 k3x3 s1x1 d1x1 b1x1 y{size}x64")
        plans = Plans(problem.structure, ISAS["avx512"], "standard")
        found = [plans.launches("direct", problem, machine, 2)[0] for machine in (usual, early)]
        assert tuple(launch.fields[Job.STREAM] for launch in found) == expected


@pytest.mark.parametrize(
    ("isa", "head", "channels", "kernel", "merged"),
    [
        ("avx2", "f32 NXC", 24, 2, True),
        ("avx2", "f32 NXC", 32, 2, False),  # whole lines alone
        ("avx2", "f32 NXC", 24, 4, False),  # several taps: may be computed in bands
        ("avx2", "f32 NCX", 24, 2, False),
        ("avx2", "bf16 NXC", 48, 2, False),  # rounded results are never streamed
        ("sse2", "f32 NXC", 24, 2, False),
    ],
)
def test_phases_that_share_a_line_are_stored_together(
    isa: str, head: str, channels: int, kernel: int, merged: bool
) -> None:
    line = f"scatter {head} GIOX n1 g1 i24 o{channels} x9x9 k{kernel}x{kernel} s2x2 d1x1 b0x0 y18x18"
    plan = Plans(Problem.parse(line).structure, ISAS[isa], "standard").direct
    assert plan.merged == merged
    if merged:
        assert all(panel[Panel.COLUMN] % 16 == 0 and panel[Panel.COLUMNS] == 16 for panel in plan.panels)


@pytest.mark.parametrize(("isa", "streams"), [("avx512", True), ("avx2", True), ("sse2", False), ("neon", False)])
def test_the_code_has_such_stores_where_they_pay(isa: str, streams: bool) -> None:
    plan = Plans(Problem.parse(LINES[0]).structure, ISAS[isa], "strict").direct
    text = engine.assembly(family_of(plan, "none").build(Numbers("f32", ISAS[isa])), ISAS[isa])
    assert ("vmovntps" in text) == ("sfence" in text) == streams
    assert "stnp" not in text
