"""Plans and generated IR are what the golden files say; `python -m tests.golden.golden --write` accepts a change."""

from __future__ import annotations

from tests.compiler.cases import EXACT_ACTIVATIONS, Case
from tests.compiler.judge import check_exact
from tests.golden import golden


def test_nothing_changed() -> None:
    found = golden.differences()
    assert not found, "\n".join(f"{path}\n{text}" for path, text in found.items())


def test_names_are_unique() -> None:
    names = [case.name for case in golden.cases()]
    assert len(names) == len(set(names)) >= 36


def test_golden_cases_are_computed_right() -> None:
    """On this machine, whatever machine the golden file was planned for."""
    for golden_case in golden.cases():
        problem = golden_case.problem
        if problem.macs > 20_000_000:
            continue
        activation = golden_case.activation if golden_case.activation in EXACT_ACTIVATIONS else "none"
        case = Case(problem, activation, bias=True, threads=golden_case.threads, accuracy=golden_case.accuracy)
        assert check_exact(case) == "", str(case)
