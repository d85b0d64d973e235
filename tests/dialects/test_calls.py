"""Operators with arrays: types, buffers, layers, activations."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from unstride import onednn, openvino
from unstride.errors import AttributeValueError, DTypeError, ShapeError

OP = openvino.ConvolutionBackpropData([2], [1], [1])
TYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]


def arrays(dtype: Any = np.float32) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.integers(-4, 5, (2, 3, 5)).astype(dtype), rng.integers(-2, 3, (3, 4, 3)).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_result_has_the_type_of_the_data(dtype: Any) -> None:
    y = OP(*arrays(dtype))
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float64), OP(*arrays(np.float64)))


def test_out_is_filled_and_returned() -> None:
    x, w = arrays()
    out = np.full((2, 4, 9), np.nan, np.float32)
    assert OP(x, w, out=out) is out
    np.testing.assert_array_equal(out, OP(x, w))
    assert OP.compile(w)(x, out=out) is out


@pytest.mark.parametrize("out", [np.empty((2, 4, 8), np.float32), np.empty((2, 4, 9), np.float64), [1.0], "x"])
def test_out_must_fit(out: Any) -> None:
    with pytest.raises((ShapeError, DTypeError)) as caught:
        OP(*arrays(), out=out)
    assert caught.value.field == "out"


def test_any_strides_and_read_only_inputs() -> None:
    x, w = arrays()
    expected = OP(x, w)
    spread = np.zeros((2, 3, 10), np.float32)[:, :, ::2]
    spread[...] = x
    turned = np.ascontiguousarray(w.transpose(2, 1, 0)).transpose(2, 1, 0)
    for array in (x, w):
        array.flags.writeable = False
    for data in (x, spread, x[:, ::-1][:, ::-1]):
        for filter in (w, turned):
            np.testing.assert_array_equal(OP(data, filter), expected)


def test_mixed_and_foreign_types_are_refused() -> None:
    x, w = arrays()
    with pytest.raises(DTypeError, match="one type") as caught:
        OP(x, w.astype(np.float64))
    assert caught.value.field == "filter"
    with pytest.raises(DTypeError):
        OP(x.astype(np.int32), w.astype(np.int32))
    with pytest.raises(DTypeError) as caught:
        OP([[1.0]], w)
    assert caught.value.field == "data"
    with pytest.raises(DTypeError) as caught:
        onednn.ConvTransposeBackpropData([1], [0], [0], [1])(None, w)
    assert caught.value.field == "output_delta"
    with pytest.raises(DTypeError):
        OP.resolve(x.shape, w.shape, dtype="int8")


def test_a_layer_takes_any_batch_and_size() -> None:
    x, w = arrays()
    layer = OP.compile(w)
    for data in (x, x[:1], x[:0], np.tile(x, (1, 1, 7)), x[:, :, :1]):
        np.testing.assert_array_equal(layer(data), OP(data, w))
    with pytest.raises(DTypeError):
        layer(x.astype(np.float64))
    with pytest.raises(ShapeError):
        layer(x[:, :2])


def test_a_layer_keeps_its_weights() -> None:
    x, w = arrays()
    layer, expected = OP.compile(w), OP(x, w)
    w[...] = 0
    np.testing.assert_array_equal(layer(x), expected)


ACTIVATIONS = {
    "relu": lambda v: np.maximum(v, 0),
    "tanh": np.tanh,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    ("leaky_relu", 0.25): lambda v: np.where(v > 0, v, 0.25 * v),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bias_and_activation(activation: Any) -> None:
    x, w = arrays()
    bias = np.array([1, -2, 3, 0.5], np.float32)
    plain = OP(x, w).astype(np.float64) + bias[:, None]
    got = OP.compile(w, bias, activation)(x)
    np.testing.assert_allclose(got, ACTIVATIONS[activation](plain), rtol=2e-6, atol=2e-6)


def test_options_of_compile_are_checked() -> None:
    _, w = arrays()
    with pytest.raises(AttributeValueError, match="relu"):
        OP.compile(w, activation="swish")
    with pytest.raises(AttributeValueError, match="strict"):
        OP.compile(w, accuracy="exact")
    with pytest.raises(AttributeValueError):
        OP.compile(w, threads=0)
    with pytest.raises(ShapeError, match="4 channels"):
        OP.compile(w, bias=np.ones(3, np.float32))
    with pytest.raises(DTypeError):
        OP.compile(w, bias=np.ones(4, np.float64))


def test_the_gradients_bias_has_the_small_sides_channels() -> None:
    op = onednn.ConvTransposeBackpropData([2], [1], [1], [1], data_format="NCX", filter_format="IOX")
    x, w = arrays()
    y = OP(x, w)
    layer = op.compile(w, bias=np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(layer(y), op(y, w) + np.array([1, 2, 3], np.float32)[:, None])


def test_structure_is_known_before_the_data() -> None:
    assert OP.structure((3, 4, 3)) == OP.problem((2, 3, 5), (3, 4, 3)).structure
