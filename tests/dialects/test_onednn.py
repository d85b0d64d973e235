"""oneDNN Graph's operators, against cases worked by hand from their documents."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from unstride import RuleWarning, onednn
from unstride.errors import AttributeValueError, ShapeError

FORMATS = {"data_format": "NCX", "filter_format": "OIX"}


def backprop(s: int = 2, pb: int = 0, pe: int = 0, d: int = 1, **rest: Any) -> onednn.ConvolutionBackpropData:
    return onednn.ConvolutionBackpropData([s], [pb], [pe], [d], **{**FORMATS, **rest})


def gradient(s: int = 2, pb: int = 0, pe: int = 0, d: int = 1, **rest: Any) -> onednn.ConvTransposeBackpropData:
    return onednn.ConvTransposeBackpropData([s], [pb], [pe], [d], **{**FORMATS, **rest})


def forward(s: int = 2, pb: int = 0, pe: int = 0, d: int = 1, **rest: Any) -> onednn.ConvTranspose:
    return onednn.ConvTranspose([s], [pb], [pe], [d], **{**FORMATS, **rest})


def window(op: Any, size: int, k: int, y: int | None = None) -> tuple[int, int]:
    found = op.resolve((1, 1, size), (1, 1, k), None if y is None else [y]).windows[0]
    return found.begin, found.size


def test_backprop_takes_pads_as_the_forward_convolution_does() -> None:
    # X=4, s=2, K=3, pads 1+1: full - pads = 7, and 8 convolves to 4 as well
    op = backprop(2, 1, 1)
    assert window(op, 4, 3, 7) == (1, 7)
    assert window(op, 4, 3, 8) == (1, 8)
    for wrong in (6, 9):
        with pytest.raises(ShapeError, match="from 7 to 8") as caught:
            window(op, 4, 3, wrong)
        assert caught.value.field == "output_shape"


@pytest.mark.parametrize(
    ("auto_pad", "y", "spec", "runtime"),
    [
        # X=4, s=2, K=4: full = 10; t = 10 - Y
        ("valid", 10, 0, 0),
        ("valid", 11, -1, 0),
        ("same_lower", 8, 1, 1),  # engine: Y%s==0, t=2, (2+1)//2
        ("same_lower", 7, 1, 2),  # spec t=3; engine t = 4-1 = 3, (3+1)//2
        ("same_upper", 7, 2, 1),
        ("same_upper", 8, 1, 1),
    ],
)
def test_backprop_auto_pad(auto_pad: str, y: int, spec: int, runtime: int) -> None:
    assert window(backprop(auto_pad=auto_pad), 4, 4, y) == (spec, y)
    assert window(backprop(auto_pad=auto_pad, rules="runtime"), 4, 4, y) == (runtime, y)


def test_backprop_at_runtime_needs_a_forward_convolution() -> None:
    with pytest.raises(ShapeError, match="from 10 to 11"):
        window(backprop(auto_pad="valid", rules="runtime"), 4, 4, 12)
    with pytest.raises(ShapeError, match="from 7 to 8"):
        window(backprop(auto_pad="same_upper", rules="runtime"), 4, 4, 9)
    found = backprop(auto_pad="valid").resolve((1, 1, 4), (1, 1, 4), [12])
    assert found.other is None
    assert "refuse" in str(found.warning)


def test_backprop_output_shape_from_attribute_or_call() -> None:
    assert backprop(output_shape=[9]).infer_shape((1, 1, 4), (1, 1, 3)) == (1, 1, 9)
    assert backprop(output_shape=[9]).infer_shape((1, 1, 4), (1, 1, 3), [10]) == (1, 1, 10)  # the call wins
    assert backprop(output_shape=[2, 5, 9]).infer_shape((2, 1, 4), (1, 5, 3)) == (2, 5, 9)
    last = backprop(output_shape=[2, 9, 5], data_format="NXC")
    assert last.infer_shape((2, 4, 1), (1, 5, 3)) == (2, 9, 5)
    with pytest.raises(ShapeError, match="required"):
        backprop().infer_shape((1, 1, 4), (1, 1, 3))
    with pytest.raises(ShapeError, match="batch and channels"):
        backprop(output_shape=[2, 9, 5]).infer_shape((2, 1, 4), (1, 5, 3))
    with pytest.raises(AttributeValueError, match="spatial sizes"):
        backprop(output_shape=[1, 2])
    sizes = np.array([9], np.int32)
    assert backprop().infer_shape((1, 1, 4), (1, 1, 3), sizes) == (1, 1, 9)


def test_backprop_output_padding_that_disagrees_warns() -> None:
    op = backprop(output_padding=[1])
    assert op.resolve((1, 1, 4), (1, 1, 3), [10]).warning is None
    warning = op.resolve((1, 1, 4), (1, 1, 3), [9]).warning
    assert warning is not None
    assert "output_padding 1" in warning
    with pytest.warns(RuleWarning):
        op(np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32), [9])


def test_backprop_channels_are_those_of_the_forward_convolution() -> None:
    # data has OC = 6 channels, the result IC = 4, two groups
    op = backprop(groups=2)
    assert op.infer_shape((1, 6, 4), (6, 2, 3), [9]) == (1, 4, 9)
    last = onednn.ConvolutionBackpropData([2], [0], [0], [1], groups=2)
    assert last.infer_shape((1, 4, 6), (3, 2, 6), [9]) == (1, 9, 4)  # XIO: K, IC/g, OC
    with pytest.raises(ShapeError) as caught:
        backprop(groups=4).infer_shape((1, 6, 4), (6, 2, 3), [9])
    assert caught.value.field == "groups"


@pytest.mark.parametrize(
    ("auto_pad", "pads", "padding", "y", "k", "expected"),
    [
        (None, (1, 1), 0, 8, 3, (1, 4)),  # (8+2-3)//2+1
        (None, (1, 1), 1, 8, 3, (1, 4)),  # (8+2-3-1)/2+1
        (None, (0, 0), 2, 9, 3, (0, 3)),  # (9-3-2)/2+1
        ("valid", (5, 5), 0, 9, 3, (0, 4)),
        ("same_upper", (5, 5), 0, 7, 4, (1, 4)),  # t = 3*2+4-7 = 3
        ("same_lower", (5, 5), 0, 7, 4, (2, 4)),
        ("same_upper", (5, 5), 1, 9, 4, (1, 4)),  # Y' = 8: t = 2
    ],
)
def test_gradient(
    auto_pad: str | None, pads: tuple[int, int], padding: int, y: int, k: int, expected: tuple[int, int]
) -> None:
    assert window(gradient(2, *pads, auto_pad=auto_pad, output_padding=[padding]), y, k) == expected


def test_gradient_with_output_padding_must_divide() -> None:
    with pytest.raises(ShapeError, match="output_padding") as caught:
        window(gradient(output_padding=[1]), 9, 3)
    assert caught.value.field == "output_delta"
    assert window(gradient(output_padding=[1], rules="runtime"), 9, 3) == (0, 4)  # the engine never reads it


def test_gradient_is_a_plain_convolution_of_output_delta() -> None:
    y = np.array([[[1, 2, 3, 4, 5]]], np.float32)
    w = np.array([[[1, 10, 100]]], np.float32)
    assert gradient()(y, w).tolist() == [[[321, 543]]]  # not flipped
    assert gradient(2, 1, 1)(y, w).tolist() == [[[210, 432, 54]]]
    with pytest.raises(ShapeError, match="no output_shape"):
        gradient().infer_shape((1, 1, 5), (1, 1, 3), [2])
    with pytest.raises(ShapeError, match="below 1"):
        gradient().infer_shape((1, 1, 2), (1, 1, 3))


def test_forward_and_gradient_are_a_pair() -> None:
    for auto_pad in (None, "valid", "same_upper", "same_lower"):
        for padding in (0, 1):
            for s, k in ((2, 3), (2, 4), (3, 5), (3, 2), (1, 4)):
                if padding >= s:
                    continue
                options = {"auto_pad": auto_pad, "output_padding": [padding]}
                begin, y = window(forward(s, 1 if k > 2 else 0, 0, **options), 5, k)
                assert window(gradient(s, 1 if k > 2 else 0, 0, **options), y, k) == (begin, 5)


def test_forward_same_and_bias() -> None:
    assert window(forward(auto_pad="same_upper"), 4, 5) == (1, 8)  # t = 3
    assert window(forward(auto_pad="same_lower"), 4, 5) == (2, 8)
    assert window(forward(auto_pad="same_lower", output_padding=[1]), 4, 5) == (2, 9)
    assert window(forward(auto_pad="same_upper"), 4, 1) == (0, 7)  # a kernel below the stride is not padded
    x, w = np.ones((1, 2, 1), np.float32), np.ones((3, 2, 1), np.float32)
    assert forward(1)(x, w, np.array([1, 2, 3], np.float32)).tolist() == [[[3], [4], [5]]]


@pytest.mark.parametrize("name", ["OIX", "XIO", "IOX", "XOI"])
def test_filter_formats_of_the_transpose_pair_say_the_same(name: str) -> None:
    rng = np.random.default_rng(0)
    groups, ci, co, k = 2, 3, 2, 3
    core = rng.integers(-3, 4, (groups * ci, co, k)).astype(np.float32)  # IOX
    order = {"OIX": (1, 0, 2), "XIO": (2, 0, 1), "IOX": (0, 1, 2), "XOI": (2, 1, 0)}[name]
    x = rng.integers(-3, 4, (1, groups * ci, 4)).astype(np.float32)
    expected = forward(groups=groups, filter_format="IOX")(x, core)
    got = forward(groups=groups, filter_format=name)(x, core.transpose(order))
    np.testing.assert_array_equal(got, expected)
    back = gradient(groups=groups, filter_format=name)(expected, core.transpose(order))
    np.testing.assert_array_equal(back, gradient(groups=groups, filter_format="IOX")(expected, core))


def test_data_formats_say_the_same() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.integers(-3, 4, (2, 4, 5)).astype(np.float32), rng.integers(-3, 4, (3, 4, 2)).astype(np.float32)
    first = forward()(x, w)
    last = forward(data_format="NXC")(np.moveaxis(x, 1, -1), w)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), first)


def test_no_warning_where_document_and_engine_agree() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backprop(2, 1, 1)(np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32), [7])
        forward(auto_pad="same_lower")(np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32))
