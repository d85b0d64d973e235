"""Guard pages, non-finite numbers and equal bits: slices of the programs beside this file, which run the rest."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.compiler import digests, guard, nonfinite
from tests.compiler.cases import draw
from unstride import onednn
from unstride.runtime import engine


def test_no_byte_outside_the_arrays() -> None:
    assert list(guard.survey(80, seed=5, few_kernels=True)) == []


@pytest.mark.parametrize("plant", guard.PLANTS)
def test_a_planted_error_is_caught(plant: str) -> None:
    assert guard.caught(plant, guard.PLANTS.index(plant))


@pytest.mark.parametrize("seed", range(2))
def test_non_finite_results_are_the_receptive_set(seed: int) -> None:
    for case in nonfinite.problems(12, seed, few_kernels=True):
        assert [line for _, line in nonfinite.failures(case) if line] == []
    for case in nonfinite.transformed(3, seed):
        assert [line for _, line in nonfinite.failures(case, 6) if line] == []


def test_one_digest_over_threads_and_splits() -> None:
    rng = Random(11)
    for _ in range(30):
        case = draw(rng, few_kernels=True)
        assert len(digests.spread(case)) == 1, str(case)


def test_one_digest_cold_from_disk_and_from_memory(tmp_path) -> None:
    cold, disk = (digests.printed_by_child(16, 5, str(tmp_path)) for _ in range(2))
    assert [digest for _, digest in cold] == [digest for _, digest in disk]
    assert "cold" in {origin for origin, _ in cold}
    assert {origin for origin, _ in disk} == {"disk", "memory"}


def test_many_lengths_need_one_compilation(monkeypatch) -> None:
    op = onednn.ConvTranspose(strides=[2], pads_begin=[1], pads_end=[1], dilations=[1])
    layer = op.compile(np.ones((4, 5, 3), np.float32))
    monkeypatch.setattr(engine, "compile_object", None)  # any attempt to compile is an error now
    monkeypatch.setattr(engine, "kernel_library", None)
    for length in range(1, 501):
        assert layer(np.ones((1, length, 5), np.float32)).shape == (1, 2 * length, 3)
