"""A thin structured layer over `codegen.ir`: integer arithmetic with operators, loops, branches, typed memory.

Kernels are written against this file and read like the loops they emit:

    e = Emitter(module, "sum", [I64, PTR])
    n, data = e.arg_int(0), e.arg_ptr(1, F32)
    for i in e.range(n):
        data.store(i, ...)
    e.ret()

`for i in e.range(n)` runs its body once, in Python, between the loop's header and its latch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from unstride.codegen import ir
from unstride.codegen.builder import IRBuilder

__all__ = [
    "F16",
    "F32",
    "F64",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "PTR",
    "VOID",
    "Callee",
    "Emitter",
    "Int",
    "IntLike",
    "Ptr",
    "Var",
    "function_table",
    "int_table",
    "vector",
]

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR, VOID = ir.PointerType(), ir.VoidType()

IntLike: TypeAlias = "Int | int"  # classes below have methods called `int`, which would hide the type
Count: TypeAlias = int

# LLVM is not shown how the index of a longer loop grows, so it leaves the addresses of the body as they are written.
# Reducing their strength took up to half of all time to compile and made such loops no faster.
_LONG_BODY = 40


def vector(element: Any, lanes: int) -> Any:
    return ir.VectorType(element, lanes)


class Int:
    """A signed 64-bit value under construction; constants fold in Python."""

    __slots__ = ("e", "value")

    def __init__(self, e: Emitter, value: Any) -> None:
        self.e, self.value = e, value

    def _binary(self, name: str, other: Int | int, flags: tuple[str, ...] = ("nsw",)) -> Int:
        return Int(self.e, getattr(self.e.b, name)(self.value, self.e.raw(other), flags=flags))

    def __add__(self, other: Int | int) -> Int:
        return self if _is(other, 0) else self._binary("add", other)

    def __radd__(self, other: Int | int) -> Int:
        return self + other

    def __sub__(self, other: Int | int) -> Int:
        return self if _is(other, 0) else self._binary("sub", other)

    def __rsub__(self, other: int) -> Int:
        return self.e.int(other) - self

    def __mul__(self, other: Int | int) -> Int:
        return self if _is(other, 1) else self._binary("mul", other)

    def __rmul__(self, other: Int | int) -> Int:
        return self * other

    def __floordiv__(self, other: Int | int) -> Int:
        """Truncating division: every quotient in the kernels has operands >= 0."""
        return self._binary("sdiv", other, ())

    def __mod__(self, other: Int | int) -> Int:
        return self._binary("srem", other, ())

    def __and__(self, other: Int | int) -> Int:
        return self._binary("and_", other, ())

    def __or__(self, other: Int | int) -> Int:
        return self._binary("or_", other, ())

    def compare(self, operator: str, other: Int | int) -> Any:
        return self.e.b.icmp_signed(operator, self.value, self.e.raw(other))

    def __lt__(self, other: Int | int) -> Any:
        return self.compare("<", other)

    def __le__(self, other: Int | int) -> Any:
        return self.compare("<=", other)

    def __gt__(self, other: Int | int) -> Any:
        return self.compare(">", other)

    def __ge__(self, other: Int | int) -> Any:
        return self.compare(">=", other)

    def equals(self, other: Int | int) -> Any:
        return self.compare("==", other)

    def differs(self, other: Int | int) -> Any:
        return self.compare("!=", other)


class Ptr:
    """A pointer that knows its element type; offsets count elements."""

    __slots__ = ("e", "element", "value")

    def __init__(self, e: Emitter, value: Any, element: Any) -> None:
        self.e, self.value, self.element = e, value, element

    def __add__(self, offset: IntLike) -> Ptr:
        if _is(offset, 0):
            return self
        return Ptr(self.e, self.e.b.gep(self.value, [self.e.raw(offset)], source_etype=self.element), self.element)

    def as_type(self, element: Any) -> Ptr:
        return Ptr(self.e, self.value, element)

    def load(self, offset: IntLike = 0, lanes: Count = 0) -> Any:
        """One element, or `lanes` consecutive ones as a vector."""
        typ = vector(self.element, lanes) if lanes else self.element
        return self.e.b.load((self + offset).value, typ=typ, align=size_of(self.element))

    def int(self, offset: IntLike = 0) -> Int:
        return Int(self.e, self.load(offset))

    def store(self, offset: IntLike, value: Any) -> None:
        raw = value.value if isinstance(value, Int | Ptr) else value
        self.e.b.store(raw, (self + offset).value, align=size_of(self.element))

    def stream(self, offset: IntLike, value: Any) -> None:
        """Store a vector past the caches; its address must be a multiple of its size."""
        size = size_of(self.element) * value.type.count
        self.e.b.store(value, (self + offset).value, align=size, stream=True)


class Var:
    """A mutable 64-bit variable; LLVM turns it into a register."""

    def __init__(self, e: Emitter, initial: IntLike) -> None:
        self.e = e
        self.slot = e.stack(I64)
        self.set(initial)

    def get(self) -> Int:
        return self.slot.int()

    def set(self, value: IntLike) -> None:
        self.slot.store(0, self.e.raw(value))


class Emitter:
    """One function under construction."""

    def __init__(
        self, module: Any, name: str, arguments: Sequence[Any], *, internal: bool = False, inline: bool = False
    ) -> None:
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(VOID, list(arguments)), name)
        self.function.attributes.add("nounwind")
        if internal:
            self.function.linkage = "internal"
            self.function.attributes.add("alwaysinline" if inline else "noinline")
        self.entry = self.function.append_basic_block("entry")
        body = self.function.append_basic_block("body")
        self.b = IRBuilder(body)
        self._body = body

    def ret(self) -> None:
        self.b.ret_void()
        IRBuilder(self.entry).branch(self._body)

    # -- values

    def raw(self, value: IntLike) -> Any:
        return value.value if isinstance(value, Int) else ir.Constant(I64, value)

    def int(self, value: IntLike) -> Int:
        return value if isinstance(value, Int) else Int(self, ir.Constant(I64, value))

    def arg_int(self, index: Count) -> Int:
        return Int(self, self.function.args[index])

    def arg_ptr(self, index: Count, element: Any, *, noalias: bool = False) -> Ptr:
        if noalias:
            self.function.args[index].add_attribute("noalias")
        return Ptr(self, self.function.args[index], element)

    def stack(self, element: Any, count: Count = 1) -> Ptr:
        """Storage in the entry block, so that a loop does not grow the stack."""
        return Ptr(self, IRBuilder(self.entry).alloca(ir.ArrayType(element, count)), element)

    def var(self, initial: IntLike) -> Var:
        return Var(self, initial)

    def ptr(self, address: Int, element: Any) -> Ptr:
        return Ptr(self, self.b.inttoptr(address.value, PTR), element)

    def select(self, condition: Any, yes: IntLike, no: IntLike) -> Int:
        return Int(self, self.b.select(condition, self.raw(yes), self.raw(no)))

    def min(self, left: IntLike, right: IntLike) -> Int:
        left = self.int(left)
        return self.select(left < right, left, right)

    def max(self, left: IntLike, right: IntLike) -> Int:
        left = self.int(left)
        return self.select(left > right, left, right)

    # -- control flow

    def range(
        self, start: IntLike, stop: IntLike | None = None, step: Count = 1, *, inner: bool = False
    ) -> Iterator[Int]:
        """A loop. `inner` says that the time of a kernel is spent in its body, however long that is."""
        if stop is None:
            start, stop = 0, start
        if _turns_once(start, stop, step):
            yield self.int(start)
            return
        stop_raw = self.raw(stop)
        before = self.b.block
        body, after = self.function.append_basic_block("loop"), self.function.append_basic_block("done")
        self.b.cbranch(self.b.icmp_signed("<", self.raw(start), stop_raw), body, after)
        self.b.position_at_end(body)
        index = self.b.phi(I64)
        index.add_incoming(self.raw(start), before)
        first = self.function.values
        yield Int(self, index)
        following = self.b.add(index, ir.Constant(I64, step), flags=("nsw",))
        if not inner and self.function.values - first > _LONG_BODY:
            following = self.unseen(following, "r")
        index.add_incoming(following, self.b.block)
        self.b.cbranch(self.b.icmp_signed("<", following, stop_raw), body, after)
        self.b.position_at_end(after)

    def while_below(self, var: Var, stop: IntLike) -> Iterator[Int]:
        """A loop for as long as `var` is below `stop`; the body moves it on."""
        look, body, after = (self.function.append_basic_block(name) for name in ("look", "while", "done"))
        self.b.branch(look)
        self.b.position_at_end(look)
        value = var.get()
        self.b.cbranch(value < stop, body, after)
        self.b.position_at_end(body)
        yield value
        self.b.branch(look)
        self.b.position_at_end(after)

    def unseen(self, value: Any, register: str) -> Any:
        """The same value in the same register of this class (an assembler constraint), but LLVM cannot tell."""
        return self.b.asm(ir.FunctionType(value.type, [value.type]), "", f"={register},0", [value])

    def fold(
        self, start: IntLike, stop: IntLike, step: Count, values: list[Any], *, some: bool = False
    ) -> Iterator[tuple[Int, list[Any]]]:
        """A loop that carries `values`: the body replaces the items of the list it is given, and after the loop
        `values` itself holds the last ones. (A Var would do, but hundreds of them are slow to clean up.)
        `some` promises that the body runs at least once."""
        if _turns_once(start, stop, step):
            yield self.int(start), values
            return
        stop_raw = self.raw(stop)
        before = self.b.block
        body, after = self.function.append_basic_block("fold"), self.function.append_basic_block("done")
        if some:
            self.b.branch(body)
        else:
            self.b.cbranch(self.b.icmp_signed("<", self.raw(start), stop_raw), body, after)
        self.b.position_at_end(body)
        index = self.b.phi(I64)
        index.add_incoming(self.raw(start), before)
        carried = [self.b.phi(value.type) for value in values]
        for phi, value in zip(carried, values, strict=True):
            phi.add_incoming(value, before)
        current = list(carried)
        yield Int(self, index), current
        following = self.b.add(index, ir.Constant(I64, step), flags=("nsw",))
        index.add_incoming(following, self.b.block)
        for phi, value in zip(carried, current, strict=True):
            phi.add_incoming(value, self.b.block)
        last = self.b.block
        self.b.cbranch(self.b.icmp_signed("<", following, stop_raw), body, after)
        self.b.position_at_end(after)
        if some:
            values[:] = current
            return
        for i, value in enumerate(current):
            joined = self.b.phi(value.type)
            joined.add_incoming(values[i], before)
            joined.add_incoming(value, last)
            values[i] = joined

    def when(self, condition: Any) -> AbstractContextManager[None]:
        return self.b.if_then(condition)

    def either(self, condition: Any) -> AbstractContextManager[tuple[Any, Any]]:
        return self.b.if_else(condition)

    def call(self, function: Any, *arguments: Any) -> None:
        raw = [a.value if isinstance(a, Int | Ptr) else self.raw(a) if isinstance(a, int) else a for a in arguments]
        self.b.call(function, raw)

    # -- vectors

    def splat(self, scalar: Any, lanes: Count) -> Any:
        seed = self.b.insert_element(ir.Constant(vector(scalar.type, lanes), ir.Undefined), scalar, ir.Constant(I32, 0))
        mask = ir.Constant(vector(I32, lanes), None)  # all lanes take element 0
        return self.b.shuffle_vector(seed, seed, mask)

    def intrinsic(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.b.call(known, list(arguments))

    def fetch(self, address: Ptr, *, near: bool = True) -> None:
        """Ask for a line that will be read soon, or into L2 only; the address need not exist."""
        flags = [ir.Constant(I32, value) for value in (0, 3 if near else 2, 1)]  # to read, how close, data
        self.intrinsic("llvm.prefetch.p0", VOID, (address.value, *flags))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.intrinsic(f"llvm.fma.{mangle(c.type)}", c.type, (a, b, c))


class Callee:
    """A function that is called through its address, which does not say what it returns: nothing."""

    function_type = ir.FunctionType(VOID, ())  # a call names the types of its arguments itself

    def __init__(self, address: Any) -> None:
        self.address = address

    def get_reference(self) -> str:
        return str(self.address.get_reference())


def function_table(module: Any, name: str, functions: Iterable[str]) -> None:
    """A constant table of addresses of the module's own functions."""
    _table(module, name, PTR, [ir.FormattedConstant(PTR, module.globals[f].get_reference()) for f in functions])


def int_table(module: Any, name: str, values: Iterable[int]) -> None:
    """A constant table of integers."""
    _table(module, name, I64, [ir.Constant(I64, value) for value in values])


def _table(module: Any, name: str, element: Any, entries: list[Any]) -> None:
    table = ir.GlobalVariable(module, ir.ArrayType(element, len(entries)), name)
    table.initializer = ir.Constant(table.value_type, entries)
    table.global_constant = True
    table.linkage = "internal"


_SIZES = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8, "ptr": 8}


def size_of(element: Any) -> int:
    return _SIZES[element.text]


def mangle(typ: Any) -> str:
    """The type suffix of an overloaded intrinsic: v8f32, f64, v4i16."""
    if isinstance(typ, ir.VectorType):
        return f"v{typ.count}{mangle(typ.element)}"
    return {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(typ.text, str(typ.text))


def _is(value: IntLike, constant: Count) -> bool:
    return isinstance(value, int) and value == constant


def _turns_once(start: IntLike, stop: IntLike, step: Count) -> bool:
    """Whether a loop is none: what it does is known to be done once."""
    return isinstance(start, int) and isinstance(stop, int) and start < stop <= start + step
