"""One layer, called by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.poison import given_up_weights_are_nan

import unstride
from unstride.dialects.functional import ConvTranspose
from unstride.runtime import packing
from unstride.runtime.program import program

_THREADS = 4


@pytest.fixture
def poisoned() -> Iterator[None]:
    with given_up_weights_are_nan():
        yield


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("accuracy", ["standard", "strict"])
def test_threads_that_need_another_packing_at_once_share_one(monkeypatch: pytest.MonkeyPatch, accuracy: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (1, 8, 5, 4)).astype("f4"), rng.integers(-2, 3, (8, 8, 4, 4)).astype("f4")
    expected = unstride.conv_transpose(x, w, stride=2, padding=1)
    program.cache_clear()
    layer = ConvTranspose((2, 2), (1, 1)).compile(w, accuracy=accuracy, threads=1)
    # All threads shall find the packing missing before one of them has made it.
    meeting, pack = threading.Barrier(_THREADS), packing.Packer.pack

    def together(self: packing.Packer, weights: NDArray[Any]) -> tuple[NDArray[Any], bool]:
        meeting.wait(10)
        return pack(self, weights)

    monkeypatch.setattr(packing.Packer, "pack", together)
    layer._weights._packed.clear()
    layer._weights._constants.clear()
    results: list[NDArray[Any]] = []

    def work() -> None:
        results.extend(layer(x) for _ in range(20))

    workers = [threading.Thread(target=work) for _ in range(_THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 20 * _THREADS
    for result in results:
        np.testing.assert_array_equal(result, expected)
