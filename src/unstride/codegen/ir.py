"""LLVM IR, written down as text while it is built: types, values, functions and modules.

This and `builder.py`, the instructions, are the part of `llvmlite.ir` that the kernels need, under the same names. An
instruction becomes a line of text at once and a value is a type and a name, which takes a fifth of the time of keeping
a graph of objects and printing it at the end. Types of operands are not compared here: LLVM refuses a text in which
they do not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

__all__ = [
    "ArrayType",
    "Block",
    "Constant",
    "DoubleType",
    "FloatType",
    "FormattedConstant",
    "Function",
    "FunctionType",
    "GlobalVariable",
    "HalfType",
    "IntType",
    "Module",
    "Phi",
    "PointerType",
    "Type",
    "Undefined",
    "Value",
    "VectorType",
    "VoidType",
]


# --- types: equal ones are the same object --------------------------------------------------------------------------


class Type:
    """A type, by its text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class VectorType(Type):
    """`VectorType(element, count)`."""

    __slots__ = ("count", "element")
    element: Type
    count: int
    _known: ClassVar[dict[tuple[Type, int], VectorType]] = {}

    def __new__(cls, element: Type, count: int) -> VectorType:
        found = cls._known.get((element, count))
        if found is None:
            found = cls._known[element, count] = super().__new__(cls)
        return found

    def __init__(self, element: Type, count: int) -> None:
        self.element, self.count = element, count
        self.text = f"<{count} x {element.text}>"


class ArrayType(Type):
    """`ArrayType(element, count)`."""

    __slots__ = ()

    def __init__(self, element: Type, count: int) -> None:
        super().__init__(f"[{count} x {element.text}]")


class FunctionType:
    """What a function returns and takes."""

    __slots__ = ("args", "return_type")

    def __init__(self, return_type: Type, args: Sequence[Type]) -> None:
        self.return_type, self.args = return_type, args


@cache
def IntType(bits: int) -> Type:
    return Type(f"i{bits}")


@cache
def HalfType() -> Type:
    return Type("half")


@cache
def BFloatType() -> Type:
    return Type("bfloat")


@cache
def FloatType() -> Type:
    return Type("float")


@cache
def DoubleType() -> Type:
    return Type("double")


@cache
def PointerType() -> Type:
    return Type("ptr")


@cache
def VoidType() -> Type:
    return Type("void")


# --- values ---------------------------------------------------------------------------------------------------------


class Value:
    """Something that an instruction can use: its type, and how it is referred to."""

    __slots__ = ("ref", "type")

    def __init__(self, type: Any, ref: str) -> None:
        self.type, self.ref = type, ref

    def get_reference(self) -> str:
        return self.ref


class FormattedConstant(Value):
    """A constant by its text."""

    __slots__ = ()


class _Undefined:
    """The value of `Undefined`."""


Undefined = _Undefined()


class Constant(Value):
    """A number; for a vector or an array a sequence of numbers or constants, or None for zeros; or `Undefined`."""

    __slots__ = ()

    def __init__(self, type: Any, value: Any) -> None:
        self.type = type
        self.ref = str(value) if value.__class__ is int and type.text[0] == "i" else _constant_text(type, value)


def _constant_text(typ: Any, value: Any) -> str:
    if value is Undefined:
        return "undef"
    if value is None:
        return "zeroinitializer"
    if isinstance(value, Sequence):
        items = [item if isinstance(item, Value) else Constant(typ.element, item) for item in value]
        inside = ", ".join([f"{item.type} {item.ref}" for item in items])
        return f"<{inside}>" if isinstance(typ, VectorType) else f"[{inside}]"
    if typ.text in _FLOATS:
        return _float_text(typ.text, float(value))
    return str(int(value))


_FLOATS = {"half": "e", "float": "f", "double": "d"}


@cache
def _float_text(typ: str, value: float) -> str:
    """The bits of a double, in which every type's numbers are written once they are rounded to it."""
    (rounded,) = struct.unpack(_FLOATS[typ], struct.pack(_FLOATS[typ], value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016x}"


class Phi(Value):
    """Its text is known when all its incoming values are."""

    __slots__ = ("incoming",)

    def __init__(self, type: Any, ref: str) -> None:
        super().__init__(type, ref)
        self.incoming: list[str] = []

    def add_incoming(self, value: Any, block: Block) -> None:
        self.incoming.append(f"[{value.ref}, %{block.name}]")

    def __str__(self) -> str:
        return f"{self.ref} = phi {self.type} {', '.join(self.incoming)}"


class Argument(Value):
    """An argument of a function."""

    __slots__ = ("attributes",)

    def __init__(self, type: Any, ref: str) -> None:
        super().__init__(type, ref)
        self.attributes = ""

    def add_attribute(self, name: str) -> None:
        self.attributes += f"{name} "


# --- modules --------------------------------------------------------------------------------------------------------


class Module:
    """Globals by name, in the order of their making; `str(module)` is the text for LLVM."""

    def __init__(self, name: str = "") -> None:
        self.name, self.triple = name, "unknown-unknown-unknown"
        self.globals: dict[str, Any] = {}

    def __str__(self) -> str:
        head = f'; ModuleID = "{self.name}"\ntarget triple = "{self.triple}"\n'
        return "\n".join([head, *map(str, self.globals.values())])


class GlobalVariable(Value):
    """`initializer`, `global_constant` and `linkage` are set after it was made."""

    __slots__ = ("global_constant", "initializer", "linkage", "name", "value_type")

    def __init__(self, module: Module, value_type: Type, name: str) -> None:
        super().__init__(PointerType(), f"@{name}")
        self.name, self.value_type = name, value_type
        self.initializer: Any = None
        self.global_constant, self.linkage = False, ""
        module.globals[name] = self

    def __str__(self) -> str:
        kind = "constant" if self.global_constant else "global"
        return f"{self.ref} = {self.linkage} {kind} {self.value_type} {self.initializer.ref}\n"


class Block:
    """Lines that run one after another."""

    __slots__ = ("ended", "function", "lines", "name")

    def __init__(self, function: Function, name: str) -> None:
        self.function, self.name = function, name
        self.lines: list[Any] = []
        self.ended = False


class Function(Value):
    """A function with blocks is a definition, one without a declaration."""

    __slots__ = ("args", "attributes", "blocks", "function_type", "labels", "linkage", "module", "name", "values")

    def __init__(self, module: Module, function_type: FunctionType, name: str) -> None:
        super().__init__(PointerType(), f"@{name}")
        self.module, self.function_type, self.name = module, function_type, name
        self.args = tuple(Argument(typ, f"%a{i}") for i, typ in enumerate(function_type.args))
        self.attributes: set[str] = set()
        self.linkage = ""
        self.blocks: list[Block] = []
        self.values = 0
        self.labels: dict[str, int] = {}
        if name in module.globals:
            raise ValueError(f"{name} is already there")
        module.globals[name] = self

    def append_basic_block(self, name: str) -> Block:
        number = self.labels[name] = self.labels.get(name, 0) + 1
        block = Block(self, f"{name}.{number}" if number > 1 else name)
        self.blocks.append(block)
        return block

    def __str__(self) -> str:
        attributes = " ".join(sorted(self.attributes))
        head = f"{self.linkage} {self.function_type.return_type} {self.ref}"
        if not self.blocks:
            return f"declare {head}({', '.join([str(typ) for typ in self.function_type.args])}) {attributes}\n"
        arguments = ", ".join([f"{a.type} {a.attributes}{a.ref}" for a in self.args])
        lines = [f"define {head}({arguments}) {attributes} {{"]
        for block in self.blocks:
            lines.append(f"{block.name}:")
            lines += [f"  {line}" for line in block.lines]
        return "\n".join(lines) + "\n}\n"
