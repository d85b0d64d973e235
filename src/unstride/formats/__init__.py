"""Model files and arrays: what is in a file becomes operators of its dialect, with their weights.

    >>> from unstride import formats
    >>> for layer in formats.read("model.xml"):                                          # doctest: +SKIP
    ...     print(layer.name, layer.operator, layer.filter_shape)

Files are taken for hostile: every size is checked before memory is asked for, and whatever is wrong with a file is
one `FormatError` with a line that says what.
"""

from __future__ import annotations

from pathlib import Path

from unstride.errors import FormatError
from unstride.formats.layer import FileLayer

__all__ = ["FileLayer", "read"]


def read(path: str | Path, *, rules: str | None = None) -> tuple[FileLayer, ...]:
    """Every transposed convolution of an OpenVINO IR (`.xml`) or ONNX (`.onnx`) file, in file order.

    `rules` overrides the rule set of OpenVINO layers, "runtime" by default: the file's author saw the engine's numbers.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".xml":
        from unstride.formats.openvino_ir import read_openvino_ir

        return read_openvino_ir(path, rules=rules or "runtime")
    if suffix == ".onnx":
        from unstride.formats.onnx_file import read_onnx

        return read_onnx(path)
    raise FormatError("file", path.name, "is neither OpenVINO IR (.xml) nor ONNX (.onnx)", "name it by its kind")
