"""Products of halves in tiles (AMX) or pairs: exact, inside the bound, as careful with tiny numbers as any kernel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest

from tests.compiler import guard, judge, nonfinite, tiles
from tests.compiler.cases import ALL_ACTIVATIONS, EXACT_ACTIVATIONS, Case, draw
from unstride.codegen.matrix import MatrixFamily
from unstride.codegen.numbers import Numbers
from unstride.plan.choose import Plans
from unstride.plan.machine import AMX, AVX2, AVX512, DOTS, ISA, Machine
from unstride.plan.matrix import SMALLEST, plan_matrix
from unstride.problem import Problem
from unstride.reference import DTYPES, reference, rounded
from unstride.runtime import engine
from unstride.runtime.machine import host
from unstride.runtime.program import pack


@pytest.fixture(params=tiles.WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    if not tiles.can_be_had(request.param):
        pytest.skip(f"no {request.param}, and nothing that could stand in")
    with tiles.available(request.param):
        yield request.param


needs_products = pytest.mark.usefixtures("way")


def telling(line: str) -> Problem:
    """One of TELLING, in a type of which the machine at hand multiplies more at a time."""
    problem = Problem.parse(line)
    return problem if problem.dtype in tiles.host().matrix else replace(problem, dtype="bf16")


UPSCALING = "NCX GIOX n2 g1 i40 o50 x7x9 k4x4 s2x2 d1x1 b1x1 y14x18"
# What the narrow draws of the lattice seldom meet: long lines, large strides, several blocks, groups, one tap.
TELLING = [
    f"scatter bf16 {UPSCALING}",
    "scatter f16 NCX GIOX n2 g1 i33 o70 x7x40 k5x5 s3x3 d1x1 b1x1 y20x118",
    "scatter bf16 NCX GIOX n2 g1 i64 o17 x70 k16 s8 d1 b4 y560",
    "scatter bf16 NXC XGIO n1 g1 i65 o96 x9x31 k3x3 s1x1 d2x2 b1x3 y10x30",
    "scatter f16 NCX GIOX n1 g2 i64 o40 x5x6x7 k3x3x3 s2x1x2 d1x2x1 b1x1x0 y9x8x14",
    "scatter bf16 NCX GIOX n2 g3 i40 o20 x9x12 k3x3 s2x2 d1x1 b1x1 y17x23",
    "gather f16 NXC GIOX n2 g2 i70 o48 x27 k5 s1 d1 b2 y27",
    "scatter bf16 NCX GIOX n3 g1 i96 o48 x7x7 k1x1 s1x1 d1x1 b0x0 y7x7",
    "scatter f16 NXC GIOX n5 g1 i32 o130 x4x4 k2x2 s2x2 d1x1 b0x0 y8x8",
    "gather bf16 NCX GIOX n2 g1 i50 o40 x7x9 k4x4 s2x2 d1x1 b1x1 y14x18",
    "gather f16 NXC GIOX n1 g2 i50 o64 x5x6x7 k3x3x3 s2x1x2 d1x2x1 b1x1x0 y9x8x14",
    "gather bf16 NXC XGIO n1 g1 i20 o33 x70 k9 s3 d2 b5 y230",
    # few channels: those of all pixels that a position reads are taken together
    "scatter bf16 NXC XGIO n2 g1 i3 o40 x9x14 k5x5 s1x1 d1x1 b2x2 y9x14",
    "scatter f16 NXC GIOX n1 g1 i5 o33 x7x9 k7x7 s2x3 d1x2 b1x3 y17x30",
    "gather bf16 NXC XGIO n2 g1 i56 o1 x9x20 k9x9 s3x3 d1x1 b4x4 y27x60",
    "gather f16 NXC GIOX n1 g1 i40 o7 x3x6x7 k2x4x4 s1x2x2 d1x1x1 b0x1x1 y4x12x14",
    "scatter bf16 NXC XGIO n1 g1 i9 o20 x90 k16 s4 d1 b6 y360",
]


def halves(count: int, seed: int, activations: tuple[str, ...]) -> Iterator[Case]:
    """Random cases that tiles of halves can compute, and where they do."""
    rng = Random(f"matrix {seed}")

    def drawn() -> Iterator[Case]:
        while True:
            case = draw(rng, activations=activations)
            problem = replace(case.problem, dtype=rng.choice(tiles.host().matrix))
            if plan_matrix(problem.structure, AVX512):
                # Of few kinds of activation, since each is a kernel of its own.
                activation = activations[(problem.dtype == "f16") + 2 * (problem.data_layout == "NCX")]
                yield replace(case, problem=problem, accuracy="standard", activation=activation)

    return islice(drawn(), count)


@needs_products
def test_integers_are_exact() -> None:
    with judge.forced("matrix"):
        cases = list(halves(400, 0, EXACT_ACTIVATIONS))
        assert [f"{case}: {wrong}" for case in cases if (wrong := judge.check_exact(case))] == []
        met = sum(judge.chosen_kind(case, *judge.exact_operands(case)[1:]) == "matrix" for case in cases)
    assert met > 250


@needs_products
@pytest.mark.parametrize("line", TELLING)
def test_and_so_are_telling_layers(line: str) -> None:
    with judge.forced("matrix"):
        for seed, (threads, l2_bytes) in enumerate(((1, 0), (2, 0), (3, 20_000))):
            case = Case(telling(line), bias=True, threads=threads, l2_bytes=l2_bytes, seed=seed)
            assert judge.check_exact(case) == ""
            assert judge.chosen_kind(case, *judge.exact_operands(case)[1:]) == "matrix"


@needs_products
def test_real_numbers_stay_inside_the_bound() -> None:
    with judge.forced("matrix"):
        cases = [*halves(150, 1, ALL_ACTIVATIONS), *(Case(telling(line), bias=True) for line in TELLING)]
        assert [f"{case}: {wrong}" for case in cases if (wrong := judge.check_real(case))] == []


@needs_products
@pytest.mark.parametrize("line", TELLING[:4] + TELLING[-5:])
def test_what_is_not_finite_stays_in_its_place(line: str) -> None:
    with judge.forced("matrix"):
        found = list(nonfinite.failures(Case(telling(line), bias=True, threads=2), most=8))
    assert len(found) == 24
    assert [text for _, text in found if text] == []


@needs_products
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_threads_and_cuts_do_not_change_a_bit(layout: str) -> None:
    problem = Problem.parse(f"scatter bf16 {UPSCALING}".replace("NCX", layout))
    with judge.forced("matrix"):
        results = set()
        for threads, l2_bytes in ((1, 0), (2, 0), (7, 5000), (3, 30_000)):
            case = Case(problem, threads=threads, l2_bytes=l2_bytes, seed=3)
            results.add(judge.run(case, *judge.real_operands(case)).tobytes())
    assert len(results) == 1


@needs_products
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("power", [-133, -130, -100, -57])
def test_tiny_numbers_are_computed_as_they_are(power: int, layout: str) -> None:
    """The registers of tiles know no subnormal numbers. All of the data is tiny, or one image, or one number."""
    problem = Problem.parse(f"scatter bf16 {UPSCALING}".replace("NCX", layout))
    case = Case(problem, threads=2, l2_bytes=20_000, seed=1)
    data, filter, _ = judge.exact_operands(case)
    filter = np.ldexp(filter.astype(np.float64), -20).astype(filter.dtype) if power > -126 else filter
    tiny = np.ldexp(data.astype(np.float64), power).astype(data.dtype)
    one = data.copy()
    one[0, 3, 2, 5] = tiny[tiny != 0].flat[0]
    for values in (tiny, np.stack([data[0], tiny[1]]), one):
        wanted = rounded(reference(problem, values, filter), "bf16")
        with judge.forced("matrix"):
            assert judge.chosen_kind(case, filter, None) == "matrix"
            assert judge.differs(judge.run(case, values, filter, None), wanted) == ""


@needs_products
@pytest.mark.parametrize("which", ["filter", "bias"])
def test_tiny_weights_are_left_to_other_kernels(which: str) -> None:
    structure = Problem.parse(f"scatter bf16 {UPSCALING}").structure
    filter, bias = (np.ones(shape, DTYPES["bf16"]) for shape in (structure.filter_shape, (structure.co,)))
    assert pack(structure, tiles.host(), filter, bias).program.plans.matrix
    (filter if which == "filter" else bias).flat[5] = 2.0**-110
    for dtype in tiles.host().matrix:
        halves = (values.astype(DTYPES[dtype]) for values in (filter, bias))
        found = pack(replace(structure, dtype=dtype), tiles.host(), *halves).program.plans.matrix
        assert bool(found) == (dtype == "f16")


def between_walls(count: int, way: str) -> None:
    """Run cases with inaccessible pages around every array; a byte too far kills the process."""
    room = guard.Room()
    with tiles.available(way), judge.forced("matrix"):
        for case in (
            *(Case(telling(line), bias=True, seed=1) for line in TELLING),
            *halves(count, 2, EXACT_ACTIVATIONS),
        ):
            for name, variant, at_end in guard.variants(case):
                print(f"{variant} {name}", flush=True)
                fault = room.run(variant, at_end=at_end)
                assert not fault, fault


def test_no_byte_outside_the_arrays_is_touched(way: str) -> None:
    command = [
        sys.executable,
        "-c",
        f"from tests.compiler.test_matrix import between_walls; between_walls(60, '{way}')",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-300:], done.stderr[-1000:])
    assert len(done.stdout.splitlines()) == 6 * (60 + len(TELLING))


@needs_products
def test_strict_results_come_from_other_kernels() -> None:
    problem = Problem.parse(f"scatter bf16 {UPSCALING}")
    filter = np.ones(problem.filter_shape, DTYPES["bf16"])
    assert "matrix" in pack(problem.structure, tiles.host(), filter, None).program.plans.prices(problem, tiles.host())
    strict = pack(problem.structure, tiles.host(), filter, None, accuracy="strict").program
    assert "matrix" not in strict.plans.prices(problem, tiles.host())


def test_few_channels_share_their_blocks() -> None:
    shared = [plan_matrix(Problem.parse(line).structure, AVX512) for line in TELLING]
    assert [plan.window for plan in shared if plan and plan.window > 1] == [5, 9, 4, 4]
    line = "scatter bf16 NXC XGIO n1 g1 i40 o40 x9x9 k4x4 s2x2 d1x1 b1x1 y18x18"
    many = plan_matrix(Problem.parse(line).structure, AVX512)
    assert many is not None
    assert many.window == 1


@pytest.mark.skipif(host().isa.name not in ("sse2", "avx2", "avx512"), reason="LLVM makes x86 code elsewhere, too")
@pytest.mark.parametrize(
    ("dtype", "isa", "multiply", "count"),
    [
        ("bf16", AMX, "tdpbf16ps", (1 + 2 + 3 + 4 + 2 + 4) * (8 + 1)),
        ("f16", AMX, "tdpfp16ps", (1 + 2 + 3 + 4 + 2 + 4) * (8 + 1)),
        ("bf16", DOTS, "vdpbf16ps", (4 + 2) * 16 * 2),
    ],
)
@pytest.mark.parametrize("channels_first", [True, False])
def test_its_code_calls_nothing(dtype: str, isa: ISA, multiply: str, count: int, channels_first: bool) -> None:
    """Made on any processor: LLVM knows the instructions, and no library is called. No sum of pairs leaves its
    register in the inner loop."""
    text = MatrixFamily(dtype, channels_first, "none", isa.name).build(Numbers(dtype, isa))
    assert engine.compile_object(text, isa)
    lines = engine.assembly(text, isa).splitlines()
    assert sum(f"\t{multiply}\t" in line for line in lines) == count
    if isa is DOTS:
        places = [i for i, line in enumerate(lines) if multiply in line]
        within = [line for i, line in enumerate(lines) if any(abs(i - place) <= 2 for place in places)]
        assert not [line for line in within if "vmov" in line and "rsp" in line]


def test_only_where_the_machine_has_them() -> None:
    problem = Problem.parse(f"scatter bf16 {UPSCALING}")
    assert Plans(problem.structure, AVX512, "standard").matrix is None
    assert Plans(problem.structure, AVX2, "standard", matrix=()).matrix is None
    assert Plans(problem.structure, AVX512, "standard", matrix=("f16",)).matrix is None
    found = Plans(problem.structure, AVX512, "standard", matrix=("bf16", "f16"))
    assert "matrix" in found.prices(problem, Machine(AVX512, 2, matrix=("bf16", "f16")))
    f32 = replace(problem, dtype="f32")
    assert Plans(f32.structure, AVX512, "standard", matrix=("bf16", "f16")).matrix is None


def test_the_limit_keeps_products_normal() -> None:
    """The last bit of a product of two such numbers is worth as much as the smallest normal number of f32."""
    assert (SMALLEST * 2.0**-7) ** 2 == 2.0**-126
