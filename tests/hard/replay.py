"""What crashed others, through every entrance of this package, each run in a process of its own.

The entrances are the operators of four dialects with real arrays, the command line, and the readers of OpenVINO IR and
ONNX files, whose layers are then compiled and run. Every run must end in an error of the package's tree or in the right
result. Memory is limited to 3 GB, so that a size nobody checked cannot hide behind a machine that has it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tests.brute import brute_force
from tests.formats import models
from tests.hard import forks
from tests.hard.reports import REPORTS, Report
from tests.hard.tally import Tally, main
from unstride import conv_transpose, onednn, onnx, openvino
from unstride.dialects import functional
from unstride.errors import RuleWarning, UnstrideError
from unstride.formats import read
from unstride.problem import Problem
from unstride.runtime.execute import Layer  # loaded here, before the forks, once

_MEMORY = 3 * 2**30
_SECONDS = 60
_ELEMENTS = 10**6  # a result up to this size is compared element by element
_LISTED = 2**60  # what NumPy can describe without owning it

Run = Callable[[Report], str]


def array(shape: tuple[int, ...], seed: int) -> Any:
    """Integers of this shape; one element seen everywhere if the shape is too large to own."""
    if prod(shape) <= _ELEMENTS:
        return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)
    if prod(shape) > _LISTED or len(shape) > 32:
        raise OverflowError
    return np.broadcast_to(np.float32(1), shape)


def judged(problem: Problem, result: Any, data: Any, filter: Any, bias: Any = None) -> str:
    """What is wrong with a result that was given; empty if nothing is."""
    if result.shape != problem.result_shape:
        return f"shape {result.shape} instead of {problem.result_shape}"
    if result.size > _ELEMENTS or problem.macs > _ELEMENTS:
        return ""
    wanted = brute_force(problem, data, filter)
    if bias is not None:
        wanted = wanted + bias.reshape(-1, *(1,) * problem.rank)
    return "" if np.array_equal(result, wanted) else "a wrong result"


# --- entrances ------------------------------------------------------------------------------------------------------


def as_openvino(r: Report, rules: str = "spec") -> str:
    grouped = r.groups != 1 and r.groups and len(r.filter) > 1 and r.filter[0] % r.groups == 0
    kind = openvino.GroupConvolutionBackpropData if grouped else openvino.ConvolutionBackpropData
    shape = (r.groups, r.filter[0] // r.groups, *r.filter[1:]) if grouped else r.filter
    lists = (r.strides, r.pads_begin, r.pads_end, r.dilations, r.auto_pad or "explicit", r.output_padding)
    operator = kind(*lists, rules=rules)
    problem = operator.resolve(r.data, shape, r.output_shape).problem
    data, filter = array(r.data, 1), array(shape, 2)
    return judged(problem, operator(data, filter, r.output_shape), data, filter)


def as_openvino_runtime(r: Report) -> str:
    return as_openvino(r, "runtime")


def as_onnx(r: Report) -> str:
    operator = onnx.ConvTranspose(**_onnx_attributes(r))
    problem = operator.resolve(r.data, r.filter).problem
    data, filter, bias = array(r.data, 1), array(r.filter, 2), None if r.bias is None else array((r.bias,), 3)
    return judged(problem, operator(data, filter, bias), data, filter, bias)


def as_torch(r: Report) -> str:
    data, filter, bias = array(r.data, 1), array(r.filter, 2), None if r.bias is None else array((r.bias,), 3)
    padding = 0 if r.pads_begin is None else r.pads_begin
    more, dilation = r.output_padding or 0, 1 if r.dilations is None else r.dilations
    settings = {"stride": r.strides, "padding": padding, "output_padding": more, "groups": r.groups}
    result = conv_transpose(data, filter, bias, **settings, dilation=dilation)
    operator = functional.ConvTranspose(r.strides, padding, more, r.groups, dilation)
    return judged(operator.resolve(r.data, r.filter).problem, result, data, filter, bias)


def as_onednn(r: Report) -> str:
    axes = len(r.filter) - 2
    zeros, ones = (0,) * axes, (1,) * axes
    pads = (zeros if r.pads_begin is None else r.pads_begin, zeros if r.pads_end is None else r.pads_end)
    lists = (r.strides, *pads, ones if r.dilations is None else r.dilations, r.auto_pad, r.output_padding)
    operator = onednn.ConvolutionBackpropData(*lists, r.groups, "NCX", "OIX", r.output_shape)
    problem = operator.resolve(r.data, r.filter).problem
    data, filter = array(r.data, 1), array(r.filter, 2)
    return judged(problem, operator(data, filter), data, filter)


def as_gradient(r: Report) -> str:
    """The adjoint operator of oneDNN: the report's data is its output_delta."""
    axes = len(r.filter) - 2
    zeros, ones = (0,) * axes, (1,) * axes
    pads = (zeros if r.pads_begin is None else r.pads_begin, zeros if r.pads_end is None else r.pads_end)
    lists = (r.strides, *pads, ones if r.dilations is None else r.dilations, r.auto_pad, r.output_padding)
    operator = onednn.ConvTransposeBackpropData(*lists, r.groups, "NCX", "OIX")
    problem = operator.resolve(r.data, r.filter).problem
    data, filter = array(r.data, 1), array(r.filter, 2)
    return judged(problem, operator(data, filter), data, filter)


def _onnx_attributes(r: Report) -> dict[str, Any]:
    said = {"strides": r.strides, "dilations": r.dilations, "output_padding": r.output_padding}
    said |= {"output_shape": r.output_shape, "kernel_shape": r.kernel_shape, "group": r.groups}
    if r.pads_begin is not None:
        said["pads"] = (*r.pads_begin, *r.pads_end)
    if r.auto_pad:
        said["auto_pad"] = r.auto_pad.upper()
    return {name: value for name, value in said.items() if value is not None}


def through_ir(r: Report) -> str:
    """An OpenVINO IR file that says it; its layer is compiled and run."""
    names = ("strides", "pads_begin", "pads_end", "dilations", "output_padding")
    said = {name: ",".join(map(str, getattr(r, name))) for name in names if getattr(r, name) is not None}
    said |= {"auto_pad": r.auto_pad} if r.auto_pad else {}
    owned = prod(r.filter) <= _ELEMENTS
    blob = array(r.filter, 2).tobytes() if owned and min(r.filter, default=1) >= 0 else b"\0" * 16
    sizes = np.array(r.output_shape or (), np.uint64).view(np.int64) if _fits(r.output_shape) else None
    layers = models.layer(0, "Parameter", f"<output>{models.ports(r.data)}</output>")
    const = f'element_type="f32" shape="{",".join(map(str, r.filter))}" offset="0" size="{4 * prod(r.filter)}"'
    layers += models.layer(1, "Const", f"<data {const}/><output>{models.ports(r.filter)}</output>")
    inputs, edges = models.ports(r.data, r.filter), models.edge(0, 0, 2, 0) + models.edge(1, 0, 2, 1)
    if sizes is not None and sizes.size:
        const = f'element_type="i64" shape="{sizes.size}" offset="{len(blob)}" size="{sizes.nbytes}"'
        ports = models.ports((sizes.size,), precision="I64")
        layers += models.layer(3, "Const", f"<data {const}/><output>{ports}</output>")
        inputs += models.ports((sizes.size,), precision="I64", first=2)
        edges += models.edge(3, 0, 2, 2)
        blob += sizes.tobytes()
    attributes = " ".join(f'{name}="{value}"' for name, value in said.items())
    body = f"<data {attributes}/><input>{inputs}</input><output>{models.ports(r.data, first=3)}</output>"
    layers += models.layer(2, "ConvolutionBackpropData", body, "up")
    with tempfile.TemporaryDirectory() as folder:
        return _file(models.write(Path(folder), models.net(layers, edges), blob), r)


def _fits(sizes: Any) -> bool:
    return sizes is not None and all(-(2**63) <= size < 2**63 for size in sizes)


def through_onnx(r: Report) -> str:
    """An ONNX file that says it; its layer is compiled and run."""
    from onnx import TensorProto, helper

    tensors = []
    for name, shape in (("w", r.filter), ("b", None if r.bias is None else (r.bias,))):
        if shape is not None:
            raw = array(shape, 2).tobytes() if prod(shape) <= _ELEMENTS else b"\0" * 16
            tensors.append(TensorProto(name=name, data_type=1, dims=shape, raw_data=raw))
    try:
        attributes = [helper.make_attribute(k, v, attr_type=_KINDS.get(k, 7)) for k, v in _onnx_attributes(r).items()]
        node = helper.make_node("ConvTranspose", ["x", *(t.name for t in tensors)], ["y"], "up")
        node.attribute.extend(attributes)
        x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", r.data), ("y", None)))
        graph = helper.make_graph([node], "g", [x], [y], tensors)
    except (ValueError, OverflowError):
        return ""  # beyond what the format's 64-bit integers can say
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(model.SerializeToString())
        return _file(path, r)


_KINDS = {"group": 2, "auto_pad": 3}


def _file(path: Path, r: Report) -> str:
    for layer in read(path):
        problem = layer.operator.resolve(
            r.data, layer.filter_shape, *((layer.output_shape,) if layer.output_shape else ())
        ).problem
        weights, bias, data = layer.weights(), layer.bias(), array(r.data, 1)
        compiled: Layer = layer.operator.compile(weights, bias=bias)
        result = compiled(data, layer.output_shape) if layer.output_shape else compiled(data)
        if wrong := judged(problem, result, data, weights, bias):
            return wrong
    return ""


def by_command(r: Report) -> str:
    """`unstride shape` with the report as options: exit 0, or 2 with one line."""
    words = {"data": r.data, "filter": r.filter, "strides": r.strides, "pads-begin": r.pads_begin}
    words |= {"pads-end": r.pads_end, "dilations": r.dilations, "output-padding": r.output_padding}
    words |= {"output-shape": r.output_shape}
    command = [sys.executable, "-m", "unstride.cli", "shape", "--json"]
    command += [f"--{name}={','.join(map(str, value))}" for name, value in words.items() if value is not None]
    command += [f"--groups={r.groups}", f"--auto-pad={r.auto_pad}", "--dialect=openvino"][: 2 if r.auto_pad else 1]
    command += ["--dialect=onnx"] if r.groups != 1 else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    clean = done.returncode == 0 or (done.returncode == 2 and done.stderr.count("\n") == 1)
    return "" if clean else f"exit {done.returncode}: {done.stderr[-200:]}"


API = (as_openvino, as_openvino_runtime, as_onnx, as_torch, as_onednn, as_gradient)


def expressible(entrance: Run, r: Report) -> bool:
    """Whether an entrance has words for what makes the report special."""
    if r.kernel_shape is not None:
        return entrance in (as_onnx, through_onnx)
    if r.bias is not None:
        return entrance in (as_onnx, as_torch, through_onnx)
    if r.groups != 1:
        return entrance not in (as_openvino, as_openvino_runtime, through_ir)
    if r.output_shape is not None or r.auto_pad:
        return entrance not in (as_torch, as_gradient)
    return entrance is not as_onednn or r.output_shape is not None


def guarded(entrance: Run, r: Report) -> str:
    """One run: typed error or right result, or what else happened."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore", RuleWarning)
    try:
        return entrance(r)
    except UnstrideError as error:
        return "" if str(error).isprintable() else "an error that cannot be printed"
    except OverflowError:
        return ""  # no array of this shape can exist; that the shapes were resolved before is what counts
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(tally: Tally, full: bool) -> None:
    entrances: tuple[tuple[str, Run], ...] = (
        *(("API", entrance) for entrance in API),
        ("IR reader", through_ir),
        ("ONNX reader", through_onnx),
        ("command line", by_command),
    )
    for index, report in enumerate(REPORTS):
        for kind, entrance in entrances:
            wanted = full or (index % 9 == 0 and entrance is not by_command) or index % 45 == 0
            if wanted and expressible(entrance, report):
                fault = forks.alone(lambda e=entrance, r=report: guarded(e, r), seconds=_SECONDS)  # type: ignore[misc]
                tally.add(kind, fault and f"{report}, {entrance.__name__}: {fault}")


if __name__ == "__main__":
    main("replay", run, __doc__)
