"""Honest files with bytes flipped, cut, doubled and swapped: they are read, or refused by an error of this package."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.formats import models
from tests.formats.test_hostile_files import BLOB, fully
from unstride.errors import UnstrideError
from unstride.examples import example_path
from unstride.formats.arrays import load_npy, save_npy

TRIALS = 200


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The data with one to three small accidents."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(result))
        accident = rng.randrange(5)
        if accident == 0:
            result[place] ^= 1 << rng.randrange(8)
        elif accident == 1:
            result[place] = rng.choice(b"0123456789-<>&\"',\x00\xff")
        elif accident == 2:
            del result[place : place + rng.choice((1, 2, 50))]
        elif accident == 3:
            result[place:place] = result[place : place + rng.choice((1, 8, 200))]
        else:
            other = rng.randrange(len(result))
            result[place], result[other] = result[other], result[place]
        if not result:
            break
    return bytes(result)


def survive(path: Path, data: bytes, use: Callable[[Path], object], seed: int) -> None:
    rng = random.Random(seed)
    messages = []
    for _ in range(TRIALS):
        path.write_bytes(mutated(data, rng))
        try:
            use(path)
        except UnstrideError as error:
            messages.append(str(error))
    assert 0 < len(messages) < TRIALS, "some accidents matter and some do not"
    assert all(message.isprintable() for message in messages)


@pytest.mark.parametrize("seed", range(2))
def test_openvino_ir(seed: int, tmp_path: Path) -> None:
    path = models.write(tmp_path, models.one_layer(), BLOB)
    survive(path, path.read_bytes(), fully, seed)
    example = tmp_path / "upsamplers.xml"
    example.with_suffix(".bin").write_bytes(example_path().with_suffix(".bin").read_bytes())
    survive(example, example_path().read_bytes(), fully, seed)


@pytest.mark.parametrize("seed", range(2))
def test_onnx(seed: int, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.formats.test_onnx_file import zoo

    # sizes declared, so that no child process is needed to infer them
    survive(tmp_path / "model.onnx", zoo("initializer").SerializeToString(), _without_inference, seed)


def _without_inference(path: Path) -> None:
    from unittest.mock import patch

    with patch("unstride.formats.onnx_shapes.inferred_shapes", return_value={}):
        fully(path)


def test_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    save_npy(path, np.arange(6, dtype=np.float32).reshape(2, 3))
    survive(path, path.read_bytes(), load_npy, 0)
