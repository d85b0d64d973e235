"""Relations between results that need no oracle: they hold for any correct implementation of the window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.brute import window
from tests.strategies import compute, integers, operands, problems
from unstride import onednn, onnx, openvino
from unstride.dialects import functional
from unstride.problem import FILTER_LAYOUTS, Problem

SEEDS = st.integers(0, 1000)


@given(problems(), SEEDS)
def test_adjoint_identity(p: Problem, seed: int) -> None:
    """<A x, y> = <x, A' y>."""
    x, w = operands(p, seed)
    y = integers(p.result_shape, seed + 2)
    forward, backward = compute(p, x, w), compute(replace(p, direction="gather"), y, w)
    assert np.vdot(forward.astype(np.float64), y) == np.vdot(x, backward.astype(np.float64))


@given(st.one_of(problems(), problems("gather")), SEEDS)
def test_linearity(p: Problem, seed: int) -> None:
    x, w = operands(p, seed)
    z, v = operands(p, seed + 2)
    np.testing.assert_array_equal(compute(p, 2 * x - z, w), 2 * compute(p, x, w) - compute(p, z, w))
    np.testing.assert_array_equal(compute(p, x, 3 * w + v), 3 * compute(p, x, w) + compute(p, x, v))


@given(problems(data_layouts=("NCX",)), SEEDS)
def test_padding_is_crop(p: Problem, seed: int) -> None:
    x, w = operands(p, seed)
    whole = compute(replace(p, begin=(0,) * p.rank, y=p.full), x, w)
    np.testing.assert_array_equal(compute(p, x, w), window(whole, p.begin, p.y))


@given(st.one_of(problems(filter_layouts=("GIOX",)), problems("gather", filter_layouts=("GIOX",))), SEEDS)
def test_dilation_is_zero_stuffing(p: Problem, seed: int) -> None:
    x, w = operands(p, seed)
    stuffed = np.zeros((*w.shape[:3], *p.extent), np.float32)
    stuffed[(..., *(slice(None, None, d) for d in p.dilation))] = w
    dense = replace(p, kernel=p.extent, dilation=(1,) * p.rank)
    np.testing.assert_array_equal(compute(p, x, w), compute(dense, x, stuffed))


@given(
    st.one_of(
        problems(data_layouts=("NCX",), filter_layouts=("GIOX",)), problems("gather", "f32", ("NCX",), ("GIOX",))
    ),
    SEEDS,
)
def test_groups_are_concatenation(p: Problem, seed: int) -> None:
    x, w = operands(p, seed)
    one = replace(p, groups=1)
    parts = [compute(one, part, w[g : g + 1]) for g, part in enumerate(np.split(x, p.groups, axis=1))]
    np.testing.assert_array_equal(compute(p, x, w), np.concatenate(parts, axis=1))


@given(problems(filter_layouts=("GIOX",), max_rank=2), SEEDS, st.integers(1, 4), st.integers(0, 2))
def test_fewer_axes_are_a_special_case_of_more(p: Problem, seed: int, stride: int, place: int) -> None:
    """An axis of one pixel and one tap changes nothing, wherever it is put."""
    place = min(place, p.rank)

    def put(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:place], value, *values[place:])

    lifted = replace(
        p,
        x=put(p.x, 1),
        kernel=put(p.kernel, 1),
        stride=put(p.stride, stride),
        dilation=put(p.dilation, 1),
        begin=put(p.begin, 0),
        y=put(p.y, 1),
    )
    x, w = operands(p, seed)
    flat = compute(p, x, w)
    deep = compute(lifted, x.reshape(lifted.data_shape), w.reshape(lifted.filter_shape))
    np.testing.assert_array_equal(deep.reshape(flat.shape), flat)


@given(problems(data_layouts=("NCX",)), SEEDS)
def test_one_step_of_the_input_is_one_stride_of_the_output(p: Problem, seed: int) -> None:
    x, w = operands(p, seed)
    later = np.pad(x, [(0, 0), (0, 0), *[(1, 0)] * p.rank])
    moved = replace(p, x=tuple(n + 1 for n in p.x), begin=tuple(b + s for b, s in zip(p.begin, p.stride, strict=True)))
    np.testing.assert_array_equal(compute(moved, later, w), compute(p, x, w))


@given(st.one_of(problems(), problems("gather")), SEEDS, st.sampled_from(FILTER_LAYOUTS))
def test_layouts_only_move_the_numbers(p: Problem, seed: int, layout: str) -> None:
    x, w = operands(p, seed)
    expected = compute(p, x, w)
    axes = "abc"[: p.rank]
    order, wanted = (name.replace("X", axes) for name in (p.filter_layout, layout))
    moved = np.ascontiguousarray(np.einsum(f"{order}->{wanted}", w))
    np.testing.assert_array_equal(compute(replace(p, filter_layout=layout), x, moved), expected)
    channels_first = p.data_layout == "NCX"
    ends = (1, -1) if channels_first else (-1, 1)
    other = replace(p, data_layout="NXC" if channels_first else "NCX")
    result = compute(other, np.ascontiguousarray(np.moveaxis(x, *ends)), w)
    np.testing.assert_array_equal(np.moveaxis(result, *reversed(ends)), expected)


@given(st.data())
def test_one_case_in_four_dialects_is_one_problem(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))

    def each(low: int, high: int) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(rank)]

    s, d, k, pads = each(2, 3), each(1, 2), each(2, 4), each(0, 1)
    padding = [data.draw(st.integers(0, stride - 1)) for stride in s]
    groups, ci, co = (data.draw(st.integers(1, 3)) for _ in range(3))
    x_shape, w_shape = (2, groups * ci, *each(2, 5)), (groups * ci, co, *k)
    grouped = openvino.GroupConvolutionBackpropData(s, pads, pads, d, output_padding=padding)
    transposed = onednn.ConvTranspose(s, pads, pads, d, None, padding, groups, data_format="NCX", filter_format="IOX")
    expected = grouped.problem(x_shape, (groups, ci, co, *k))
    assert transposed.problem(x_shape, w_shape) == expected
    assert onnx.ConvTranspose(s, pads + pads, d, groups, output_padding=padding).problem(x_shape, w_shape) == expected
    assert functional.ConvTranspose(s, pads, padding, groups, d).problem(x_shape, w_shape) == expected
    backprop = onednn.ConvolutionBackpropData(
        s, pads, pads, d, groups=groups, data_format="NCX", filter_format="OIX", output_shape=expected.y
    )
    assert backprop.problem(x_shape, w_shape) == expected
    if groups == 1:
        plain = openvino.ConvolutionBackpropData(s, pads, pads, d, output_padding=padding)
        assert plain.problem(x_shape, w_shape) == expected


def test_layouts_that_are_one_in_memory_are_one_problem() -> None:
    """A single output channel: OIX and IOX filters hold the same bytes."""
    problems = {
        onednn.ConvTranspose([2], [0], [0], [1], data_format="NCX", filter_format=name).problem((1, 4, 5), shape)
        for name, shape in (("OIX", (1, 4, 3)), ("IOX", (4, 1, 3)))
    }
    assert len(problems) == 1
