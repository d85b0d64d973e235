"""unstride.bridges.jax.conv_transpose under JAX's transformations, beside JAX's own convolution."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

import jax.numpy as jnp  # noqa: E402
from jax import test_util  # noqa: E402

import unstride  # noqa: E402
from unstride import AttributeValueError, DTypeError, ShapeError  # noqa: E402
from unstride.bridges import _xla_ffi  # noqa: E402
from unstride.bridges.jax import conv_transpose  # noqa: E402

CASES = {
    "1d": ((2, 6, 9), (6, 4, 5), {"stride": 3, "padding": 2, "output_padding": 1}),
    "2d grouped": ((2, 6, 5, 4), (6, 2, 3, 4), {"stride": (2, 1), "padding": (1, 2), "groups": 3}),
    "2d dilated": ((1, 4, 5, 6), (4, 3, 3, 2), {"stride": 2, "dilation": (3, 2), "output_padding": (2, 1)}),
    "3d": ((1, 3, 3, 4, 2), (3, 2, 2, 3, 2), {"stride": (2, 1, 3)}),
}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def operands(name, dtype=np.float64):
    x_shape, w_shape, attributes = CASES[name]
    rng = np.random.default_rng(0)
    shapes = (x_shape, w_shape, (w_shape[1] * attributes.get("groups", 1),))
    return *(jnp.asarray(rng.integers(-3, 4, shape), dtype) for shape in shapes), attributes


def by_jax(x, w, bias, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """JAX's own: a convolution of the zero-stuffed data with the flipped filter."""
    rank = w.ndim - 2
    spread = [
        value if isinstance(value, tuple) else (value,) * rank for value in (stride, padding, output_padding, dilation)
    ]
    stride, padding, output_padding, dilation = spread
    blocks = w.reshape(groups, -1, *w.shape[1:])
    kernel = jnp.flip(jnp.concatenate(jnp.swapaxes(blocks, 1, 2)), range(2, w.ndim))
    extents = [(k - 1) * d for k, d in zip(w.shape[2:], dilation, strict=True)]
    pads = [(e - p, e - p + o) for e, p, o in zip(extents, padding, output_padding, strict=True)]
    letters = "XYZ"[:rank]
    result = jax.lax.conv_general_dilated(
        x, kernel, (1,) * rank, pads, stride, dilation, (f"NC{letters}", f"OI{letters}", f"NC{letters}"), groups
    )
    return result if bias is None else result + bias.reshape(-1, *(1,) * rank)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_eager_and_jitted(name, with_bias):
    x, w, bias, attributes = operands(name)
    bias = bias if with_bias else None
    expected = by_jax(x, w, bias, **attributes)
    np.testing.assert_array_equal(conv_transpose(x, w, bias, **attributes), expected)
    jitted = jax.jit(lambda *given: conv_transpose(*given, **attributes))
    np.testing.assert_array_equal(jitted(x, w, bias), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_type(dtype):
    x, w, bias, attributes = operands("2d grouped", dtype)
    result = conv_transpose(x, w, bias, **attributes)
    assert result.dtype == dtype
    expected = by_jax(*operands("2d grouped")[:3], **attributes)
    np.testing.assert_array_equal(result.astype(jnp.float64), expected)


@pytest.mark.parametrize("name", CASES)
def test_channels_last(name):
    x, w, bias, attributes = operands(name)
    result = conv_transpose(jnp.moveaxis(x, 1, -1), w, bias, **attributes, layout="NXC")
    np.testing.assert_array_equal(jnp.moveaxis(result, -1, 1), conv_transpose(x, w, bias, **attributes))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_derivatives_forward_and_reverse_twice(name, layout):
    x, w, bias, attributes = operands(name)
    x = x if layout == "NCX" else jnp.moveaxis(x, 1, -1)
    test_util.check_grads(
        lambda *given: conv_transpose(*given, **attributes, layout=layout), (x, w, bias), order=2, modes=("fwd", "rev")
    )


@pytest.mark.parametrize("name", ["1d", "2d grouped"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("axes", [(0, 0, 0), (1, None, None), (None, 2, None), (None, None, 0), (-1, None, 0)])
def test_vmap(name, layout, axes):
    x, w, bias, attributes = operands(name)
    x = x if layout == "NCX" else jnp.moveaxis(x, 1, -1)

    def function(x, w, bias):
        return conv_transpose(x, w, bias, **attributes, layout=layout)

    many = [[operand, operand + 1, 2 * operand] for operand in (x, w, bias)]
    given = [rows[0] if axis is None else jnp.stack(rows, axis) for rows, axis in zip(many, axes, strict=True)]
    singly = [[rows[0] if axis is None else rows[i] for rows, axis in zip(many, axes, strict=True)] for i in range(3)]
    np.testing.assert_array_equal(jax.vmap(function, axes)(*given), jnp.stack([function(*row) for row in singly]))


def test_transformations_nest():
    x, w, bias, attributes = operands("2d grouped")

    def loss(function, w, x):
        return jnp.sum(function(x, w, bias, **attributes) ** 2)

    xs = jnp.stack([x, x - 1])
    found, expected = (
        jax.jit(jax.vmap(jax.grad(lambda w, x, f=f: loss(f, w, x)), (None, 0)))(w, xs) for f in (conv_transpose, by_jax)
    )
    np.testing.assert_allclose(found, expected)
    found, expected = (jax.hessian(lambda x, f=f: loss(f, w, x))(x[:1]) for f in (conv_transpose, by_jax))
    np.testing.assert_allclose(found, expected)


def test_inside_a_loop():
    w = jnp.ones((2, 2, 3))

    def step(x, _):
        return conv_transpose(x, w, padding=1) / 3, None

    x = jnp.arange(12.0).reshape(1, 2, 6)
    found, _ = jax.lax.scan(step, x, None, length=4)
    for _ in range(4):
        x = by_jax(x, w, None, padding=1) / 3
    np.testing.assert_allclose(found, x)


def test_buffers_are_xlas_own(monkeypatch):
    seen = []
    compute = _xla_ffi._family.compute
    monkeypatch.setattr(_xla_ffi._family, "compute", lambda *given: (seen.extend(given[2:4]), compute(*given)))
    x, w, *_ = operands("1d")
    conv_transpose(x, w).block_until_ready()
    assert [array.ctypes.data for array in seen] == [a.unsafe_buffer_pointer() for a in (x, w)]


def test_empty_batch():
    assert conv_transpose(jnp.ones((0, 3, 4)), jnp.ones((3, 2, 2)), stride=2).shape == (0, 2, 8)


def test_a_failure_inside_the_call_is_an_error_of_jax_not_a_crash(monkeypatch):
    def fail(*_):
        raise MemoryError("none left")

    monkeypatch.setattr(_xla_ffi._family, "compute", fail)
    with pytest.raises(Exception, match="none left"):
        conv_transpose(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2))).block_until_ready()
    monkeypatch.undo()
    assert conv_transpose(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2))).shape == (1, 1, 5)


def test_errors_come_when_tracing():
    x, w = jnp.ones((1, 4, 5)), jnp.ones((4, 2, 3))
    with pytest.raises(ShapeError, match="channels"):
        jax.jit(conv_transpose)(x[:, :3], w)
    with pytest.raises(DTypeError, match="one type"):
        conv_transpose(x, w.astype(jnp.float32))
    with pytest.raises(DTypeError, match="f32"):
        conv_transpose(x.astype(int), w.astype(int))
    with pytest.raises(ShapeError, match="bias"):
        conv_transpose(x, w, jnp.ones(3))
    with pytest.raises(AttributeValueError, match="output_padding"):
        conv_transpose(x, w, output_padding=1)
    with pytest.raises(AttributeValueError, match="layout"):
        conv_transpose(x, w, layout="NHWC?")


def test_the_interpreter_may_end_with_calls_under_way():
    program = (
        "import jax, jax.numpy as jnp; from unstride.bridges.jax import conv_transpose\n"
        "f = jax.jit(lambda x, w: conv_transpose(x, w, stride=2))\n"
        "for _ in range(20): y = f(jnp.ones((4, 16, 64, 64)), jnp.ones((16, 16, 4, 4)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_plain_operator_takes_jax_arrays_and_gives_numpy():
    x, w, *_ = operands("1d")
    result = unstride.conv_transpose(x, w)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, conv_transpose(x, w))
