"""Chunked results are the bits of the whole result, on threads and on worker processes, also when one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

dask = pytest.importorskip("dask")
pytestmark = pytest.mark.dask

import dask.array as da  # noqa: E402
from ml_dtypes import bfloat16  # noqa: E402

import unstride  # noqa: E402
from unstride import onednn, openvino  # noqa: E402
from unstride.bridges import dask as bridge  # noqa: E402
from unstride.bridges.dask import apply, conv_transpose  # noqa: E402


def compositions(size):
    """Any way to cut `size` into chunks, empty ones included."""
    cuts = st.lists(st.integers(0, size), max_size=4).map(lambda inner: [0, *sorted(inner), size])
    return cuts.map(lambda edges: tuple(b - a for a, b in pairwise(edges)))


@st.composite
def cases(draw):
    rank = draw(st.integers(1, 3))

    def each(low, high):
        return [draw(st.integers(low, high)) for _ in range(rank)]

    groups, ci, co = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    x, kernel, stride, dilation, padding = each(1, 15 // rank), each(1, 5), each(1, 4), each(1, 3), each(0, 4)
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    shape = (draw(st.integers(0, 3)), groups * ci, *x)
    attributes = {"stride": stride, "padding": padding, "output_padding": extra, "groups": groups, "dilation": dilation}
    chunks = tuple(draw(compositions(size)) for size in shape)
    return shape, (groups * ci, co, *kernel), attributes, chunks, draw(st.booleans()), draw(st.integers(0, 99))


FEW_RESULTS = {"stride": [1] * 3, "padding": [0] * 3, "output_padding": [0] * 3, "groups": 1, "dilation": [3, 3, 1]}


@given(cases(), st.sampled_from(["128MiB", "4kB"]))
@example(((1, 2, 1, 1, 2), (2, 1, 3, 4, 5), FEW_RESULTS, ((1,), (2,), (1,), (1,), (2,)), False, 0), "128MiB")
def test_every_chunking_gives_the_same_bits(case, limit):
    shape, w_shape, attributes, chunks, with_bias, seed = case
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(size, np.float32) for size in (shape, w_shape))
    bias = rng.standard_normal(w_shape[1] * attributes["groups"], np.float32) if with_bias else None
    try:
        expected = unstride.dialects.functional.ConvTranspose(**attributes).compile(w, bias, accuracy="strict")(x)
    except unstride.ShapeError:
        return  # pads leave nothing
    with dask.config.set({"array.chunk-size": limit}):
        lazy = conv_transpose(da.from_array(x, chunks=chunks), w, bias, **attributes)
    assert lazy.shape == expected.shape
    assert lazy.dtype == expected.dtype
    np.testing.assert_array_equal(lazy.compute(scheduler="sync").view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, bfloat16])
def test_integers_are_exact_in_every_type(dtype):
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (1, 3, 20, 17)).astype(dtype), rng.integers(-2, 3, (3, 4, 4, 4)).astype(dtype)
    lazy = conv_transpose(da.from_array(x, chunks=(1, 2, 7, 5)), w, stride=2, padding=1)
    expected = unstride.conv_transpose(x, w, stride=2, padding=1)
    np.testing.assert_array_equal(lazy.compute().astype(np.float64), expected.astype(np.float64))


OPERATORS = {
    "openvino with output_shape": (openvino.ConvolutionBackpropData([2, 3]), (1, 4, 9, 7), (4, 3, 3, 3), [20, 24]),
    "openvino groups": (openvino.GroupConvolutionBackpropData([3], [1], [2]), (2, 6, 11), (2, 3, 2, 5), None),
    "onednn NXC": (onednn.ConvTranspose([2, 2], [1, 1], [0, 1], [1, 2]), (2, 7, 5, 4), (3, 3, 4, 2), None),
    "a gradient": (
        onednn.ConvTransposeBackpropData([2, 3], [1, 0], [1, 1], [2, 1], data_format="NCX", filter_format="IOX"),
        (2, 3, 19, 16),
        (4, 3, 3, 4),
        None,
    ),
    "a gradient in NXC": (onednn.ConvTransposeBackpropData([4], [3], [3], [1]), (1, 30, 3), (2, 5, 3), None),
}


@pytest.mark.filterwarnings("ignore::unstride.RuleWarning")
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_every_operator_of_every_document(name, chunk):
    operator, x_shape, w_shape, output_shape = OPERATORS[name]
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    given_shape = {} if output_shape is None else {"output_shape": output_shape}
    expected = operator.compile(w, accuracy="strict")(x, **given_shape)
    lazy = apply(operator, da.from_array(x, chunks=chunk), w, **given_shape)
    np.testing.assert_array_equal(lazy.compute(), expected)


def test_it_is_lazy_and_weights_may_be_dask():
    def explode(block):
        raise AssertionError("computed too early")

    x = da.zeros((1, 2, 8), chunks=(1, 1, 3), dtype="f4").map_blocks(
        explode, dtype="f4", meta=np.empty((0, 0, 0), "f4")
    )
    w = da.ones((2, 3, 4), chunks=(1, 2, 2), dtype="f4")
    lazy = conv_transpose(x, w, da.zeros(3, dtype="f4"), stride=2)
    assert lazy.shape == (1, 3, 18)
    with pytest.raises(AssertionError, match="too early"):
        lazy.compute()


def test_weights_are_packed_once_however_many_chunks(monkeypatch):
    packed = []
    layer = bridge.Layer
    monkeypatch.setattr(bridge, "Layer", lambda *args, **options: (packed.append(1), layer(*args, **options))[1])
    w = np.random.default_rng(5).standard_normal((2, 2, 3), np.float32)
    conv_transpose(da.ones((1, 2, 200), chunks=(1, 2, 3), dtype="f4"), w, stride=2).compute(scheduler="threads")
    assert packed == [1]


def test_no_task_reads_more_than_its_own_range(monkeypatch):
    """The source of a chunk is its own pixels and those whose taps reach in: 2 of 8 here, wherever it lies."""
    sizes = []
    run = bridge._run
    monkeypatch.setattr(bridge, "_run", lambda piece, *rest: (sizes.append(piece.problem.x), run(piece, *rest))[1])
    x = da.ones((1, 1, 80), chunks=(1, 1, 8), dtype="f4")
    lazy = conv_transpose(x, np.ones((1, 1, 6), "f4"), stride=2)
    lazy.compute(scheduler="sync")
    assert max(sizes) == (10,)
    assert lazy.chunks[2] == (16,) * 10 + (4,)


def test_chunks_are_cut_to_dasks_limit():
    x = da.zeros((1, 8, 64, 64), chunks=-1, dtype="f4")
    with dask.config.set({"array.chunk-size": "64kiB"}):
        lazy = conv_transpose(x, np.ones((8, 8, 2, 2), "f4"), stride=2)
    assert max(np.prod([max(sizes) for sizes in lazy.chunks]) * 4, 0) <= 64 * 1024
    assert lazy.shape == (1, 8, 128, 128)


def test_errors_name_what_is_wrong():
    x, w = da.zeros((1, 2, 8), chunks=4, dtype="f4"), np.ones((2, 3, 3), "f4")
    with pytest.raises(unstride.ShapeError, match="channels"):
        conv_transpose(x[:, :1], w)
    with pytest.raises(unstride.DTypeError, match="filter"):
        conv_transpose(x, w.astype(np.float64))
    with pytest.raises(unstride.DTypeError, match="data"):
        conv_transpose(x.astype(np.int32), w.astype(np.int32))
    with pytest.raises(unstride.ShapeError, match="bias"):
        conv_transpose(x, w, np.ones(2, "f4"))
    with pytest.raises(unstride.DTypeError, match="bias"):
        conv_transpose(x, w, np.ones(3))
    with pytest.raises(unstride.ShapeError, match="compute_chunk_sizes"):
        conv_transpose(x[:, :, x[0, 0] > 0], w)


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("dask.distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as found:
        yield found


def slow(block):
    time.sleep(0.05)
    return block


@pytest.fixture
def slow_case():
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((1, 4, 64, 48), np.float32), rng.standard_normal((4, 3, 5, 5), np.float32)
    lazy = conv_transpose(da.from_array(x, chunks=(1, 4, 8, 8)).map_blocks(slow), w, stride=2, padding=1)
    return lazy, unstride.dialects.functional.ConvTranspose(2, 1).compile(w, accuracy="strict")(x)


def test_worker_processes(client, slow_case):
    lazy, expected = slow_case
    np.testing.assert_array_equal(client.compute(lazy).result(timeout=120), expected)


def test_a_worker_killed_in_mid_run_loses_nothing(client, slow_case):
    lazy, expected = slow_case
    victims = client.run(os.getpid)
    future = client.compute(lazy)
    time.sleep(0.7)
    assert not future.done()
    os.kill(next(iter(victims.values())), signal.SIGKILL)
    np.testing.assert_array_equal(future.result(timeout=120), expected)
    assert set(client.run(os.getpid).values()) != set(victims.values())


def test_a_child_does_not_wait_for_a_layer_of_its_parent():
    program = """
import os, signal
import dask.array as da, numpy as np
from unstride.bridges import dask as bridge
x, w = da.ones((1, 1, 4), chunks=-1, dtype="f4"), np.ones((1, 1, 3), "f4")
with bridge._layers_lock:  # as another thread holds it while it packs
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        bridge.conv_transpose(x, w).compute(scheduler="synchronous")
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0", done.stderr
