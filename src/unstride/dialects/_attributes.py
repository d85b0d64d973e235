"""Reading what a caller wrote: plain integers out, or an error of this package that names the field.

Nothing here allocates more than a handful of integers, whatever it is given: lists are read up to a bound, and
values are compared with a bound before any arithmetic is done with them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Set
from itertools import islice

from unstride.errors import AttributeValueError, DTypeError, ShapeError, SizeLimitError, UnstrideError
from unstride.problem import MAX_AXES, MAX_EXTENT

__all__ = ["activation", "broadcast", "choice", "dtype", "integer", "integers", "shape"]

Activation = str | tuple[str, float] | None

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
_DTYPES |= {short: short for short in _DTYPES.values()}
_ACTIVATIONS = ("relu", "tanh", "sigmoid")
_MAX_LENGTH = 2 * MAX_AXES + 2


def integer(field: str, value: object, least: int = 0) -> int:
    """One integer between `least` and 2**31 - 1; anything with `__index__` except a bool is an integer."""
    number = _index(field, value, AttributeValueError)
    if not least <= number <= MAX_EXTENT:
        raise AttributeValueError(field, value, f"must be between {least} and {MAX_EXTENT}")
    return number


def integers(field: str, value: object, least: int, length: int | None = None) -> tuple[int, ...]:
    """A list attribute: one integer for each spatial axis (or `length` of them)."""
    numbers = tuple(integer(field, item, least) for item in _items(field, value, AttributeValueError))
    if not numbers:
        raise AttributeValueError(field, value, "needs one integer for each spatial axis", "do not pass an empty list")
    if length is not None and len(numbers) != length:
        raise AttributeValueError(field, value, f"needs {length} integers, has {len(numbers)}")
    return numbers


def broadcast(field: str, value: object, least: int) -> int | tuple[int, ...]:
    """One integer for all axes, or a list with one for each, as torch takes them."""
    if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        return integer(field, value, least)
    return integers(field, value, least)


def shape(field: str, value: object) -> tuple[int, ...]:
    """The shape of an array, or a size wanted by the caller: integers from 0 on.

    >>> shape("data", [1, 20, 224, 224])
    (1, 20, 224, 224)
    """
    numbers = tuple(_index(field, item, ShapeError) for item in _items(field, value, ShapeError))
    for number in numbers:
        if number < 0:
            raise ShapeError(field, value, "a size cannot be negative")
        if number > MAX_EXTENT:
            raise SizeLimitError(field, value, f"a size may be at most {MAX_EXTENT}")
    return numbers


def choice(field: str, value: object, spellings: Mapping[str, str]) -> str:
    """A word, read without regard to case; `spellings` maps each accepted lower-case word to its canonical form."""
    word = "" if value is None else value
    if isinstance(word, str) and word.lower() in spellings:
        return spellings[word.lower()]
    names = ", ".join(dict.fromkeys(spellings.values()))
    raise AttributeValueError(field, value, f"must be one of {names}")


def flag(field: str, value: object) -> bool:
    """True or False, and nothing that only resembles them."""
    if not isinstance(value, bool):
        raise AttributeValueError(field, value, "must be True or False")
    return value


def dtype(value: object) -> str:
    """The short name of an element type: f32, f16, bf16 or f64."""
    name = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", None))
    if isinstance(name, str) and name in _DTYPES:
        return _DTYPES[name]
    raise DTypeError("dtype", value, "must be f32, f16, bf16 or f64", "convert the arrays first")


def activation(value: object) -> Activation:
    """None, "relu", "tanh", "sigmoid" or ("leaky_relu", slope) with a finite slope."""
    rule = "must be None, 'relu', 'tanh', 'sigmoid' or ('leaky_relu', slope)"
    if value is None or (isinstance(value, str) and value in _ACTIVATIONS):
        return value
    if isinstance(value, tuple | list) and len(value) == 2 and value[0] == "leaky_relu":
        slope = value[1]
        if isinstance(slope, int | float) and not isinstance(slope, bool) and _is_finite(slope):
            return ("leaky_relu", float(slope))
        raise AttributeValueError("activation", value, "the slope of leaky_relu must be a finite number")
    raise AttributeValueError("activation", value, rule)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond the range of a double
        return False


def _index(field: str, value: object, error: type[UnstrideError]) -> int:
    """The integer behind `value`; foreign objects may fail in any way they like inside `__index__`."""
    if isinstance(value, bool):
        raise error(field, value, "must be an integer, not a bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:
        raise error(field, value, "must be an integer") from None


def _items(field: str, value: object, error: type[UnstrideError]) -> tuple[object, ...]:
    """The elements of a list-like value; sets and mappings have no order and strings are not lists of integers."""
    if isinstance(value, str | bytes | bytearray | Mapping | Set) or not isinstance(value, Iterable):
        raise error(field, value, "must be a list of integers")
    try:
        items = tuple(islice(iter(value), _MAX_LENGTH + 1))
    except Exception:
        raise error(field, value, "must be a list of integers") from None
    if len(items) > _MAX_LENGTH:
        raise error(field, value, f"has more than {_MAX_LENGTH} elements")
    return items
