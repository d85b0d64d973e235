"""What a plan needs to know of a machine. Pure data: a plan can be made for a machine that is not this one."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["AMX", "AVX2", "AVX512", "DOTS", "ISA", "ISAS", "LINE_BYTES", "NEON", "SSE2", "Machine"]

LINE_BYTES = 64  # of a cache line


@dataclass(frozen=True)
class ISA:
    """An instruction-set level: what code may use, and the register file a tile must fit in."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    masked: bool  # lane masks cost nothing
    half_conversion: bool  # f16 <-> f32 in hardware

    @property
    def streams(self) -> bool:
        """Whether stores past the caches are worth their while: x86 reads every line it is about to overwrite."""
        return self.name in ("avx2", "avx512", "amx", "dots")

    def lanes(self, itemsize: int) -> int:
        return self.vector_bytes // itemsize


SSE2 = ISA("sse2", "x86_64-unknown-linux-gnu", "x86-64", "", 16, 16, False, False)
AVX2 = ISA("avx2", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 32, 16, False, True)
AVX512 = ISA("avx512", "x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit", 64, 32, True, True)
NEON = ISA("neon", "aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", 16, 32, False, True)
# What AVX-512 is on processors that also multiply whole tiles of halves; only kernels of such products are made for it.
_TILES = "+amx-tile,+amx-bf16,+amx-fp16,+avx512bf16"
AMX = ISA("amx", "x86_64-unknown-linux-gnu", "x86-64-v4", f"-prefer-256-bit,{_TILES}", 64, 32, True, True)
# Likewise on those that add up pairs of products of bf16, one vector at a time.
DOTS = ISA("dots", "x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit,+avx512bf16", 64, 32, True, True)
ISAS = {isa.name: isa for isa in (SSE2, AVX2, AVX512, NEON)}


@dataclass(frozen=True)
class Machine:
    """An ISA, the cores this process may use, the private caches of one core, and the width of its units."""

    isa: ISA
    cores: int
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    last_bytes: int = 32 * 2**20  # of a shared cache, as most machines have it
    pace: int = 1  # passes that a vector needs through the units of a core: 2 where these are half as wide
    narrower: ISA | None = None  # with vectors that take one pass then, and fit few channels better
    matrix: tuple[str, ...] = ()  # the types of which it multiplies more at a time than of f32
    matrix_isa: ISA = AMX  # by which instructions: whole tiles, or pairs (DOTS)
    past_l2: bool = False  # channel-major results that L2 does not hold are stored past the caches

    @property
    def kind(self) -> str:
        """What measured prices belong to."""
        return self.isa.name if self.pace == 1 else f"{self.isa.name} in {self.pace} passes"

    @property
    def by_one_pass(self) -> Machine | None:
        """This machine with the narrower vectors, if it has such."""
        return replace(self, isa=self.narrower, pace=1, narrower=None) if self.narrower else None
