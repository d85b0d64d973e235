"""The two operators: their shapes and errors, and their numbers against the forward operators and torch."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from unstride import onednn
from unstride.errors import AttributeValueError, DTypeError, ShapeError
from unstride.problem import Problem

CONVOLUTION = {"XIO": ("X", "I", "O"), "OIX": ("O", "I", "X")}
TRANSPOSED = {"XIO": ("X", "I", "O"), "OIX": ("O", "I", "X"), "IOX": ("I", "O", "X"), "XOI": ("X", "O", "I")}


def _draw(rng: Random, rank: int) -> dict[str, list[int]]:
    pools = {
        "kernel": (1, 2, 3, 4),
        "strides": (1, 2, 3),
        "dilations": (1, 1, 2),
        "pads_begin": (0, 1, 2),
        "pads_end": (0, 1, 2),
        "sizes": (5, 6, 7, 9),
    }
    return {name: [rng.choice(pool) for _ in range(rank)] for name, pool in pools.items()}


def _shape(data_format: str, batch: int, channels: int, spatial: list[int]) -> tuple[int, ...]:
    return (batch, channels, *spatial) if data_format == "NCX" else (batch, *spatial, channels)


def _integers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(-5, 6, shape).astype(np.float32)


def _channels_first(array: np.ndarray, data_format: str) -> np.ndarray:
    return array if data_format == "NCX" else np.moveaxis(array, -1, 1)


class Drawn:
    """A random call of one of the operators: attributes, shapes and arrays that belong together."""

    def __init__(self, rng: Random, seed: int, *, transposed: bool) -> None:
        self.transposed, self.rank = transposed, rng.randint(1, 3)
        a = _draw(rng, self.rank)
        self.kernel, self.groups = a.pop("kernel"), rng.choice((1, 1, 2, 3))
        sizes = a.pop("sizes")
        self.small, self.large = rng.choice((1, 2, 5)), rng.choice((1, 3, 4))  # channels of one group
        self.data_format = rng.choice(("NCX", "NXC"))
        self.filter_format = rng.choice(tuple(TRANSPOSED if transposed else CONVOLUTION))
        self.attributes = {**a, "groups": self.groups, "data_format": self.data_format}
        axes = zip(sizes, self.kernel, a["strides"], a["dilations"], a["pads_begin"], a["pads_end"], strict=True)
        extents = [(n, (k - 1) * d + 1, s, pb + pe) for n, k, s, d, pb, pe in axes]
        if transposed:
            result = [s * (n - 1) + ke - pads for n, ke, s, pads in extents]
        else:
            result = [(n + pads - ke) // s + 1 for n, ke, s, pads in extents]
        self.legal = min(result) >= 1
        channels = (self.groups * self.small, self.groups * self.large)
        data, delta = channels if transposed else channels[::-1]
        if self.legal:
            self.data = _integers(seed, _shape(self.data_format, 2, data, sizes))
            self.delta = _integers(seed + 1, _shape(self.data_format, 2, delta, result))
        self.filter_shape = self._filter_shape()

    def _filter_shape(self) -> tuple[int, ...]:
        """In the documents' letters: ConvTranspose divides OC by the groups, Convolution IC."""
        if self.transposed:
            sizes = {"I": [self.groups * self.small], "O": [self.large], "X": self.kernel}
        else:
            sizes = {"O": [self.groups * self.small], "I": [self.large], "X": self.kernel}
        order = (TRANSPOSED if self.transposed else CONVOLUTION)[self.filter_format]
        return tuple(size for letter in order for size in sizes[letter])

    def operator(self) -> onednn.ConvTransposeBackpropFilters | onednn.ConvolutionBackpropFilters:
        kind = onednn.ConvTransposeBackpropFilters if self.transposed else onednn.ConvolutionBackpropFilters
        return kind(**self.attributes, filter_format=self.filter_format)


def _drawn(seed: int, count: int, *, transposed: bool) -> list[Drawn]:
    rng = Random(f"filters {transposed} {seed}")
    cases: list[Drawn] = []
    while len(cases) < count:
        case = Drawn(rng, 2 * len(cases), transposed=transposed)
        if case.legal:
            cases.append(case)
    return cases


@pytest.mark.parametrize("seed", range(3))
def test_adjoint_of_conv_transpose(seed: int) -> None:
    """<ConvTranspose(x; w), dy> = <w, gradient> on integers, through the public operators only."""
    for index, case in enumerate(_drawn(seed, 25, transposed=True)):
        weights = _integers(index, case.filter_shape)
        forward = onednn.ConvTranspose(**case.attributes, filter_format=case.filter_format)(case.data, weights)
        gradient = case.operator()(case.data, case.delta, case.filter_shape)
        assert gradient.shape == case.filter_shape
        assert np.sum(forward * case.delta, dtype=np.float64) == np.sum(weights * gradient, dtype=np.float64)


@pytest.mark.parametrize("seed", range(3))
def test_adjoint_of_convolution(seed: int) -> None:
    """<x, ConvolutionBackpropData(dy; w)> = <w, gradient>: both are derivatives of one trilinear form."""
    for index, case in enumerate(_drawn(seed, 25, transposed=False)):
        weights = _integers(index, case.filter_shape)
        backward = onednn.ConvolutionBackpropData(**case.attributes, filter_format=case.filter_format)
        data_gradient = backward(case.delta, weights, output_shape=case.data.shape)
        gradient = case.operator()(case.data, case.delta, case.filter_shape)
        assert np.sum(data_gradient * case.data, dtype=np.float64) == np.sum(weights * gradient, dtype=np.float64)


@pytest.mark.torch
@pytest.mark.parametrize("transposed", [False, True])
def test_against_torch(transposed: bool) -> None:
    torch = pytest.importorskip("torch")
    names = (
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d") if transposed else ("conv1d", "conv2d", "conv3d")
    )
    for case in _drawn(9, 60, transposed=transposed):
        data, delta = (torch.tensor(_channels_first(a, case.data_format)) for a in (case.data, case.delta))
        a = case.attributes
        weights = torch.zeros(case.groups * case.small, case.large, *case.kernel, requires_grad=True)
        forward = getattr(torch.nn.functional, names[case.rank - 1])
        arguments = {"stride": a["strides"], "dilation": a["dilations"], "groups": case.groups}
        ends = list(zip(a["pads_begin"], a["pads_end"], strict=True))
        if transposed:
            full = forward(data, weights, **arguments)
            window = [slice(b, n - e) for (b, e), n in zip(ends, full.shape[2:], strict=True)]
            result = full[(..., *window)]
        else:
            pads = [pad for pair in reversed(ends) for pad in pair]
            result = forward(torch.nn.functional.pad(data, pads), weights, **arguments)
        result.backward(delta)
        expected = weights.grad.numpy()  # [small, large, K...]
        order = (TRANSPOSED if transposed else CONVOLUTION)[case.filter_format]
        small, large = ("I", "O") if transposed else ("O", "I")
        axes = {small: [0], large: [1], "X": list(range(2, 2 + case.rank))}
        expected = expected.transpose([axis for letter in order for axis in axes[letter]])
        assert np.array_equal(case.operator()(case.data, case.delta, case.filter_shape), expected), case.operator()


def test_auto_pad_is_the_forward_operators() -> None:
    """SAME means that of a convolution here: ceil(Y/s) positions, the odd zero at the end or at the beginning."""
    attributes = {"strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1], "filter_shape": [5, 3, 5]}
    for auto_pad, begin in (("same_upper", 1), ("same_lower", 2), ("valid", 0)):
        op = onednn.ConvolutionBackpropFilters(**attributes, auto_pad=auto_pad)
        x = 5 if auto_pad != "valid" else 3
        assert op.problem((1, 10, 3), (1, x, 5)).begin == (begin,)
    op = onednn.ConvTransposeBackpropFilters(**{**attributes, "strides": [1]}, auto_pad="same_lower")
    assert op.problem((1, 10, 3), (1, 10, 5)).begin == (2,)


def test_filter_shape_of_the_call_wins() -> None:
    op = onednn.ConvolutionBackpropFilters([1], [0], [0], [1], filter_shape=[2, 3, 4])
    assert op.infer_shape((1, 8, 3), (1, 7, 4)) == (2, 3, 4)
    assert op.infer_shape((1, 8, 3), (1, 6, 4), filter_shape=[3, 3, 4]) == (3, 3, 4)


def test_the_problem_is_the_forward_operators() -> None:
    op = onednn.ConvTransposeBackpropFilters([2, 2], [1, 1], [1, 1], [1, 1], data_format="NCX", filter_format="IOX")
    text = "scatter f32 NCX GIOX n1 g1 i20 o10 x5x5 k3x3 s2x2 d1x1 b1x1 y9x9"
    assert op.problem((1, 20, 5, 5), (1, 10, 9, 9), (20, 10, 3, 3)) == Problem.parse(text)


def test_what_does_not_belong_together() -> None:
    op = onednn.ConvolutionBackpropFilters([2], [0], [0], [1], data_format="NCX", filter_format="OIX")
    with pytest.raises(ShapeError, match="filter_shape: got None"):
        op.infer_shape((1, 4, 9), (1, 8, 4))
    with pytest.raises(ShapeError, match=r"output_delta: got \(1, 8, 5\)"):
        op.infer_shape((1, 4, 9), (1, 8, 5), [8, 4, 3])
    with pytest.raises(ShapeError, match="input_forward"):
        op.infer_shape((1, 5, 9), (1, 8, 4), [8, 4, 3])
    with pytest.raises(AttributeValueError, match="filter_shape"):
        onednn.ConvolutionBackpropFilters([2], [0], [0], [1], filter_shape=[8, 4])
    with pytest.raises(AttributeValueError, match="strides"):
        onednn.ConvTransposeBackpropFilters([0], [0], [0], [1])
    data, delta = np.zeros((1, 4, 9), np.float32), np.zeros((1, 8, 4), np.float64)
    with pytest.raises(DTypeError, match="output_delta"):
        op(data, delta, [8, 4, 3])


def test_bias_gradient_and_the_callers_buffer() -> None:
    op = onednn.ConvolutionBackpropFilters([2], [0], [0], [1], data_format="NCX", filter_format="OIX")
    data, delta = _integers(1, (2, 4, 9)), _integers(2, (2, 8, 4))
    expected = op(data, delta, [8, 4, 3])
    assert np.array_equal(op.bias_gradient(data, delta, [8, 4, 3]), delta.sum(axis=(0, 2)))
    for out in (np.full((8, 4, 3), np.nan, np.float32), np.full((8, 4, 3, 2), np.nan, np.float32)[..., 1]):
        assert op(data, delta, [8, 4, 3], out=out) is out
        assert np.array_equal(out, expected)


def test_explain_names_the_window_and_the_cut() -> None:
    op = onednn.ConvTransposeBackpropFilters([2, 2], [1, 1], [1, 1], [1, 1], data_format="NCX", filter_format="IOX")
    lines = op.explain((1, 20, 5, 5), (1, 10, 9, 9), (20, 10, 3, 3)).splitlines()
    assert lines[0] == (
        "oneDNN Graph ConvTransposeBackpropFilters-1: input [1, 20, 5, 5], delta [1, 10, 9, 9] -> "
        "filter [20, 10, 3, 3], f32"
    )
    assert lines[2] == "axis 0   begin 1, forward result 9; begin = pb; Y = full - pb - pe + op"
    assert [line.split()[0] for line in lines[4:]] == ["plan", "scratch"]
