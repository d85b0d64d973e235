"""The path of a .npy file: an array comes out whole, or an error of the package does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fuzz.harness import fuzz, printable


def load() -> Callable[[bytes], None]:
    from unstride.errors import UnstrideError
    from unstride.formats.arrays import load_npy

    folder = tempfile.TemporaryDirectory(prefix="unstride-fuzz-")
    path = Path(folder.name, "a.npy")

    def check(data: bytes, keep: object = folder) -> None:
        path.write_bytes(data)
        try:
            array = load_npy(path)
        except UnstrideError as error:
            printable(error)
            return
        assert array.nbytes <= len(data)
        assert array.dtype.kind in "biufV"

    return check


if __name__ == "__main__":
    fuzz("npy", load)
