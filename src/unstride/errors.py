"""Every error this package raises on purpose.

UnstrideError
├── AttributeValueError   (also ValueError)   a bad attribute of an operator
│   └── AttributeNameError  (also TypeError)  one that is required and missing, or that the operator does not have
├── ShapeError            (also ValueError)   sizes or ranks that do not belong together
├── DTypeError            (also TypeError)    an element type that is not supported, or two that differ
├── SizeLimitError        (also MemoryError)  a result or a scratch buffer that is too large
└── FormatError           (also ValueError)   a file that is damaged, hostile or not understood

RuleWarning               (a UserWarning)     two rule sets give different answers for the call at hand
"""

from __future__ import annotations

from typing import Self

__all__ = [
    "AttributeNameError",
    "AttributeValueError",
    "DTypeError",
    "FormatError",
    "RuleWarning",
    "ShapeError",
    "SizeLimitError",
    "UnstrideError",
]


class UnstrideError(Exception):
    """The root. `field` names what was wrong; the message says what it was given, the rule, and a fix.

    >>> raise ShapeError("filter", (3, 3), "needs rank 4 for 2D data", "pass [C_IN, C_OUT, H, W]")
    Traceback (most recent call last):
    unstride.errors.ShapeError: filter: got (3, 3); needs rank 4 for 2D data. Fix: pass [C_IN, C_OUT, H, W].
    """

    def __new__(cls, *args: object, **names: object) -> Self:
        """Python's MemoryError refuses to make its heirs, which tools that send errors elsewhere would ask it to do."""
        del names
        return Exception.__new__(cls, *args)

    def __init__(self, field: str, given: object, rule: str, fix: str = "") -> None:
        self.field = field
        self.given = given
        self.rule = rule
        self.fix = fix
        super().__init__(field, given, rule, fix)

    def __str__(self) -> str:
        text = f"{self.field}: got {_short(self.given)}; {self.rule}"
        return printable(f"{text}. Fix: {self.fix}." if self.fix else f"{text}.")


class AttributeValueError(UnstrideError, ValueError):
    """An attribute of an operator has a value its document does not allow."""


class AttributeNameError(AttributeValueError, TypeError):
    """A required attribute is missing, or there is none of this name; `given` holds the names that were given.

    >>> raise AttributeNameError("stride", ("stride",), "openvino.ConvolutionBackpropData has no such attribute")
    Traceback (most recent call last):
    unstride.errors.AttributeNameError: stride: openvino.ConvolutionBackpropData has no such attribute.
    """

    def __str__(self) -> str:
        text = f"{_clipped(self.field)}: {self.rule}"
        return printable(f"{text}. Fix: {self.fix}." if self.fix else f"{text}.")


class ShapeError(UnstrideError, ValueError):
    """Sizes, ranks or lengths that do not belong together."""


class DTypeError(UnstrideError, TypeError):
    """An element type that is not supported, or inputs whose types differ."""


class SizeLimitError(UnstrideError, MemoryError):
    """A result, an input or a scratch buffer larger than can be addressed or allocated."""


class FormatError(UnstrideError, ValueError):
    """A file that is damaged, hostile or of an unknown kind."""


class RuleWarning(UserWarning):
    """The `spec` and `runtime` rules disagree for the call at hand."""


def printable(text: str) -> str:
    """The text without control characters: a name from a file must neither break a line nor steer a terminal.

    >>> printable("up\x1b[2J")
    'up?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _short(value: object, limit: int = 120) -> str:
    """repr() bounded in length, so that a hostile value cannot flood the message."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**24:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} whose repr fails"
    return _clipped(text, limit)


def _clipped(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
