"""Frameworks' arrays given to the plain operators: taken through DLPack, or sent to their bridge by name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import unstride
from unstride import DTypeError

W = np.ones((1, 1, 2), np.float32)
EXPECTED = np.array([[[1, 2, 2, 2, 1]]], np.float32)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_torch_tensors_become_numpy_results(dtype):
    import torch

    kind = getattr(torch, dtype)
    found = unstride.conv_transpose(torch.ones(1, 1, 4, dtype=kind), torch.ones(1, 1, 2, dtype=kind))
    assert type(found) is np.ndarray
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.astype(np.float32), EXPECTED)


@pytest.mark.torch
def test_torch_tensors_that_need_the_bridge():
    import torch

    recording, elsewhere = torch.ones(1, 1, 4, requires_grad=True), torch.ones(1, 1, 4, device="meta")
    for tensor in (recording, elsewhere):
        with pytest.raises(DTypeError, match=r"unstride\.bridges\.torch"):
            unstride.conv_transpose(tensor, W)
    with pytest.raises(DTypeError, match=r"unstride\.bridges\.torch"):
        torch.vmap(lambda x: unstride.conv_transpose(x, W))(torch.ones(2, 1, 1, 4))


@pytest.mark.jax
def test_jax_arrays_become_numpy_results_and_tracers_need_the_bridge():
    import jax
    import jax.numpy as jnp

    np.testing.assert_array_equal(unstride.conv_transpose(jnp.ones((1, 1, 4)), W), EXPECTED)
    for transform in (jax.jit, lambda f: jax.grad(lambda x: f(x).sum())):
        with pytest.raises(DTypeError, match=r"unstride\.bridges\.jax"):
            transform(lambda x: unstride.conv_transpose(x, W))(jnp.ones((1, 1, 4)))


@pytest.mark.dask
def test_dask_arrays_need_the_bridge():
    import dask.array as da

    with pytest.raises(DTypeError, match=r"unstride\.bridges\.dask"):
        unstride.conv_transpose(da.ones((1, 1, 4), dtype="f4"), W)


def test_nothing_of_a_framework_is_imported_without_being_asked_for():
    program = (
        "import sys, numpy, unstride, unstride.bridges\n"
        "unstride.conv_transpose(numpy.ones((1, 1, 4), 'f4'), numpy.ones((1, 1, 2), 'f4'))\n"
        "print([name for name in ('torch', 'jax', 'onnx', 'dask', 'distributed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
