"""A slice of the lattice, and the same cases through the public operators. `tests.compiler.lattice` runs the rest."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from random import Random

import numpy as np
import pytest

from tests.compiler import judge
from tests.compiler.cases import Case
from tests.compiler.lattice import cases, failures
from unstride.cases import DIALECTS, random_call
from unstride.errors import RuleWarning
from unstride.problem import FILTER_LAYOUTS, Problem
from unstride.reference import reference, rounded
from unstride.runtime.machine import host


@pytest.mark.parametrize("seed", range(3))
def test_integers_are_exact(seed: int) -> None:
    assert list(failures(500, 100 + seed, few_kernels=True)) == []


@pytest.mark.parametrize("seed", range(2))
def test_real_numbers_stay_inside_the_bound(seed: int) -> None:
    assert list(failures(200, 100 + seed, real=True, few_kernels=True)) == []


@pytest.mark.parametrize("isa", ["avx2", "sse2"])
def test_narrower_instruction_sets_are_exact(isa: str) -> None:
    if host().isa.name not in ("avx2", "avx512"):
        pytest.skip(f"this processor is {host().isa.name}")
    command = [sys.executable, "-m", "tests.compiler.lattice", "--cases=200", "--seed=7", "--few-kernels"]
    done = subprocess.run(command, env={**os.environ, "UNSTRIDE_ISA": isa}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{isa}: 200 bit for bit cases, 0 wrong" in done.stdout


def test_a_case_survives_its_text() -> None:
    for case in cases(50, 3):
        assert Case.parse(str(case)) == case


def test_the_lattice_reaches_every_corner() -> None:
    """The draw itself: what the cases above are worth."""
    seen = list(cases(3000, 0))
    problems = [case.problem for case in seen]
    assert {p.rank for p in problems} == {1, 2, 3, 4, 5}
    assert {p.batch for p in problems} == {0, 1, 2, 3, 5}
    assert {p.filter_layout for p in problems} == set(FILTER_LAYOUTS)
    assert {c.threads for c in seen} == {1, 2, 3, 7}
    corners = {
        "kernel below stride": lambda p: any(k < s for k, s in zip(p.kernel, p.stride, strict=True)),
        "dilation with stride": lambda p: any(d > 1 < s for d, s in zip(p.dilation, p.stride, strict=True)),
        "negative begin": lambda p: min(p.begin) < 0,
        "past the full extent": lambda p: any(b + y > f for b, y, f in zip(p.begin, p.y, p.full, strict=True)),
        "empty result": lambda p: 0 in p.y,
        "depthwise": lambda p: p.groups > 1 and p.ci == p.co == 1,
        "narrow groups": lambda p: p.groups > 1 and 1 < p.ci * p.co <= 16,
        "several panels": lambda p: p.groups == 1 and p.co > 2 * host().isa.lanes(4),
    }
    for name, holds in corners.items():
        assert sum(map(holds, problems)) > 60, name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_public_operators_agree_with_the_reference(dialect: str) -> None:
    """The same kernels through every document's operators: eager, into the caller's array, and compiled."""
    rng = Random(dialect)
    for seed in range(30):
        call = random_call(rng, dialect, dtypes=("f32", "f32", "f16", "bf16", "f64"), max_macs=50_000)
        problem = call.resolve().problem
        case = Case(problem, "none", bias=True, seed=seed)
        data, filter, bias = judge.exact_operands(case)
        data, filter = data.reshape(call.data_shape), filter.reshape(call.filter_shape)
        wanted = [rounded(reference(problem, data, filter, b), problem.dtype) for b in (None, bias)]
        more = {} if call.output_shape is None else {"output_shape": call.output_shape}
        out = np.full(problem.result_shape, np.nan, wanted[0].dtype)
        layer = call.operator.compile(filter, bias=bias, threads=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuleWarning)
            assert call.operator(data, filter, **more, out=out) is out
            got = layer(data, **more)
        assert judge.differs(out, wanted[0]) == "", str(call)
        assert judge.differs(got, wanted[1]) == "", str(call)
        assert layer.info.algorithm != "reference"


def test_a_wrong_element_is_noticed() -> None:
    case = Case(Problem.parse("scatter f32 NXC GIOX n1 g1 i3 o4 x5 k3 s2 d1 b0 y11"))
    operands = judge.exact_operands(case)
    wanted = rounded(judge.expected(case, *operands), "f32")
    got = judge.run(case, *operands)
    assert judge.differs(got, wanted) == ""
    for wrong in (np.nan, got[0, 3, 1] + 1, -0.0 if got[0, 3, 1] == 0 else np.float32(0)):
        changed = got.copy()
        changed[0, 3, 1] = wrong
        assert judge.differs(changed, wanted)
