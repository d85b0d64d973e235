"""Every kernel that could compute a size computes the same integers: not only the one that is cheapest there.

And for strict results the same bits: a chunk of an array may be cheapest by another kernel than the whole.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.compiler import cases, judge
from unstride.plan.choose import Plans
from unstride.plan.machine import ISAS, Machine
from unstride.problem import Problem
from unstride.reference import reference
from unstride.runtime.machine import host
from unstride.runtime.program import pack

# Lines that the narrow draws of the lattice seldom meet: many channels, one tap a phase, long rows, strided gather.
TELLING = [
    "scatter f32 NCX GIOX n2 g1 i9 o30 x7x7 k1x1 s1x1 d1x1 b0x0 y7x7",
    "scatter f32 NCX GIOX n2 g1 i9 o25 x14x14 k1x1 s1x1 d1x1 b0x0 y14x14",
    "scatter f32 NCX GIOX n1 g1 i5 o13 x3x40 k2x2 s2x2 d1x1 b0x0 y6x80",
    "scatter f32 NCX GIOX n1 g1 i5 o12 x3x40 k2x2 s2x2 d1x1 b1x1 y5x79",
    "scatter f32 NCX GIOX n1 g2 i5 o6 x3x33 k2x2 s2x2 d1x1 b0x0 y6x66",
    "scatter f32 NCX GIOX n2 g1 i4 o3 x9x20 k11x11 s4x4 d2x2 b0x0 y53x97",
    "scatter f32 NCX GIOX n2 g1 i4 o7 x3x3x4 k2x1x1 s5x1x1 d1x2x2 b0x-1x0 y12x13x4",
    "scatter f32 NCX GIOX n1 g1 i4 o1 x9x9 k16x16 s16x16 d1x1 b0x0 y144x144",
    "scatter f32 NCX GIOX n3 g1 i33 o17 x9x14 k4x4 s2x2 d1x1 b1x1 y18x28",
    "scatter f32 NXC GIOX n2 g2 i9 o5 x7x3 k5x5 s2x2 d2x1 b2x1 y17x8",
    "scatter f32 NCX GIOX n1 g1 i20 o1 x3x9x10 k4x4x4 s2x2x2 d1x1x1 b1x-1x1 y6x21x20",
    "scatter f32 NCX GIOX n2 g1 i9 o3 x11x13 k7x7 s2x2 d2x2 b3x3 y26x31",
    "scatter f32 NCX GIOX n1 g1 i7 o2 x4x9x30 k3x5x9 s2x3x2 d2x1x1 b1x2x4 y7x20x58",
    "scatter f32 NCX GIOX n2 g1 i7 o5 x70 k9 s4 d1 b2 y281",
    "scatter f32 NXC XGIO n1 g1 i9 o3 x40 k7 s3 d1 b-2 y128",
    "scatter f32 NXC GIOX n5 g2 i9 o40 x6x9 k3x5 s1x1 d2x2 b0x1 y10x14",
    "scatter f32 NCX GIOX n2 g1 i9 o40 x3x6x5 k3x3x3 s1x2x1 d2x1x1 b1x1x0 y5x11x7",
    "gather f32 NXC GIOX n3 g1 i24 o9 x7x9 k5x3 s2x1 d1x2 b2x2 y13x9",
    "scatter f32 NXC XGIO n3 g1 i9 o40 x5x7 k1x1 s1x1 d1x1 b0x0 y5x7",
    "gather f32 NCX GOIX n2 g1 i7 o3 x100 k2 s1 d1 b1 y112",
    "gather f32 NXC GIOX n1 g1 i64 o17 x9x11 k4x4 s2x2 d1x1 b1x1 y18x22",
    "gather f32 NCX GIOX n2 g1 i64 o16 x9x11 k3x5 s2x2 d1x1 b1x0 y18x25",
    "gather f32 NXC GIOX n1 g1 i64 o16 x3x9x8 k3x3x4 s2x2x2 d1x1x1 b1x1x1 y6x18x16",
    "gather f32 NCX GIOX n1 g1 i32 o128 x40 k16 s8 d1 b4 y320",
    "gather f32 NCX GIOX n2 g1 i13 o3 x9x27 k7x7 s2x2 d1x1 b3x3 y18x54",
    "gather f32 NCX GIOX n1 g2 i7 o5 x5x21 k4x5 s1x3 d1x2 b-1x4 y7x61",
    "gather f32 NCX GIOX n2 g1 i20 o2 x3x4x19 k2x2x4 s2x2x4 d1x1x1 b0x0x1 y6x8x76",
    "gather f32 NCX GIOX n1 g1 i70 o1 x90 k9 s4 d1 b2 y363",
    "scatter f32 NCX GIOX n2 g1 i17 o33 x9x14 k5x5 s1x1 d1x1 b2x2 y9x14",
    "scatter f32 NXC GIOX n1 g1 i16 o64 x13x11 k4x6 s1x1 d1x1 b1x3 y14x10",
    "scatter f32 NXC GIOX n2 g1 i20 o64 x13x12 k3x3 s1x1 d2x2 b1x1 y15x14",
    "scatter f32 NCX GIOX n1 g2 i18 o65 x11x17 k3x2 s1x1 d3x4 b-1x3 y19x15",
    "gather f32 NXC GIOX n2 g1 i64 o19 x10x13 k5x3 s1x1 d2x3 b3x1 y14x17",
    "gather f32 NCX GIOX n1 g1 i66 o16 x3x12x9 k2x5x5 s1x1x1 d1x1x2 b0x2x3 y4x12x11",
    "scatter f32 NCX GIOX n1 g1 i130 o64 x50 k5 s1 d3 b4 y54",
    "scatter f32 NXC GIOX n3 g1 i17 o64 x7x11 k4x4 s2x2 d1x1 b1x1 y14x22",
    "scatter f32 NCX GIOX n5 g1 i20 o64 x10x10 k3x3 s1x1 d2x2 b0x0 y14x14",
    "scatter f32 NCX GIOX n3 g2 i20 o70 x11x5 k3x3 s1x1 d2x3 b1x2 y13x7",
    "scatter f32 NCX GIOX n2 g1 i33 o40 x4x9x8 k3x3x3 s2x2x2 d1x1x1 b0x1x0 y9x17x17",
    "scatter f32 NCX GIOX n9 g1 i130 o64 x29 k16 s8 d1 b4 y232",
    "scatter f32 NXC GIOX n9 g1 i32 o80 x5x4 k2x2 s1x1 d2x2 b0x0 y7x6",
    "scatter f32 NCX GIOX n1 g1 i24 o64 x17x23 k3x3 s1x1 d1x1 b1x1 y17x23",
    "scatter f32 NXC GIOX n2 g2 i17 o33 x14x9 k5x6 s2x2 d1x1 b2x1 y28x20",
    "gather f32 NXC GIOX n1 g1 i70 o18 x13x19 k5x6 s2x2 d1x1 b2x2 y26x38",
    "scatter f32 NCX GIOX n1 g1 i20 o40 x3x12x15 k3x3x3 s1x1x1 d1x1x1 b1x0x2 y3x14x13",
    "scatter f32 NCX GIOX n1 g1 i40 o64 x90 k3 s1 d1 b1 y90",
    "scatter f32 NCX GIOX n2 g1 i18 o33 x11x9 k8x7 s2x2 d1x1 b3x0 y22x23",
    "scatter f32 NXC GIOX n1 g1 i17 o64 x13x14 k4x4 s1x1 d1x2 b1x2 y14x16",
    "gather f32 NXC GIOX n1 g1 i64 o17 x10x13 k7x8 s2x2 d1x1 b3x3 y20x26",
    "scatter f32 NXC XGIO n1 g1 i30 o20 x70 k30 s8 d1 b11 y560",
    "scatter f32 NCX GIOX n2 g5 i1 o1 x9x21 k4x4 s2x2 d1x1 b1x1 y18x42",
    "scatter f32 NCX GIOX n1 g3 i1 o1 x4x5x19 k3x3x3 s2x2x2 d1x1x1 b1x1x0 y7x9x39",
    "scatter f32 NCX GIOX n1 g2 i1 o2 x7x40 k7x5 s3x3 d1x2 b2x4 y25x121",
    "scatter f32 NCX GIOX n1 g3 i1 o1 x9x17 k8x8 s4x4 d1x1 b2x3 y36x68",
    "scatter f32 NCX GIOX n1 g2 i2 o1 x6x15 k10x10 s5x5 d1x1 b-1x2 y36x77",
    "scatter f32 NCX GIOX n1 g2 i1 o1 x5x7 k32x32 s16x16 d1x1 b3x5 y93x120",
    "scatter f32 NCX GIOX n2 g2 i1 o1 x3000 k9 s2 d3 b5 y6021",
    "scatter f32 NCX GIOX n1 g4 i1 o1 x6x13 k2x2 s3x4 d1x1 b0x1 y18x49",
    "gather f32 NCX GIOX n1 g3 i1 o1 x9x33 k3x4 s2x2 d1x1 b1x1 y18x66",
    "scatter f32 NXC XGIO n2 g37 i1 o1 x9x21 k4x4 s2x2 d1x1 b1x1 y18x42",
    "scatter f32 NXC GIOX n1 g16 i1 o1 x4x5x19 k3x3x3 s2x2x2 d1x1x1 b1x1x0 y7x9x39",
    "scatter f32 NXC GIOX n1 g33 i1 o1 x5x7 k32x32 s16x16 d1x1 b3x5 y93x120",
    "scatter f32 NXC GIOX n1 g20 i1 o1 x6x13 k2x2 s3x4 d1x1 b0x1 y18x49",
    "gather f32 NXC GIOX n1 g20 i1 o1 x5x9x20 k3x3x5 s1x2x3 d1x1x2 b1x1x4 y5x18x60",
    "gather f32 NCX GIOX n1 g3 i2 o1 x5x9x20 k3x3x5 s1x2x1 d1x1x2 b1x1x4 y5x18x20",
    "gather f32 NCX GIOX n2 g3 i1 o1 x6x70 k4x7 s3x3 d1x2 b2x5 y18x209",
    "gather f32 NCX GIOX n1 g2 i1 o2 x3x7x40 k2x3x4 s2x1x4 d1x1x1 b-1x1x2 y5x8x157",
    "gather f32 NCX GIOX n1 g5 i1 o1 x150 k3 s2 d1 b-3 y290",
    "gather f32 NXC GIOX n1 g33 i1 o1 x5x15 k3x3 s2x2 d1x1 b1x1 y9x29",
    "scatter f32 NXC GIOX n1 g18 i1 o1 x3x12 k9x9 s8x8 d1x1 b2x3 y20x90",
    "scatter f32 NXC GIOX n1 g256 i1 o1 x3x4x9 k3x3x3 s2x2x2 d1x1x1 b1x1x1 y5x7x17",
    "gather f32 NXC GIOX n2 g128 i1 o1 x2x3x12 k3x3x3 s2x2x2 d1x1x1 b1x1x1 y4x6x23",
    "gather f32 NXC GIOX n1 g128 i1 o1 x1x1 k7x3 s1x1 d1x1 b1x1 y5x1",
]


@pytest.mark.parametrize("line", TELLING)
def test_every_kernel_that_fits_is_exact(line: str) -> None:
    assert list(_wrong(Problem.parse(line), judge.widest(), seed=0)) == []


@pytest.mark.parametrize("isa", ["sse2", "avx2"])
def test_and_on_narrower_instruction_sets(isa: str) -> None:
    if host().isa.name not in ("avx2", "avx512"):
        pytest.skip(f"this processor is {host().isa.name}")
    machine = Machine(ISAS[isa], 2)
    assert [wrong for line in TELLING[::2] for wrong in _wrong(Problem.parse(line), machine, seed=1)] == []


def test_strict_results_are_the_same_bits_by_every_kernel() -> None:
    rng = Random(5)
    drawn = [cases.Case(Problem.parse(line), bias=True) for line in TELLING]
    drawn += [cases.draw(rng, few_kernels=True) for _ in range(150)]
    kinds: set[str] = set()
    for case in drawn:
        results = _strict_results(case)
        kinds |= results.keys()
        assert len({result.tobytes() for result in results.values()}) == 1, case
    assert kinds == {"direct", "banded", "clipped", "spread", "rows", "across"}


def _strict_results(case: cases.Case) -> dict[str, np.ndarray]:
    problem, (data, filter, bias) = case.problem, judge.real_operands(case)
    weights = pack(problem.structure, judge.widest(), filter, bias, accuracy="strict")
    results = {}
    for kind in weights.program.plans.prices(problem, judge.widest()):
        results[kind] = np.full(problem.result_shape, np.nan, data.dtype)
        weights.launch(weights.program.step_of(kind, problem, 1), data, results[kind])
    return results


def _wrong(problem: Problem, machine: Machine, seed: int) -> list[str]:
    """The kernels whose result differs anywhere from the reference."""
    rng, draw = Random(seed), np.random.default_rng(seed)
    data = draw.integers(-2, 3, problem.data_shape).astype(np.float32)
    filter = draw.integers(-1, 2, problem.filter_shape).astype(np.float32)
    channels = problem.groups * (problem.co if problem.direction == "scatter" else problem.ci)
    bias = draw.integers(-3, 4, channels).astype(np.float32)
    expected = reference(problem, data, filter, bias)
    weights = pack(problem.structure, machine, filter, bias)
    kinds = Plans(problem.structure, machine.isa, "standard").prices(problem, machine)
    assert kinds
    wrong = []
    for kind in kinds:
        result = np.full(problem.result_shape, np.nan, np.float32)
        weights.launch(weights.program.step_of(kind, problem, rng.choice((1, 2, 3))), data, result)
        if not np.array_equal(result, expected):
            wrong.append(f"{kind} {problem}")
    return wrong
