"""The page's arithmetic, run in a real browser, against Python's."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import unstride.explain
from unstride.explain.axis import Axis

from .calls import DIALECTS, answer, ask, random_call

ASSETS = Path(unstride.explain.__file__).parent / "assets"
CASES = 6000

_ANSWER = """calls => calls.map(call => {
  try {
    const r = Unstride.resolve(call), pick = name => r.axes.map(axis => axis[name]);
    const found = {direction: r.direction, begin: pick("begin"), x: pick("x"), y: pick("y"), rule: r.rule, other: null};
    const size = r.direction === "scatter" ? "y" : "x";
    if (r.other && r.other.refusal) found.other = {refused: true};
    else if (r.other) found.other = {
      begin: r.other.axes.map(a => a.begin), size: r.other.axes.map(a => a[size]), rule: r.other.rule};
    return found;
  } catch (error) {
    if (error instanceof Unstride.Refusal) return {refused: true};
    throw error;
  }
})"""
_AXES = """cases => cases.map(({axis, positions}) => ({
  taps: positions.map(f => Unstride.list(Unstride.taps(axis, f))),
  reads: Array.from({length: Math.min(axis.x, 12)}, (_, i) => Unstride.list(Unstride.reads(axis, i))),
  phases: Array.from({length: Math.min(axis.stride, 12)}, (_, r) => Unstride.list(Unstride.phaseTaps(axis, r))),
  overlap: Unstride.overlap(axis), full: Unstride.full(axis)}))"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Any:
    page = browser.new_page()
    page.add_script_tag(content=(ASSETS / "window.js").read_text())
    yield page
    page.close()


def test_every_dialect_and_rule_set_gives_the_windows_of_python(page: Any) -> None:
    rng = random.Random(20)
    calls = [random_call(rng) for _ in range(CASES)]
    expected = [answer(call) for call in calls]
    found = ask(page, _ANSWER, calls)
    wrong = [(c, e, f) for c, e, f in zip(calls, expected, found, strict=True) if e != f]
    assert not wrong, f"{len(wrong)} of {CASES} differ, the first: {wrong[0]}"
    answered = Counter(c["dialect"] for c, e in zip(calls, expected, strict=True) if "refused" not in e)
    assert all(answered[dialect] >= 200 for dialect in DIALECTS), answered
    assert sum("refused" in e for e in expected) >= 200


def _random_axis(rng: random.Random, top: int) -> Axis:
    sizes = [rng.randint(1, top) for _ in range(4)]
    return Axis(*sizes, rng.randint(-top, 2 * top), rng.randint(0, 4 * top))


def test_taps_phases_and_overlap_are_those_of_python(page: Any) -> None:
    rng = random.Random(21)
    cases, expected = [], []
    for n in range(2000):
        axis = _random_axis(rng, 9 if n % 4 else 40_000)
        positions = [rng.randint(-3, axis.full + 3) for _ in range(8)]
        cases.append({"axis": vars(axis), "positions": positions})
        expected.append(
            {
                "taps": [list(axis.taps(f)[:64]) for f in positions],
                "reads": [list(axis.reads(i)[:64]) for i in range(min(axis.x, 12))],
                "phases": [list(axis.phase_taps(r)[:64]) for r in range(min(axis.stride, 12))],
                "overlap": list(axis.overlap),
                "full": axis.full,
            }
        )
    found = ask(page, _AXES, cases)
    wrong = [(c, e, f) for c, e, f in zip(cases, expected, found, strict=True) if e != f]
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, the first: {wrong[0]}"
