""".npy arrays in and out, without pickle, and with every claim of the header checked before memory is asked for."""

from __future__ import annotations

import io
import os
import warnings
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from unstride.errors import DTypeError, FormatError
from unstride.formats.blob import open_regular, read_exactly

__all__ = ["DTYPE_NAMES", "dtype_of", "load_npy", "name_of", "save_npy"]

DTYPE_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
_HEADER_LIMIT = 1 << 16
_VALUE_LIMIT = 2**63 - 1


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy type behind "f32", "f16", "bf16" or "f64".

    >>> dtype_of("f16")
    dtype('float16')
    """
    if name == "bf16":
        import ml_dtypes

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    return np.dtype(DTYPE_NAMES[name])


def name_of(dtype: np.dtype[Any]) -> str:
    """The inverse of `dtype_of`; DTypeError for any other type."""
    for name, spelled in DTYPE_NAMES.items():
        if dtype.name == spelled:
            return name
    raise DTypeError("array", dtype.name, f"must be one of {', '.join(DTYPE_NAMES.values())}")


def load_npy(path: str | Path) -> NDArray[Any]:
    """The array of a `.npy` file; bfloat16, which the format knows only as two raw bytes, comes back as bfloat16."""
    path = Path(path)
    with open_regular(path) as (descriptor, length):
        head = io.BytesIO(os.pread(descriptor, _HEADER_LIMIT, 0))
    shape, fortran_order, dtype = _read_header(head, path)
    dtype = dtype_of("bf16") if dtype == np.dtype("V2") else dtype
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        raise FormatError(path.name, str(dtype), "holds no plain numbers; object arrays are never unpickled")
    size = prod(shape) * dtype.itemsize
    if any(extent < 0 for extent in shape) or size > _VALUE_LIMIT or head.tell() + size != length:
        raise FormatError(
            path.name, f"shape {shape} of {dtype.name}", f"needs {size} bytes, the file holds {length - head.tell()}"
        )
    flat = read_exactly(path, head.tell(), size, path.name).view(dtype)
    return flat.reshape(shape, order="F" if fortran_order else "C")


def save_npy(path: str | Path, array: NDArray[Any]) -> None:
    """Write `array` as `.npy`; never pickles."""
    try:
        with open(path, "wb") as stream:
            np.save(stream, array, allow_pickle=False)
    except OSError as error:
        raise FormatError("file", str(path), f"cannot be written ({error.strerror})") from None


def _read_header(stream: io.BytesIO, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy_format.read_magic(stream)
        reader = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}[version]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran_order, dtype = reader(stream)
    except KeyError:
        raise FormatError(path.name, "an unknown .npy version", "versions 1.0 and 2.0 are read") from None
    except Exception as error:  # the parser below raises whatever a broken literal makes it raise
        raise FormatError(path.name, type(error).__name__, "is not a .npy array or its header is damaged") from None
    return tuple(int(extent) for extent in shape), bool(fortran_order), dtype
