"""The instructions of LLVM IR, each a line of a block's text.

builder = IRBuilder(function.append_basic_block("entry"))
builder.ret(builder.add(left, right))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from unstride.codegen.ir import (
    Block,
    Constant,
    FunctionType,
    IntType,
    Phi,
    PointerType,
    Type,
    Value,
    VectorType,
    VoidType,
)

__all__ = ["IRBuilder"]

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
