"""Filling a result with its bias: every element, none beyond, at any alignment, by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from unstride.codegen.fill import build_fill
from unstride.codegen.numbers import Numbers
from unstride.plan.machine import ISAS
from unstride.problem import DTYPE_BYTES
from unstride.runtime import elf, engine
from unstride.runtime.buffers import numpy_dtype
from unstride.runtime.machine import host
from unstride.runtime.prefill import prefill


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("channels", [1, 3, 16, 21, 512, 4099])
@pytest.mark.parametrize("shift", [0, 1, 13])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_element_is_filled_and_none_beyond(dtype: str, channels: int, shift: int, threads: int) -> None:
    pixels = 3 * 2**20 // (channels * DTYPE_BYTES[dtype]) + 7
    room = np.full(pixels * channels + shift + 40, 77).astype(numpy_dtype(dtype))
    result = room[shift : shift + pixels * channels].reshape(pixels, channels)
    rest = np.arange(channels).astype(numpy_dtype(dtype))
    prefill(result, rest, dtype, host().isa, threads)
    assert (result == rest).all()
    assert (room[:shift] == 77).all()
    assert (room[shift + result.size :] == 77).all()


def test_small_and_channel_major_results_too() -> None:
    small, planes = np.empty((5, 4), np.float32), np.empty((2, 3, 400, 400), np.float32)
    prefill(small, np.arange(4, dtype=np.float32), "f32", host().isa, 2)
    prefill(planes, np.arange(3, dtype=np.float32).reshape(3, 1, 1), "f32", host().isa, 2)
    assert (small == np.arange(4)).all()
    assert (planes == np.arange(3).reshape(3, 1, 1)).all()


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_compiles_everywhere(isa, dtype: str) -> None:
    assert not elf.undefined_symbols(engine.compile_object(build_fill(Numbers(dtype, isa)), isa))
