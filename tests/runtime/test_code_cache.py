"""The code cache: what was not written by us, whole and alone, never comes back."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

import pytest

from unstride.runtime import cache
from unstride.runtime.cache import CacheWarning, cache_info, clear_cache, load, store

KEY = "avx2 some kernel"
OBJECT = bytes(range(256)) * 40


def entry(folder: Path) -> Path:
    (found,) = folder.glob("*.obj")
    return found


def test_what_is_stored_comes_back(fresh_cache: Path) -> None:
    assert load(KEY) is None
    store(KEY, OBJECT)
    assert load(KEY) == OBJECT
    assert load(KEY + "!") is None
    info = cache_info()
    assert (info.directory, info.entries, info.hits, info.misses, info.disabled) == (str(fresh_cache), 1, 1, 2, "")
    assert info.bytes == entry(fresh_cache).stat().st_size
    assert info.bytes < info.limit


def test_nobody_else_may_read_or_write_it(fresh_cache: Path) -> None:
    before = os.umask(0)
    try:
        store(KEY, OBJECT)
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh_cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(fresh_cache).stat().st_mode) == 0o600


def test_any_flipped_bit_is_noticed(fresh_cache: Path) -> None:
    store(KEY, OBJECT)
    path = entry(fresh_cache)
    good = path.read_bytes()
    for position in {*range(130), *range(130, len(good), 97), len(good) - 1}:
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            assert load(KEY) is None, position
        assert not path.exists(), "a damaged entry is removed"
    path.write_bytes(good)
    path.chmod(0o600)
    assert load(KEY) == OBJECT


@pytest.mark.parametrize("kept", [0, 1, 17, 18, 49, 50, 57, 58, 80, 1000, 10295])
def test_a_cut_file_is_noticed(fresh_cache: Path, kept: int) -> None:
    store(KEY, OBJECT)
    path = entry(fresh_cache)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.warns(CacheWarning, match="damaged"):
        assert load(KEY) is None


def test_an_entry_under_another_name_is_not_taken(fresh_cache: Path) -> None:
    store("another kernel", OBJECT)
    entry(fresh_cache).rename(fresh_cache / cache._name(KEY))
    with pytest.warns(CacheWarning, match="damaged"):
        assert load(KEY) is None


def test_damage_is_told_once(fresh_cache: Path) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            store(KEY, OBJECT)
            entry(fresh_cache).write_bytes(b"nonsense")
            assert load(KEY) is None
    assert [w.category for w in told] == [CacheWarning]


def _world_writable(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)


def _link_to_directory(folder: Path) -> None:
    target = folder.with_name("elsewhere")
    target.mkdir(mode=0o700)
    folder.symlink_to(target)


def _plain_file(folder: Path) -> None:
    folder.write_text("not a directory")


def _below_a_file(folder: Path) -> None:
    folder.write_text("")
    os.environ["UNSTRIDE_CACHE_DIR"] = str(folder / "below")  # the fixture's monkeypatch restores it


@pytest.mark.parametrize("spoil", [_world_writable, _link_to_directory, _plain_file, _below_a_file])
def test_a_doubtful_directory_is_not_used_and_that_is_said_once(fresh_cache: Path, spoil: object) -> None:
    assert callable(spoil)
    spoil(fresh_cache)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert load(KEY) is None
        store(KEY, OBJECT)
        assert load(KEY) is None
    assert [w.category for w in told] == [CacheWarning]
    assert cache_info().disabled
    assert not list(fresh_cache.parent.rglob("*.obj"))


def test_a_directory_of_another_user_is_not_used(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_cache.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: fresh_cache.stat().st_uid + 1)
    with pytest.warns(CacheWarning, match="belongs to user"):
        store(KEY, OBJECT)
    assert not list(fresh_cache.iterdir())


def _as_symlink(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def _as_hard_link(path: Path) -> None:
    os.link(path, path.with_name("second name"))


def _as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def _writable_by_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("spoil", [_as_symlink, _as_hard_link, _as_pipe, _as_directory, _writable_by_all])
def test_a_doubtful_file_ends_the_use_of_the_disk(fresh_cache: Path, spoil: object) -> None:
    assert callable(spoil)
    store(KEY, OBJECT)
    spoil(entry(fresh_cache))
    with pytest.warns(CacheWarning, match="not used"):
        assert load(KEY) is None
    assert cache_info().disabled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store("more", OBJECT)
        assert load("more") is None


def test_the_oldest_go_when_it_is_full(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_LIMIT_BYTES", 3 * (len(OBJECT) + 200))
    for age, key in enumerate("abc"):
        store(key, OBJECT)
        os.utime(fresh_cache / cache._name(key), (1000 + age, 1000 + age))
    assert load("a") == OBJECT  # used now: no longer the oldest
    store("d", OBJECT)
    assert [key for key in "abcd" if load(key)] == ["a", "c", "d"]


def test_what_a_crashed_writer_left_is_cleaned_up(fresh_cache: Path) -> None:
    store(KEY, OBJECT)
    left, fresh = fresh_cache / "old.tmp", fresh_cache / "new.tmp"
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, (1000, 1000))
    store("next", OBJECT)
    assert not left.exists()
    assert fresh.exists()


def test_clear_cache_forgets_disk_and_memory(fresh_cache: Path) -> None:
    store(KEY, OBJECT)
    cache.memory["some"] = object()
    stranger = fresh_cache / "notes.txt"
    stranger.write_text("not ours")
    clear_cache()
    assert (cache_info().entries, cache_info().memory_entries) == (0, 0)
    assert stranger.exists()


def test_clearing_while_an_entry_is_written_is_no_reason_for_doubt(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def late(*names: str, **folders: int) -> None:
        clear_cache()
        rename(*names, **folders)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(os, "replace", late)
        store(KEY, OBJECT)
        monkeypatch.setattr(os, "replace", rename)
        assert load(KEY) is None
        store(KEY, OBJECT)
        assert load(KEY) == OBJECT


def test_looking_at_the_cache_creates_nothing(fresh_cache: Path) -> None:
    assert cache_info().entries == 0
    assert not fresh_cache.exists()


def test_processes_that_write_the_same_entries_never_see_half_of_one(fresh_cache: Path, child: object) -> None:
    assert callable(child)
    child(
        """
        import os
        from unstride.runtime.cache import load, store
        pids = []
        for n in range(4):
            pid = os.fork()
            if pid == 0:
                ok = True
                for i in range(100):
                    key = f"k{i % 5}"
                    store(key, key.encode() * 5000)
                    ok &= load(key) == key.encode() * 5000
                os._exit(0 if ok else 1)
            pids.append(pid)
        assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
        """,
        PYTHONWARNINGS="error",
    )
    assert len(list(fresh_cache.iterdir())) == 5


def test_an_entry_that_is_replaced_while_it_is_read_is_still_good(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(KEY, OBJECT)
    status_of = os.fstat

    def late(file: int) -> os.stat_result:
        if stat.S_ISREG(status_of(file).st_mode):
            for path in fresh_cache.glob("*.obj"):
                path.unlink()  # what a rename over it does to the file that is open
        return status_of(file)

    monkeypatch.setattr(os, "fstat", late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(KEY) == OBJECT
