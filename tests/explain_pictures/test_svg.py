"""The static picture: well-formed, bounded, honest about what it shows, and right in what it counts."""

from __future__ import annotations

import random
import re
from itertools import product
from xml.etree import ElementTree

import pytest

from unstride import onednn, onnx, openvino
from unstride.dialects import functional
from unstride.explain.axis import Axis, Gap, axes_of, visible
from unstride.explain.drawing import _HEAT, _INK, _PAPER, _PHASES, _RULES, Track
from unstride.explain.notes import diagnosis, equation
from unstride.explain.page import operator_html
from unstride.explain.sample import sample_resolution
from unstride.explain.svg import svg
from unstride.problem import Problem

SVG = "{http://www.w3.org/2000/svg}"


def parse(line: str) -> Problem:
    return Problem.parse(f"{line.split()[0]} f32 NCX GIOX n1 {line.split(maxsplit=1)[1]}")


def brute_pairs(axis: Axis, position: int) -> list[tuple[int, int]]:
    every = product(range(axis.x), range(axis.kernel))
    return [(i, k) for i, k in every if i * axis.stride + k * axis.dilation == position]


def random_axis(rng: random.Random) -> Axis:
    return Axis(*(rng.randint(1, 6) for _ in range(4)), rng.randint(-4, 5), rng.randint(0, 16))


def test_pairs_are_those_of_the_definition() -> None:
    rng = random.Random(1)
    for _ in range(600):
        axis = random_axis(rng)
        for position in range(-3, axis.full + 3):
            assert sorted(axis.pairs(position)) == sorted(brute_pairs(axis, position)), (axis, position)


def test_reads_are_those_of_the_definition() -> None:
    rng = random.Random(2)
    for _ in range(600):
        axis = random_axis(rng)
        for i in range(axis.x):
            places = [(k, i * axis.stride + k * axis.dilation - axis.begin) for k in range(axis.kernel)]
            assert list(axis.reads(i)) == [k for k, place in places if 0 <= place < axis.y], (axis, i)


def test_overlap_is_what_inner_positions_receive() -> None:
    rng = random.Random(3)
    for _ in range(300):
        axis = random_axis(rng)
        inner = Axis(60, axis.kernel, axis.stride, axis.dilation, 0, 1)
        counts = [len(inner.taps(f)) for f in range(inner.full // 2, inner.full // 2 + axis.stride)]
        assert axis.overlap == (min(counts), max(counts))


def test_visible_keeps_order_bounds_and_landmarks() -> None:
    rng = random.Random(4)
    for _ in range(400):
        low, length, limit = rng.randint(-5, 5), rng.randint(1, 400), rng.randint(8, 30)
        marks = tuple(rng.randint(low, low + length - 1) for _ in range(4))
        entries = visible(low, low + length, marks, limit)
        shown = [entry for entry in entries if not isinstance(entry, Gap)]
        assert shown == sorted(set(shown))
        assert len(shown) <= limit + len(marks) + 1  # a gap of one is drawn instead
        assert set(marks) <= set(shown)
        assert len(shown) + sum(entry.count for entry in entries if isinstance(entry, Gap)) == length


def test_a_span_runs_into_the_gap_it_crosses() -> None:
    track = Track([0, 1, Gap(10), 12, 13], 10)
    assert track.span(0, 14) == (0, 50)
    assert track.span(1, 5) == (10, 30)
    assert track.span(5, 13) == (20, 40)
    assert track.span(0, 2) == (0, 20)
    assert track.span(4, 6) is None


LINES = (
    "scatter g1 i1 o1 x5 k3 s2 d1 b1 y9",
    "scatter g2 i3 o2 x4 k3 s3 d2 b-2 y18",
    "scatter g1 i20 o10 x224 k5 s2 d1 b1 y450",
    "scatter g1 i1 o1 x5 k3 s2 d1 b1 y0",
    "scatter g1 i1 o1 x3 k2 s1 d1 b50 y4",
    "scatter g1 i1 o1 x2000000000 k2000 s1 d3000 b5 y2000000000",
    "gather g1 i1 o1 x4 k3 s2 d1 b1 y8",
    "scatter g1 i20 o10 x5x4 k3x3 s2x2 d1x1 b1x1 y9x7",
    "scatter g4 i5 o2 x224x224 k3x3 s2x2 d1x1 b1x1 y447x447",
    "scatter g8 i1 o1 x3x4 k3x2 s2x3 d2x1 b-1x2 y11x12",
    "gather g1 i2 o3 x4x4 k4x4 s2x2 d1x1 b1x1 y8x8",
    "gather g1 i2 o3 x900x900 k31x31 s7x9 d2x3 b-4x1 y6000x8000",
    "scatter g1 i2 o3 x4x6x5 k3x4x4 s1x2x2 d1x1x1 b1x1x1 y4x12x10",
    "scatter g1 i1 o1 x4x4 k3x3 s1000x1000 d1x1 b1x1 y3000x3000",
)


@pytest.mark.parametrize("line", LINES)
def test_every_picture_is_well_formed_and_bounded(line: str) -> None:
    text = svg(parse(line))
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title") is not None
    assert len(text) < 150_000
    assert float(root.get("width", "inf")) < 1400
    assert float(root.get("height", "inf")) < 1400
    used = {name for node in root.iter() for name in (node.get("class") or "").split() if name.startswith("us-")}
    styled = set(re.findall(r"\.(us-[a-z0-9-]+)", text.split("</style>")[0]))
    assert used <= styled


def counts_drawn(problem: Problem) -> list[int]:
    root = ElementTree.fromstring(svg(problem))
    tips = [title.text or "" for title in root.iter(f"{SVG}title")]
    found = [re.fullmatch(r"y\[(\d+),(\d+)\]: (\d+) products", tip) for tip in tips]
    return [int(match[3]) for match in found if match]


def test_the_heat_map_counts_every_product_once() -> None:
    problem = parse("scatter g1 i1 o1 x4x3 k3x4 s2x3 d1x1 b1x0 y8x10")
    assert sum(counts_drawn(problem)) == problem.macs
    assert problem.macs > 0


def test_what_is_not_drawn_is_said() -> None:
    assert "Abridged" in svg(parse("scatter g1 i1 o1 x224x224 k3x3 s2x2 d1x1 b1x1 y447x447"))
    assert "Abridged" not in svg(parse("scatter g1 i1 o1 x5x5 k3x3 s2x2 d1x1 b1x1 y9x9"))
    deep = svg(parse("scatter g1 i2 o3 x4x6x5 k3x4x4 s1x2x2 d1x1x1 b1x1x1 y4x12x10"))
    assert "last two of 3 spatial axes" in deep
    assert "nothing is computed" in svg(parse("scatter g1 i1 o1 x5 k3 s2 d1 b1 y0"))


def test_diagnosis() -> None:
    def verdict(line: str) -> str:
        return diagnosis(parse(line))[0]

    assert verdict("scatter g1 i1 o1 x5 k4 s2 d1 b1 y10") == "even"
    assert verdict("scatter g1 i1 o1 x5 k3 s2 d1 b1 y9") == "uneven"
    assert verdict("scatter g1 i1 o1 x5 k3 s2 d2 b1 y9") == "holes"
    assert verdict("scatter g1 i1 o1 x5 k2 s3 d1 b1 y9") == "holes"
    assert verdict("scatter g1 i1 o1 x5x5x5 k3x4x4 s2x2x2 d1x1x1 b1x1x1 y9x10x10") == "uneven"
    assert "kernel of 4" in diagnosis(parse("scatter g1 i1 o1 x5 k3 s2 d1 b1 y9"))[1]


def test_equations_of_both_directions() -> None:
    problem = parse("gather g1 i1 o1 x4 k3 s2 d1 b1 y8")
    assert equation(problem, axes_of(problem), (0,)) == "x[0] = y[0]·w[1] + y[1]·w[2]"
    problem = parse("scatter g1 i1 o1 x4 k1 s2 d1 b0 y8")
    assert equation(problem, axes_of(problem), (1,)).startswith("y[1] = 0")


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_is_legible_on_every_colour(theme: int) -> None:
    for name in ("us-ink", "us-soft", "us-warn", "us-good", "us-pick-ink"):
        assert contrast(_RULES[name]["fill"][theme], _PAPER[theme]) >= 4.5, name
    for colour in _PHASES:
        assert contrast(colour[theme], _RULES["us-on"]["fill"][theme]) >= 4.5, colour
    for level, colour in enumerate(_HEAT):
        assert contrast(colour[theme], _RULES[f"us-t{level + 1}"]["fill"][theme]) >= 4.5, colour
    assert contrast(_INK[theme], _RULES["us-cell"]["fill"][theme]) >= 4.5


OPERATORS = (
    openvino.ConvolutionBackpropData([2, 2], [1, 1], [1, 1]),
    openvino.GroupConvolutionBackpropData([2]),
    onednn.ConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1]),
    onednn.ConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1], output_shape=[1, 9, 9, 1]),
    onednn.ConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1], auto_pad="same_upper", rules="runtime"),
    onednn.ConvTranspose([3], [0], [0], [2], groups=3),
    onednn.ConvTransposeBackpropData([2] * 3, [1] * 3, [1] * 3, [1] * 3, groups=2, data_format="NCX"),
    onnx.ConvTranspose(kernel_shape=[5, 2]),
    onnx.ConvTranspose(strides=[2, 2], group=2),
    functional.ConvTranspose(2, 1),
)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: type(operator).__name__)
def test_a_notebook_shows_every_operator(operator: object) -> None:
    shown = operator._repr_html_()  # type: ignore[attr-defined]
    assert "<svg " in shown
    assert type(operator).__name__ in shown
    assert "Drawn for" in shown


def test_an_operator_that_no_small_call_fits_is_shown_as_text() -> None:
    operator = openvino.GroupConvolutionBackpropData([1] * 5)
    assert sample_resolution(operator) is None
    assert "<svg" not in operator_html(operator)
