"""OpenVINO IR out: a net in which every transposed convolution stands between its own Parameter and Result.

The engine reads these files, and so does `read_openvino_ir`; identical constants share their bytes, and `compress`
stores f32 weights the way the engine's own save does, as f16 with a Convert behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from unstride.formats.arrays import name_of
from unstride.formats.layer import OptionalShape

__all__ = ["IrLayer", "openvino_ir", "write_openvino_ir"]

_PRECISION = {"f32": "FP32", "f16": "FP16", "bf16": "BF16", "f64": "FP64", "i64": "I64"}


@dataclass(frozen=True)
class IrLayer:
    """A transposed convolution to be written; None in `data_shape` or `result_shape` is a size left open."""

    name: str
    operator: Any
    data_shape: OptionalShape
    weights: NDArray[Any]
    result_shape: OptionalShape
    output_shape: tuple[int, ...] | None = None


def openvino_ir(name: str, layers: Sequence[IrLayer], *, compress: bool = False) -> tuple[str, bytes]:
    """The text of the `.xml` and the bytes of the `.bin`."""
    writer = _Writer(compress)
    for layer in layers:
        writer.add(layer)
    return writer.text(name), bytes(writer.blob)


def write_openvino_ir(path: str | Path, layers: Sequence[IrLayer], *, compress: bool = False) -> None:
    """Write `path` (`.xml`) and the `.bin` beside it."""
    path = Path(path)
    text, blob = openvino_ir(path.stem, layers, compress=compress)
    path.write_text(text, encoding="utf-8")
    path.with_suffix(".bin").write_bytes(blob)


class _Writer:
    def __init__(self, compress: bool) -> None:
        self.compress = compress
        self.blob = bytearray()
        self.offsets: dict[bytes, int] = {}
        self.layers: list[str] = []
        self.edges: list[str] = []

    def add(self, layer: IrLayer) -> None:
        dtype = name_of(layer.weights.dtype)
        data = self.node(
            "Parameter", f"{layer.name}/data", [], (dtype, layer.data_shape), shape=_open(layer.data_shape)
        )
        sources = [(data, dtype, layer.data_shape), (self.weights(layer, dtype), dtype, layer.weights.shape)]
        if layer.output_shape is not None:
            wanted = np.array(layer.output_shape, np.int64)
            sources.append((self.constant(f"{layer.name}/output_shape", wanted, "i64"), "i64", wanted.shape))
        operator = layer.operator
        lists = ("strides", "dilations", "pads_begin", "pads_end", "output_padding")
        attributes = {key: ", ".join(map(str, getattr(operator, key))) for key in lists}
        result = (dtype, layer.result_shape)
        kind = type(operator).__name__
        node = self.node(kind, layer.name, sources, result, auto_pad=operator.auto_pad, **attributes)
        self.node("Result", f"{layer.name}/result", [(node, *result)], None)

    def weights(self, layer: IrLayer, dtype: str) -> tuple[int, int]:
        name = f"{layer.name}/weights"
        if not self.compress or dtype != "f32":
            return self.constant(name, layer.weights, dtype)
        stored = self.constant(f"{name}_compressed", layer.weights.astype(np.float16), "f16")
        shape = layer.weights.shape
        return self.node("Convert", name, [(stored, "f16", shape)], (dtype, shape), destination_type=dtype)

    def constant(self, name: str, value: NDArray[Any], dtype: str) -> tuple[int, int]:
        raw = value.tobytes()
        if raw not in self.offsets:
            self.offsets[raw] = len(self.blob)
            self.blob += raw
        where = {"offset": str(self.offsets[raw]), "size": str(len(raw))}
        shape = ", ".join(map(str, value.shape))
        return self.node("Const", name, [], (dtype, value.shape), element_type=dtype, shape=shape, **where)

    def node(
        self,
        kind: str,
        name: str,
        sources: Sequence[tuple[tuple[int, int], str, OptionalShape]],
        result: tuple[str, OptionalShape] | None,
        **attributes: str,
    ) -> tuple[int, int]:
        """Append a layer; the answer is (layer id, output port)."""
        identity = len(self.layers)
        if kind == "Parameter" and result is not None:
            attributes["element_type"] = result[0]
        data = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
        lines = [f'\t\t<layer id="{identity}" name={quoteattr(name)} type="{kind}" version="opset1">']
        lines += [f"\t\t\t<data{data} />"] if attributes else []
        lines += _ports("input", [(dtype, shape) for _, dtype, shape in sources], 0)
        lines += _ports("output", [result] if result else [], len(sources))
        self.layers.append("\n".join([*lines, "\t\t</layer>"]))
        for port, ((layer, origin), _, _) in enumerate(sources):
            link = f'from-layer="{layer}" from-port="{origin}" to-layer="{identity}" to-port="{port}"'
            self.edges.append(f"\t\t<edge {link} />")
        return identity, len(sources)

    def text(self, name: str) -> str:
        parts = ['<?xml version="1.0"?>', f'<net name={quoteattr(name)} version="11">']
        parts += ["\t<layers>", *self.layers, "\t</layers>", "\t<edges>", *self.edges, "\t</edges>", "</net>"]
        return "\n".join(parts) + "\n"


def _open(shape: OptionalShape) -> str:
    return ",".join("?" if size is None else str(size) for size in shape)


def _ports(tag: str, ports: Sequence[tuple[str, OptionalShape]], first: int) -> list[str]:
    if not ports:
        return []
    lines = [f"\t\t\t<{tag}>"]
    for index, (dtype, shape) in enumerate(ports):
        lines.append(f'\t\t\t\t<port id="{first + index}" precision="{_PRECISION[dtype]}">')
        lines += [f"\t\t\t\t\t<dim>{-1 if size is None else size}</dim>" for size in shape]
        lines.append("\t\t\t\t</port>")
    return [*lines, f"\t\t\t</{tag}>"]
