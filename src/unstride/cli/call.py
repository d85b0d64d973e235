"""What a command is asked about: attributes as options, a layer of a file, or a problem line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unstride.dialects import Operator, Resolution, functional, onednn, onnx, openvino
from unstride.errors import FormatError, ShapeError, UnstrideError
from unstride.problem import Problem

__all__ = ["Call", "add_arguments", "integers", "only_one", "read_calls"]

OPEN_SIZE = 16  # stands for a spatial size that a file leaves open


@dataclass(frozen=True)
class Call:
    """An operator with the shapes it is called with; `operator` is None where no operator can spell a problem line."""

    label: str
    operator: Any
    resolution: Resolution
    filter_shape: tuple[int, ...]
    output_shape: tuple[int, ...] | None
    remark: str = ""


def integers(text: str) -> tuple[int, ...]:
    """`1,20,224,224` or `1x20x224x224`."""
    if not re.fullmatch(r"\s*-?\d{1,20}(\s*[,x ]\s*-?\d{1,20})*\s*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no list of integers like 2,2")
    return tuple(int(word) for word in re.findall(r"-?\d+", text))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything that says which call is meant."""
    parser.add_argument("target", nargs="?", help="a model file (.xml, .onnx) or a problem line in quotes")
    parser.add_argument("--layer", help="the layer of the file, by name")
    group = parser.add_argument_group("a call by its attributes (lists like 2,2)")
    for name in ("data", "filter"):
        group.add_argument(f"--{name}", type=integers, metavar="SHAPE", help=f"the shape of {name}")
    for name in ("strides", "pads-begin", "pads-end", "dilations", "output-padding", "output-shape"):
        group.add_argument(f"--{name}", type=integers, metavar="LIST")
    group.add_argument("--auto-pad", metavar="WORD", help="explicit (the default), valid, same_upper or same_lower")
    group.add_argument("--groups", type=int, metavar="N", help="for filters without a group axis")
    group.add_argument("--data-format", default="NCX", metavar="WORD", help="oneDNN: NCX (the default here) or NXC")
    group.add_argument("--filter-format", default="OIX", metavar="WORD", help="oneDNN: OIX (the default here) or XIO")
    group.add_argument("--dtype", default="f32", metavar="WORD", help="f32, f16, bf16 or f64")
    group.add_argument("--dialect", choices=tuple(_MAKERS), default="openvino", help="whose operator (openvino)")
    group.add_argument("--rules", choices=("spec", "runtime"), help="the document's rules or the engine's")


def read_calls(options: argparse.Namespace) -> list[Call]:
    """The calls that the options speak of; several only for a file without --layer."""
    if options.target is None:
        return [_from_attributes(options)]
    if not _looks_like_a_file(options.target):
        return [_from_problem(Problem.parse(options.target))]
    return _from_file(options)


def only_one(calls: Sequence[Call]) -> Call:
    """The call of a file with one layer; else a request to choose."""
    if len(calls) != 1:
        names = ", ".join(call.label for call in calls[:12])
        raise FormatError("--layer", "nothing", f"the file has {len(calls)} transposed convolutions", f"choose {names}")
    return calls[0]


def _looks_like_a_file(target: str) -> bool:
    return Path(target).suffix.lower() in (".xml", ".onnx", ".bin", ".npy") or len(target.split()) < 4


# -- attributes ------------------------------------------------------------------------------------------------------


def _from_attributes(options: argparse.Namespace) -> Call:
    if options.data is None or options.filter is None:
        fix = "give --data SHAPE and --filter SHAPE, or a FILE, or a problem line"
        raise ShapeError("call", "neither a file nor shapes", "the shapes of data and filter are needed", fix)
    operator = _MAKERS[options.dialect](options)
    if isinstance(operator, onnx.ConvTranspose | functional.ConvTranspose):
        resolution = operator.resolve(options.data, options.filter, dtype=options.dtype)
    else:
        resolution = operator.resolve(options.data, options.filter, options.output_shape, options.dtype)
    return Call(operator.document, operator, resolution, options.filter, options.output_shape)


def _openvino(options: argparse.Namespace) -> Operator:
    grouped = len(options.filter) == len(options.data) + 1
    kind: Any = openvino.GroupConvolutionBackpropData if grouped else openvino.ConvolutionBackpropData
    if options.groups not in (None, 1) and not grouped:
        fix = "pass the filter as GROUPS,C_IN,C_OUT,K..."
        raise ShapeError("groups", options.groups, "OpenVINO has the groups in front of the filter", fix)
    return kind(  # type: ignore[no-any-return]
        options.strides or [1] * (len(options.data) - 2),
        options.pads_begin,
        options.pads_end,
        options.dilations,
        options.auto_pad or "explicit",
        options.output_padding,
        rules=options.rules or "spec",
    )


def _onednn(kind: Any) -> Any:
    def make(options: argparse.Namespace) -> Operator:
        axes = len(options.data) - 2
        zeros, ones = [0] * axes, [1] * axes
        lists = (options.strides or ones, options.pads_begin or zeros, options.pads_end or zeros)
        return kind(  # type: ignore[no-any-return]
            *lists,
            options.dilations or ones,
            None if options.auto_pad == "explicit" else options.auto_pad,
            options.output_padding,
            options.groups or 1,
            options.data_format,
            options.filter_format,
            rules=options.rules or "spec",
        )

    return make


def _onnx(options: argparse.Namespace) -> Operator:
    axes = len(options.data) - 2
    auto_pad = (options.auto_pad or "NOTSET").upper()
    return onnx.ConvTranspose(
        strides=options.strides,
        pads=(*(options.pads_begin or (0,) * axes), *(options.pads_end or (0,) * axes)),
        dilations=options.dilations,
        group=options.groups or 1,
        auto_pad="NOTSET" if auto_pad == "EXPLICIT" else auto_pad,
        output_padding=options.output_padding,
        output_shape=options.output_shape,
    )


def _torch(options: argparse.Namespace) -> Operator:
    if options.auto_pad or options.output_shape or (options.pads_end or options.pads_begin) != options.pads_begin:
        raise ShapeError("padding", options.pads_end, "torch has one symmetric padding, no auto_pad, no output_shape")
    values = (options.strides or 1, options.pads_begin or 0, options.output_padding or 0)
    return functional.ConvTranspose(*values, options.groups or 1, options.dilations or 1)


_MAKERS: dict[str, Any] = {
    "openvino": _openvino,
    "onednn": _onednn(onednn.ConvolutionBackpropData),
    "onednn-transpose": _onednn(onednn.ConvTranspose),
    "onednn-gradient": _onednn(onednn.ConvTransposeBackpropData),
    "onnx": _onnx,
    "torch": _torch,
}


# -- files -----------------------------------------------------------------------------------------------------------


def _from_file(options: argparse.Namespace) -> list[Call]:
    from unstride.formats import read

    layers = read(options.target, rules=options.rules)
    if options.layer is not None:
        layers = tuple(layer for layer in layers if layer.name == options.layer)
    if not layers:
        given = options.layer or Path(options.target).name
        raise FormatError("file", given, "holds no such transposed convolution", "run `unstride shape FILE` for a list")
    return [file_call(layer, options.data, options.output_shape) for layer in layers]


def file_call(layer: Any, data: tuple[int, ...] | None, output_shape: tuple[int, ...] | None) -> Call:
    """A file's layer with its open sizes filled in: batch 1, OPEN_SIZE in space, channels from the filter."""
    shape, remark = (data, "") if data is not None else _filled(layer)
    wanted = layer.output_shape if output_shape is None else output_shape
    if wanted is None and layer.shape_is_computed:
        raise ShapeError(
            f"layer {layer.name}", "a computed output_shape", "the model computes it", "give --output-shape"
        )
    resolution = layer.operator.resolve(shape, layer.filter_shape, *([wanted] if wanted else []), dtype=layer.dtype)
    return Call(layer.name, layer.operator, resolution, layer.filter_shape, wanted, remark)


def _filled(layer: Any) -> tuple[tuple[int, ...], str]:
    sizes = list(layer.data_shape)
    channels = _channels(layer)
    defaults = [1, channels, *[OPEN_SIZE] * (len(sizes) - 2)]
    filled = tuple(default if size is None else size for size, default in zip(sizes, defaults, strict=True))
    if tuple(sizes[1:]) == filled[1:]:
        return filled, ""
    written = "x".join("?" if size is None else str(size) for size in sizes)
    return filled, f"{layer.name}: the file leaves sizes open ({written}); {'x'.join(map(str, filled))} is taken"


def _channels(layer: Any) -> int:
    structure = layer.operator.structure(layer.filter_shape, layer.dtype)
    return int(structure.groups * structure.ci)


# -- problem lines ---------------------------------------------------------------------------------------------------


def _from_problem(problem: Problem) -> Call:
    """The problem as some operator would spell it; explicit pads can say every window that begins at 0 or later."""
    operator = _speller(problem)
    if operator is not None:
        shape = problem.data_shape if problem.data_layout == "NCX" else _channels_first(problem.data_shape)
        filter_shape = _filter_shape(problem)
        try:
            resolution = operator.resolve(shape, filter_shape, dtype=problem.dtype)
        except UnstrideError:
            resolution = None
        if resolution is not None and (resolution.problem.x, resolution.problem.y) == (problem.x, problem.y):
            return Call("problem", operator, replace(resolution, problem=problem), filter_shape, None)
    remark = "no operator without output_shape has this window"
    return Call("problem", None, Resolution(problem, "spec", (), None, None, None, None), (), None, remark)


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])


def _filter_shape(problem: Problem) -> tuple[int, ...]:
    if problem.direction == "gather":
        return (problem.co, problem.groups * problem.ci, *problem.kernel)
    if problem.groups == 1 and problem.rank <= 3:
        return (problem.ci, problem.co, *problem.kernel)
    return (problem.groups, problem.ci, problem.co, *problem.kernel)


def _speller(problem: Problem) -> Any:
    if min(problem.begin) < 0:
        return None
    begin = problem.begin
    surplus = [full - y - b for full, y, b in zip(problem.full, problem.y, begin, strict=True)]
    ends, padding = [max(0, value) for value in surplus], [max(0, -value) for value in surplus]
    lists = (problem.stride, begin, ends, problem.dilation)
    if problem.direction == "gather":
        formats = {"data_format": "NCX", "filter_format": "OIX"}
        return onednn.ConvTransposeBackpropData(*lists, groups=problem.groups, **formats)  # type: ignore[arg-type]
    grouped = problem.groups > 1 or problem.rank > 3
    kind: Any = openvino.GroupConvolutionBackpropData if grouped else openvino.ConvolutionBackpropData
    return kind(*lists, "explicit", padding)
