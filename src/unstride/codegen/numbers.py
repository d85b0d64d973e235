"""Element types: how a number is stored, how it is computed, and the conversions between the two.

f16 and bf16 are computed in f32 and rounded once, to nearest even, at the store. The conversions that a CPU level lacks
are written out in integer instructions: LLVM would otherwise call a library function that a JIT cannot find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from unstride.codegen import ir
from unstride.codegen.emit import F16, F32, F64, I16, I32, I64, PTR, VOID, Emitter, Int, Ptr, mangle, vector
from unstride.plan.machine import ISA, LINE_BYTES

__all__ = ["Numbers", "constant"]


@dataclass(frozen=True)
class Numbers:
    """One dtype on one ISA. A width of 0 lanes means a scalar."""

    dtype: str
    isa: ISA

    @property
    def stored(self) -> Any:
        return {"f32": F32, "f64": F64, "f16": F16 if self.isa.half_conversion else I16, "bf16": I16}[self.dtype]

    @property
    def computed(self) -> Any:
        return F64 if self.dtype == "f64" else F32

    @property
    def lanes(self) -> int:
        return self.isa.lanes(8 if self.dtype == "f64" else 4)

    @property
    def unrounded(self) -> Numbers:
        """Numbers that are stored as they are computed."""
        return replace(self, dtype="f64" if self.computed is F64 else "f32")

    def streams(self, vectors: int) -> bool:
        """Whether stores of so many neighbouring vectors may go past the caches: only whole lines should."""
        whole_lines = vectors * self.isa.vector_bytes % LINE_BYTES == 0
        return self.isa.streams and self.stored is self.computed and whole_lines

    def store_lines(self, e: Emitter, lines: list[tuple[Ptr, Any]], vectors: int, stream: Int) -> None:
        """Store vectors, so many of them side by side; past the caches if `stream` says so and lines are whole."""

        def keep() -> None:
            for place, value in lines:
                self.store(place, 0, value)

        if not self.streams(vectors):
            keep()
            return
        with e.either(stream.differs(0)) as (then, otherwise):
            with then:
                for place, value in lines:
                    place.stream(0, value)
            with otherwise:
                keep()

    def load(self, source: Ptr, offset: Int | int, lanes: int = 0) -> Any:
        """A stored value, widened."""
        return self.widen(source.e, source.as_type(self.stored).load(offset, lanes))

    def store(self, target: Ptr, offset: Int | int, value: Any) -> None:
        """A computed value, rounded."""
        target.as_type(self.stored).store(offset, self.narrow(target.e, value))

    @property
    def masked_loads(self) -> bool:
        """Whether a part of a vector can be loaded at once: where `masked`, of any type; by AVX2, of 32 or 64 bits."""
        return self.isa.masked or (self.isa.name == "avx2" and self.stored is self.computed)

    def load_between(self, source: Ptr, low: Int, high: Int) -> Any:
        """The elements [low, high) of a stored vector, widened, and zeros around them, which are not read."""
        return self._load_under(source, self._lanes_between(source.e, low, high))

    def mask(self, e: Emitter, low: Int, high: Int) -> Any:
        """What `load_masked` takes for the elements [low, high): worth keeping where many are loaded alike."""
        lanes = self._lanes_between(e, low, high)
        return lanes if self.isa.masked else e.b.sext(lanes, vector(I32, self.lanes))

    def load_masked(self, source: Ptr, mask: Any) -> Any:
        """As `load_between`, under a mask that was made before."""
        e = source.e
        lanes = mask if self.isa.masked else e.b.icmp_signed("<", mask, constant(mask.type, 0))
        return self._load_under(source, lanes)

    def _load_under(self, source: Ptr, lanes: Any) -> Any:
        e, typ = source.e, vector(self._integer or self.stored, self.lanes)
        name = f"llvm.masked.load.{mangle(typ)}.p0"
        nothing, align = constant(typ, 0), ir.Constant(I32, 1)
        found = e.intrinsic(name, typ, (source.value, align, lanes, nothing))
        return self.widen(e, found if typ.element is self.stored else e.b.bitcast(found, vector(F16, self.lanes)))

    def store_between(self, target: Ptr, offset: int, value: Any, low: Int, high: Int) -> None:
        """The elements of a computed vector at `offset` that lie in [low, high), rounded."""
        e, rounded = target.e, self.narrow(target.e, value)
        if not self.isa.masked:
            e.call(self._store_part(e.module), target, offset, rounded, low, high)
            return
        if self._integer is not None:
            rounded = e.b.bitcast(rounded, vector(self._integer, self.lanes))
        name = f"llvm.masked.store.{mangle(rounded.type)}.p0"
        place = (target.as_type(self.stored) + offset).value
        lanes = self._lanes_between(e, low - offset, high - offset)
        e.intrinsic(name, VOID, (rounded, place, ir.Constant(I32, 1), lanes))

    def _store_part(self, module: Any) -> Any:
        """part(target, offset, vector, low, high): as `store_between`, at once or as halves, quarters ... of it.

        AVX2 has stores under a mask, but on some processors each takes twenty cycles.
        """
        name, lanes = f"part_{self.dtype}", self.lanes
        if known := module.globals.get(name):
            return known
        typ = vector(self.stored, lanes)
        e = Emitter(module, name, [PTR, I64, typ, I64, I64], internal=True, inline=True)
        offset, value = e.arg_int(1), e.function.args[2]
        target = e.arg_ptr(0, self.stored) + offset
        first, end = e.max(e.arg_int(3) - offset, 0), e.min(e.arg_int(4) - offset, lanes)
        count, at = end - first, e.var(first)
        with e.either(count.equals(lanes)) as (then, otherwise):
            with then:
                target.store(0, value)
            with otherwise, e.when(count > 0):
                copy = e.stack(typ).as_type(self.stored)
                copy.store(0, value)
                piece = lanes // 2
                while piece:
                    with e.when((count & piece).differs(0)):
                        target.store(at.get(), copy.load(at.get(), piece if piece > 1 else 0))
                        at.set(at.get() + piece)
                    piece //= 2
        e.ret()
        return e.function

    @property
    def _integer(self) -> Any:
        """The type that a mask moves halves as."""
        return I16 if self.stored is F16 else None

    def _lanes_between(self, e: Emitter, low: Int, high: Int) -> Any:
        lanes = ir.Constant(vector(I32, self.lanes), list(range(self.lanes)))
        first, end = (e.splat(e.b.trunc(bound.value, I32), self.lanes) for bound in (low, high))
        return e.b.and_(e.b.icmp_signed(">=", lanes, first), e.b.icmp_signed("<", lanes, end))

    def widen(self, e: Emitter, value: Any) -> Any:
        if self.stored is self.computed:
            return value
        if self.dtype == "bf16":
            return e.b.bitcast(
                e.b.shl(e.b.zext(value, _like(I32, value)), constant(_like(I32, value), 16)), _like(F32, value)
            )
        if self.isa.half_conversion:
            return e.b.fpext(value, _like(F32, value))
        return _half_to_float(e, value)

    def narrow(self, e: Emitter, value: Any) -> Any:
        if self.stored is self.computed:
            return value
        if self.dtype == "bf16":
            return _float_to_bfloat(e, value)
        if self.isa.half_conversion:
            return e.b.fptrunc(value, _like(F16, value))
        return _float_to_half(e, value)

    @property
    def fused(self) -> bool:
        """Whether the machine multiplies and adds in one instruction."""
        return self.isa.name != "sse2"

    def multiply_add(self, e: Emitter, a: Any, b: Any, c: Any) -> Any:
        """a*b + c; fused where the machine can (SSE2 would call a library function for it)."""
        return e.fma(a, b, c) if self.fused else e.b.fadd(e.b.fmul(a, b), c)


def constant(typ: Any, value: float | int) -> Any:
    """A scalar constant, or a vector of equal ones."""
    if isinstance(typ, ir.VectorType):
        return ir.Constant(typ, [value] * typ.count if value else None)  # None prints as zeroinitializer
    return ir.Constant(typ, value)


def _like(element: Any, value: Any) -> Any:
    return vector(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _float_to_bfloat(e: Emitter, value: Any) -> Any:
    b, i32 = e.b, _like(I32, value)
    bits = b.bitcast(value, i32)
    high = b.lshr(bits, constant(i32, 16))
    odd = b.and_(high, constant(i32, 1))
    rounded = b.lshr(b.add(b.add(bits, constant(i32, 0x7FFF)), odd), constant(i32, 16))
    quiet = b.or_(high, constant(i32, 0x40))
    return b.trunc(b.select(b.fcmp_unordered("uno", value, value), quiet, rounded), _like(I16, value))


def _half_to_float(e: Emitter, value: Any) -> Any:
    """Shift the fields into place; a multiplication by 2**112 corrects the exponent, subnormals included."""
    b, i32, f32 = e.b, _like(I32, value), _like(F32, value)
    wide = b.zext(value, i32)
    magnitude = b.and_(wide, constant(i32, 0x7FFF))
    shifted = b.shl(magnitude, constant(i32, 13))
    scaled = b.bitcast(b.fmul(b.bitcast(shifted, f32), constant(f32, 2.0**112)), i32)
    special = b.or_(shifted, constant(i32, 0x7F800000))
    finite = b.icmp_unsigned("<", magnitude, constant(i32, 0x7C00))
    sign = b.shl(b.and_(wide, constant(i32, 0x8000)), constant(i32, 16))
    return b.bitcast(b.or_(b.select(finite, scaled, special), sign), f32)


def _float_to_half(e: Emitter, value: Any) -> Any:
    b, i32, f32 = e.b, _like(I32, value), _like(F32, value)
    bits = b.bitcast(value, i32)
    sign = b.and_(b.lshr(bits, constant(i32, 16)), constant(i32, 0x8000))
    magnitude = b.and_(bits, constant(i32, 0x7FFFFFFF))
    # Subnormal: adding 0.5 makes the adder round at the right bit.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, f32), constant(f32, 0.5)), i32), constant(i32, 0x3F000000))
    odd = b.and_(b.lshr(magnitude, constant(i32, 13)), constant(i32, 1))
    rebias = constant(i32, (0xFFF - (112 << 23)) & 0xFFFFFFFF)
    normal = b.lshr(b.add(b.add(magnitude, rebias), odd), constant(i32, 13))
    is_nan = b.icmp_unsigned(">", magnitude, constant(i32, 0x7F800000))
    special = b.select(is_nan, constant(i32, 0x7E00), constant(i32, 0x7C00))
    result = b.select(b.icmp_unsigned("<", magnitude, constant(i32, 0x38800000)), small, normal)
    result = b.select(b.icmp_unsigned("<", magnitude, constant(i32, 0x47800000)), result, special)
    return b.trunc(b.or_(result, sign), _like(I16, value))
