"""ONNX ConvTranspose and torch's conventions, against cases worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unstride
from unstride import onnx
from unstride.errors import AttributeValueError, ShapeError


def window(op: Any, x: int, k: int) -> tuple[int, int]:
    found = op.resolve((1, 1, x), (1, 1, k)).windows[0]
    return found.begin, found.size


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        # X=4, s=2, K=3: full = 9
        ({"pads": [1, 2]}, (1, 6)),
        ({"pads": [1, 2], "output_padding": [1]}, (1, 7)),
        ({"auto_pad": "VALID", "pads": [1, 2]}, (0, 9)),
        ({"auto_pad": "SAME_UPPER"}, (0, 8)),  # t = 1
        ({"auto_pad": "SAME_LOWER"}, (1, 8)),
        ({"output_shape": [6], "pads": [2, 0]}, (2, 6)),  # t = 3, pads ignored
        ({"output_shape": [6], "auto_pad": "SAME_UPPER"}, (1, 6)),
        ({"output_shape": [6], "auto_pad": "VALID"}, (2, 6)),
        ({"output_shape": [11]}, (0, 11)),  # t clamped
        ({"output_shape": [1, 1, 6]}, (2, 6)),  # the full shape
    ],
)
def test_windows(attributes: dict[str, Any], expected: tuple[int, int]) -> None:
    assert window(onnx.ConvTranspose(strides=[2], **attributes), 4, 3) == expected


def test_same_never_pads_a_kernel_below_the_stride() -> None:
    assert window(onnx.ConvTranspose(strides=[3], auto_pad="SAME_UPPER"), 4, 1) == (0, 10)


def test_defaults_fit_any_rank() -> None:
    op = onnx.ConvTranspose()
    assert op.infer_shape((1, 2, 4), (2, 3, 2)) == (1, 3, 5)
    assert op.infer_shape((1, 2, 4, 4, 4), (2, 3, 2, 2, 2)) == (1, 3, 5, 5, 5)


@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"output_padding": [2], "strides": [2]}, "output_padding"),
        ({"kernel_shape": [5]}, "kernel_shape"),
        ({"pads": [1, 1, 1]}, "pads"),
        ({"strides": [1, 1], "pads": [0, 0]}, "pads"),
        ({"group": 3}, "group"),
        ({"group": 0}, "group"),
        ({"output_shape": [2, 2, 6]}, "output_shape"),
        ({"auto_pad": "SAME"}, "auto_pad"),
    ],
)
def test_bad_attributes(attributes: dict[str, Any], field: str) -> None:
    with pytest.raises((AttributeValueError, ShapeError)) as caught:
        onnx.ConvTranspose(**attributes).infer_shape((1, 2, 4), (2, 1, 3))
    assert caught.value.field == field


def test_groups_and_bias() -> None:
    x, w = np.ones((1, 4, 1), np.float32), np.ones((4, 3, 1), np.float32)
    b = np.arange(6, dtype=np.float32)
    assert onnx.ConvTranspose(group=2)(x, w, b).ravel().tolist() == [2, 3, 4, 5, 6, 7]
    with pytest.raises(ShapeError, match="6 channels"):
        onnx.ConvTranspose(group=2)(x, w, b[:3])


def test_functional_takes_one_integer_or_a_list() -> None:
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    one = unstride.conv_transpose(x, w, stride=2, padding=1, output_padding=1)
    many = unstride.conv_transpose(x, w, stride=[2, 2], padding=(1, 1), output_padding=np.array([1, 1]))
    assert one.shape == (1, 1, 6, 6)
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize(
    "attributes",
    [{"output_padding": 2, "stride": 2}, {"stride": 0}, {"groups": 2}, {"padding": [1]}, {"dilation": True}],
)
def test_functional_refuses(attributes: dict[str, Any]) -> None:
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    with pytest.raises(unstride.UnstrideError):
        unstride.conv_transpose(x, w, **attributes)
