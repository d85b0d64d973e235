"""DLPack: the memory of another library's tensor as a NumPy view; bfloat16 too, which NumPy's own reader refuses."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.errors import DTypeError

__all__ = ["advice", "view_of_dlpack"]

_HOST_DEVICES = (1, 3)  # plain memory, and memory pinned for a GPU
_INT, _UINT, _FLOAT, _BFLOAT = 0, 1, 2, 4
_LETTERS = {_INT: "i", _UINT: "u", _FLOAT: "f"}
_TYPESTR = {(kind, bits): f"<{letter}{bits // 8}" for kind, letter in _LETTERS.items() for bits in (16, 32, 64)}
_TYPESTR |= {(_INT, 8): "|i1", (_UINT, 8): "|u1", (_BFLOAT, 16): "<u2"}
_READ_ONLY = 1
_MAX_AXES = 64
_BRIDGES = ("torch", "jax", "dask")


class _Tensor(ctypes.Structure):
    """DLTensor of the DLPack header."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned: since DLPack 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class _Owner:
    """What a view has as its base. The capsule is left unused, so that its own destructor frees the tensor."""

    def __init__(self, capsule: object, interface: dict[str, object]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


def view_of_dlpack(obj: Any, field: str) -> NDArray[Any]:
    """A view of a tensor on the CPU. It keeps the tensor's memory alive; read-only if the tensor is.

    Raises DTypeError for memory of another device, an export the owner refuses, and types NumPy has no name for.
    """
    _check_device(obj, field)
    capsule = _exported(obj, field)
    tensor, read_only = _opened(capsule, field)
    typestr = _typestr(tensor, field)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if 0 in shape:
        flat = np.empty(shape, typestr)
    else:
        flat = np.asarray(_Owner(capsule, _interface(tensor, typestr, shape, read_only)))
    return flat.view(_bfloat16()) if tensor.code == _BFLOAT else flat


def advice(obj: object, otherwise: str) -> str:
    """The bridge to use for a framework's lazy, traced or recording array; `otherwise` for anything else."""
    framework = type(obj).__module__.partition(".")[0].removesuffix("lib")
    return f"use unstride.bridges.{framework}" if framework in _BRIDGES else otherwise


def _check_device(obj: Any, field: str) -> None:
    probe = getattr(obj, "__dlpack_device__", None)
    try:
        kind = int(probe()[0]) if probe is not None else _HOST_DEVICES[0]
    except Exception as refusal:
        rule = f"its owner does not tell its device ({refusal})"
        raise DTypeError(field, type(obj), rule, advice(obj, "pass a plain array")) from refusal
    if kind not in _HOST_DEVICES:
        rule = f"its memory is on another device (DLPack kind {kind})"
        raise DTypeError(field, type(obj), rule, "copy it to the CPU")


def _exported(obj: Any, field: str) -> object:
    try:
        try:
            return obj.__dlpack__(max_version=(1, 0))
        except TypeError:  # an exporter from before version 1
            return obj.__dlpack__()
    except Exception as refusal:
        rule = f"its owner refuses to export it ({refusal})"
        raise DTypeError(field, type(obj), rule, advice(obj, "pass a plain array")) from refusal


def _opened(capsule: object, field: str) -> tuple[_Tensor, bool]:
    """The tensor inside a capsule, and whether it must not be written."""
    if _is_capsule(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            given = f"DLPack {managed.major}.{managed.minor}"
            raise DTypeError(field, given, "version 1 is understood", "pass a NumPy array")
        return managed.tensor, bool(managed.flags & _READ_ONLY)
    if _is_capsule(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), False
    raise DTypeError(field, type(capsule), "__dlpack__ must return a fresh DLPack capsule", "pass a NumPy array")


def _typestr(tensor: _Tensor, field: str) -> str:
    """NumPy's name for the elements; bfloat16 travels as 16-bit integers until it is viewed as what it is."""
    if tensor.device_type not in _HOST_DEVICES or not 0 <= tensor.ndim <= _MAX_AXES:
        given = f"DLPack tensor of {tensor.ndim} axes on device kind {tensor.device_type}"
        raise DTypeError(field, given, "needs CPU memory and at most 64 axes", "pass a NumPy array")
    typestr = _TYPESTR.get((tensor.code, tensor.bits))
    if typestr is None or tensor.lanes != 1:
        given = f"DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise DTypeError(field, given, "must be float32, float16, bfloat16 or float64", "convert it first")
    return typestr


def _interface(tensor: _Tensor, typestr: str, shape: tuple[int, ...], read_only: bool) -> dict[str, object]:
    strides = None
    itemsize = int(typestr[2:])
    if tensor.strides:
        strides = tuple(tensor.strides[axis] * itemsize for axis in range(len(shape)))
    data = ((tensor.data or 0) + tensor.byte_offset, read_only)
    return {"version": 3, "data": data, "typestr": typestr, "shape": shape, "strides": strides}


def _bfloat16() -> Any:
    from ml_dtypes import bfloat16

    return bfloat16


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_capsule.restype = ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer.restype = ctypes.c_void_p
