"""Which function of the code generator wrote a line of LLVM IR."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from unstride.codegen import ir
from unstride.codegen.builder import IRBuilder

__all__ = ["Origins", "Place"]

_SUPPORT = ("ir.py", "builder.py", "emit.py", "numbers.py", "activation.py")  # in the name of others
_NAME = re.compile(r"^ *(%\S+) = ")


@dataclass(frozen=True)
class Place:
    """A line of a file of the code generator."""

    file: str
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file} {self.function}"


_NOWHERE = Place("?", "?", "")


class Origins:
    """Values of generated functions, by (function, name)."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], Place] = {}

    @contextmanager
    def noted(self) -> Iterator[Origins]:
        """Note every value that is made inside."""
        usual = IRBuilder._value

        def made(builder: IRBuilder, typ: object, text: str) -> ir.Value:
            value: ir.Value = usual(builder, typ, text)
            self._places[builder.function.name, value.ref] = _caller()
            return value

        with mock.patch.object(IRBuilder, "_value", made):
            yield self

    def of(self, function: str, line: str) -> Place:
        """Where a line of a function's text was written."""
        match = _NAME.match(line)
        return self._places.get((function, match[1] if match else ""), _NOWHERE)


def _outermost(name: str) -> str:
    """The function or method that a nested function belongs to.

    >>> _outermost("DirectDriver._list_taps.<locals>.<genexpr>")
    '_list_taps'
    """
    return name.split(".<locals>")[0].rpartition(".")[2]


def _caller() -> Place:
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent.name == "codegen" and path.name not in _SUPPORT:
            text = linecache.getline(str(path), frame.f_lineno).strip()
            return Place(path.name, _outermost(frame.f_code.co_qualname), text)
        frame = frame.f_back  # type: ignore[assignment]
    return _NOWHERE
