"""Arrays at the door: anything that holds numbers in this machine's memory becomes a NumPy view; results get a home.

Nothing here copies a native, contiguous array. A view of foreign memory keeps its owner alive.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.errors import AttributeValueError, DTypeError, ShapeError, SizeLimitError
from unstride.runtime.dlpack import advice, view_of_dlpack

__all__ = [
    "PLAIN",
    "PLAIN_OUT",
    "address",
    "allocated",
    "as_input",
    "contiguous",
    "dtype_name",
    "is_plain",
    "numpy_dtype",
    "result_buffer",
    "size_error",
]

PLAIN = 0x1 | 0x100  # NumPy's C_CONTIGUOUS and ALIGNED: asking once is quicker than asking twice
PLAIN_OUT = PLAIN | 0x400  # and WRITEABLE

Array = NDArray[Any]

_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}  # bfloat16 joins them when it is first met
# np.shares_memory is exponential in the worst case; a hundred thousand steps take about a millisecond.
_OVERLAP_WORK = 100_000
_LARGE = 32 * 1024


def as_input(obj: object, field: str) -> Array:
    """`obj` as an array, without a copy where its memory allows it. `field` names it in errors.

    Takes NumPy arrays and whatever offers `__dlpack__` (bfloat16 included) or `__array_interface__` on the CPU.

    >>> as_input(np.ones(3, np.float32), "data").shape
    (3,)
    """
    if type(obj) is np.ndarray:
        return obj if obj.dtype.isnative else _native(obj, field)
    if getattr(obj, "requires_grad", False) is True:
        rule = "a tensor that records gradients cannot become an array"
        raise DTypeError(field, type(obj), rule, "use unstride.bridges.torch, or detach() it")
    if isinstance(obj, np.ma.MaskedArray):
        raise DTypeError(field, type(obj), "the mask would be lost", "pass array.filled(0) or array.data")
    if isinstance(obj, np.ndarray):
        return as_input(np.asarray(obj), field)
    if hasattr(obj, "__dlpack__"):
        return view_of_dlpack(obj, field)
    if hasattr(obj, "__array_interface__"):
        return as_input(np.asarray(obj), field)
    rule = "needs a NumPy array, or an object with __dlpack__ or __array_interface__"
    raise DTypeError(field, type(obj), rule, advice(obj, "use numpy.asarray(...)"))


def _native(array: Array, field: str) -> Array:
    try:
        return array.astype(array.dtype.newbyteorder("="))
    except MemoryError as error:
        raise size_error(error, field, array.shape) from None


def dtype_name(array: Array, field: str = "data") -> str:
    """The short name of an array's element type.

    >>> dtype_name(np.zeros(1, np.float16))
    'f16'
    """
    name = _NAMES.get(array.dtype)
    if name is not None:
        return name
    if array.dtype.name == "bfloat16" and array.dtype == numpy_dtype("bf16"):
        _NAMES[array.dtype] = "bf16"
        return "bf16"
    fix = "use .astype(numpy.float32)"
    raise DTypeError(field, array.dtype, "must be float32, float16, bfloat16 (ml_dtypes) or float64", fix)


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of a short name.

    >>> numpy_dtype("f64")
    dtype('float64')
    """
    if name == "bf16":
        from ml_dtypes import bfloat16  # not needed by those who do not use the type

        found: np.dtype[Any] = np.dtype(bfloat16)
        return found
    return _DTYPES[name]


def contiguous(array: Array) -> Array:
    """`array` itself if its elements lie in C order and aligned, else a copy that does.

    >>> contiguous(np.ones((2, 3)).T).flags.c_contiguous
    True
    """
    return array if is_plain(array) else np.array(array, order="C", copy=True, subok=False)


def is_plain(array: Array) -> bool:
    """Whether the elements lie in C order and aligned: what native code takes."""
    return array.flags.num & PLAIN == PLAIN


def result_buffer(shape: Sequence[int], dtype: str, out: object, inputs: Sequence[Array]) -> Array:
    """The array to write a result into: `out` if it fits and touches none of `inputs`, else a new one.

    Any strides will do for `out`, as long as no two of its elements share memory.
    """
    if out is None:
        return allocated(tuple(shape), dtype)
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise DTypeError("out", type(out), "must be a NumPy array", "pass numpy.empty(shape, dtype)")
    if out.dtype != numpy_dtype(dtype):
        raise DTypeError("out", out.dtype, f"the result is {numpy_dtype(dtype)}", "pass out of that type")
    if out.shape != tuple(shape):
        raise ShapeError("out", out.shape, f"the result has shape {tuple(shape)}", "pass out of that shape")
    if not out.flags.writeable:
        raise AttributeValueError("out", "a read-only array", "the result is written to it", "pass a writable array")
    if not out.flags.c_contiguous and _overlaps_itself(out):
        raise AttributeValueError("out", out.strides, "two elements share memory", "pass a plain array")
    for array in inputs:
        if _overlap(out, array):
            rule = "inputs are read while it is written"
            raise AttributeValueError("out", "memory of an input", rule, "pass an array of its own")
    return out


def size_error(error: MemoryError, field: str, shape: Sequence[int]) -> SizeLimitError:
    """What to raise for an allocation that failed on the way: the package's own error, whoever allocated."""
    if isinstance(error, SizeLimitError):
        return error
    return SizeLimitError(field, tuple(shape), "not enough memory for this call", "make the problem smaller")


def allocated(shape: tuple[int, ...], dtype: str) -> Array:
    """A new array, or a SizeLimitError. A large one starts on a cache line: stores that straddle two cost 7 %."""
    kind = numpy_dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    try:
        if size < _LARGE:
            return np.empty(shape, kind)
        room = np.empty(size + 64, np.uint8)
        return room[-address(room) % 64 :][:size].view(kind).reshape(shape)
    except (MemoryError, ValueError, OverflowError):
        raise SizeLimitError("output", shape, f"{size} bytes cannot be allocated", "make the problem smaller") from None


def _overlap(one: Array, other: Array) -> bool:
    if not np.may_share_memory(one, other):  # compares the bounds only
        return False
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # any bound will do
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: Array) -> bool:
    """Whether two elements may share memory: some axis steps by less than what the finer axes span."""
    span = array.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)):
        if size == 0:
            return False
        if size > 1:
            if stride < span:
                return True
            span += stride * (size - 1)
    return False


def _slow_address(array: Array) -> int:
    return int(array.ctypes.data)


def _fast_address(array: Array) -> int:
    return _word(id(array) + _HEADER).value


# NumPy's array object is the object header followed by the data pointer: part of its binary interface since 1.0.
_HEADER = object.__basicsize__
_word = ctypes.c_size_t.from_address


def _address_reader() -> Any:
    """The quickest way to an array's data pointer that is right on this interpreter: 0.15 us instead of 1.1 us."""
    probes: list[Array] = [np.zeros(3)[1:], np.zeros((2, 2), np.int8)]
    return _fast_address if all(_fast_address(p) == _slow_address(p) for p in probes) else _slow_address


address = _address_reader()
"""`address(array) -> int`: where the first element lies. The caller keeps the array alive."""
