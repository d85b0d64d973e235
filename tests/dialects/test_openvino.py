"""OpenVINO's two operators, against cases worked by hand from their documents."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from unstride import RuleWarning, openvino
from unstride.errors import AttributeValueError, ShapeError


def window(op: Any, x: int, k: int, y: int | None = None) -> tuple[int, int]:
    """(begin, Y) of a 1D call."""
    found = op.resolve((1, 1, x), (1, 1, k), None if y is None else [y]).windows[0]
    return found.begin, found.size


def op(
    s: int, pb: int = 0, pe: int = 0, auto_pad: str = "explicit", op: int = 0, d: int = 1, rules: str = "spec"
) -> Any:
    return openvino.ConvolutionBackpropData([s], [pb], [pe], [d], auto_pad, [op], rules=rules)


def test_examples_of_the_documents() -> None:
    conv = openvino.ConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1])
    assert conv.infer_shape((1, 20, 224, 224), (20, 10, 3, 3)) == (1, 10, 447, 447)
    group = openvino.GroupConvolutionBackpropData([2, 2], [1, 1], [1, 1], [1, 1])
    assert group.infer_shape((1, 20, 224, 224), (4, 5, 2, 3, 3)) == (1, 8, 447, 447)
    assert conv.infer_shape((1, 20, 2, 2), (20, 10, 3, 3), output_shape=[4, 4]) == (1, 10, 4, 4)


@pytest.mark.parametrize("rules", ["spec", "runtime"])
def test_without_output_shape(rules: str) -> None:
    # X=4, s=2, K=3: full = 2*3 + 3 = 9
    assert window(op(2, 1, 2, rules=rules), 4, 3) == (1, 6)
    assert window(op(2, 1, 2, op=1, rules=rules), 4, 3) == (1, 7)
    assert window(op(2, d=3, rules=rules), 4, 3) == (0, 13)  # ke = 7
    for auto_pad in ("valid", "same_upper", "same_lower"):
        # "same" does not mean the same size, and pads are ignored
        assert window(op(2, 1, 2, auto_pad, 1, rules=rules), 4, 3) == (0, 10)


@pytest.mark.parametrize(
    ("auto_pad", "pads", "padding", "y", "spec", "runtime"),
    [
        # full = 9; t = 9 - Y + op
        ("explicit", (1, 2), 0, 6, 1, 1),  # t=3: 3//2 = 1, and pb = 1
        ("explicit", (2, 0), 0, 6, 1, 2),  # the document ignores pads, the engine keeps pads_begin
        ("explicit", (0, 0), 2, 6, 2, 0),  # t=5: the engine ignores output_padding too
        ("valid", (3, 3), 0, 6, 1, 0),
        ("same_lower", (3, 3), 0, 6, 1, 1),  # t=3
        ("same_upper", (3, 3), 0, 6, 2, 2),  # t=3: the formula puts the odd one at the beginning
        ("same_lower", (0, 0), 0, 12, -2, 0),  # t=-3: floor division centres, the engine clamps
        ("same_upper", (0, 0), 0, 12, -1, 0),
        ("same_upper", (0, 0), 3, 12, 0, 0),  # t=0
    ],
)
def test_with_output_shape(auto_pad: str, pads: tuple[int, int], padding: int, y: int, spec: int, runtime: int) -> None:
    assert window(op(2, *pads, auto_pad, padding), 4, 3, y) == (spec, y)
    assert window(op(2, *pads, auto_pad, padding, rules="runtime"), 4, 3, y) == (runtime, y)


def test_a_warning_exactly_where_the_rule_sets_disagree() -> None:
    x, w = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32)
    with pytest.warns(RuleWarning, match=r"spec rules give begin \[1\].*runtime rules begin \[2\].*rules="):
        op(2, 2)(x, w, output_shape=[6])
    with pytest.warns(RuleWarning, match="now 'runtime'"):
        op(2, 2, rules="runtime").compile(w)(x, output_shape=[6])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op(2, 1)(x, w, output_shape=[6])  # both begin at 1
        op(2, 2)(x, w)
        assert op(2, 2).infer_shape((1, 1, 4), (1, 1, 3), [6]) == (1, 1, 6)  # the shape is not in doubt
    assert op(2, 2).resolve((1, 1, 4), (1, 1, 3), [6]).warning is not None


def test_the_numbers_follow_the_window() -> None:
    x, w = np.array([[[1, 2]]], np.float32), np.array([[[1, 10, 100]]], np.float32)
    # full = 1 10 102 20 200
    assert op(2)(x, w).tolist() == [[[1, 10, 102, 20, 200]]]
    assert op(2, 1, 1)(x, w).tolist() == [[[10, 102, 20]]]
    assert op(2, 0, 0, op=2)(x, w).tolist() == [[[1, 10, 102, 20, 200, 0, 0]]]
    with pytest.warns(RuleWarning):
        assert op(2, auto_pad="same_lower")(x, w, output_shape=[8]).tolist() == [[[0, 0, 1, 10, 102, 20, 200, 0]]]
    with pytest.warns(RuleWarning):
        late = op(2, auto_pad="same_lower", rules="runtime")(x, w, output_shape=[8])
    assert late.tolist() == [[[1, 10, 102, 20, 200, 0, 0, 0]]]


@pytest.mark.parametrize("word", ["explicit", "EXPLICIT", "none", "None", "", None, "notset", "NotSet"])
def test_spellings_of_explicit(word: Any) -> None:
    assert openvino.ConvolutionBackpropData([1], auto_pad=word).auto_pad == "explicit"


def test_defaults_and_equality() -> None:
    short = openvino.ConvolutionBackpropData([2, 2])
    long = openvino.ConvolutionBackpropData((2, 2), [0, 0], [0, 0], [1, 1], "explicit", [0, 0], rules="spec")
    assert short == long
    assert hash(short) == hash(long)
    assert short.pads_begin == (0, 0)
    assert short.dilations == (1, 1)
    with pytest.raises(AttributeError):
        short.strides = (3, 3)  # type: ignore[misc]


def test_ranks() -> None:
    for rank in (1, 2, 3):
        conv = openvino.ConvolutionBackpropData([1] * rank)
        assert conv.infer_shape((1, 2, *[4] * rank), (2, 3, *[2] * rank)) == (1, 3, *[5] * rank)
    with pytest.raises(ShapeError, match="rank 3, 4 or 5"):
        openvino.ConvolutionBackpropData([1] * 4).infer_shape((1, 2, 4, 4, 4, 4), (2, 3, 2, 2, 2, 2))
    group = openvino.GroupConvolutionBackpropData([1] * 4)
    assert group.infer_shape((1, 4, 4, 4, 4, 4), (2, 2, 3, 2, 2, 2, 2)) == (1, 6, 5, 5, 5, 5)


def test_empty_results_are_results_and_negative_sizes_are_errors() -> None:
    w = np.ones((1, 1, 3), np.float32)
    assert op(1)(np.ones((0, 1, 4), np.float32), w).shape == (0, 1, 6)
    assert op(1, 3, 3)(np.ones((1, 1, 4), np.float32), w).shape == (1, 1, 0)
    with pytest.raises(ShapeError, match="below 0") as caught:
        op(1, 4, 3).infer_shape((1, 1, 4), (1, 1, 3))
    assert caught.value.field == "output_shape"


@pytest.mark.parametrize(
    ("data", "filter", "wanted", "field"),
    [
        ((1, 3, 4), (2, 1, 3), None, "data"),  # channels
        ((1, 2), (2, 1, 3), None, "data"),  # rank
        ((1, 2, 4, 4), (2, 1, 3), None, "data"),
        ((1, 2, 0), (2, 1, 3), None, "data"),
        ((1, 2, 4), (2, 1, 0), None, "filter"),
        ((1, 2, 4), (2, 1), None, "filter"),
        ((1, 2, 4, 4), (2, 1, 3, 3), None, "strides"),
        ((1, 2, 4), (2, 1, 3), [1, 1, 8], "output_shape"),  # spatial sizes only
        ((1, 2, 4), (2, 1, 3), [-2], "output_shape"),
        ((1, 2, 4), (2, 1, 3), 8, "output_shape"),
        ((1, 2, 4.0), (2, 1, 3), None, "data"),
    ],
)
def test_shapes_that_do_not_belong_together(data: Any, filter: Any, wanted: Any, field: str) -> None:
    with pytest.raises(ShapeError) as caught:
        op(1).infer_shape(data, filter, wanted)
    assert caught.value.field == field


def test_lists_of_different_lengths() -> None:
    with pytest.raises(AttributeValueError, match="needs 2 integers, has 1") as caught:
        openvino.ConvolutionBackpropData([1, 1], [0])
    assert caught.value.field == "pads_begin"
