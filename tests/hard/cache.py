"""The code cache: damage, foreign entries, doubtful places, no place at all, and eight processes that are killed.

A damaged entry must be noticed before its bytes reach a loader, and the kernel compiled afresh must compute the right
number. A place that somebody else could have prepared is not used, with one notice; so is one that cannot be written.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.hard import forks
from tests.hard.tally import Tally, main
from unstride import openvino
from unstride.plan.machine import ISAS, SSE2
from unstride.runtime import cache, elf, engine
from unstride.runtime.cache import CacheWarning
from unstride.runtime.machine import host

FLIPS, TRUNCATIONS, SPLICES = (300, 10_000), (40, 500), (40, 500)
HAMMER_SECONDS = (3.0, 20.0)
_PROCESSES = 8
_KERNEL = """
define i64 @mix(i64 %a, i64 %b) {
  %p = mul i64 %a, 1000003
  %s = add i64 %p, %b
  ret i64 %s
}
"""
_PER_CHILD = 1_000


@contextmanager
def own_cache() -> Iterator[Path]:
    """An empty code cache nobody has used, with a state of its own."""
    with tempfile.TemporaryDirectory(prefix="unstride-hard-") as folder:
        path = Path(folder, "cache")
        with (
            mock.patch.dict(os.environ, {"UNSTRIDE_CACHE_DIR": str(path)}),
            mock.patch.object(cache, "_state", cache._State()),
            mock.patch.object(cache, "memory", {}),
        ):
            yield path


def mixed(key: str = "mix", isa: Any = None) -> tuple[str, int]:
    """Where the kernel came from, and what it computes."""
    loaded = engine.kernel_library(key, lambda: _KERNEL, isa or host().isa, ["mix"])
    return loaded.origin, ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(loaded.addresses["mix"])(
        7, 5
    )


RIGHT = 7 * 1000003 + 5


@contextmanager
def loaders_watched(good: set[bytes]) -> Iterator[list[str]]:
    """Bytes that reach a loader without being what the compiler made."""
    seen: list[str] = []
    place, load = elf.place, engine.load

    def watch(use: Any) -> Any:
        def call(obj: bytes, *rest: Any) -> Any:
            if obj not in good:
                seen.append("foreign bytes reached a loader")
            return use(obj, *rest)

        return call

    with mock.patch.object(elf, "place", watch(place)), mock.patch.object(engine, "load", watch(load)):
        yield seen


# --- damage ---------------------------------------------------------------------------------------------------------


def flipped(good: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(8 * len(good))
    return good[: at // 8] + bytes([good[at // 8] ^ 1 << at % 8]) + good[at // 8 + 1 :]


def cut(good: bytes, rng: random.Random) -> bytes:
    return good[: rng.randrange(len(good))]


def spliced(good: bytes, rng: random.Random, other: bytes) -> bytes:
    """The head of one entry and the tail of another, a part doubled, or a part of another in the middle."""
    kind, at = rng.randrange(3), rng.randrange(1, len(good))
    if kind == 0:
        return good[:at] + other[rng.randrange(len(other)) :]
    if kind == 1:
        return good[:at] + good[max(0, at - rng.randint(1, 64)) :]
    part = other[rng.randrange(len(other)) :][: rng.randint(1, 200)]
    return good[:at] + part + good[at + len(part) :]


def damaged(seed: int, damage: Callable[..., bytes], path: Path, entries: list[bytes]) -> str:
    """What is wrong after one entry was damaged; empty if it was noticed and made again."""
    rng = random.Random(f"{damage.__name__} {seed}")
    bad = damage(entries[0], rng, entries[1]) if damage is spliced else damage(entries[0], rng)
    if bad == entries[0]:
        return ""
    path.write_bytes(bad)
    path.chmod(0o600)
    cache.memory.clear()
    origin, result = mixed()
    if (origin, result) != ("cold", RIGHT):
        return f"{damage.__name__} {seed}: {origin} {result}"
    return "" if path.read_bytes() == entries[0] else f"{damage.__name__} {seed}: the entry was not made again"


def damage(tally: Tally, full: bool) -> None:
    for kind, function, count in (
        ("bit flips", flipped, FLIPS[full]),
        ("truncations", cut, TRUNCATIONS[full]),
        ("splices", spliced, SPLICES[full]),
    ):
        with own_cache() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            mixed("other")
            (other,) = folder.glob("*.obj")
            mixed()
            (path,) = set(folder.glob("*.obj")) - {other}
            entries = [path.read_bytes(), other.read_bytes()]
            made = {engine.compile_object(_KERNEL, host().isa)}
            with loaders_watched(made) as seen:

                def check(seed: int, function: Any = function, path: Path = path, entries: Any = entries) -> str:
                    return damaged(seed, function, path, entries) or (seen.pop() if seen else "")

                for _, fault in forks.survey(count, check, per_child=_PER_CHILD):
                    tally.add(kind, fault)


# --- entries of somebody else ---------------------------------------------------------------------------------------


def foreign(tally: Tally) -> None:
    """Objects for other processors, versions and kernels, in the place where ours should be."""
    isa = host().isa
    others: dict[str, Callable[[], Any]] = {
        f"CPU level {other.name}": lambda other=other: engine._made(
            f"{other.name} mix", lambda: _KERNEL, other, (), frozenset()
        )  # type: ignore[misc]
        for other in ISAS.values()
        if other is not isa and other.triple == isa.triple
    }
    others |= {"another kernel": lambda: mixed("another")}
    for name, change in {
        "another version": mock.patch.object(engine, "__version__", "0.0.0"),
        "another LLVM": mock.patch.object(engine, "_llvm_build", return_value="another"),
        "another processor": mock.patch.object(engine, "cpu_features", return_value=frozenset(("sse2",))),
    }.items():
        others[name] = lambda change=change: _changed(change)  # type: ignore[misc]
    for name, store in others.items():
        with own_cache() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            store()
            (theirs,) = folder.glob("*.obj")
            engine.fingerprint.cache_clear()
            cache.memory.clear()
            first = mixed()
            (ours,) = set(folder.glob("*.obj")) - {theirs}
            shutil.copyfile(theirs, ours)
            cache.memory.clear()
            second = mixed()
            wrong = [origin for origin, result in (first, second) if (origin, result) != ("cold", RIGHT)]
            tally.add("foreign entries", f"{name}: {first} {second}" if wrong else "")


def _changed(change: Any) -> None:
    with change:
        engine.fingerprint.cache_clear()
        mixed()


# --- doubtful and missing places ------------------------------------------------------------------------------------


def _as_link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to(path.with_name("target"))


def _as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def _as_socket(path: Path) -> None:
    import socket

    path.unlink()
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)


FILES: dict[str, Callable[[Path], Any]] = {
    "a link": _as_link,
    "a hard link": lambda path: os.link(path, path.with_name("second name")),
    "a pipe": _as_pipe,
    "a folder": _as_folder,
    "a socket": _as_socket,
    "writable by all": lambda path: path.chmod(0o666),
    "writable by the group": lambda path: path.chmod(0o620),
    "of another user": lambda path: os.chown(path, 65534, 65534),
}


def _folder_as_link(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.with_name("elsewhere"))


def _folder_of(mode: int, owner: int | None = None) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)
        if owner is not None:
            os.chown(path, owner, owner)

    return make


FOLDERS: dict[str, Callable[[Path], Any]] = {
    "a folder that is a link": _folder_as_link,
    "a folder that hangs in the air": lambda path: path.symlink_to("nowhere"),
    "a folder writable by all": _folder_of(0o777),
    "a folder writable by the group": _folder_of(0o770),
    "a folder with the sticky bit, writable by all": _folder_of(0o1777),
    "a folder of another user": _folder_of(0o700, 65534),
    "a file instead of a folder": lambda path: path.write_text("no folder"),
    "a pipe instead of a folder": lambda path: os.mkfifo(path),
}


def in_memory_with_one_notice() -> str:
    """Two kernels in the state the cache is in now: right results, no file trusted, one notice."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        results = [mixed(), mixed("second")]
        cache.memory.clear()
        results += [mixed(), mixed("second")]
    if any((origin, result) != ("cold", RIGHT) for origin, result in results):
        return f"results {results}"
    notices = [str(w.message) for w in told if w.category is CacheWarning]
    if len(notices) != 1 or not cache.cache_info().disabled:
        return f"{len(notices)} notices, disabled {cache.cache_info().disabled!r}"
    return ""


def places(tally: Tally) -> None:
    root = os.geteuid() == 0
    for name, spoil in {**FILES, **FOLDERS}.items():
        if "another user" in name and not root:
            tally.note(f"{name}: not run, only root can give files away")
            continue

        def check(spoil: Any = spoil, name: str = name) -> str:
            with own_cache() as folder:
                if name in FOLDERS:
                    spoil(folder)
                else:
                    mixed()
                    cache.memory.clear()
                    (path,) = folder.glob("*.obj")
                    spoil(path)
                return in_memory_with_one_notice()

        fault = forks.alone(check)
        tally.add("doubtful places", fault and f"{name}: {fault}")


def _read_only_home() -> str:
    folder = Path(tempfile.gettempdir(), "unstride-hard-read-only")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.setuid(65534)  # to root nothing is read-only
    for name in ("UNSTRIDE_CACHE_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    os.environ["HOME"] = str(folder)
    return in_memory_with_one_notice()


def _no_home() -> str:
    for name in ("UNSTRIDE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        os.environ.pop(name, None)
    if os.geteuid() == 0:
        os.setuid(61234)  # a user without an entry and without a home
    return in_memory_with_one_notice()


def _full_disk() -> str:
    with own_cache():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # the kernel refuses every longer file
        return in_memory_with_one_notice()


def _no_space() -> str:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with own_cache(), mock.patch.object(cache, "_write", refuse):
        return in_memory_with_one_notice()


def _no_more_files() -> str:
    with own_cache():
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
        fault = in_memory_with_one_notice()
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        return fault


def _gone_home() -> str:
    os.environ["UNSTRIDE_CACHE_DIR"] = "/proc/nowhere/unstride"
    return in_memory_with_one_notice()


def _whole_layer_without_a_place() -> str:
    os.environ["UNSTRIDE_CACHE_DIR"] = "/dev/null/unstride"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        y = openvino.ConvolutionBackpropData([2])(np.ones((1, 1, 3), np.float32), np.ones((1, 1, 2), np.float32))
    notices = [w for w in told if w.category is CacheWarning]
    return "" if y.tolist() == [[[1.0] * 6]] and len(notices) == 1 else f"{y} {notices}"


MISSING = (_read_only_home, _no_home, _full_disk, _no_space, _no_more_files, _gone_home, _whole_layer_without_a_place)


def missing_places(tally: Tally) -> None:
    engine.compile_object(_KERNEL, SSE2)  # LLVM is loaded while files may still be opened
    engine.fingerprint()
    for check in MISSING:

        def fresh(check: Any = check) -> str:
            with mock.patch.object(cache, "_state", cache._State()), mock.patch.object(cache, "memory", {}):
                return str(check())

        fault = forks.alone(fresh)
        tally.add("missing places", fault and f"{check.__name__}: {fault}")


# --- many processes -------------------------------------------------------------------------------------------------


def content(key: str) -> bytes:
    return random.Random(key).randbytes(20_000)


def hammer(seed: int, folder: Path) -> None:
    """Store and load for ever; leave a file behind if a load ever gives anything but the truth."""
    rng = random.Random(seed)
    while True:
        key = f"k{rng.randrange(12)}"
        if rng.random() < 0.5:
            cache.store(key, content(key))
        elif (found := cache.load(key)) not in (None, content(key)):
            folder.with_name(f"corrupt-{seed}").write_bytes(found or b"")
        folder.with_name(f"turns-{seed % _PROCESSES}").open("ab").write(b".")


def crowd(tally: Tally, full: bool) -> None:
    """Eight processes on one cache; every few milliseconds one is killed and replaced."""
    with own_cache() as folder:
        rng, kills, processes = random.Random(0), 0, {}
        end = time.monotonic() + HAMMER_SECONDS[full]
        while time.monotonic() < end:
            while len(processes) < _PROCESSES:
                pid = os.fork()
                if pid == 0:
                    warnings.simplefilter("error", CacheWarning)
                    try:
                        hammer(kills + len(processes), folder)
                    except BaseException as error:
                        folder.with_name(f"corrupt-{os.getpid()}").write_text(f"{type(error).__name__}: {error}")
                    os._exit(1)
                processes[pid] = True
            time.sleep(rng.uniform(0, 0.03))
            victim = rng.choice(list(processes))
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            del processes[victim]
            kills += 1
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        corrupt = [path.read_text(errors="replace")[:200] for path in folder.parent.glob("corrupt-*")]
        turns = sum(path.stat().st_size for path in folder.parent.glob("turns-*"))
        survivors = [key for key in (f"k{n}" for n in range(12)) if cache.load(key) not in (None, content(key))]
        tally.add_all("loads and stores among 8 processes", turns, corrupt + survivors)
        tally.add("kills", runs=kills)


def run(tally: Tally, full: bool) -> None:
    damage(tally, full)
    foreign(tally)
    places(tally)
    missing_places(tally)
    crowd(tally, full)


if __name__ == "__main__":
    main("cache", run, __doc__)
