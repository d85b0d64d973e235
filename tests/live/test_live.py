"""A few hundred random calls against live engines; `python -m tests.conformance` runs thousands."""

from __future__ import annotations

import pytest

from tests.conformance import check_engine, check_formulas
from unstride.cases import DIALECTS

CASES = 250


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("dialect", ["openvino", "onnx"])
def test_runtime_rules_against_the_engine(dialect: str, part: int) -> None:
    counts, failures = check_engine(dialect, CASES, seed=1 + part)
    assert not failures, "\n".join(failures[:10])
    assert counts["equal"] == CASES


@pytest.mark.torch
@pytest.mark.parametrize("dialect", ["onednn", "torch"])
def test_runtime_rules_against_torch(dialect: str) -> None:
    counts, failures = check_engine(dialect, CASES, seed=1)
    assert not failures, "\n".join(failures[:10])
    assert counts["equal"] == CASES


@pytest.mark.parametrize("rules", ["spec", "runtime"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_both_rule_sets_against_the_formulas(dialect: str, rules: str) -> None:
    _, failures = check_formulas(dialect, rules, 400, seed=1)
    assert not failures, "\n".join(failures[:10])
