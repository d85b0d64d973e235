"""ONNX files: every ConvTranspose, of every opset, with weights from initializers, Constant nodes or external data.

The `onnx` package parses the protobuf (`pip install "unstride[onnx]"`); everything the message claims is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unstride.dialects import onnx as dialect
from unstride.errors import FormatError, UnstrideError
from unstride.formats.blob import open_regular, read_exactly
from unstride.formats.layer import FileLayer, OptionalShape, check_layer_count
from unstride.formats.onnx_tensors import FLOAT_TYPES, load_tensor, tensor_sizes, value_shape
from unstride.formats.onnx_wire import check_size

__all__ = ["read_onnx"]

MAX_FILE_BYTES = 2**31 - 1  # protobuf's own limit
MAX_NODES = 200_000
MAX_GRAPHS = 1_000
_ATTRIBUTES = ("strides", "pads", "dilations", "group", "auto_pad", "output_padding", "output_shape", "kernel_shape")


@dataclass(frozen=True)
class _Scope:
    """One graph with the tensors and sizes that can be seen from it."""

    prefix: str
    graph: Any
    tensors: dict[str, Any]
    producers: dict[str, Any]
    shapes: dict[str, OptionalShape]


def read_onnx(path: str | Path) -> tuple[FileLayer, ...]:
    """The ConvTranspose layers of the `.onnx` file at `path`, those of If, Loop and Scan bodies included."""
    path = Path(path)
    model = _parse(path)
    found = [(scope, node) for scope in _scopes(model, path.name) for node in scope.graph.node if _is_ours(node)]
    check_layer_count(len(found), path.name)
    if any(_is_vague(scope, node) for scope, node in found):
        from unstride.formats.onnx_shapes import inferred_shapes

        known = inferred_shapes(model)
        for scope, _ in found:
            if not scope.prefix:
                scope.shapes.update({name: shape for name, shape in known.items() if name not in scope.shapes})
    return tuple(_layer(scope, node, path.parent) for scope, node in found)


def _is_ours(node: Any) -> bool:
    return node.op_type == "ConvTranspose" and node.domain in ("", "ai.onnx")


def _parse(path: Path) -> Any:
    try:
        import onnx
    except ImportError:
        rule, fix = "ONNX files are read through the onnx package", 'pip install "unstride[onnx]"'
        raise FormatError(path.name, "no module onnx", rule, fix) from None
    with open_regular(path) as (_, size):
        pass
    if size > MAX_FILE_BYTES:
        raise FormatError(path.name, f"{size} bytes", "an ONNX file has less than 2 GiB")
    data = read_exactly(path, 0, size, path.name).tobytes()
    check_size(data, path.name)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        raise FormatError(path.name, f"{size} bytes", "is not an ONNX model, or it is damaged") from None
    if not model.HasField("graph") or not model.graph.node:
        raise FormatError(path.name, "a message without a graph", "is not an ONNX model")
    return model


def _scopes(model: Any, file: str) -> Iterator[_Scope]:
    """The main graph, then every graph inside it; an inner graph sees the tensors of the outer one."""
    pending: list[tuple[str, Any, dict[str, Any]]] = [("", model.graph, {})]
    graphs = nodes = 0
    while pending:
        prefix, graph, outer = pending.pop()
        graphs, nodes = graphs + 1, nodes + len(graph.node)
        if graphs > MAX_GRAPHS or nodes > MAX_NODES:
            raise FormatError(file, f"{graphs} graphs, {nodes} nodes", f"more than {MAX_NODES} nodes are not read")
        tensors = outer | {tensor.name: tensor for tensor in graph.initializer}
        producers: dict[str, Any] = {}
        for node in graph.node:
            producers.update(dict.fromkeys(node.output, node))
            pending += [
                (f"{prefix}{_name(node)}/", inner, tensors)
                for attribute in node.attribute
                for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
            ]
        infos = (*graph.input, *graph.value_info, *graph.output)
        yield _Scope(prefix, graph, tensors, producers, {info.name: value_shape(info) for info in infos})


def _name(node: Any) -> str:
    return str(node.name or (node.output[0] if node.output else node.op_type))[:250]


def _is_vague(scope: _Scope, node: Any) -> bool:
    """Whether the file itself does not tell the sizes of the data, or of weights that the model computes."""
    names = [name for name in node.input[:2] if _tensor(scope, name) is None]
    return any(None in (scope.shapes.get(name) or (None,)) for name in names)


def _layer(scope: _Scope, node: Any, folder: Path) -> FileLayer:
    name = f"{scope.prefix}{_name(node)}"
    where = f"layer {name}"
    if len(node.input) not in (2, 3):
        raise FormatError(where, f"{len(node.input)} inputs", "ConvTranspose takes X, W and an optional B")
    weights = _tensor(scope, node.input[1])
    bias = _tensor(scope, node.input[2]) if len(node.input) == 3 and node.input[2] else None
    if len(node.input) == 3 and node.input[2] and bias is None:
        raise FormatError(where, node.input[2], "a bias that the model computes is not supported")
    filter_shape = _filter_shape(scope, node.input[1], weights, where)
    dtype = FLOAT_TYPES.get(weights.data_type if weights is not None else _element_type(scope, node), "")
    if not dtype:
        raise FormatError(where, "another element type", "weights must be float, float16, bfloat16 or double")
    data_shape = scope.shapes.get(node.input[0]) or (None,) * len(filter_shape)
    if len(data_shape) != len(filter_shape):
        raise FormatError(where, data_shape, f"the filter has rank {len(filter_shape)}, so data needs the same")
    return FileLayer(
        name=name,
        operator=_operator(node, len(filter_shape) - 2, where),
        dialect="onnx",
        dtype=dtype,
        data_shape=data_shape,
        filter_shape=filter_shape,
        weights_note="" if weights is not None else _computed_by(scope, node.input[1]),
        load_weights=None if weights is None else partial(load_tensor, weights, dtype, folder, where),
        load_bias=None if bias is None else partial(load_tensor, bias, dtype, folder, f"{where}: bias"),
    )


def _filter_shape(scope: _Scope, name: str, weights: Any, where: str) -> tuple[int, ...]:
    sizes = tensor_sizes(weights, where) if weights is not None else scope.shapes.get(name, ())
    known = tuple(size for size in sizes if size is not None)
    if len(known) != len(sizes) or len(known) < 3:
        raise FormatError(where, sizes, "the filter needs rank 3 or more and fixed sizes")
    return known


def _tensor(scope: _Scope, name: str) -> Any:
    """The stored tensor behind a name, through Constant and Identity; None if the model computes it."""
    for _ in range(16):
        if name in scope.tensors:
            return scope.tensors[name]
        node = scope.producers.get(name)
        if node is None:
            return None
        if node.op_type == "Constant":
            return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        if node.op_type != "Identity" or len(node.input) != 1:
            return None
        name = node.input[0]
    return None


def _element_type(scope: _Scope, node: Any) -> int:
    """The declared type of weights that the model computes, or of its data; float where neither is declared."""
    declared = {info.name: info.type.tensor_type.elem_type for info in (*scope.graph.input, *scope.graph.value_info)}
    return int(declared.get(node.input[1]) or declared.get(node.input[0]) or 1)


def _computed_by(scope: _Scope, name: str) -> str:
    producer = scope.producers.get(name)
    return f"computed by the model ({producer.op_type})" if producer is not None else "an input of the model"


def _operator(node: Any, axes: int, where: str) -> Any:
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.name in _ATTRIBUTES:
            attributes[attribute.name] = _value(attribute, where)
    shape = attributes.get("output_shape")
    if shape is not None and len(shape) == axes + 2:  # engines accept the whole shape here; N and C follow anyway
        attributes["output_shape"] = shape[2:]
    try:
        return dialect.ConvTranspose(**attributes)
    except UnstrideError as error:
        raise FormatError(f"{where}: {error.field}", error.given, error.rule, error.fix) from None


def _value(attribute: Any, where: str) -> Any:
    if attribute.name == "group":
        return int(attribute.i)
    if attribute.name == "auto_pad":
        return attribute.s.decode("ascii", "replace")
    if len(attribute.ints) > 64:
        raise FormatError(f"{where}: {attribute.name}", f"{len(attribute.ints)} values", "one per spatial axis")
    return [int(value) for value in attribute.ints] or None
