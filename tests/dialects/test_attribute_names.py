"""Attributes that are missing, unknown, given twice or too many: one error of the tree, with a right call to copy."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import unstride
from tests.dialects.test_hostile_attributes import LEGAL
from unstride import onednn, onnx, openvino
from unstride.dialects import functional
from unstride.errors import AttributeNameError, AttributeValueError, DTypeError, UnstrideError

KINDS = pytest.mark.parametrize("kind", LEGAL, ids=lambda kind: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}")
NAMES = {"openvino": openvino, "onednn": onednn, "onnx": onnx, "functional": functional, "unstride": unstride}


def refused(call: Any, *args: Any, **options: Any) -> AttributeNameError:
    """The error, after its example was run."""
    with pytest.raises(AttributeNameError) as caught:
        call(*args, **options)
    error = caught.value
    assert isinstance(error, UnstrideError)
    assert isinstance(error, TypeError)  # what Python itself would have raised
    assert error.__context__ is None
    x, w = np.ones((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32)
    eval(error.fix.removeprefix("write "), NAMES | {"data": x, "filter": w})
    return error


@KINDS
def test_every_required_attribute_that_is_missing_is_named(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters.values()
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    for name in required:
        error = refused(kind, **{n: v for n, v in LEGAL[kind].items() if n != name})
        assert error.field == name
        assert name in str(error).split(":")[0]
        assert kind.__name__ in str(error)
        assert f"{name}=" in error.fix
    if required:
        assert refused(kind).field == required[0]


@KINDS
def test_every_misspelled_attribute_is_named_with_the_nearest(kind: Any) -> None:
    for name in inspect.signature(kind).parameters:
        error = refused(kind, **LEGAL[kind], **{f"{name}_": 1})
        assert error.field == f"{name}_"
        assert f"the nearest is {name}." in str(error)


@KINDS
def test_too_many_attributes_and_one_given_twice(kind: Any) -> None:
    names = list(inspect.signature(kind).parameters)
    assert "by position, 40 were given" in str(refused(kind, *[[2, 2]] * 40))
    error = refused(kind, [2, 2], **{names[0]: [2, 2]})
    assert (error.field, "twice" in str(error)) == (names[0], True)


@KINDS
def test_the_classes_are_still_dataclasses_that_show_their_attributes(kind: Any) -> None:
    shown = list(inspect.signature(kind).parameters)
    assert shown == [field.name for field in sorted(dataclasses.fields(kind), key=lambda f: f.kw_only) if field.init]
    assert kind.__doc__
    operator = kind(**LEGAL[kind])
    with pytest.raises(dataclasses.FrozenInstanceError):
        operator.anything = 1
    assert pickle.loads(pickle.dumps(operator)) == operator == dataclasses.replace(operator)
    with pytest.raises(AttributeNameError, match="no such attribute"):
        dataclasses.replace(operator, nothing=1)


def test_conv_transpose() -> None:
    x, w = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 2), np.float32)
    assert "strides: unstride.conv_transpose has no such argument, the nearest is stride." in str(
        refused(unstride.conv_transpose, x, w, strides=2)
    )
    assert refused(unstride.conv_transpose, x).field == "filter"
    assert refused(unstride.conv_transpose).field == "data"
    assert list(inspect.signature(unstride.conv_transpose).parameters)[:3] == ["data", "filter", "bias"]
    with pytest.raises(DTypeError):  # a TypeError of its own is left alone
        unstride.conv_transpose(x, w.astype(np.float16))


def test_hostile_names_stay_one_short_printable_line() -> None:
    error = refused(openvino.ConvolutionBackpropData, [2], **{"\x1b[2J" + "x" * 10**5: 1})
    assert str(error).isprintable()
    assert len(str(error)) < 400


def test_a_bad_value_is_told_apart_from_a_bad_name() -> None:
    with pytest.raises(AttributeValueError) as caught:
        openvino.ConvolutionBackpropData(None)  # type: ignore[arg-type]
    assert not isinstance(caught.value, AttributeNameError)


def test_a_type_error_from_inside_is_not_hidden() -> None:
    class Operator:
        def __init__(self, strides: int) -> None:
            raise TypeError("from inside")

    from unstride.dialects._named import named_attributes

    with pytest.raises(TypeError, match="from inside") as caught:
        named_attributes(Operator)(2)
    assert not isinstance(caught.value, UnstrideError)
