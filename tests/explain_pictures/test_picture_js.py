"""What the page draws, for random calls in a real browser: well-formed, complete, and counting what Python counts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from unstride.errors import UnstrideError
from unstride.problem import Problem

from .calls import Call, ask, random_call, resolution_of
from .test_window_js import ASSETS

_DRAW = """cases => cases.map(({call, width, at}) => {
  const r = Unstride.resolve(call);
  const size = r.axes.map(a => r.direction === "scatter" ? a.y : a.x);
  const chosen = size.includes(0) ? null : size.map((n, k) => Math.floor(at[k] * n));
  const hovered = r.axes.map(a => Math.min(1, a.x - 1));
  const {markup, abridged} = Picture.draw(r, chosen, hovered, [], width);
  const node = new DOMParser().parseFromString(
    markup.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '), "image/svg+xml");
  const side = r.direction === "scatter" ? "data-out" : "data-in";
  const counts = [...node.querySelectorAll(`rect[${side}] + text`)].map(text => Number(text.textContent));
  const others = [Panels.phases(r.axes), Panels.others(call, r), Panels.channels(call, r.direction),
    Panels.legend(r.direction), chosen ? Panels.products(r, chosen).equation : ""].join("");
  return {broken: node.querySelector("parsererror") !== null, abridged, counts, text: markup + others,
    rings: node.querySelectorAll(".us-pick").length};
})"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Any:
    page = browser.new_page()
    for name in ("window.js", "code.js", "picture.js", "panels.js"):
        page.add_script_tag(content=(ASSETS / name).read_text())
    yield page
    page.close()


def _cases(count: int) -> list[tuple[dict[str, Any], Problem]]:
    rng = random.Random(24)
    found: list[tuple[dict[str, Any], Problem]] = []
    while len(found) < count:
        call: Call = random_call(rng)
        try:
            problem = resolution_of(call).problem
        except UnstrideError:
            continue
        if problem.rank <= 2:
            at = [rng.random(), rng.random()]
            found.append(({"call": call, "width": rng.choice((320, 700, 1200)), "at": at}, problem))
    return found


def test_pictures_of_random_calls(page: Any) -> None:
    cases = _cases(300)
    complete = 0
    for (case, problem), drawn in zip(cases, ask(page, _DRAW, [case for case, _ in cases]), strict=True):
        assert not drawn["broken"], case
        assert not any(word in drawn["text"] for word in ("NaN", "undefined", "null", "Infinity")), case
        if 0 not in problem.y:
            assert drawn["rings"] >= 1, case
        if problem.rank == 2 and not drawn["abridged"]:
            channels = problem.groups * problem.ci * problem.co
            assert sum(drawn["counts"]) * channels == problem.macs, case
            complete += 1
    assert complete >= 50
