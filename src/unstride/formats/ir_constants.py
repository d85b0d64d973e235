"""Constants of OpenVINO IR, with the few operations that stand between a stored weight and its layer folded.

The default save writes weights as f16 behind a Convert; compressed ones stand behind Convert, Subtract and Multiply;
grouped ones often behind a Reshape. Nothing here can grow an array beyond its largest operand.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unstride.errors import FormatError
from unstride.formats.arrays import dtype_of
from unstride.formats.blob import read_array
from unstride.formats.ir_xml import FOLDED_KINDS, Graph, Node

__all__ = ["PRECISIONS", "Constants"]

# Port precisions of the file, and the short names that newer files use in attributes.
PRECISIONS = {"FP32": "f32", "FP16": "f16", "BF16": "bf16", "FP64": "f64", "BOOL": "boolean"} | {
    f"{kind}{bits}": f"{kind.lower()}{bits}" for kind in "IU" for bits in (8, 16, 32, 64)
}
_INTEGERS = {"boolean": "|b1"} | {f"{kind}{bits}": f"<{kind}{bits // 8}" for kind in "iu" for bits in (8, 16, 32, 64)}
_ARITHMETIC = {"Multiply": np.multiply, "Subtract": np.subtract, "Add": np.add}
_MAX_CHAIN = 16


class Constants:
    """The constant part of one graph; values are read from the `.bin` when asked for."""

    def __init__(self, graph: Graph, blob: Path) -> None:
        self.graph = graph
        self.blob = blob

    def why_not(self, node: Node) -> str:
        """Empty if the layer's value follows from constants alone, else the reason why it does not."""
        pending, seen = [node], {node.id}
        while pending:
            current = pending.pop()
            if current.kind not in FOLDED_KINDS:
                return f"computed by the model ({current.kind} {current.name})"
            for index in range(len(current.inputs)):
                origin = self.graph.source(current, index)
                if origin is None:
                    return f"input {index} of {current.name} is not connected"
                if origin.id not in seen:
                    seen.add(origin.id)
                    pending.append(origin)
            if len(seen) > _MAX_CHAIN:
                return "computed by a long chain of operations"
        return ""

    def shape(self, node: Node) -> tuple[int, ...] | None:
        """The shape of the layer's first output, if the file tells."""
        if node.kind == "Const" and node.attributes.get("shape", "").strip():
            return tuple(_size(word, node) for word in node.attributes["shape"].split(","))
        dims = node.outputs[0].dims if node.outputs else []
        if any(size is None for size in dims):
            return None
        return tuple(size for size in dims if size is not None)

    def value(self, node: Node) -> NDArray[Any]:
        """The folded value; call only where `why_not` is empty."""
        return self._fold(node, {}, ())

    def _fold(self, node: Node, known: dict[int, NDArray[Any]], above: tuple[int, ...]) -> NDArray[Any]:
        if node.id in above:
            raise FormatError(f"layer {node.name}", "itself", "a constant cannot depend on itself")
        if node.id not in known:
            operands = []
            for index in range(len(node.inputs)):
                origin = self.graph.source(node, index)
                if origin is None:
                    raise FormatError(f"layer {node.name}", f"input {index}", "is not connected")
                operands.append(self._fold(origin, known, (*above, node.id)))
            known[node.id] = self._read(node) if node.kind == "Const" else _apply(node, operands)
        return known[node.id]

    def _read(self, node: Node) -> NDArray[Any]:
        where = f"layer {node.name}"
        stored = node.attributes.get("element_type") or PRECISIONS.get(
            node.outputs[0].precision.upper() if node.outputs else "", ""
        )
        shape = self.shape(node)
        if shape is None:
            raise FormatError(where, "unknown sizes", "a constant has fixed sizes")
        dtype = _dtype(stored, where)
        offset, size = (_size(node.attributes.get(key, ""), node) for key in ("offset", "size"))
        if prod(shape) * dtype.itemsize != size:
            raise FormatError(where, f"{size} bytes", f"{shape} of {stored} takes {prod(shape) * dtype.itemsize}")
        return read_array(self.blob, offset, dtype, shape, where)


def _apply(node: Node, operands: list[NDArray[Any]]) -> NDArray[Any]:
    where = f"layer {node.name}"
    try:
        if node.kind == "Convert":
            (value,) = operands
            with np.errstate(all="ignore"):
                return value.astype(_dtype(node.attributes.get("destination_type", ""), where))
        first, second = operands
        if node.kind == "Reshape":
            return first.reshape(_reshape_target(node, first, second))
        if node.kind == "Transpose":
            order = [int(axis) for axis in second.ravel()] if second.size else range(first.ndim)[::-1]
            return np.transpose(first, tuple(order))
        grown = prod(np.broadcast_shapes(first.shape, second.shape))
        if grown > max(first.size, second.size):
            raise FormatError(where, (first.shape, second.shape), "broadcasting would grow both operands")
        with np.errstate(all="ignore"):
            return _ARITHMETIC[node.kind](first, second).astype(first.dtype, copy=False)  # type: ignore[no-any-return]
    except ValueError as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(where, str([value.shape for value in operands]), f"{node.kind} cannot be applied") from None


def _reshape_target(node: Node, value: NDArray[Any], pattern: NDArray[Any]) -> tuple[int, ...]:
    target = [int(size) for size in pattern.ravel()]
    if node.attributes.get("special_zero", "false").lower() in ("true", "1"):
        target = [value.shape[axis] if size == 0 and axis < value.ndim else size for axis, size in enumerate(target)]
    return tuple(target)


def _dtype(name: str, where: str) -> np.dtype[Any]:
    if name in ("f32", "f16", "bf16", "f64"):
        return dtype_of(name)
    if name in _INTEGERS:
        return np.dtype(_INTEGERS[name])
    raise FormatError(where, name, "an element type that is not read; f32, f16, bf16, f64 and i8 to u64 are")


def _size(text: str, node: Node) -> int:
    word = text.strip()
    if not word.isascii() or not word.isdigit() or len(word) > 18:
        raise FormatError(f"layer {node.name}", text, "must be a non-negative integer")
    return int(word)
