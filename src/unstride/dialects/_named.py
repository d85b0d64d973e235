"""Calls that leave out what is required, or name what does not exist: said in this package's words, with an example.

Python's own TypeError knows neither the nearest name nor a right call, and is no error of this package's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from unstride.errors import AttributeNameError, UnstrideError

__all__ = ["named_arguments", "named_attributes"]

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

# What an example of a right call holds; names that one dialect only has keep its spelling.
_EXAMPLES = {
    "strides": "[2, 2]",
    "pads_begin": "[1, 1]",
    "pads_end": "[1, 1]",
    "dilations": "[1, 1]",
    "output_padding": "[1, 1]",
    "auto_pad": "'same_upper'",
    "output_shape": "[9, 9]",
    "kernel_shape": "[3, 3]",
    "pads": "[1, 1, 1, 1]",
    "group": "1",
    "groups": "1",
    "data_format": "'NXC'",
    "filter_format": "'XIO'",
    "filter_shape": "[3, 3, 8, 4]",
    "rules": "'runtime'",
    "stride": "2",
    "padding": "1",
    "dilation": "1",
}


def named_attributes(kind: type[T]) -> type[T]:
    """The class, a dataclass, whose constructor raises AttributeNameError for names that are missing or unknown.

    >>> from unstride import onnx
    >>> try:
    ...     onnx.ConvTranspose(stride=[2, 2])
    ... except TypeError as error:
    ...     print(error.rule, error.fix, sep="; ")
    onnx.ConvTranspose has no such attribute, the nearest is strides; write onnx.ConvTranspose(strides=[2, 2])
    """
    name = f"{kind.__module__.rpartition('.')[2].removeprefix('_').partition('_')[0]}.{kind.__name__}"
    kind.__init__ = _explained(kind.__init__, name, "attribute")  # type: ignore[method-assign]
    return kind


def named_arguments(function: Function) -> Function:
    """The same for a function of this package."""
    return _explained(function, f"unstride.{function.__name__}", "argument")


def _explained(function: Function, name: str, noun: str) -> Function:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            if isinstance(error, UnstrideError) or (better := _better(function, name, noun, args, options)) is None:
                raise
        raise better

    return call  # type: ignore[return-value]


def _better(
    function: Callable[..., Any], name: str, noun: str, args: Sequence[object], options: Mapping[str, object]
) -> AttributeNameError | None:
    """What is wrong with the names of a call; None if they are right."""
    from inspect import Parameter, signature

    parameters = {n: p for n, p in signature(function).parameters.items() if n != "self"}
    args = args[1:] if "self" in signature(function).parameters else args
    places = [n for n, p in parameters.items() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    required = [n for n, p in parameters.items() if p.default is Parameter.empty]
    placed = places[: len(args)]

    def error(field: str, rule: str, *more: str) -> AttributeNameError:
        words = [f"{n}={_EXAMPLES[n]}" if n in _EXAMPLES else n for n in dict.fromkeys((*required, *more))]
        return AttributeNameError(field, (*placed, *options), rule, f"write {name}({', '.join(words)})")

    if unknown := next((n for n in options if n not in parameters), None):
        near = _nearest(unknown, list(parameters))
        hint = f", the nearest is {near[0]}" if near else ""
        return error(unknown, f"{name} has no such {noun}{hint}", *near)
    if len(args) > len(places):
        return error(name, f"takes at most {len(places)} {noun}s by position, {len(args)} were given")
    if twice := next((n for n in placed if n in options), None):
        return error(twice, f"{name} was given this {noun} twice, by position and by name")
    if missing := next((n for n in required if n not in placed and n not in options), None):
        return error(missing, f"{name} needs this {noun}, and it is missing")
    return None


def _nearest(word: str, names: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(word[:60].lower(), names, 1)
