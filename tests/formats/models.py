"""Model files for tests: written by the engines themselves, or by hand where no engine writes such files any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PORT = '<port id="{id}"{precision}>{dims}</port>'


def ports(*shapes: tuple[int, ...], precision: str = "FP32", first: int = 0) -> str:
    """`<port>` elements; an empty precision leaves the attribute out, as files of 2020 do."""
    said = f' precision="{precision}"' if precision else ""
    text = ""
    for index, shape in enumerate(shapes):
        dims = "".join(f"<dim>{size}</dim>" for size in shape)
        text += PORT.format(id=first + index, precision=said, dims=dims)
    return text


def layer(identity: int, kind: str, body: str, name: str = "") -> str:
    return f'<layer id="{identity}" name="{name or kind.lower()}" type="{kind}" version="opset1">{body}</layer>'


def edge(from_layer: int, from_port: int, to_layer: int, to_port: int) -> str:
    names = ("from-layer", "from-port", "to-layer", "to-port")
    values = zip(names, (from_layer, from_port, to_layer, to_port), strict=True)
    return "<edge " + " ".join(f'{name}="{value}"' for name, value in values) + "/>"


def net(layers: str, edges: str, version: str = "10") -> str:
    return (
        f'<?xml version="1.0"?><net name="m" version="{version}"><layers>{layers}</layers><edges>{edges}</edges></net>'
    )


def one_layer(
    attributes: str = 'strides="2,2"',
    const: str = 'offset="0" size="72"',
    const_ports: str = "",
    data_ports: str = "",
    kind: str = "ConvolutionBackpropData",
    extra_layers: str = "",
    extra_edges: str = "",
    filter_shape: tuple[int, ...] = (2, 1, 3, 3),
) -> str:
    """A net of one transposed convolution, [1, 2, 4, 4] to one channel; each part can be spoilt."""
    data = data_ports or ports((1, 2, 4, 4), filter_shape)
    layers = layer(0, "Parameter", f'<data shape="1,2,4,4"/><output>{ports((1, 2, 4, 4))}</output>')
    layers += layer(1, "Const", f"<data {const}/><output>{const_ports or ports(filter_shape)}</output>")
    result = ports((1, 1, 9, 9), first=2)
    layers += layer(2, kind, f"<data {attributes}/><input>{data}</input><output>{result}</output>", "up")
    return net(layers + extra_layers, edge(0, 0, 2, 0) + edge(1, 0, 2, 1) + extra_edges)


def write(folder: Path, xml: str | bytes, blob: bytes = b"") -> Path:
    """`model.xml` and, if there are bytes, `model.bin`."""
    path = folder / "model.xml"
    path.write_bytes(xml if isinstance(xml, bytes) else xml.encode())
    if blob:
        path.with_suffix(".bin").write_bytes(blob)
    return path


def zoo_weights(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Filters of several ranks, by layer name."""
    rng = np.random.default_rng(seed)
    shapes = {
        "up1d": (6, 4, 5),
        "up2d": (4, 3, 4, 4),
        "sized2d": (4, 3, 3, 3),
        "grouped2d": (2, 2, 3, 3, 3),
        "up3d": (3, 2, 2, 2, 2),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


ZOO_DATA = {
    "up1d": (2, 6, 11),
    "up2d": (1, 4, 6, 5),
    "sized2d": (1, 4, 6, 5),
    "grouped2d": (1, 4, 5, 5),
    "up3d": (1, 3, 3, 4, 5),
}


def save_with_openvino(folder: Path) -> Path:
    """A model of five transposed convolutions saved by the engine with its default compression."""
    import openvino
    from openvino import opset13 as ops

    filters = zoo_weights()
    inputs = {name: ops.parameter([-1, *shape[1:]], np.float32, name=f"{name}_x") for name, shape in ZOO_DATA.items()}
    weights = {name: ops.constant(value) for name, value in filters.items()}
    dense, grouped = ops.convolution_backprop_data, ops.group_convolution_backprop_data
    wanted = ops.constant(np.array([13, 12], np.int64))
    results = [
        dense(inputs["up1d"], weights["up1d"], [3], pads_begin=[1], pads_end=[2], dilations=[2], name="up1d"),
        dense(inputs["up2d"], weights["up2d"], [2, 2], pads_begin=[1, 1], pads_end=[1, 1], name="up2d"),
        dense(inputs["sized2d"], weights["sized2d"], [2, 2], wanted, auto_pad="same_upper", name="sized2d"),
        grouped(inputs["grouped2d"], weights["grouped2d"], [2, 1], output_padding=[1, 0], name="grouped2d"),
        dense(inputs["up3d"], weights["up3d"], [2, 2, 2], name="up3d"),
    ]
    path = folder / "zoo.xml"
    openvino.save_model(openvino.Model(results, list(inputs.values()), "zoo"), path)
    return path
