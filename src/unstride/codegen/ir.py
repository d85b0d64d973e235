"""LLVM IR, written down as text while it is built.

The part of `llvmlite.ir` that the kernels need, under the same names. An instruction becomes a line of text at once and
a value is a type and a name, which takes a fifth of the time of keeping a graph of objects and printing it at the end.
Types of operands are not compared here: LLVM refuses a text in which they do not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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
    "IRBuilder",
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


# --- instructions ---------------------------------------------------------------------------------------------------

_COMPARISONS = {">": "gt", "<": "lt", "==": "eq", "!=": "ne", ">=": "ge", "<=": "le", "ord": "rd", "uno": "no"}
_EITHER_SIGN = {"==": "eq", "!=": "ne"}


class IRBuilder:
    """Appends instructions to a block. What it returns are Values."""

    __slots__ = ("block", "function")

    def __init__(self, block: Block) -> None:
        self.block, self.function = block, block.function

    def position_at_end(self, block: Block) -> None:
        self.block = block

    def _value(self, type: Any, text: str) -> Any:
        function = self.function
        function.values += 1
        ref = f"%v{function.values}"
        self.block.lines.append(f"{ref} = {text}")
        return Value(type, ref)

    # -- arithmetic

    def _binary(self, name: str, left: Any, right: Any, flags: Iterable[str]) -> Any:
        operation = " ".join((name, *flags)) if flags else name
        return self._value(left.type, f"{operation} {left.type.text} {left.ref}, {right.ref}")

    def add(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("add", left, right, flags)

    def sub(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("sub", left, right, flags)

    def mul(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("mul", left, right, flags)

    def sdiv(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("sdiv", left, right, flags)

    def srem(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("srem", left, right, flags)

    def and_(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("and", left, right, flags)

    def or_(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("or", left, right, flags)

    def xor(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("xor", left, right, flags)

    def shl(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("shl", left, right, flags)

    def lshr(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("lshr", left, right, flags)

    def fadd(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("fadd", left, right, flags)

    def fsub(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("fsub", left, right, flags)

    def fmul(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("fmul", left, right, flags)

    def fdiv(self, left: Any, right: Any, flags: Sequence[str] = ()) -> Any:
        return self._binary("fdiv", left, right, flags)

    def not_(self, value: Any) -> Any:
        ones = [-1] * value.type.count if isinstance(value.type, VectorType) else -1
        return self.xor(value, Constant(value.type, ones))

    # -- comparison

    def _compare(self, operation: str, left: Any, right: Any) -> Any:
        typ = IntType(1)
        if isinstance(left.type, VectorType):
            typ = VectorType(typ, left.type.count)
        return self._value(typ, f"{operation} {left.type.text} {left.ref}, {right.ref}")

    def icmp_signed(self, operator: str, left: Any, right: Any) -> Any:
        return self._compare(f"icmp {_EITHER_SIGN.get(operator) or 's' + _COMPARISONS[operator]}", left, right)

    def icmp_unsigned(self, operator: str, left: Any, right: Any) -> Any:
        return self._compare(f"icmp {_EITHER_SIGN.get(operator) or 'u' + _COMPARISONS[operator]}", left, right)

    def fcmp_ordered(self, operator: str, left: Any, right: Any) -> Any:
        return self._compare(f"fcmp o{_COMPARISONS[operator]}", left, right)

    def fcmp_unordered(self, operator: str, left: Any, right: Any) -> Any:
        return self._compare(f"fcmp u{_COMPARISONS[operator]}", left, right)

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        typ = yes.type.text
        text = f"select {condition.type.text} {condition.ref}, {typ} {yes.ref}, {typ} {no.ref}"
        return self._value(yes.type, text)

    # -- conversion; to the type that a value has already, it is left out

    def _cast(self, name: str, value: Any, typ: Any) -> Any:
        if value.type is typ:
            return value
        return self._value(typ, f"{name} {value.type.text} {value.ref} to {typ.text}")

    def bitcast(self, value: Any, typ: Any) -> Any:
        return self._cast("bitcast", value, typ)

    def zext(self, value: Any, typ: Any) -> Any:
        return self._cast("zext", value, typ)

    def sext(self, value: Any, typ: Any) -> Any:
        return self._cast("sext", value, typ)

    def trunc(self, value: Any, typ: Any) -> Any:
        return self._cast("trunc", value, typ)

    def fpext(self, value: Any, typ: Any) -> Any:
        return self._cast("fpext", value, typ)

    def fptrunc(self, value: Any, typ: Any) -> Any:
        return self._cast("fptrunc", value, typ)

    def sitofp(self, value: Any, typ: Any) -> Any:
        return self._cast("sitofp", value, typ)

    def ptrtoint(self, value: Any, typ: Any) -> Any:
        return self._cast("ptrtoint", value, typ)

    def inttoptr(self, value: Any, typ: Any) -> Any:
        return self._cast("inttoptr", value, typ)

    # -- memory

    def alloca(self, typ: Type) -> Any:
        return self._value(PointerType(), f"alloca {typ.text}")

    def load(self, pointer: Any, *, typ: Any, align: int = 0) -> Any:
        aligned = f", align {align}" if align else ""
        return self._value(typ, f"load {typ.text}, ptr {pointer.ref}{aligned}")

    def store(self, value: Any, pointer: Any, align: int = 0, *, stream: bool = False) -> None:
        aligned = f", align {align}" if align else ""
        if stream:
            aligned += ", !nontemporal !{i32 1}"
        self.block.lines.append(f"store {value.type.text} {value.ref}, ptr {pointer.ref}{aligned}")

    def gep(self, pointer: Any, indices: Sequence[Any], *, source_etype: Any) -> Any:
        at = ", ".join([f"{index.type.text} {index.ref}" for index in indices])
        return self._value(pointer.type, f"getelementptr {source_etype.text}, ptr {pointer.ref}, {at}")

    # -- vectors

    def insert_element(self, target: Any, value: Any, index: Any) -> Any:
        parts = ", ".join([f"{part.type.text} {part.ref}" for part in (target, value, index)])
        return self._value(target.type, f"insertelement {parts}")

    def extract_element(self, source: Any, index: Any) -> Any:
        text = f"extractelement {source.type.text} {source.ref}, {index.type.text} {index.ref}"
        return self._value(source.type.element, text)

    def shuffle_vector(self, left: Any, right: Any, mask: Any) -> Any:
        parts = ", ".join([f"{part.type.text} {part.ref}" for part in (left, right, mask)])
        return self._value(VectorType(left.type.element, mask.type.count), f"shufflevector {parts}")

    # -- calls

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """`function` has a `function_type` and a reference: a Function, or whatever stands for an address."""
        typ = function.function_type.return_type
        inside = ", ".join([f"{argument.type.text} {argument.ref}" for argument in arguments])
        text = f"call {typ.text} {function.get_reference()}({inside})"
        if typ is not VoidType():
            return self._value(typ, text)
        self.block.lines.append(text)
        return None

    def asm(self, function_type: FunctionType, text: str, constraints: str, arguments: Sequence[Any]) -> Any:
        """Assembler text without side effects."""
        return self.call(_Assembler(function_type, f'asm "{text}", "{constraints}"'), arguments)

    # -- control flow

    def phi(self, typ: Any) -> Phi:
        self.function.values += 1
        phi = Phi(typ, f"%v{self.function.values}")
        self.block.lines.append(phi)
        return phi

    def _end(self, text: str) -> None:
        self.block.lines.append(text)
        self.block.ended = True

    def branch(self, target: Block) -> None:
        self._end(f"br label %{target.name}")

    def cbranch(self, condition: Any, yes: Block, no: Block) -> None:
        self._end(f"br i1 {condition.ref}, label %{yes.name}, label %{no.name}")

    def ret_void(self) -> None:
        self._end("ret void")

    @contextmanager
    def if_then(self, condition: Any) -> Iterator[None]:
        inside, after = (self.function.append_basic_block(name) for name in ("then", "after"))
        self.cbranch(condition, inside, after)
        with self._inside(inside, after):
            yield
        self.block = after

    @contextmanager
    def if_else(self, condition: Any) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        yes, no, after = (self.function.append_basic_block(name) for name in ("then", "else", "after"))
        self.cbranch(condition, yes, no)
        yield self._inside(yes, after), self._inside(no, after)
        self.block = after

    @contextmanager
    def _inside(self, block: Block, after: Block) -> Iterator[None]:
        self.block = block
        yield
        if not self.block.ended:
            self.branch(after)


class _Assembler:
    def __init__(self, function_type: FunctionType, text: str) -> None:
        self.function_type, self.text = function_type, text

    def get_reference(self) -> str:
        return self.text
