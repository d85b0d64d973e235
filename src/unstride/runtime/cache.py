"""The store of machine code: a private directory of objects, each proved by a digest before anybody may run it.

A file is `magic | digest | length of key | key | object`; the digest covers everything behind it, and the key names the
package and its sources, LLVM, the processor and the kernel. LLVM crashes on a damaged object, so a byte reaches it
only after the digest has been compared. Whenever something about the directory or a file is doubtful (another owner,
others may write, a link, a pipe) this process stops using the disk, says so once, and keeps its code in memory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import Any

__all__ = ["CacheInfo", "CacheWarning", "cache_info", "clear_cache", "load", "store"]

_MAGIC = b"unstride object 1\n"
_DIGEST_BYTES = 32
_SUFFIX = ".obj"
_TEMPORARY = ".tmp"
_LIMIT_BYTES = 256 * 2**20
_ENTRY_LIMIT_BYTES = 32 * 2**20
_STALE_SECONDS = 3600.0


class CacheWarning(UserWarning):
    """The code cache on disk is not used, or an entry of it was thrown away."""


@dataclass(frozen=True)
class CacheInfo:
    """The state of the code cache. `disabled` says why the disk is not used, "" if it is."""

    directory: str
    entries: int
    bytes: int
    limit: int
    hits: int
    misses: int
    memory_entries: int
    disabled: str


class _Doubt(Exception):
    """Something about the directory or a file that an attacker or a mistake could have caused."""


class _State:
    """Counters, and whether the disk is still trusted.

    There is no lock: a lost count harms nobody, a lock that is held while another thread forks harms the child.
    """

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.disabled = ""
        self.told: dict[str, object] = {}


_state = _State()
memory: dict[str, Any] = {}
"""Libraries loaded by this process, by key; `runtime.engine` fills it."""


def cache_info() -> CacheInfo:
    """What the code cache holds and how often it helped this process.

    >>> cache_info().limit
    268435456
    """
    entries = _entries_or_nothing()
    total = sum(size for _, size, _ in entries)
    return CacheInfo(
        _place(), len(entries), total, _LIMIT_BYTES, _state.hits, _state.misses, len(memory), _state.disabled
    )


def clear_cache() -> None:
    """Forget every kernel, on disk and in this process. Compiled layers that exist go on working."""
    memory.clear()
    with contextlib.suppress(OSError, _Doubt), _opened() as folder:
        for name, _, _ in _listed(folder, (_SUFFIX, _TEMPORARY)):
            _unlink(folder, name)


def directory() -> Path:
    """Where objects are kept: `UNSTRIDE_CACHE_DIR`, or the user's cache directory of the platform.

    OSError for a user without a home, as containers with arbitrary user ids have them.
    """
    chosen = os.environ.get("UNSTRIDE_CACHE_DIR")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        from platformdirs import user_cache_path  # only a first compilation needs it

        return user_cache_path("unstride", appauthor=False)
    except RuntimeError:
        raise OSError("this user has no home directory; UNSTRIDE_CACHE_DIR can name a place") from None


def load(key: str) -> bytes | None:
    """The object stored under `key`, or None. What comes back has passed its digest."""
    if _state.disabled:
        return None
    try:
        with _opened() as folder:
            found = _proved(folder, _name(key), key)
    except (OSError, _Doubt) as doubt:
        _disable(doubt)
        return None
    _state.hits += found is not None
    _state.misses += found is None
    return found


def store(key: str, obj: bytes) -> None:
    """Keep `obj` under `key` for later processes; in one step, so that nobody sees half a file."""
    if _state.disabled or len(obj) > _ENTRY_LIMIT_BYTES:
        return
    try:
        with _opened() as folder:
            _write(folder, _name(key), _packed(key, obj))
            _evict(folder)
    except (OSError, _Doubt) as doubt:
        _disable(doubt)


def _name(key: str) -> str:
    return blake2b(key.encode(), digest_size=20).hexdigest() + _SUFFIX


def _packed(key: str, obj: bytes) -> bytes:
    text = key.encode()
    body = len(text).to_bytes(8, "little") + text + obj
    return _MAGIC + blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def _unpacked(data: bytes, key: str) -> bytes | None:
    """The object in a file's bytes, or None if a single bit is not as it was written."""
    head = len(_MAGIC) + _DIGEST_BYTES
    body = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or blake2b(body, digest_size=_DIGEST_BYTES).digest() != data[len(_MAGIC) : head]:
        return None
    text = key.encode()
    if body[:8] != len(text).to_bytes(8, "little") or body[8 : 8 + len(text)] != text:
        return None
    return body[8 + len(text) :]


@contextlib.contextmanager
def _opened() -> Iterator[int]:
    """A descriptor of the directory, made if missing. All files are reached through it, so nobody can swap it."""
    path = directory()
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_owner(os.fstat(folder), "the directory")
        yield folder
    finally:
        os.close(folder)


def _check_owner(status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise _Doubt(f"{what} belongs to user {status.st_uid}, not to this one")
    if status.st_mode & 0o022:
        raise _Doubt(f"others may write to {what} (mode {stat.S_IMODE(status.st_mode):o})")


def _proved(folder: int, name: str, key: str) -> bytes | None:
    """An entry's object if the file is ours alone and its digest fits; a damaged file is removed."""
    try:
        # a pipe must not make us wait, hence O_NONBLOCK; a link must not lead away, hence O_NOFOLLOW
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with open(file, "rb", closefd=True) as stream:
        status = os.fstat(file)
        # no name left: another process has replaced it since it was opened; what was opened is whole
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise _Doubt(f"{name} is not a plain file with one name")
        _check_owner(status, name)
        obj = _unpacked(stream.read(_ENTRY_LIMIT_BYTES + 2**20), key)
        if obj is None:
            _unlink(folder, name)
            _tell_once("damage", f"{name} was damaged; it is removed and made again")
        else:
            os.utime(file)  # eviction removes what was used longest ago
    return obj


def _write(folder: int, name: str, data: bytes) -> None:
    temporary = f"{name}.{os.getpid()}.{threading.get_ident()}{_TEMPORARY}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with open(file, "wb", closefd=True) as stream:
            stream.write(data)
        with contextlib.suppress(FileNotFoundError):  # somebody cleared the cache meanwhile
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _unlink(folder, temporary)
        raise


def _evict(folder: int) -> None:
    """Remove the entries used longest ago until the rest fits, and what a crashed writer left behind."""
    now = time()
    for name, _, used in _listed(folder, (_TEMPORARY,)):
        if now - used > _STALE_SECONDS:
            _unlink(folder, name)
    entries = sorted(_listed(folder, (_SUFFIX,)), key=lambda entry: entry[2])
    excess = sum(size for _, size, _ in entries) - _LIMIT_BYTES
    for name, size, _ in entries:
        if excess <= 0:
            break
        _unlink(folder, name)
        excess -= size


def _listed(folder: int, suffixes: tuple[str, ...]) -> list[tuple[str, int, float]]:
    """Name, bytes and time of last use of the files with one of these suffixes."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffixes):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.name, status.st_size, status.st_mtime))
    return found


def _entries_or_nothing() -> list[tuple[str, int, float]]:
    try:
        folder = os.open(directory(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return _listed(folder, (_SUFFIX,))
    finally:
        os.close(folder)


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _disable(doubt: Exception) -> None:
    _state.disabled = str(doubt)
    _tell_once("disabled", f"not used, kernels stay in memory: {doubt}")


def _tell_once(kind: str, message: str) -> None:
    token = object()
    if _state.told.setdefault(kind, token) is token:  # one step, so that two threads cannot both be first
        warnings.warn(f"code cache {_place()}: {message}", CacheWarning, stacklevel=2)


def _place() -> str:
    try:
        return str(directory())
    except OSError:
        return "(nowhere)"
