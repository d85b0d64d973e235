"""Plans are pure: any machine can be asked about, none is touched."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import prod

import pytest

from tests.compiler.lattice import cases
from unstride.bench.layers import as_variant, workloads
from unstride.explain.plan import Peak, dump, explain_plan
from unstride.plan.choose import choose, fitting
from unstride.plan.direct import plan_direct
from unstride.plan.job import Panel
from unstride.plan.launch import plan_launch
from unstride.plan.machine import AVX2, AVX512, ISA, ISAS, NEON, SSE2, Machine
from unstride.plan.spread import plan_spread
from unstride.problem import Problem

MACHINES = [Machine(SSE2, 1), Machine(AVX2, 2), Machine(AVX512, 64, 48 * 1024, 2**21), Machine(NEON, 64)]
AVX512_PAIR = Machine(AVX512, 2, 48 * 1024, 2**21)
BIG = Problem.parse("scatter f32 NXC GIOX n8 g1 i128 o64 x56x56 k4x4 s2x2 d1x1 b1x1 y112x112")


def test_planning_needs_neither_numpy_nor_llvm() -> None:
    code = (
        "import sys; from unstride.plan.direct import plan_direct; from unstride.plan.launch import plan_launch;"
        "from unstride.plan.machine import AVX512, Machine; from unstride.problem import Problem;"
        f"p = Problem.parse({str(BIG)!r}); plan = plan_direct(p.structure, AVX512);"
        "plan_launch(plan, p, Machine(AVX512, 64), 64);"
        "assert not {'numpy', 'llvmlite'} & set(sys.modules) - ALLOWED, sorted(sys.modules)"
    )
    # the package's __init__ may bring NumPy; the planner's own modules may not
    allowed = "ALLOWED = set(); import unstride; ALLOWED = {'numpy'} & set(sys.modules); "
    subprocess.run([sys.executable, "-c", "import sys; " + allowed + code], check=True)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.isa.name}-{m.cores}")
def test_a_plan_is_a_function_of_its_arguments(machine: Machine) -> None:
    for case in cases(60, 21):
        p = case.problem
        first, second = (plan_direct(p.structure, machine.isa) for _ in range(2))
        assert first == second
        launches = [plan_launch(plan, p, machine, machine.cores) for plan in (first, second)]
        assert launches[0] == launches[1]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.isa.name}-{m.cores}")
def test_every_weight_is_packed_exactly_once(machine: Machine) -> None:
    for case in cases(120, 22):
        s = case.problem.structure
        plan = plan_direct(s, machine.isa)
        packed = [
            (
                source.group,
                *(k + shift for k, shift in zip(step[::-1], (*shifts[::-1], *(0,) * 9), strict=False)),
                channel,
            )
            for source in plan.sources
            for step in source.steps
            for shifts, channel in source.columns
        ]
        columns = s.groups if plan.depthwise else plan.result_channels * s.groups
        assert len(packed) == len(set(packed)) == columns * prod(s.kernel), str(case)
        assert max(panel[Panel.COLUMNS] for panel in plan.panels) <= plan.tile.columns


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.name)
def test_a_tile_leaves_registers_for_its_operands(isa) -> None:
    for channels in ("g64 i1 o1", "g1 i64 o64", "g1 i64 o48", "g1 i64 o24", "g1 i64 o4"):
        structure = Problem.parse(f"scatter f32 NXC GIOX n1 {channels} x8 k3 s1 d1 b0 y10").structure
        tile = plan_direct(structure, isa).tile
        assert tile.rows * tile.vectors + tile.vectors + 1 <= isa.registers
        assert tile.lanes * 4 == isa.vector_bytes


@pytest.mark.parametrize("cores", [1, 2, 16, 64])
def test_big_work_keeps_every_core_busy(cores: int) -> None:
    machine = Machine(AVX512, cores, l2_bytes=2**21)
    for layout in ("NXC", "NCX"):
        problem = Problem.parse(str(BIG).replace("NXC", layout))
        launch = plan_launch(plan_direct(problem.structure, AVX512), problem, machine, cores)
        assert launch.tasks >= cores
        rounds = -(-launch.tasks // cores)
        assert launch.tasks / (rounds * cores) > 0.75


def test_scratch_of_every_workload_is_at_most_16_mib() -> None:
    roads = set()
    for layer in workloads():
        for direction, layout, machine in (("scatter", "NCX", AVX512_PAIR), ("gather", "NXC", MACHINES[1])):
            problem = as_variant(layer, direction=direction, dtype="f32", layout=layout).problem
            plan, launches = choose(problem, machine, machine.cores)
            roads.add(plan.algorithm.partition(" F")[0])
            for launch in launches:
                used = max(1, min(launch.threads, launch.tasks))
                assert launch.scratch_per_slot * used <= 16 * 2**20, f"{layer.name} {problem}"
    assert roads == {
        "direct",
        "direct, in bands",
        "direct, clipped",
        "depthwise",
        "overlap-add",
        "across x",
        "folded across x",
        "spread across x",
        "depthwise, row by row",
        "winograd",
    }


def test_explanation_names_what_was_decided() -> None:
    text = explain_plan(BIG, Machine(AVX512, 64, l2_bytes=2**21), 64, Peak(1e12, 1e10, "measured"), "strict")
    for part in (
        "direct on avx512",
        "tile 14 rows x 32 columns",
        "axis 1:",
        "tasks for 64 threads",
        "scratch",
        "(measured)",
    ):
        assert part in text
    assert f"roofline {1e3 * BIG.flops / 1e12:.3g} ms, bound by arithmetic" in text


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.isa.name}-{m.cores}")
def test_every_problem_can_be_explained(machine: Machine) -> None:
    for case in cases(150, 23):
        text = explain_plan(case.problem, machine, machine.cores, accuracy=case.accuracy)
        plan, launches = choose(case.problem, machine, machine.cores, case.accuracy)
        assert text.startswith(f"plan     {plan.algorithm} on {machine.isa.name}: ")
        assert f"{launches[0].tasks:,} task" in text
        assert f"{case.problem.flops:,} flops" in text
        assert dump(plan, launches).count("launch ") == len(launches)


def test_a_kernel_too_large_to_plan_is_not_planned() -> None:
    huge = Problem.parse("scatter f32 NXC GIOX n1 g1 i1 o64 x9x9 k4000x4000 s2x2 d1x1 b0x0 y9x9")
    assert explain_plan(huge, MACHINES[1], 2).startswith("plan     not shown: ")


def test_a_period_too_long_to_write_out_is_not_planned() -> None:
    for stride, planned in ((6, True), (4096, False), (4099, False)):
        line = f"scatter f32 NCX GIOX n1 g8 i1 o1 x20 k3 s{stride} d1 b0 y{19 * stride + 3}"
        assert (plan_spread(Problem.parse(line).structure, AVX512) is not None) == planned


def test_a_dump_shows_every_difference() -> None:
    plan = plan_direct(BIG.structure, AVX2)
    assert dump(plan) == dump(plan_direct(BIG.structure, AVX2))
    for isa in (AVX512, NEON):
        assert dump(plan_direct(BIG.structure, isa)) != dump(plan)
    machine = Machine(AVX2, 2)
    launches = {dump(plan, [plan_launch(plan, BIG, machine, threads)]) for threads in (1, 2, 7)}
    assert len(launches) == 3


def test_units_of_half_the_width_make_saved_products_count_twice() -> None:
    problem = Problem.parse("scatter f32 NXC XGIO n1 g1 i64 o32 x512x512 k3x3 s2x2 d1x1 b0x0 y1025x1025")
    whole, halves = (Machine(AVX512, 2, l2_bytes=2**20, pace=pace) for pace in (1, 2))
    assert choose(problem, whole, 2)[0].algorithm == "direct"
    assert choose(problem, halves, 2)[0].algorithm == "winograd F(3,2)xF(4,2)"


HALVES = Machine(AVX512, 2, 32 * 1024, 2**20, pace=2, narrower=AVX2)
"""A processor whose vectors of AVX-512 take two passes."""


@pytest.mark.parametrize(
    ("line", "isa"),
    [
        # 20 channels are 24 lanes of AVX2 and 32 of AVX-512
        ("scatter f32 NXC XGIO n2 g1 i40 o20 x13x13 k5x5 s2x2 d1x1 b0x0 y26x26", AVX2),
        ("gather f32 NXC XGIO n4 g1 i20 o10 x24x24 k5x5 s2x2 d1x1 b1x1 y48x48", AVX2),
        # whole vectors either way
        ("scatter f32 NXC XGIO n1 g1 i64 o64 x13x13 k5x5 s2x2 d1x1 b0x0 y26x26", AVX512),
        ("gather f32 NXC XGIO n4 g1 i64 o10 x24x24 k5x5 s2x2 d1x1 b1x1 y48x48", AVX512),
        # depthwise: channels fill vectors, or pixels do
        ("scatter f32 NXC XGIO n1 g20 i1 o1 x13x13 k4x4 s2x2 d1x1 b1x1 y26x26", AVX512),
        ("scatter f32 NCX GIOX n1 g20 i1 o1 x13x13 k4x4 s2x2 d1x1 b1x1 y26x26", AVX512),
    ],
)
def test_narrow_structures_use_narrow_vectors_where_wide_ones_take_two_passes(line: str, isa: ISA) -> None:
    problem = Problem.parse(line)
    found, _ = fitting(problem.structure, HALVES, "standard")
    assert (found.isa, found.pace, found.narrower) == (isa, 1 if isa is AVX2 else 2, None)
    plan, _ = choose(problem, HALVES, 2)
    assert f"on {isa.name}:" in explain_plan(problem, HALVES, 2)
    assert getattr(plan, "direct", plan).isa is isa
    one_kind = replace(HALVES, narrower=None)
    assert fitting(problem.structure, one_kind, "standard")[0] == one_kind
