"""A slice of the NEON run; `python -m tests.isolation.neon.run` does the rest."""

from __future__ import annotations

import pytest

from tests.isolation.neon.emulated import Emulator
from tests.isolation.neon.run import failures


@pytest.mark.skipif(bool(Emulator.missing()), reason="needs gcc-aarch64-linux-gnu and qemu-user")
def test_neon_kernels_are_exact_under_emulation() -> None:
    assert list(failures(60, seed=9, few_kernels=True)) == []
