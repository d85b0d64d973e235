"""The OpenVINO IR reader: the bytes are the XML, beside weights of 4 KiB. Layers are resolved and weights loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fuzz.harness import fuzz, printable


def load() -> Callable[[bytes], None]:
    from unstride.errors import UnstrideError
    from unstride.formats.openvino_ir import read_openvino_ir

    folder = tempfile.TemporaryDirectory(prefix="unstride-fuzz-")
    path = Path(folder.name, "model.xml")
    path.with_suffix(".bin").write_bytes(bytes(4096))

    def check(data: bytes, keep: object = folder) -> None:
        path.write_bytes(data)
        try:
            for layer in read_openvino_ir(path):
                shape = tuple(1 if size is None else size for size in layer.data_shape)
                layer.operator.resolve(shape, layer.filter_shape)
                layer.weights()
        except UnstrideError as error:
            printable(error)

    return check


if __name__ == "__main__":
    fuzz("ir", load)
