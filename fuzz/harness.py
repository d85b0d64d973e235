"""What the fuzzers share: foreign bytes may be refused by an error of the package's tree, and by nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")


def corpus(name: str) -> list[bytes]:
    """The seeds of one fuzzer, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def printable(error: Exception) -> None:
    """Fail for a message that could steer a terminal."""
    if not str(error).isprintable():
        raise AssertionError(f"an error that cannot be printed: {error!r}")


def fuzz(name: str, load: Callable[[], Callable[[bytes], None]]) -> None:
    """Run one fuzzer on the command line's options; new finds go to a folder that is thrown away."""
    import tempfile

    import atheris

    with atheris.instrument_imports(include=["unstride"]):
        check = load()
    with tempfile.TemporaryDirectory() as finds:
        atheris.Setup([sys.argv[0], *sys.argv[1:], finds, str(CORPUS / name)], check)
        atheris.Fuzz()
