"""Tensors of ONNX files as arrays; external data only from regular files inside the model's own folder."""

from __future__ import annotations

from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.errors import FormatError
from unstride.formats.arrays import dtype_of
from unstride.formats.blob import read_array
from unstride.formats.layer import OptionalShape

__all__ = ["FLOAT_TYPES", "load_tensor", "tensor_sizes", "value_shape"]

# TensorProto.DataType, by the numbers of the format.
FLOAT_TYPES = {1: "f32", 10: "f16", 11: "f64", 16: "bf16"}
_EXTERNAL = 1


def tensor_sizes(tensor: Any, where: str) -> tuple[int, ...]:
    """The dimensions of a TensorProto."""
    sizes = tuple(int(size) for size in tensor.dims)
    if len(sizes) > 32 or any(size < 0 for size in sizes):
        raise FormatError(where, sizes, "dimensions must be non-negative")
    return sizes


def value_shape(info: Any) -> OptionalShape:
    """The sizes of a ValueInfoProto, None where they are symbolic; () where nothing is said."""
    if not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
        return ()
    dims = info.type.tensor_type.shape.dim
    return tuple(int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims)


def load_tensor(tensor: Any, dtype: str, folder: Path, where: str) -> NDArray[Any]:
    """The value of a TensorProto of the element type `dtype`; `folder` is where external data may lie."""
    if FLOAT_TYPES.get(tensor.data_type) != dtype:
        raise FormatError(where, f"element type {tensor.data_type}", f"must be that of the filter, {dtype}")
    shape, element = tensor_sizes(tensor, where), dtype_of(dtype)
    if tensor.data_location == _EXTERNAL:
        return _external(tensor, element, shape, folder, where)
    flat = np.frombuffer(tensor.raw_data, np.uint8) if tensor.raw_data else _typed(tensor, dtype, element)
    if flat.nbytes != prod(shape) * element.itemsize:
        raise FormatError(where, f"{flat.nbytes} bytes", f"{shape} of {dtype} takes {prod(shape) * element.itemsize}")
    return flat.view(element).reshape(shape)


def _typed(tensor: Any, dtype: str, element: np.dtype[Any]) -> NDArray[Any]:
    """The repeated field of the type; 16-bit floats travel as their bits in int32_data."""
    if dtype in ("f16", "bf16"):
        return (np.array(tensor.int32_data, np.int64) & 0xFFFF).astype(np.uint16).view(element)
    return np.array(tensor.float_data if dtype == "f32" else tensor.double_data, element)


def _external(tensor: Any, element: np.dtype[Any], shape: tuple[int, ...], folder: Path, where: str) -> NDArray[Any]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside(folder, entries.get("location", ""), where)
    offset = _integer(entries.get("offset", "0"), where)
    size = prod(shape) * element.itemsize
    if "length" in entries and _integer(entries["length"], where) != size:
        raise FormatError(where, f"length {entries['length'][:24]}", f"{shape} takes {size} bytes")
    return read_array(path, offset, element, shape, where)


def _inside(folder: Path, location: str, where: str) -> Path:
    """The file beside the model that `location` names; a path that leaves the folder is refused, links included."""
    pure = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or pure.is_absolute() or ".." in pure.parts:
        raise FormatError(where, location, "external data must lie in the model's folder")
    home = folder.resolve()
    path = (home / pure).resolve()
    if not path.is_relative_to(home):
        raise FormatError(where, location, "external data must lie in the model's folder, links included")
    return path


def _integer(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise FormatError(where, text, "offset and length must be non-negative integers")
    return int(text)
