"""An XLA FFI handler in Python: the call frame's buffers become NumPy views, the result is written in place.

The structures are those of XLA's C interface, whose major version 0 keeps their layout; every one carries its own
size, which is compared before it is read. The handler knows one call: attributes `kind` and `problem`, the operands of
`_family.compute`, one result.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from unstride.bridges import _family
from unstride.errors import UnstrideError
from unstride.problem import Problem
from unstride.runtime import buffers

__all__ = ["register"]

_MAJOR = 0
_METADATA = 1
_EXECUTE = 3
_STRING = 4
_INVALID_ARGUMENT, _INTERNAL = 3, 13
_DTYPES = {10: "f16", 11: "f32", 12: "f64", 16: "bf16"}


class _Extension(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("type", c_int), ("next", c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int))


class _Metadata(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", POINTER(_Metadata)))


class _ErrorArguments(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int))


_CreateError = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))


class _Api(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", _CreateError),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int32),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Buffers(ctypes.Structure):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("buffers", POINTER(POINTER(_Buffer))),
    )


class _Span(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("length", c_size_t))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Span))),
        ("values", POINTER(POINTER(_Span))),  # of strings, the only kind read here
    )


class _CallFrame(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


def register(name: str) -> None:
    """Make the handler known to XLA as a call target on the CPU."""
    import jax

    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(_handler), platform="cpu")


def _handle(pointer: Any) -> int | None:
    """What XLA calls, from any of its threads. Every failure becomes an error of XLA, none may escape."""
    frame = pointer.contents
    try:
        if frame.extension and _Extension.from_address(frame.extension).type == _METADATA:
            _describe(frame)
        elif frame.stage == _EXECUTE:
            _execute(frame)
    except UnstrideError as error:
        return _xla_error(frame, str(error), _INVALID_ARGUMENT)
    except BaseException as error:
        return _xla_error(frame, f"{type(error).__name__}: {error}", _INTERNAL)
    return None


_handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_CallFrame))(_handle)


def _describe(frame: _CallFrame) -> None:
    """Answer XLA's question for the version this was written for: any of the major version it names, if that is 0."""
    metadata = _MetadataExtension.from_address(frame.extension).metadata.contents
    runtime = frame.api.contents.version
    metadata.version.major = _MAJOR
    metadata.version.minor = runtime.minor if runtime.major == _MAJOR else 0
    metadata.traits = 0


def _xla_error(frame: _CallFrame, message: str, code: int) -> int | None:
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), code)
    error: int | None = frame.api.contents.create_error(ctypes.byref(arguments))
    return error


def _execute(frame: _CallFrame) -> None:
    if frame.size < ctypes.sizeof(_CallFrame):
        raise RuntimeError(f"XLA's call frame has {frame.size} bytes, {ctypes.sizeof(_CallFrame)} were expected")
    attributes = dict(_strings(frame.attributes))
    operands = _arrays(frame.arguments)
    (result,) = _arrays(frame.results)
    first, second, *bias = operands
    problem = _problem(attributes["problem"])
    _family.compute(attributes["kind"], problem, first, second, bias[0] if bias else None, result, None)


@lru_cache(maxsize=4096)
def _problem(text: str) -> Problem:
    return Problem.parse(text)


def _strings(attributes: _Attributes) -> list[tuple[str, str]]:
    indices = [i for i in range(attributes.count) if attributes.types[i] == _STRING]
    return [(_text(attributes.names[i].contents), _text(attributes.values[i].contents)) for i in indices]


def _text(span: _Span) -> str:
    return ctypes.string_at(span.data, span.length).decode()


def _arrays(found: _Buffers) -> list[Any]:
    return [_array(found.buffers[i].contents) for i in range(found.count)]


def _array(buffer: _Buffer) -> Any:
    """A view of XLA's memory, valid during the call."""
    shape = tuple(buffer.dims[axis] for axis in range(buffer.rank))
    dtype = buffers.numpy_dtype(_DTYPES[buffer.dtype])
    count = prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(buffer.data)
    return np.frombuffer(memory, dtype, count).reshape(shape)
