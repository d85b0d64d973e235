"""The rule tables are complete, and what they say in words is what they do."""

from __future__ import annotations

from itertools import product
from math import ceil
from random import Random
from typing import Any

import pytest

from unstride.dialects import Rule, all_rules, functional, onednn, onnx, openvino
from unstride.dialects._rules import Axis
from unstride.errors import ShapeError

OPERATORS: list[tuple[Any, tuple[str, ...], tuple[bool, ...]]] = [
    (openvino.ConvolutionBackpropData, ("explicit", "valid", "same_upper", "same_lower"), (False, True)),
    (openvino.GroupConvolutionBackpropData, ("explicit", "valid", "same_upper", "same_lower"), (False, True)),
    (onednn.ConvolutionBackpropData, ("none", "valid", "same_upper", "same_lower"), (True,)),
    (onednn.ConvTransposeBackpropData, ("none", "valid", "same_upper", "same_lower"), (False,)),
    (onednn.ConvTranspose, ("none", "valid", "same_upper", "same_lower"), (False,)),
    (onnx.ConvTranspose, ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), (False, True)),
    (functional.ConvTranspose, ("explicit",), (False,)),
]


@pytest.mark.parametrize(("operator", "pads", "sized"), OPERATORS)
def test_every_call_has_a_rule_and_every_rule_is_published(
    operator: Any, pads: tuple[str, ...], sized: tuple[bool, ...]
) -> None:
    rule_sets = ("spec", "runtime") if hasattr(operator, "rules") else ("spec",)
    assert set(operator._table) == set(product(rule_sets, pads, sized))
    assert set(operator._table.values()) <= set(all_rules())


def test_rules_have_distinct_names_and_name_their_document() -> None:
    names = [rule.name for rule in all_rules()]
    assert len(names) == len(set(names))
    assert all(rule.document and rule.when and rule.formula for rule in all_rules())


def obey(rule: Rule, axis: Axis, gather: bool) -> tuple[int, int] | None:
    """The rule's text, run as the Python that it is; None where a condition refuses."""
    names: dict[str, Any] = {"s": axis.stride, "d": axis.dilation, "K": axis.kernel, "ke": axis.extent, "ceil": ceil}
    names |= {"pb": axis.pad_begin, "pe": axis.pad_end, "op": axis.output_padding, "max": max}
    names |= {"Y": axis.size} if gather else {"X": axis.size, "Y": axis.wanted, "full": axis.full}
    for sentence in rule.formula.split("; "):
        if sentence.startswith("needs "):
            if not eval(sentence.removeprefix("needs "), names):
                return None
        else:
            exec(sentence, names)
    return names["begin"], names["X" if gather else "Y"]


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.name)
def test_the_text_of_a_rule_is_what_it_does(rule: Rule) -> None:
    rng = Random(rule.name)
    gather = ".gradient." in rule.name
    answered = refused = 0
    for _ in range(2000):
        sizes = [rng.randint(1, 9) for _ in range(4)]
        pads = [rng.choice((0, 0, 1, 2, 3, 5)) for _ in range(3)]
        axis = Axis(0, sizes[0] + (20 if gather else 0), rng.randint(0, 40), *sizes[1:], *pads)
        try:
            solved: tuple[int, int] | None = rule.solve(axis)
            answered += 1
        except ShapeError:
            solved = None
            refused += 1
        assert obey(rule, axis, gather) == solved
    assert answered > 20
    assert refused == 0 or "needs" in rule.formula
