"""The machine this process runs on, as plans want to know it. Reads /proc and /sys only: LLVM is not needed for it."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from unstride.errors import AttributeValueError
from unstride.plan.machine import AMX, AVX2, AVX512, DOTS, ISA, ISAS, NEON, SSE2, Machine
from unstride.runtime.tiles import tile_types

__all__ = ["cpu_features", "host", "usable_cores"]

# The kernel's names for what the x86-64-v3 and x86-64-v4 levels promise to the code generator.
_V3 = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
_V4 = frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))


@cache
def host() -> Machine:
    """This machine: the widest instruction set it has, the cores this process may use, its private caches.

    Where AVX-512 passes the units in two halves, structures that AVX2 fits better may use that; where there is AMX, f16
    and bf16 may, and where pairs of bf16 are multiplied at once, bf16. `UNSTRIDE_ISA` (sse2, avx2, avx512) chooses one
    instruction set for all; one the processor lacks is refused.
    """
    isa = _isa()
    pace = _pace(isa)
    narrower = AVX2 if pace > 1 and not _wanted_isa() else None
    matrix, matrix_isa = _matrix() if isa is AVX512 and not _wanted_isa() else ((), AMX)
    past_l2 = isa is AVX512 and _is_amd("26")
    return Machine(
        isa,
        usable_cores(),
        l1_bytes=_cache_bytes(1, 32 * 1024),
        l2_bytes=_cache_bytes(2, 512 * 1024),
        pace=pace,
        narrower=narrower,
        matrix=matrix,
        matrix_isa=matrix_isa,
        past_l2=past_l2,
    )


def usable_cores() -> int:
    """Cores this process may use now: the affinity mask, and the CPU quota of its control group if that is smaller."""
    allowed, quota = len(os.sched_getaffinity(0)), _quota_cores()
    return allowed if quota is None or quota > allowed else quota


@cache
def cpu_features() -> frozenset[str]:
    """What the kernel says the processor can do (`flags` on x86, `Features` on ARM); empty if it does not say."""
    says = _first_processor()
    return frozenset((says.get("flags") or says.get("Features") or "").split())


@cache
def _first_processor() -> dict[str, str]:
    """What the kernel says of the first processor, as far as it says anything."""
    block = _read(Path("/proc/cpuinfo")).split("\n\n")[0]
    fields = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def _pace(isa: ISA) -> int:
    """Zen 4 has vectors of AVX-512 pass its units in two halves."""
    return 2 if isa is AVX512 and _is_amd("25") else 1


def _matrix() -> tuple[tuple[str, ...], ISA]:
    """The types of which this machine multiplies more at a time than of f32, and how.

    Zen 5 adds up pairs of bf16 as fast as single products of f32, as was measured; Zen 4 is taken to do so, too. On
    others it was not tried.
    """
    features = cpu_features()
    if "amx_bf16" in features:
        return tile_types(), AMX
    return (("bf16",), DOTS) if "avx512_bf16" in features and (_is_amd("25") or _is_amd("26")) else ((), AMX)


def _is_amd(family: str) -> bool:
    """Whether this is a processor of that family of AMD's: 25 is Zen 3 and 4, 26 Zen 5."""
    processor = _first_processor()
    return (processor.get("vendor_id"), processor.get("cpu family")) == ("AuthenticAMD", family)


def _isa() -> ISA:
    best = _best_isa()
    wanted = _wanted_isa()
    if not wanted or wanted == best.name:
        return best
    choices = _runnable(best)
    if wanted not in choices:
        rule = f"this processor runs {', '.join(choices)}"
        raise AttributeValueError("UNSTRIDE_ISA", wanted, rule, "choose one of these")
    return ISAS[wanted]


def _wanted_isa() -> str:
    return os.environ.get("UNSTRIDE_ISA", "").strip().lower()


def _runnable(best: ISA) -> list[str]:
    levels = [SSE2.name, AVX2.name, AVX512.name]
    return levels[: levels.index(best.name) + 1] if best.name in levels else [best.name]


def _best_isa() -> ISA:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return NEON
    features = cpu_features()
    if not features >= _V3:
        return SSE2
    return AVX512 if features >= _V4 else AVX2


def _cache_bytes(level: int, default: int) -> int:
    """The size of the first core's data (or unified) cache of a level."""
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if _read(entry / "level") == str(level) and _read(entry / "type") in ("Data", "Unified"):
            size = _read(entry / "size")
            if size.endswith("K") and size[:-1].isdigit():
                return int(size[:-1]) * 1024
    return default


@cache  # files are read: far too slow for every call
def _quota_cores() -> int | None:
    """The control group's CPU quota, rounded up to whole cores; None without one."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        hierarchy, controllers, path = (*line.split(":", 2), "", "")[:3]
        if hierarchy == "0":
            limit = _tightest(Path("/sys/fs/cgroup"), path, "cpu.max")
        elif "cpu" in controllers.split(","):
            limit = _tightest(Path("/sys/fs/cgroup/cpu"), path, "cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        if limit is not None:
            return limit
    return None


def _tightest(root: Path, path: str, *files: str) -> int | None:
    """The smallest quota among a control group and its ancestors."""
    group = root / path.lstrip("/")
    limits = []
    for level in (group, *group.parents):
        words = " ".join(_read(level / file) for file in files).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            limits.append(max(1, -(-int(words[0]) // int(words[1]))))
        if level == root:
            break
    return min(limits, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
