"""Depthwise layers row by row: channels in blocks, where L1 does not hold what all of them need."""

from __future__ import annotations

import numpy as np
import pytest

from unstride.plan.choose import Plans
from unstride.plan.job import Job
from unstride.plan.machine import AVX2, AVX512, ISA, ISAS, Machine
from unstride.problem import Problem
from unstride.reference import reference
from unstride.runtime.machine import host
from unstride.runtime.program import pack

MANY = "scatter f32 NXC XGIO n1 g1024 i1 o1 x14x14 k7x7 s1x1 d1x1 b3x3 y14x14"
FEW = "scatter f32 NXC XGIO n1 g64 i1 o1 x14x14 k3x3 s1x1 d1x1 b1x1 y14x14"
ONE_ROW = "scatter f32 NXC XGIO n1 g1024 i1 o1 x500 k12 s2 d1 b5 y1000"


@pytest.mark.parametrize(
    ("line", "isa", "expected"),
    [
        (MANY, AVX2, 16),
        (MANY, AVX512, 8),
        (FEW, AVX2, 8),
        (FEW, AVX512, 4),
        (ONE_ROW, AVX2, 128),
        (ONE_ROW, AVX512, 64),
    ],
)
def test_channels_come_in_blocks_where_rows_are_read_again(line: str, isa: ISA, expected: int) -> None:
    problem = Problem.parse(line)
    launch = Plans(problem.structure, isa, "standard").launches("rows", problem, Machine(isa, 1), 1)[0]
    assert launch.fields[Job.PANELS_AT_ONCE] == expected


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "line",
    [
        "scatter f32 NXC XGIO n2 g301 i1 o1 x5x9 k3x3 s2x2 d1x1 b1x1 y9x17",
        "scatter f32 NXC XGIO n1 g300 i1 o1 x4x9 k5x7 s1x1 d1x2 b2x3 y4x15",
        "gather f32 NXC XGIO n1 g277 i1 o1 x4x9 k3x3 s2x2 d1x1 b1x1 y8x18",
        "scatter f32 NXC XGIO n1 g384 i1 o1 x3x4x5 k3x3x3 s1x1x1 d1x1x1 b1x1x1 y3x4x5",  # several vectors at a time
    ],
)
@pytest.mark.parametrize("isa", ["sse2", "avx2", "avx512"])
def test_blocks_are_exact(isa: str, line: str, threads: int) -> None:
    runs = {"avx512": ("sse2", "avx2", "avx512"), "avx2": ("sse2", "avx2"), "sse2": ("sse2",)}
    if isa not in runs.get(host().isa.name, ()):
        pytest.skip(f"this processor is {host().isa.name}")
    problem, machine = Problem.parse(line), Machine(ISAS[isa], 2, l1_bytes=2048)
    draw = np.random.default_rng(0)
    data = draw.integers(-2, 3, problem.data_shape).astype(np.float32)
    filter = draw.integers(-1, 2, problem.filter_shape).astype(np.float32)
    weights = pack(problem.structure, machine, filter, None)
    step = weights.program.step_of("rows", problem, threads)
    assert step.launch.fields[Job.PANELS_AT_ONCE] * machine.isa.lanes(4) < problem.groups
    result = np.full(problem.result_shape, np.nan, np.float32)
    weights.launch(step, data, result)
    np.testing.assert_array_equal(result, reference(problem, data, filter))
