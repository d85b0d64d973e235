"""OpenVINO IR: every ConvolutionBackpropData and GroupConvolutionBackpropData of a `.xml` + `.bin` pair.

Net versions 10 and 11 are read, from the files of 2020, whose constants carry only offset and size, to those of today,
whose weights are f16 constants with a Convert behind them. Declared output sizes are not trusted: the operator infers
them again, by the rules asked for.
"""

from __future__ import annotations

import re
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unstride.dialects import openvino
from unstride.errors import FormatError, UnstrideError
from unstride.formats.ir_constants import PRECISIONS, Constants
from unstride.formats.ir_xml import TRANSPOSED_KINDS, Graph, Node, Port, read_graphs
from unstride.formats.layer import FileLayer, OptionalShape, check_layer_count

__all__ = ["read_openvino_ir"]

_FLOATS = ("f32", "f16", "bf16", "f64")
_LISTS = ("strides", "pads_begin", "pads_end", "dilations", "output_padding")


def read_openvino_ir(
    path: str | Path, *, rules: str = "runtime", weights: str | Path | None = None
) -> tuple[FileLayer, ...]:
    """The transposed convolutions of the `.xml` at `path`; `weights` is the `.bin`, by default the file beside it."""
    path = Path(path)
    blob = path.with_suffix(".bin") if weights is None else Path(weights)
    graphs = read_graphs(path)
    found = [(graph, node) for graph in graphs for node in graph.nodes.values() if node.kind in TRANSPOSED_KINDS]
    check_layer_count(len(found), path.name)
    return tuple(_layer(graph, node, Constants(graph, blob), rules) for graph, node in found)


def _layer(graph: Graph, node: Node, constants: Constants, rules: str) -> FileLayer:
    where = f"layer {node.name}"
    if len(node.inputs) not in (2, 3):
        raise FormatError(where, f"{len(node.inputs)} inputs", "data, filter and an optional output_shape are expected")
    grouped = node.kind == "GroupConvolutionBackpropData"
    filter_shape = _filter_shape(node, graph, constants, where)
    axes = len(filter_shape) - (3 if grouped else 2)
    if axes < 1:
        raise FormatError(where, filter_shape, "the filter has no spatial axis")
    data = node.inputs[0]
    dtype = PRECISIONS.get((data.precision or _output_precision(node)).upper(), "")
    if dtype not in _FLOATS:
        raise FormatError(where, data.precision, "data must be FP32, FP16, BF16 or FP64")
    output_shape, is_computed = _output_shape(node, graph, constants, axes)
    origin = graph.source(node, 1)
    load = partial(_weights, constants, origin, dtype, filter_shape, where)
    note = "no layer feeds the filter" if origin is None else constants.why_not(origin)
    return FileLayer(
        name=node.name,
        operator=_operator(node, grouped, axes, rules, where),
        dialect="openvino",
        dtype=dtype,
        data_shape=_data_shape(data, axes, where),
        filter_shape=filter_shape,
        output_shape=output_shape,
        shape_is_computed=is_computed,
        weights_note=note,
        load_weights=None if note else load,
    )


def _operator(node: Node, grouped: bool, axes: int, rules: str, where: str) -> Any:
    kind = openvino.GroupConvolutionBackpropData if grouped else openvino.ConvolutionBackpropData
    attributes = {key: _integers(node.attributes.get(key, ""), f"{where}: {key}") for key in _LISTS}
    try:
        return kind(
            strides=attributes["strides"] or [1] * axes,
            pads_begin=attributes["pads_begin"],
            pads_end=attributes["pads_end"],
            dilations=attributes["dilations"],
            output_padding=attributes["output_padding"],
            auto_pad=node.attributes.get("auto_pad", "explicit"),
            rules=rules,
        )
    except UnstrideError as error:
        raise FormatError(f"{where}: {error.field}", error.given, error.rule, error.fix) from None


def _integers(text: str, field: str) -> list[int] | None:
    """A comma-separated list; an empty one means the default."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if any(not re.fullmatch(r"-?[0-9]{1,18}", word) for word in words):
        raise FormatError(field, text, "must be integers separated by commas")
    return [int(word) for word in words] or None


def _filter_shape(node: Node, graph: Graph, constants: Constants, where: str) -> tuple[int, ...]:
    """The filter port's sizes; a file that leaves them out has them at the constant."""
    dims: list[int | None] = list(node.inputs[1].dims)
    origin = graph.source(node, 1)
    if (not dims or None in dims) and origin is not None:
        dims = list(constants.shape(origin) or ())
    sizes = tuple(size for size in dims if size is not None)
    if not sizes or len(sizes) != len(dims):
        raise FormatError(where, dims, "the filter's sizes must be in the file")
    return sizes


def _data_shape(port: Port, axes: int, where: str) -> OptionalShape:
    if not port.dims:
        return (None,) * (axes + 2)
    if len(port.dims) != axes + 2:
        raise FormatError(where, port.dims, f"the filter has {axes} spatial axes, so data needs rank {axes + 2}")
    return tuple(port.dims)


def _output_precision(node: Node) -> str:
    """Input ports of 2020 carry no precision; the result's is the same."""
    return node.outputs[0].precision if node.outputs else ""


def _output_shape(node: Node, graph: Graph, constants: Constants, axes: int) -> tuple[tuple[int, ...] | None, bool]:
    """The third input if it is a constant; else the declared sizes if all are known; else the caller gives it."""
    if len(node.inputs) < 3:
        return None, False
    origin = graph.source(node, 2)
    if origin is not None and not constants.why_not(origin):
        shape = constants.shape(origin)
        if shape is None or prod(shape) != axes:
            raise FormatError(f"layer {node.name}: output_shape", shape, f"needs {axes} values, one per spatial axis")
        return tuple(int(size) for size in constants.value(origin).ravel()), False
    declared = node.outputs[0].dims[2:] if node.outputs else []
    sizes = tuple(size for size in declared if size is not None)
    return (sizes, False) if len(sizes) == axes else (None, True)


def _weights(constants: Constants, origin: Node | None, dtype: str, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    from unstride.formats.arrays import dtype_of

    assert origin is not None, "a layer without a source has no loader"
    value = constants.value(origin)
    if value.dtype != dtype_of(dtype):
        raise FormatError(where, value.dtype.name, f"the filter must have the type of the data, {dtype}")
    if value.shape != shape:
        raise FormatError(where, value.shape, f"the filter's port declares {shape}")
    return value
