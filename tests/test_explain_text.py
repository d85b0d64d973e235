"""The text of a resolved call, and the same layer in other frameworks' words, which are run."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from unstride import onednn, onnx, openvino
from unstride.cases import DIALECTS, random_call, random_problem
from unstride.dialects import Operator
from unstride.explain.spelling import spellings
from unstride.problem import Problem
from unstride.reference import reference

OWN = {"OpenVINO", "oneDNN", "ONNX"}


def test_text_tells_window_rule_source_and_the_other_rule_set() -> None:
    op = openvino.ConvolutionBackpropData([2, 2], [1, 1], [1, 1])
    text = op.explain((1, 20, 224, 224), (20, 10, 3, 3), output_shape=[450, 450])
    for piece in (
        "problem  scatter f32 NCX GIOX n1 g1 i20 o10 x224x224 k3x3 s2x2 d1x1 b-1x-1 y450x450",
        "begin -1, Y 450",
        "t = full - Y + op; begin = t // 2",
        "OpenVINO ConvolutionBackpropData-1",
        "runtime rules  begin [1, 1], size [450, 450] by begin = pb",
        "warning  ",
        "phases  y[0 mod 2] from w[1]; y[1 mod 2] from w[0, 2]",
        "flops",
    ):
        assert piece in text
    assert "the same window" in op.explain((1, 20, 224, 224), (20, 10, 3, 3))


def test_every_legal_call_can_be_explained() -> None:
    for dialect in DIALECTS:
        rng = Random(dialect)
        for _ in range(60):
            call = random_call(rng, dialect)
            text = call.operator.explain(call.data_shape, call.filter_shape, call.output_shape)
            assert str(call.resolve().problem) in text


def test_a_huge_stride_does_not_hang_the_text() -> None:
    op = openvino.ConvolutionBackpropData([2**31 - 1])
    assert "2147483647 in all" in op.explain((1, 1, 1), (1, 1, 50))


class Recorder:
    """Stands for the arrays when a spelling is evaluated: the operator reports the Problem of its call."""

    def __init__(self, operator: Operator, shapes: dict[str, tuple[int, ...]]) -> None:
        self.operator, self.shapes = operator, shapes

    def __call__(self, x: str, w: str, output_shape: Any = None) -> Problem:
        return self.operator.problem(self.shapes["x"], self.shapes["w"], output_shape)


def own_problem(framework: str, code: str, p: Problem) -> Problem:
    """The Problem that a spelling of one of this package's dialects means."""
    channels = p.groups * p.ci
    filter_shape: tuple[int, ...] = (channels, p.co, *p.kernel)
    data_shape = (
        p.batch,
        channels if p.direction == "scatter" else p.groups * p.co,
        *(p.x if p.direction == "scatter" else p.y),
    )
    if "GroupConvolution" in code:
        filter_shape = (p.groups, p.ci, p.co, *p.kernel)
    if framework == "oneDNN":
        sizes = {"I": (channels,), "O": (p.co,), "X": p.kernel}
        filter_shape = tuple(n for letter in code.split('filter_format="')[1][:3] for n in sizes[letter])
        data_shape = p.data_shape
    shapes = {"x": data_shape, "w": filter_shape}

    def recorded(kind: Any) -> Any:
        return lambda *a, **k: Recorder(kind(*a, **k), shapes)

    class Namespace:
        def __init__(self, module: Any) -> None:
            self.module = module

        def __getattr__(self, name: str) -> Any:
            return recorded(getattr(self.module, name))

    names = {"openvino": Namespace(openvino), "onednn": Namespace(onednn), "onnx": Namespace(onnx), "x": "x", "w": "w"}
    problem: Problem = eval(code, names)
    return problem


def test_spellings_in_this_packages_dialects_mean_the_same_problem() -> None:
    rng = Random(1)
    said = dict.fromkeys(OWN, 0)
    for _ in range(1500):
        p = random_problem(rng, max_rank=4)
        for spelling in spellings(p):
            assert bool(spelling.code) != bool(spelling.reason)
            if spelling.framework not in OWN or not spelling.code:
                continue
            said[spelling.framework] += 1
            q = own_problem(spelling.framework, spelling.code, p)
            assert (q.begin, q.x, q.y) == (p.begin, p.x, p.y), f"{p}: {spelling.code}"
            assert (q.groups, q.ci, q.co, q.kernel, q.stride, q.dilation) == (
                p.groups, p.ci, p.co, p.kernel, p.stride, p.dilation
            )  # fmt: skip
    assert min(said.values()) > 100


def as_iox(p: Problem, w: Any) -> Any:
    """The filter as [G*I, O, K...]."""
    axes = "abcd"[: p.rank]
    order = p.filter_layout.replace("X", axes)
    return np.einsum(f"{order}->GIO{axes}", w).reshape(p.groups * p.ci, p.co, *p.kernel)


def check_by_running(framework: str, names: dict[str, Any], as_array: Any, back: Any, cases: int) -> None:
    rng, numbers = Random(2), np.random.default_rng(0)
    said = 0
    for _ in range(cases):
        p = random_problem(rng, dtypes=("f32",), data_layouts=("NCX",), max_elements=2000, max_macs=20_000)
        (spelling,) = (s for s in spellings(p) if s.framework == framework)
        if not spelling.code or 0 in (*p.y, *p.x):
            continue
        said += 1
        x = numbers.integers(-4, 5, p.data_shape).astype(np.float32)
        w = numbers.integers(-4, 5, p.filter_shape).astype(np.float32)
        got = back(eval(spelling.code, {**names, "x": as_array(x), "w": as_array(as_iox(p, w))}))
        np.testing.assert_array_equal(got, reference(p, x, w), err_msg=f"{p}: {spelling.code}")
    assert said > cases // 3


@pytest.mark.torch
def test_torch_spellings_run() -> None:
    import torch

    names = {"F": torch.nn.functional}
    check_by_running("torch", names, lambda a: torch.tensor(np.ascontiguousarray(a)), lambda t: t.numpy(), 400)


@pytest.mark.jax
def test_jax_spellings_run() -> None:
    import jax.numpy as jnp
    from jax import lax

    check_by_running("JAX", {"lax": lax, "jnp": jnp}, jnp.asarray, np.asarray, 40)


def test_keras_spelling_of_a_common_layer() -> None:
    same = Problem.parse("scatter f32 NXC XOGI n1 g1 i8 o4 x5x5 k3x3 s2x2 d1x1 b0x0 y10x10")
    (keras,) = (s for s in spellings(same) if s.framework == "Keras")
    assert keras.code == (
        'keras.layers.Conv2DTranspose(4, (3, 3), strides=(2, 2), dilation_rate=(1, 1), padding="same", '
        'data_format="channels_last", use_bias=False)'
    )
