"""The bundled example: an OpenVINO IR file with five transposed convolutions of one, two and three spatial axes.

The weights are stored as the engine's own save stores them, f16 behind a Convert. `python -m unstride.examples DIR`
writes the two files anew; the same bytes every time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["example_path", "write_example"]


def example_path() -> Path:
    """Where the bundled `.xml` lies.

    >>> example_path().name
    'upsamplers.xml'
    """
    return Path(__file__).with_name("upsamplers.xml")


def write_example(folder: Path) -> Path:
    """Write `upsamplers.xml` and `upsamplers.bin` into `folder`; the answer is the `.xml`."""
    import numpy as np

    from unstride.formats.ir_writer import IrLayer, write_openvino_ir

    rng = np.random.default_rng(2)
    layers = []
    for name, operator, data, filter_shape, wanted in _example_layers():
        weights = (rng.standard_normal(filter_shape) / 8).astype(np.float16).astype(np.float32)
        result = operator.infer_shape(data, filter_shape, wanted)
        open_batch = (None, *result[1:])
        layers.append(IrLayer(name, operator, (None, *data[1:]), weights, open_batch, wanted))
    path = folder / "upsamplers.xml"
    write_openvino_ir(path, layers, compress=True)
    return path


def _example_layers() -> list[tuple[str, Any, tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]]:
    """Layers as people meet them; the segmentation head is one for which document and engine disagree."""
    from unstride.dialects.openvino import ConvolutionBackpropData as Dense
    from unstride.dialects.openvino import GroupConvolutionBackpropData as Grouped

    run: dict[str, Any] = {"rules": "runtime"}
    return [
        ("vocoder_1d", Dense([8], [4], [4], [1], **run), (1, 32, 100), (32, 16, 16), None),
        ("generator_2d", Dense([2, 2], [1, 1], [1, 1], [1, 1], **run), (1, 64, 16, 16), (64, 32, 4, 4), None),
        (
            "segmentation_2d",
            Dense([4, 4], [3, 3], [3, 3], **run),
            (1, 8, 30, 40),
            (8, 8, 7, 7),
            (119, 158),
        ),
        (
            "depthwise_2d",
            Grouped([2, 2], [1, 1], [1, 1], [1, 1], output_padding=[1, 1], **run),
            (1, 32, 24, 24),
            (32, 1, 1, 3, 3),
            None,
        ),
        ("volume_3d", Dense([2, 2, 2], **run), (1, 16, 8, 12, 12), (16, 8, 2, 2, 2), None),
    ]
