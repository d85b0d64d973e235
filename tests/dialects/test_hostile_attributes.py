"""Whatever is written into an attribute, the answer is a legal operator or an error of the package, and at once."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import time
from random import Random
from typing import Any

import numpy as np
import pytest

from unstride import onednn, onnx, openvino
from unstride.dialects import functional
from unstride.errors import UnstrideError

SECONDS = 0.05


class Explosive:
    """An object whose every protocol fails in its own way."""

    def __index__(self) -> int:
        raise KeyError("index")

    def __iter__(self) -> Any:
        raise ZeroDivisionError


HOSTILE: list[Any] = [
    None, "2", b"2", "", 2.0, 0.5, True, float("nan"), float("inf"), -1, 0, 1, 2, 2**31 - 1, 2**31, 2**55, 2**62, 2**63,
    10**30, 10**5000, [], [2], [2, 2], [2, 2, 2], [[2, 2], [2, 2]], [2, [2]], [2, None], [2, "2"], [2, 2.0], [2, True],
    [-1, 2], [0, 0], [2**31 - 1, 2**31 - 1], [2**31, 2], [2**55, 2**55], [2, 2**63], [10**30, 2], [float("nan"), 2],
    (2, 2), range(2), {2, 3}, {2: 2}, np.array(2), np.array([2, 2]), np.array([2.0, 2.0]), np.array([[2, 2]]),
    np.array([2**62, 2]), np.array([True, False]), np.float32(2), np.int64(2), itertools.count(1), object(),
    Explosive(), [Explosive()], lambda: 2, "same_upper", "SAME_UPPER", "NXC", "OIX", "runtime", int, Ellipsis, 1j,
]  # fmt: skip

LEGAL: dict[Any, dict[str, Any]] = {
    openvino.ConvolutionBackpropData: {"strides": [2, 2]},
    openvino.GroupConvolutionBackpropData: {"strides": [2, 2]},
    onednn.ConvolutionBackpropData: {
        "strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1], "output_shape": [10, 10]
    },
    onednn.ConvTransposeBackpropData: {
        "strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]
    },
    onednn.ConvTranspose: {"strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]},
    onednn.ConvolutionBackpropFilters: {
        "strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1], "filter_shape": [2, 2, 4, 4]
    },
    onednn.ConvTransposeBackpropFilters: {
        "strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1], "filter_shape": [2, 2, 4, 4]
    },
    onnx.ConvTranspose: {},
    functional.ConvTranspose: {},
}  # fmt: skip


def shapes_for(kind: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that LEGAL[kind] accepts."""
    second = {
        openvino.GroupConvolutionBackpropData: (1, 4, 4, 4, 4),
        onednn.ConvolutionBackpropFilters: (1, 2, 2, 4),
        onednn.ConvTransposeBackpropFilters: (1, 8, 8, 4),
    }
    return (1, 4, 4, 4), second.get(kind, (4, 4, 4, 4))


def attempt(kind: Any, attributes: dict[str, Any]) -> UnstrideError | None:
    """Build and resolve; anything but a result or an error of the package escapes."""
    start = time.thread_time()
    try:
        operator = kind(**attributes)
        operator.resolve(*shapes_for(kind))
    except UnstrideError as error:
        return error
    finally:
        assert time.thread_time() - start < SECONDS
    return None


@pytest.mark.parametrize("kind", LEGAL, ids=lambda kind: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}")
def test_every_attribute_with_every_hostile_value(kind: Any) -> None:
    refused = 0
    for name in inspect.signature(kind).parameters:
        for value in HOSTILE:
            error = attempt(kind, {**LEGAL[kind], name: value})
            if error is not None:
                refused += 1
                assert error.field
                assert str(error)
    assert refused > 100


def test_random_combinations() -> None:
    rng = Random(3)
    kinds = list(LEGAL)
    outcomes = {True: 0, False: 0}
    for _ in range(4000):
        kind = rng.choice(kinds)
        names = rng.sample(list(inspect.signature(kind).parameters), rng.randint(1, 4))
        changed = {name: rng.choice(HOSTILE) for name in names}
        outcomes[attempt(kind, {**LEGAL[kind], **changed}) is None] += 1
    assert min(outcomes.values()) > 10


@pytest.mark.parametrize("kind", LEGAL, ids=lambda kind: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}")
def test_legal_attributes_are_legal(kind: Any) -> None:
    assert attempt(kind, LEGAL[kind]) is None


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: type(value).__name__)
def test_shapes_with_every_hostile_value(value: Any) -> None:
    op = openvino.ConvolutionBackpropData([2, 2])
    arguments: list[Any] = [(1, 4, 4, 4), (4, 4, 4, 4), None]
    for place in range(3):
        given = arguments.copy()
        given[place] = value
        with contextlib.suppress(UnstrideError):
            assert len(op.infer_shape(*given)) == 4


@pytest.mark.parametrize("name", ["threads", "activation", "accuracy", "bias"])
def test_compile_options_with_every_hostile_value(name: str) -> None:
    op = openvino.ConvolutionBackpropData([2])
    weights = np.ones((1, 1, 2), np.float32)
    for value in HOSTILE:
        if name == "threads" and type(value) is int and 0 < value < 2**31:
            continue  # legal, and the pool's business
        with contextlib.suppress(UnstrideError):
            assert op.compile(weights, **{name: value}).info


def test_sizes_are_exact_integers() -> None:
    """The numbers behind published advisories against these operators: each is an error, none wraps."""
    for wanted in ([2, -2], [114078056, 179835296], [2**55, 1], [2**63, 1]):
        with pytest.raises(UnstrideError):
            openvino.ConvolutionBackpropData([1, 1]).infer_shape((1, 1, 2, 2), (1, 1, 2, 2), wanted)
    with pytest.raises(UnstrideError):
        openvino.ConvolutionBackpropData([1, 1]).infer_shape((1, 32, 32, 0), (32, 1, 5, 0))
    with pytest.raises(UnstrideError):
        onednn.ConvolutionBackpropData([1], [0], [0], [1]).infer_shape((1, 4, 1), (1879048192, 1, 13), [4])
