"""The tree of errors and what each message tells."""

from __future__ import annotations

import pickle

import pytest

import unstride
from unstride import errors


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.AttributeValueError, ValueError),
        (errors.AttributeNameError, TypeError),
        (errors.AttributeNameError, errors.AttributeValueError),
        (errors.ShapeError, ValueError),
        (errors.DTypeError, TypeError),
        (errors.SizeLimitError, MemoryError),
        (errors.FormatError, ValueError),
    ],
)
def test_tree(kind: type[errors.UnstrideError], builtin: type[Exception]) -> None:
    assert issubclass(kind, errors.UnstrideError)
    assert issubclass(kind, builtin)
    assert getattr(unstride, kind.__name__) is kind


def test_message_names_field_value_rule_and_fix() -> None:
    error = errors.ShapeError("filter", (3, 3), "needs rank 4", "add axes")
    assert (error.field, error.given, error.rule, error.fix) == ("filter", (3, 3), "needs rank 4", "add axes")
    assert str(error) == "filter: got (3, 3); needs rank 4. Fix: add axes."


def test_errors_cross_process_borders() -> None:
    error = errors.SizeLimitError("data", 2**70, "too large")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.field) == (type(error), str(error), "data")
    # As dask's workers do it, who keep the traceback: made empty, then filled.
    empty = errors.SizeLimitError.__new__(errors.SizeLimitError)
    empty.__dict__.update(error.__dict__)
    assert str(empty) == str(error)


def test_hostile_values_do_not_flood_or_break_the_message() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "whose repr fails" in str(errors.ShapeError("x", Bad(), "rule"))
    assert "bits" in str(errors.ShapeError("x", 10**5000, "rule"))
    assert len(str(errors.ShapeError("x", "a" * 10**6, "rule"))) < 300


def test_rule_warning_is_a_user_warning() -> None:
    assert issubclass(unstride.RuleWarning, UserWarning)
