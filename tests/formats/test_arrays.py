""".npy files, honest and hostile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from unstride.errors import DTypeError, FormatError
from unstride.formats.arrays import dtype_of, load_npy, name_of, save_npy


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16, np.int64, np.uint8])
@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 5), (1,), ()])
def test_what_is_saved_is_loaded(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    save_npy(tmp_path / "a.npy", array)
    loaded = load_npy(tmp_path / "a.npy")
    assert loaded.dtype == array.dtype
    assert loaded.shape == shape
    assert np.array_equal(loaded, array)


def test_fortran_order_is_understood(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    save_npy(tmp_path / "a.npy", array)
    assert np.array_equal(load_npy(tmp_path / "a.npy"), array)


def test_names_of_types() -> None:
    assert [name_of(dtype_of(name)) for name in ("f32", "f16", "bf16", "f64")] == ["f32", "f16", "bf16", "f64"]
    with pytest.raises(DTypeError, match="int64"):
        name_of(np.dtype("int64"))


def header(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    body = text.encode("latin1") + b"\n"
    size = len(body) if length is None else length
    return b"\x93NUMPY" + bytes(version) + size.to_bytes(2 if version == (1, 0) else 4, "little") + body


HONEST = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
HOSTILE = {
    "empty": b"",
    "garbage": b"\x00\x01\x02" * 100,
    "no header": b"\x93NUMPY\x01\x00",
    "unknown version": header(HONEST, (9, 0)) + bytes(8),
    "32 GiB claimed": header(HONEST.replace("(2,)", f"({2**33},)")),
    "2**70 claimed": header(HONEST.replace("(2,)", f"({2**70},)")),
    "negative size": header(HONEST.replace("(2,)", "(-2, -1)")) + bytes(8),
    "truncated": header(HONEST) + bytes(7),
    "bytes left over": header(HONEST) + bytes(9),
    "objects": header(HONEST.replace("<f4", "|O")) + b"cos\nsystem\n(S'touch pwned'\ntR.",
    "structured": header(HONEST.replace("'<f4'", "[('a', '<f4')]")) + bytes(8),
    "subarray": header(HONEST.replace("'<f4'", "('<f4', (2**20, 2**20))")) + bytes(8),
    "strings": header(HONEST.replace("<f4", "<U1")) + bytes(8),
    "code": header("__import__('os').system('touch pwned')"),
    "deep": header("(" * 9000),
    "header beyond the file": header(HONEST, (2, 0), length=2**31),
    "missing key": header("{'descr': '<f4'}"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_array_is_one_clear_error(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile.npy"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(FormatError) as caught:
        load_npy(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert [file.name for file in tmp_path.iterdir()] == ["hostile.npy"]


def test_a_pipe_a_folder_and_nothing_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    for path in (tmp_path / "pipe.npy", tmp_path, tmp_path / "missing.npy", Path("nul\0l.npy")):
        with pytest.raises(FormatError):
            load_npy(path)
