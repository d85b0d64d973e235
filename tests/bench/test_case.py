"""The judge: right results pass, a single wrong element anywhere is found and the guilty one named."""

from __future__ import annotations

import numpy as np
import pytest

from unstride.bench.case import judge, make_case
from unstride.problem import Problem
from unstride.reference import reference, rounded

CASES = [
    "scatter f32 NCX GIOX n2 g1 i5 o7 x6x4 k3x3 s2x1 d1x2 b1x0 y11x7",
    "scatter f32 NXC XGIO n1 g3 i2 o4 x5 k4 s2 d1 b0 y13",
    "gather f32 NCX GIOX n1 g1 i4 o6 x5x5 k3x3 s2x2 d1x1 b1x1 y9x9",
    "gather f64 NXC XGIO n2 g2 i3 o2 x4 k5 s3 d1 b1 y12",
    "scatter f16 NCX GIOX n1 g1 i8 o3 x4x4 k4x4 s2x2 d1x1 b1x1 y8x8",
    "scatter bf16 NCX GIOX n1 g4 i1 o1 x3x3x3 k2x2x2 s2x2x2 d1x1x1 b0x0x0 y6x6x6",
]


def exact_result(line: str) -> tuple[object, np.ndarray]:
    problem = Problem.parse(line)
    case = make_case(problem, 1)
    order = {"GIOX": (0, 1, 2), "XGIO": (-3, -2, -1)}[problem.filter_layout]
    weights = np.moveaxis(case.weights, (0, 1, 2), order)
    return case, rounded(reference(problem, case.data, weights, None), problem.dtype)


@pytest.mark.parametrize("line", CASES)
def test_the_reference_passes(line: str) -> None:
    case, result = exact_result(line)
    verdict = judge(case, {"reference": result})["reference"]
    assert verdict.wrong == ""
    assert not verdict.coarse
    assert verdict.error <= 1.0


@pytest.mark.parametrize("line", CASES)
@pytest.mark.parametrize("damage", [1.0, np.nan])
def test_one_wrong_element_is_found_and_blamed_on_the_right_one(line: str, damage: float) -> None:
    case, result = exact_result(line)
    rng = np.random.default_rng(5)
    bad = result.copy()
    bad.flat[rng.integers(bad.size)] += damage
    for names in (("good", "bad"), ("bad", "good")):
        results = {"good": result, "bad": bad}
        verdicts = judge(case, {name: results[name] for name in names})
        assert verdicts["good"].wrong == ""
        assert verdicts["bad"].wrong.startswith("at [")


def test_a_wrong_shape_is_wrong() -> None:
    case, result = exact_result(CASES[0])
    verdicts = judge(case, {"good": result, "short": result[..., :-1]})
    assert verdicts["good"].wrong == ""
    assert "expected (2, 7, 11, 7)" in verdicts["short"].wrong


def test_rounding_partial_sums_is_coarse_not_wrong() -> None:
    case, result = exact_result(CASES[4])
    coarse = np.nextafter(np.nextafter(np.nextafter(result, np.float16(9)), np.float16(9)), np.float16(9))
    verdict = judge(case, {"coarse": coarse})["coarse"]
    assert (verdict.wrong, verdict.coarse) == ("", True)
