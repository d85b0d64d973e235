"""Random calls of every dialect, and what Python makes of them."""

from __future__ import annotations

import json
import random
from typing import Any

from unstride.dialects import functional, onednn, onnx, openvino
from unstride.dialects._operator import Operator, Resolution
from unstride.errors import UnstrideError

AUTO_PADS = ("explicit", "valid", "same_upper", "same_lower")
DIALECTS = (
    "openvino",
    "onednn.ConvolutionBackpropData",
    "onednn.ConvTranspose",
    "onednn.ConvTransposeBackpropData",
    "onnx",
    "torch",
)
_KEPT = {"openvino": "may", "onnx": "may", "onednn.ConvolutionBackpropData": "must"}

Call = dict[str, Any]


def ask(page: Any, function: str, cases: list[Any]) -> Any:
    """A JavaScript function of a list, run in the page; one string each way is far quicker than objects."""
    return json.loads(page.evaluate(f"text => JSON.stringify(({function})(JSON.parse(text)))", json.dumps(cases)))


def random_call(rng: random.Random) -> Call:
    """A call of a few positions, legal more often than not, with every attribute in play."""
    dialect = rng.choice(DIALECTS)
    rank = rng.choice((1, 2, 2, 3))

    def draw(low: int, high: int) -> list[int]:
        return [rng.randint(low, high) for _ in range(rank)]

    call: Call = {
        "dialect": dialect,
        "rules": rng.choice(("spec", "runtime")),
        "size": draw(1, 9),
        "kernel": draw(1, 6),
        "strides": draw(1, 4),
        "dilations": draw(1, 3),
        "pads_begin": draw(0, 4),
        "pads_end": draw(0, 4),
        "output_padding": [rng.choice((0, 0, 0, 1, 2, 5)) for _ in range(rank)],
        "auto_pad": "explicit" if dialect == "torch" else rng.choice(AUTO_PADS),
        "output_shape": None,
        "groups": rng.randint(1, 3),
        "ci": rng.randint(1, 3),
        "co": rng.randint(1, 3),
    }
    keep = _KEPT.get(dialect, "no")
    if keep == "must" or (keep == "may" and rng.random() < 0.5) or rng.random() < 0.02:
        call["output_shape"] = _sizes_nearby(rng, call)
    if keep == "must" and rng.random() < 0.02:
        call["output_shape"] = None
    return call


def _sizes_nearby(rng: random.Random, call: Call) -> list[int]:
    """Sizes around the ones that the rules would give, so that both answers and refusals come up."""
    sizes = []
    for n, size in enumerate(call["size"]):
        stride, extent = call["strides"][n], (call["kernel"][n] - 1) * call["dilations"][n] + 1
        full = stride * (size - 1) + extent
        natural = full - call["pads_begin"][n] - call["pads_end"][n]
        base = rng.choice((natural, natural, size * stride, full))
        sizes.append(max(0, base + rng.randint(-1, 3)))
    return sizes


def operator_of(call: Call) -> tuple[Operator, tuple[int, ...]]:
    """The operator object of a call, and the shape of its filter."""
    g, ci, co = call["groups"], call["ci"], call["co"]
    lists = (call["strides"], call["pads_begin"], call["pads_end"], call["dilations"])
    pad, op, rules = call["auto_pad"], call["output_padding"], call["rules"]
    kernel = tuple(call["kernel"])
    if call["dialect"] == "openvino":
        return openvino.GroupConvolutionBackpropData(*lists, pad, op, rules=rules), (g, ci, co, *kernel)
    if call["dialect"] == "onnx":
        padding = [*call["pads_begin"], *call["pads_end"]]
        word = "NOTSET" if pad == "explicit" else pad.upper()
        sizes = call["output_shape"]
        operator = onnx.ConvTranspose(call["strides"], padding, call["dilations"], g, word, op, sizes)
        return operator, (g * ci, co, *kernel)
    if call["dialect"] == "torch":
        operator = functional.ConvTranspose(call["strides"], call["pads_begin"], op, g, call["dilations"])
        return operator, (g * ci, co, *kernel)
    kind: Any = getattr(onednn, call["dialect"].removeprefix("onednn."))
    word = "none" if pad == "explicit" else pad
    shape = (g * ci, co, *kernel) if kind is onednn.ConvolutionBackpropData else (co, g * ci, *kernel)
    return kind(*lists, word, op, g, "NCX", "OIX", rules=rules), shape


def resolution_of(call: Call) -> Resolution:
    operator, filter_shape = operator_of(call)
    gather = call["dialect"] == "onednn.ConvTransposeBackpropData"
    data = (1, call["groups"] * (call["co"] if gather else call["ci"]), *call["size"])
    wanted = None if call["dialect"] == "onnx" else call["output_shape"]
    return operator.resolve(data, filter_shape, wanted)


def answer(call: Call) -> dict[str, Any]:
    """What Python says, in the words of the page."""
    try:
        resolution = resolution_of(call)
    except UnstrideError:
        return {"refused": True}
    p = resolution.problem
    found: dict[str, Any] = {
        "direction": p.direction,
        "begin": list(p.begin),
        "x": list(p.x),
        "y": list(p.y),
        "rule": resolution.windows[0].rule.name,
        "other": None,
    }
    if resolution.other is not None:
        windows = resolution.other
        found["other"] = {"begin": [w.begin for w in windows], "size": [w.size for w in windows]}
        found["other"]["rule"] = windows[0].rule.name
    elif resolution.refusal is not None:
        found["other"] = {"refused": True}
    return found
