"""torch's OpenMP threads do our work: between two operators they spin, and would keep a core from threads of ours."""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from pathlib import Path

import torch

from unstride.codegen import team
from unstride.runtime import engine, pool
from unstride.runtime.machine import host

__all__ = ["thread_count", "torch_team"]

_JOB = struct.Struct(f"{len(team.TEAM_WORDS)}q")
_forked = False


def thread_count() -> int:
    """Both limits hold: torch's and this package's."""
    return min(int(torch.get_num_threads()), pool.current_threads())


def torch_team() -> pool.Team | None:
    """The team to give `pool.borrowed`; None where there is none: OpenMP's threads do not live on in a forked child."""
    return None if _forked else _openmp_team()


@cache
def _openmp_team() -> pool.Team | None:
    path = _openmp_of_torch()
    if path is None:
        return None
    isa = host().isa
    loaded = engine.kernel_library("team", lambda: team.team_ir(isa), isa, ("team",), externals=team.EXTERNALS)
    function = loaded.addresses["team"]
    signature = (None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint)
    library = ctypes.CDLL(path)
    releasing = ctypes.CFUNCTYPE(*signature)(("GOMP_parallel", library))
    holding = ctypes.PYFUNCTYPE(*signature)(("GOMP_parallel", library))

    def run(task: int, arg: int, tasks: int, threads: int, short: bool) -> None:
        job = ctypes.create_string_buffer(_JOB.pack(task, arg, tasks, 0, 0), _JOB.size)
        (holding if short else releasing)(function, ctypes.addressof(job), threads, 0)

    return run


def _openmp_of_torch() -> str | None:
    """The OpenMP library that torch brought along and loaded: another copy of it would have other threads."""
    home = str(Path(torch.__file__).parent)
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    loaded = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line or "libiomp5" in line}
    inside = [path for path in sorted(loaded) if path.startswith(home)]
    return inside[0] if inside else None


def _after_fork_in_child() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_after_fork_in_child)
