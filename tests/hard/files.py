"""Hostile files: .npy arrays, OpenVINO IR, weights in .bin files, ONNX models, and honest ones with accidents.

Each is read as a client would read it: every layer resolved, its weights loaded. The outcome must be an error of the
package's tree (an accident may also go unnoticed), within a second of this process's own time, and the process must
not grow by more than 64 MB, measured in a child that reads nothing else.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from tests.formats import models
from tests.formats import test_arrays as arrays
from tests.formats import test_hostile_files as hostile
from tests.formats.test_mutations import mutated
from tests.formats.test_onnx_file import zoo
from tests.hard import forks
from tests.hard.tally import Tally, main
from unstride.errors import UnstrideError
from unstride.examples import example_path
from unstride.formats.arrays import load_npy, save_npy

ACCIDENTS = (40, 1_000)
_SECONDS, _GROWTH_MB = 1.0, 64

Maker = Callable[[Path], Path]


def _npy(data: bytes) -> Maker:
    def make(folder: Path) -> Path:
        (folder / "hostile.npy").write_bytes(data)
        return folder / "hostile.npy"

    return make


def _with(old: str, new: str, rest: bytes = bytes(8)) -> bytes:
    return arrays.header(arrays.HONEST.replace(old, new)) + rest


def npy_files() -> dict[str, Maker]:
    """At least 40 arrays that are none."""
    found = dict(arrays.HOSTILE)
    for descr in ("<c8", "<M8[s]", "<m8", "|S4", "|V7", ">U9", "|b2", "", "f" * 500, "<f99", "object", "O8", "<i4,<i4"):
        found[f"type {descr[:9]}"] = _with("<f4", descr)
    for shape in (
        "(2",
        "2",
        "[2]",
        "(2.0,)",
        "('2',)",
        "(None,)",
        "(2,) * 9**9",
        "(9**9**9,)",
        "(1,)*2**20",
        "{}",
        "()",
    ):
        found[f"shape {shape[:9]}"] = _with("(2,)", shape, b"")
    for order in ("2", "None", "[]", "'yes'"):
        found[f"order {order}"] = _with("False", order)
    found["bool of -1 elements"] = _with("(2,)", "(-1,)", b"")
    found["0 x 2**62"] = _with("(2,)", f"(0, {2**62}, {2**62})", b"x")
    found["nul in the header"] = arrays.header(arrays.HONEST.replace("<f4", "<f\0"))
    found["header of a megabyte"] = arrays.header(arrays.HONEST + " " * 2**20, (2, 0)) + bytes(8)
    found["version 3"] = arrays.header(arrays.HONEST, (3, 0)) + bytes(8)
    return {name: _npy(data) for name, data in found.items()}


def bin_files() -> dict[str, Maker]:
    """Honest XML beside weights that are not what it says."""
    good = models.one_layer()

    def beside(spoil: Callable[[Path], Any]) -> Maker:
        def make(folder: Path) -> Path:
            path = models.write(folder, good)
            spoil(path.with_suffix(".bin"))
            return path

        return make

    whole = len(hostile.BLOB)
    said = {
        "one byte short": beside(lambda p: p.write_bytes(hostile.BLOB[:-1])),
        "empty": beside(lambda p: p.touch()),
        "a folder": beside(lambda p: p.mkdir()),
        "a link to nowhere": beside(lambda p: p.symlink_to("nowhere")),
        "a link to itself": beside(lambda p: p.symlink_to(p.name)),
        "missing": beside(lambda p: None),
        "a pipe": hostile.IR["a pipe of weights"],
    }
    for name, const in {
        "offset of 2**63": f'offset="{2**63}" size="{whole}"',
        "offset of -1": f'offset="-1" size="{whole}"',
        "offset + size overflow": f'offset="{2**63 - 1}" size="{2**63 - 1}"',
        "size of 2**62": f'element_type="f32" shape="{2**60}" offset="0" size="{2**62}"',
        "size and shape differ": f'element_type="f32" shape="2,1,3,4" offset="0" size="{whole}"',
        "offset that is no number": f'offset="0x0" size="{whole}"',
        "size of 4000 digits": f'offset="0" size="{"9" * 4000}"',
    }.items():
        said[name] = hostile.ir(models.one_layer(const=const))
    return said


def outcome(make: Maker, use: Callable[[Path], Any], *, may_pass: bool = False) -> str:
    """What is wrong with reading one file, in this process; empty if nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        path = make(home)
        before, start = _peak_mb(), time.process_time()
        try:
            use(path)
            answer = "" if may_pass else "no error"
        except UnstrideError as error:
            answer = "" if str(error).isprintable() and len(str(error)) < 700 else "an error that cannot be shown"
        seconds, grown = time.process_time() - start, _peak_mb() - before
    if seconds > _SECONDS:
        return f"{seconds:.1f} s"
    return f"{grown} MB more" if grown > _GROWTH_MB else answer


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def files(tally: Tally, full: bool) -> None:
    for kind, makers, use in (
        ("hostile .npy", npy_files(), load_npy),
        ("hostile XML", hostile.IR, hostile.fully),
        ("hostile .bin", bin_files(), hostile.fully),
        ("hostile ONNX", hostile._onnx_makers(), hostile.fully),
    ):
        chosen = list(makers.items()) if full else list(makers.items())[::6]

        def check(index: int, chosen: Any = chosen, use: Any = use) -> str:
            return outcome(chosen[index][1], use)

        for index, fault in forks.survey(len(chosen), check, per_child=1):
            tally.add(kind, fault and f"{chosen[index][0]}: {fault}")


def accidents(tally: Tally, full: bool) -> None:
    """Honest files with bytes flipped, cut, doubled and swapped."""
    with tempfile.TemporaryDirectory() as folder:
        npy = Path(folder, "a.npy")
        save_npy(npy, np.arange(6, dtype=np.float32).reshape(2, 3))
        array = npy.read_bytes()
    sources: tuple[tuple[str, str, bytes, Any], ...] = (
        ("mutated ONNX", "model.onnx", zoo("initializer").SerializeToString(), hostile.fully),
        ("mutated XML", "model.xml", example_path().read_bytes(), hostile.fully),
        ("mutated .npy", "a.npy", array, load_npy),
    )
    blob = example_path().with_suffix(".bin").read_bytes()
    for kind, name, data, use in sources:
        count = ACCIDENTS[full] if kind != "mutated ONNX" else max(20, ACCIDENTS[full] // 4)

        def check(seed: int, kind: str = kind, name: str = name, data: bytes = data, use: Any = use) -> str:
            def make(folder: Path) -> Path:
                (folder / name).write_bytes(mutated(data, Random(f"{kind} {seed}")))
                if name.endswith(".xml"):
                    (folder / name).with_suffix(".bin").write_bytes(blob)
                return folder / name

            # the sizes that a file leaves out are inferred by a child process: once is enough for its own tests
            with mock.patch("unstride.formats.onnx_shapes.inferred_shapes", return_value={}):
                return outcome(make, use, may_pass=True)

        for seed, fault in forks.survey(count, check):
            tally.add(kind, fault and f"{seed}: {fault}")


def run(tally: Tally, full: bool) -> None:
    files(tally, full)
    accidents(tally, full)


if __name__ == "__main__":
    main("files", run, __doc__)
