"""Problem: one line of text and back, its sizes, its limits."""

from __future__ import annotations

from random import Random

import pytest

from unstride.cases import random_problem
from unstride.errors import AttributeValueError, FormatError, ShapeError, SizeLimitError, UnstrideError
from unstride.problem import Problem

LINE = "scatter f32 NCX GIOX n1 g1 i20 o10 x224x224 k3x3 s2x2 d1x1 b1x1 y447x447"


def test_text_form_parses_back_to_the_same_value() -> None:
    rng = Random(11)
    for _ in range(2000):
        case = random_problem(rng)
        assert Problem.parse(str(case)) == case
        assert hash(Problem.parse(str(case))) == hash(case)


def test_text_form_forgives_case_and_space() -> None:
    assert Problem.parse(f"  {LINE.upper()}\n") == Problem.parse(LINE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "scatter",
        LINE + " z1",
        LINE.replace("n1", "n"),
        LINE.replace("n1", "n1x1"),
        LINE.replace("x224x224", "xx"),
        7,
    ],
)
def test_bad_text_is_a_format_error(text: object) -> None:
    with pytest.raises(FormatError):
        Problem.parse(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scatter", "sideways"),
        ("f32", "f8"),
        ("NCX", "CNX"),
        ("GIOX", "XXXX"),
        ("k3x3", "k3"),
        ("s2x2", "s0x2"),
        ("d1x1", "d1x0"),
        ("y447x447", "y-1x447"),
        ("g1", "g0"),
        ("n1 ", f"n{2**31} "),
        ("x224x224", f"x{2**31 - 1}x{2**31 - 1}"),
    ],
)
def test_illegal_cases_are_refused_by_the_package(old: str, new: str) -> None:
    with pytest.raises(UnstrideError):
        Problem.parse(LINE.replace(old, new))


def test_limits_have_their_own_errors() -> None:
    with pytest.raises(SizeLimitError):
        Problem.parse("scatter f32 NCX GIOX n1 g1 i1 o1 x65536x65536x65536 k1x1x1 s1x1x1 d1x1x1 b0x0x0 y1x1x1")
    with pytest.raises(ShapeError):
        Problem("scatter", "f32", "NCX", "GIOX", 1, 1, 1, 1, (), (), (), (), (), ())
    with pytest.raises(AttributeValueError):
        Problem("scatter", "f32", "NCX", "GIOX", True, 1, 1, 1, (1,), (1,), (1,), (1,), (0,), (1,))


def test_macs_counts_the_products_that_reach_the_result() -> None:
    rng = Random(5)
    for _ in range(300):
        p = random_problem(rng, max_rank=2, max_macs=20_000)
        per_axis = [
            sum(0 <= i * s + k * d - b < y for i in range(x) for k in range(kernel))
            for x, kernel, s, d, b, y in zip(p.x, p.kernel, p.stride, p.dilation, p.begin, p.y, strict=True)
        ]
        pairs = 1
        for count in per_axis:
            pairs *= count
        assert p.macs == p.batch * p.groups * p.ci * p.co * pairs


def test_macs_of_a_huge_kernel_are_counted_at_once() -> None:
    huge = Problem.parse(f"scatter f32 NCX GIOX n1 g1 i1 o1 x3 k{2**31 - 1} s1000 d1 b0 y{2**31 - 1}")
    assert huge.macs == 3 * (2**31 - 1) - 1000 - 2000


def test_structure_is_the_case_without_sizes() -> None:
    small, large = (Problem.parse(LINE.replace("x224x224", text)) for text in ("x5x6", "x7x8"))
    assert small.structure == large.structure
    assert small.structure.filter_shape == (1, 20, 10, 3, 3)
