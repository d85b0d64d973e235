"""The page used in a real browser: by pointer and by keyboard, in light and dark, wide and narrow, without network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unstride import onednn, openvino
from unstride.explain.axis import axes_of
from unstride.explain.notes import diagnosis, equation
from unstride.explain.page import html
from unstride.problem import Problem

TIMES = "\N{MULTIPLICATION SIGN}"
LINE = "scatter f32 NCX GIOX n1 g1 i1 o1 x4x3 k3x4 s2x3 d1x1 b1x0 y8x10"


class Visit:
    """One open page, with everything that went wrong on it."""

    def __init__(self, browser: Any, folder: Path, text: str, **options: Any) -> None:
        file = folder / "page.html"
        file.write_text(text, encoding="utf-8")
        self.troubles: list[str] = []
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", self._note_request)
        self.page.goto(file.as_uri())

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith("file:") or not request.url.split("#")[0].endswith("page.html"):
            self.troubles.append(f"asked for {request.url}")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def numbers(self) -> list[str]:
        """The two large numbers: size of the result, and begin."""
        return [
            re.sub(rf"\s*{TIMES}\s*", "x", text) for text in self.page.locator("#answer .number b").all_inner_texts()
        ]

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def focused(self) -> str:
        return str(
            self.page.evaluate(
                "document.activeElement.id || document.activeElement.name || document.activeElement.tagName"
            )
        )


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    visits: list[Visit] = []

    def start(text: str, **options: Any) -> Visit:
        visits.append(Visit(browser, tmp_path, text, **options))
        return visits[-1]

    yield start
    for each in visits:
        each.context.close()
        assert each.troubles == []


def test_it_opens_on_the_problem_it_was_given(visit: Any) -> None:
    problem = Problem.parse(LINE)
    page = visit(html(problem))
    assert page.numbers() == ["8x10", "1x0"]
    assert page.text("#diagnosis").replace(f" {TIMES} ", TIMES) == diagnosis(problem)[1]
    cells = page.page.locator("#figure rect[data-out] + text").all_text_contents()
    assert sum(map(int, cells)) == problem.macs


def test_pointing_at_an_output_names_its_products(visit: Any) -> None:
    problem = Problem.parse(LINE)
    page = visit(html(problem))
    for chosen in ((3, 6), (0, 0), (7, 9)):
        page.page.hover(f'#figure [data-out="{chosen[0]},{chosen[1]}"]', force=True)
        assert page.text("#equation").replace(", ", ",") == equation(problem, axes_of(problem), chosen)
    page.page.hover('#figure [data-in="1,1"]', force=True)
    assert page.page.locator("#figure .us-stamp").count() == 2  # the input, and what it covers


def test_arrow_keys_walk_over_the_result(visit: Any) -> None:
    problem = Problem.parse(LINE)
    page = visit(html(problem))
    page.page.focus("#figure")
    page.press("Home")
    page.press("ArrowRight", "ArrowRight", "ArrowDown", "Shift+ArrowDown", "ArrowLeft")
    assert page.text("#equation").replace(", ", ",") == equation(problem, axes_of(problem), (3, 1))
    page.press("End")
    assert page.text("#equation").startswith("y[7, 9] = ")
    page.press("ArrowRight", "ArrowDown")
    assert page.text("#equation").startswith("y[7, 9] = ")


def test_a_large_layer_follows_the_choice(visit: Any) -> None:
    line = "scatter f32 NCX GIOX n1 g1 i1 o1 x224x224 k3x3 s2x2 d1x1 b1x1 y447x447"
    page = visit(html(Problem.parse(line)))
    page.page.focus("#figure")
    page.press("End")
    assert page.page.locator('#figure [data-out="446,446"]').count() == 1
    assert "part fits" in page.text("#pictureHint")
    assert page.page.locator("#figure rect").count() < 1500


def test_the_whole_page_by_keyboard(visit: Any) -> None:
    """Tab through everything; change operator, rules, rank, an attribute and the library without a pointer."""
    page = visit(html())
    page.press("Tab")
    assert page.text(":focus") == "Skip to the picture"
    seen = []
    for _ in range(60):
        page.press("Tab")
        seen.append(page.focused())
        if seen[-1] == "code":
            break
    for name in ("examples", "theme", "dialect", "auto_pad", "linked", "rank", "groups", "figure", "copy", "code"):
        assert name in seen, (name, seen)
    page.page.focus("#dialect")
    page.press("ArrowDown")
    assert page.page.input_value("#dialect") == "onednn.ConvolutionBackpropData"
    page.press("ArrowUp")
    assert page.page.input_value("#dialect") == "openvino"
    assert not page.page.is_checked("#use_output_shape")  # only the oneDNN operator needed one
    page.page.focus("[name=rules][value=spec]")
    page.press("ArrowRight")
    assert page.page.is_checked("[name=rules][value=runtime]")
    page.page.focus("[type=range][data-field=strides]")
    page.press("ArrowRight")
    assert page.numbers()[0] == "13x13"
    page.page.focus("[name=rank][value='2']")
    page.press("ArrowLeft")
    assert page.numbers()[0] == "13"
    page.page.focus("#tabs [aria-selected=true]")
    page.press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight")
    assert page.text("#tabs [aria-selected=true]") == "torch"
    assert "F.conv_transpose1d(" in page.text("#code")


def test_focus_is_visible(visit: Any) -> None:
    page = visit(html())
    page.press("Tab", "Tab")
    style = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style == "solid"


def test_rule_sets_that_disagree_are_shown_and_can_be_followed(visit: Any) -> None:
    operator = openvino.ConvolutionBackpropData([2, 2], [1, 1], [1, 1])
    shapes = ((1, 1, 5, 5), (1, 1, 3, 3), [10, 10])
    page = visit(html(operator.resolve(*shapes), operator=operator, output_shape=shapes[2]))
    assert page.numbers() == ["10x10", "0x0"]
    assert f"runtime rules give begin 1 {TIMES} 1" in page.text("#answer .warn")
    page.page.click("#flip")
    assert page.numbers() == ["10x10", "1x1"]
    assert page.page.is_checked("[name=rules][value=runtime]")
    page.page.click("#use_output_shape")
    assert page.text("#answer .good") == "spec and runtime agree here."


def test_attributes_without_effect_are_marked(visit: Any) -> None:
    page = visit(html())
    assert page.page.locator(".row.inert").count() == 0
    page.page.select_option("#auto_pad", "valid")
    marked = page.page.evaluate("[...document.querySelectorAll('.row.inert')].map(row => row.dataset.row)")
    assert marked == ["pads_begin", "pads_end"]


def test_the_gradient_operator(visit: Any) -> None:
    operator = onednn.ConvTransposeBackpropData([2, 2], [1, 1], [1, 1], [1, 1], data_format="NCX", groups=2)
    resolution = operator.resolve((1, 6, 9, 9), (3, 3, 4, 3), None)
    page = visit(html(resolution, operator=operator))
    assert page.numbers() == ["5x5", "1x1"]
    assert page.page.input_value("#dialect") == "onednn.ConvTransposeBackpropData"
    assert page.page.input_value("#ci") == "2"
    page.page.focus("#figure")
    page.press("Home")
    problem = resolution.problem
    assert page.text("#equation").replace(", ", ",") == equation(problem, axes_of(problem), (0, 0))


def test_a_refused_call_says_why_and_recovers(visit: Any) -> None:
    page = visit(html())
    page.page.select_option("#dialect", "torch")
    page.page.fill("[type=number][data-field=output_padding]", "2")
    assert "output_padding" in page.text("#answer .bad")
    assert page.page.locator("body.stale").count() == 1
    page.page.fill("[type=number][data-field=output_padding]", "1")
    assert page.page.locator("#answer .bad").count() == 0
    assert page.page.locator("body.stale").count() == 0
    page.page.fill("[type=number][data-field=kernel]", "0")
    assert "kernel" in page.text("#answer .bad")


def test_every_example_and_operator_opens(visit: Any) -> None:
    page = visit(html())
    examples = page.page.locator("#examples option").all_inner_texts()[1:]
    assert len(examples) >= 10
    for name in examples:
        page.page.select_option("#examples", name)
        assert page.page.locator("#answer .bad").count() == 0, name
        assert page.text("#code")
    for name in page.page.evaluate("[...document.querySelectorAll('#dialect option')].map(o => o.value)"):
        page.page.select_option("#dialect", name)
        assert page.page.locator("#answer .bad").count() == 0, name


def test_the_address_holds_the_call(visit: Any) -> None:
    page = visit(html())
    page.page.select_option("#examples", "Surplus zeros: negative begin")
    page.page.reload()
    assert page.numbers() == ["15x14", "-3x-3"]
    page.page.evaluate("location.hash = 'd=onnx&size=7&kernel=4&strides=3&p=same_lower&output_shape=1e9x2<b>'")
    page.page.locator("#answer small", has_text="ONNX").wait_for()
    assert page.numbers()[0] == "21"


def test_copying_the_code(visit: Any) -> None:
    page = visit(html(), permissions=["clipboard-read", "clipboard-write"])
    page.page.click("[data-library=ONNX]")
    page.page.click("#copy")
    page.page.locator("#copy[data-copied=ONNX]").wait_for()
    copied = page.page.evaluate("navigator.clipboard.readText()")
    assert copied == page.page.get_attribute("#code", "data-text")
    assert "ConvTranspose" in copied


def test_everything_that_takes_input_has_a_name(visit: Any) -> None:
    page = visit(html())
    nameless = page.page.evaluate(
        """[...document.querySelectorAll('input, select, button, [tabindex="0"]')].filter(node =>
        !(node.getAttribute('aria-label') || node.labels?.[0]?.textContent.trim() || node.textContent.trim()))
        .map(node => node.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_no_width_makes_the_page_scroll_sideways(visit: Any, width: int) -> None:
    page = visit(html(), viewport={"width": width, "height": 800})
    for name in page.page.locator("#examples option").all_inner_texts()[1:]:
        page.page.select_option("#examples", name)
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width, name


def test_light_and_dark(visit: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    cell = "getComputedStyle(document.querySelector('#figure .us-cell')).fill"
    light = visit(html(), color_scheme="light").page
    dark = visit(html(), color_scheme="dark").page
    assert light.evaluate(ground) != dark.evaluate(ground)
    assert light.evaluate(cell) != dark.evaluate(cell)
    expected = (dark.evaluate(ground), dark.evaluate(cell))
    light.click("#theme")
    light.click("#theme")
    assert light.inner_text("#theme") == "Dark"
    assert (light.evaluate(ground), light.evaluate(cell)) == expected


def test_without_scripts_the_picture_is_still_there(visit: Any) -> None:
    page = visit(html(Problem.parse(LINE)), java_script_enabled=False)
    assert page.page.locator("noscript svg.us-picture").count() == 1


def test_the_file_is_one_file() -> None:
    text = html(Problem.parse(LINE))
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", text)
    assert "@import" not in text
    assert re.findall(r"https?://[^\"'\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert "{{" not in text.split("<script>")[0]


def test_deeper_layers_say_what_is_shown() -> None:
    line = "scatter f32 NCX GIOX n1 g1 i2 o3 x4x6x5 k3x4x4 s1x2x2 d1x1x1 b1x1x1 y4x12x10"
    assert "3 spatial axes; the page shows the last two" in html(Problem.parse(line))
