"""OpenVINO IR as the engine writes it today, as it was written in 2020, and with everything in between."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats import models
from unstride import openvino
from unstride.errors import FormatError
from unstride.formats import read
from unstride.formats.ir_writer import IrLayer, write_openvino_ir
from unstride.formats.openvino_ir import read_openvino_ir
from unstride.reference import error_bound

WEIGHTS = np.arange(1, 19, dtype=np.float32).reshape(2, 1, 3, 3)


def only_layer(folder: Path, xml: str, blob: bytes = WEIGHTS.tobytes()) -> Any:
    (layer,) = read(models.write(folder, xml, blob))
    return layer


def test_a_saved_model_runs_layer_by_layer_and_agrees_with_the_engine(tmp_path: Path) -> None:
    """The engine's default save stores f16 behind a Convert; both sides compute with the decompressed weights."""
    ov = pytest.importorskip("openvino")
    path = models.save_with_openvino(tmp_path)
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    rng = np.random.default_rng(1)
    data = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in models.ZOO_DATA.items()}
    outputs = compiled({f"{name}_x": value for name, value in data.items()})
    expected = {
        output.get_node().input(0).get_source_output().get_node().friendly_name: output for output in compiled.outputs
    }
    layers = {layer.name: layer for layer in read(path)}
    assert set(layers) == set(models.ZOO_DATA)
    for name, layer in layers.items():
        weights = layer.weights()
        assert weights.dtype == np.float32
        assert np.array_equal(weights, models.zoo_weights()[name].astype(np.float16).astype(np.float32))
        wanted = {} if layer.output_shape is None else {"output_shape": layer.output_shape}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = layer.operator(data[name], weights, **wanted)
        problem = layer.operator.problem(data[name].shape, weights.shape, layer.output_shape)
        bound = 2 * error_bound(problem, data[name], weights)
        assert (np.abs(result - outputs[expected[name]]) <= bound).all(), name


def test_sizes_left_open_are_none(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    layers = {layer.name: layer for layer in read(models.save_with_openvino(tmp_path))}
    assert layers["up2d"].data_shape == (None, 4, 6, 5)
    assert layers["sized2d"].output_shape == (13, 12)


def test_a_file_of_2020_has_types_and_shapes_only_at_the_ports(tmp_path: Path) -> None:
    data = models.ports((1, 2, 4, 4), (2, 1, 3, 3), precision="")
    layer = only_layer(tmp_path, models.one_layer(data_ports=data))
    assert (layer.dtype, layer.filter_shape, layer.data_shape) == ("f32", (2, 1, 3, 3), (1, 2, 4, 4))
    assert np.array_equal(layer.weights(), WEIGHTS)
    assert layer.operator == openvino.ConvolutionBackpropData([2, 2], rules="runtime")


def test_the_example_of_the_group_document(tmp_path: Path) -> None:
    xml = models.one_layer(
        'strides="2,2" pads_begin="1,1" pads_end="1,1" dilations="1,1"',
        data_ports=models.ports((1, 20, 224, 224), (4, 5, 2, 3, 3)),
        kind="GroupConvolutionBackpropData",
        filter_shape=(4, 5, 2, 3, 3),
    )
    layer = only_layer(tmp_path, xml)
    assert layer.operator.infer_shape(layer.data_shape, layer.filter_shape) == (1, 8, 447, 447)


def test_rules_follow_the_caller(tmp_path: Path) -> None:
    path = models.write(tmp_path, models.one_layer(), WEIGHTS.tobytes())
    assert read(path)[0].operator.rules == "runtime"
    assert read(path, rules="spec")[0].operator.rules == "spec"


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('strides="2, 2"', {}),
        ('output_padding="1,0" strides="2,2" unknown="7"', {"output_padding": [1, 0]}),
        ('strides="2,2" dilations="" pads_begin=""', {}),
        ('strides="2,2" auto_pad="SAME_LOWER"', {"auto_pad": "same_lower"}),
        ('strides="2,2" auto_pad="EXPLICIT" pads_end=" 1 , 1 "', {"pads_end": [1, 1]}),
    ],
)
def test_attributes_are_read_as_the_engine_reads_them(tmp_path: Path, attributes: str, expected: Any) -> None:
    layer = only_layer(tmp_path, models.one_layer(attributes))
    assert layer.operator == openvino.ConvolutionBackpropData([2, 2], **expected, rules="runtime")


def test_an_offset_need_not_be_aligned_and_constants_may_be_shared(tmp_path: Path) -> None:
    other = models.layer(3, "Const", f'<data offset="3" size="72"/><output>{models.ports((2, 1, 3, 3))}</output>')
    xml = models.one_layer(const='offset="3" size="72"', extra_layers=other)
    assert np.array_equal(only_layer(tmp_path, xml, b"abc" + WEIGHTS.tobytes()).weights(), WEIGHTS)


def test_weights_behind_convert_subtract_multiply_and_reshape_are_folded(tmp_path: Path) -> None:
    """Eight-bit weights with a zero point and a scale, stored flat: as weight compression writes them."""
    stored = np.arange(18, dtype=np.uint8)
    scale, zero, target = np.float32(0.5), np.float32(3), np.array([2, 1, 3, 3], np.int64)
    blob = stored.tobytes() + zero.tobytes() + scale.tobytes() + target.tobytes()
    flat, scalar, full = models.ports((18,), first=2), models.ports((1,)), models.ports((2, 1, 3, 3), first=2)

    def const(identity: int, offset: int, size: int, kind: str, shape: tuple[int, ...]) -> str:
        text = f'<data element_type="{kind}" shape="{",".join(map(str, shape))}" offset="{offset}" size="{size}"/>'
        return models.layer(identity, "Const", f"{text}<output>{models.ports(shape)}</output>")

    def binary(identity: int, kind: str, result: str) -> str:
        return models.layer(identity, kind, f"<input>{models.ports((18,), (1,))}</input><output>{result}</output>")

    convert = f'<data destination_type="f32"/><input>{models.ports((18,))}</input><output>{flat}</output>'
    layers = models.layer(0, "Parameter", f"<output>{models.ports((1, 2, 4, 4))}</output>")
    layers += const(1, 0, 18, "u8", (18,)) + models.layer(2, "Convert", convert)
    layers += const(3, 18, 4, "f32", (1,)) + binary(4, "Subtract", flat)
    layers += const(5, 22, 4, "f32", (1,)) + binary(6, "Multiply", flat)
    layers += const(7, 26, 32, "i64", (4,)) + binary(8, "Reshape", full)
    body = f'<data strides="2,2"/><input>{models.ports((1, 2, 4, 4), (2, 1, 3, 3))}</input><output>{scalar}</output>'
    layers += models.layer(9, "ConvolutionBackpropData", body, "up")
    links = [(1, 0, 2, 0), (2, 2, 4, 0), (3, 0, 4, 1), (4, 2, 6, 0), (5, 0, 6, 1), (6, 2, 8, 0), (7, 0, 8, 1)]
    edges = "".join(models.edge(*link) for link in [*links, (0, 0, 9, 0), (8, 2, 9, 1)])
    layer = only_layer(tmp_path, models.net(layers, edges, "11"), blob)
    assert np.array_equal(layer.weights(), ((stored.astype(np.float32) - 3) / 2).reshape(2, 1, 3, 3))


def test_weights_that_the_model_computes_are_named(tmp_path: Path) -> None:
    layers = models.layer(0, "Parameter", f"<output>{models.ports((1, 2, 4, 4))}</output>")
    layers += models.layer(1, "Parameter", f"<output>{models.ports((2, 1, 3, 3))}</output>", "given")
    body = f'<data strides="2,2"/><input>{models.ports((1, 2, 4, 4), (2, 1, 3, 3))}</input>'
    layers += models.layer(2, "ConvolutionBackpropData", body, "up")
    layer = only_layer(tmp_path, models.net(layers, models.edge(0, 0, 2, 0) + models.edge(1, 0, 2, 1)))
    assert "Parameter given" in layer.weights_note
    with pytest.raises(FormatError, match="stores no weights"):
        layer.weights()


def test_a_computed_output_shape_comes_from_the_declared_sizes_or_from_the_caller(tmp_path: Path) -> None:
    def net(result: str) -> str:
        inputs = models.ports((1, 2, 4, 4), (2, 1, 3, 3)) + models.ports((2,), precision="I64", first=2)
        layers = models.layer(0, "Parameter", f"<output>{models.ports((1, 2, 4, 4))}</output>")
        layers += models.layer(1, "Const", f'<data offset="0" size="72"/><output>{models.ports((2, 1, 3, 3))}</output>')
        layers += models.layer(3, "ShapeOf", f"<output>{models.ports((2,), precision='I64')}</output>")
        body = f'<data strides="2,2"/><input>{inputs}</input><output>{result}</output>'
        layers += models.layer(2, "ConvolutionBackpropData", body, "up")
        return models.net(layers, models.edge(0, 0, 2, 0) + models.edge(1, 0, 2, 1) + models.edge(3, 0, 2, 2))

    known = only_layer(tmp_path, net(models.ports((1, 1, 8, 8), first=3)))
    assert (known.output_shape, known.shape_is_computed) == ((8, 8), False)
    unknown = only_layer(tmp_path, net(models.ports((1, 1, -1, -1), first=3)))
    assert (unknown.output_shape, unknown.shape_is_computed) == (None, True)


def test_layers_inside_a_body_are_found(tmp_path: Path) -> None:
    inner = models.one_layer().split("<net ", 1)[1].split(">", 1)[1].replace("</net>", "")
    outer = models.layer(0, "TensorIterator", f"<body>{inner}</body>", "loop")
    layer = only_layer(tmp_path, models.net(outer, ""))
    assert layer.name == "loop/up"
    assert np.array_equal(layer.weights(), WEIGHTS)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("compress", [False, True])
def test_what_is_written_is_read_back(tmp_path: Path, dtype: str, compress: bool) -> None:
    operator = openvino.GroupConvolutionBackpropData(
        [2, 3], [1, 0], [0, 1], [1, 2], output_padding=[1, 1], rules="spec"
    )
    weights = np.arange(1, 37).reshape(2, 3, 1, 2, 3).astype(dtype)
    given = IrLayer('a <"&> layer', operator, (None, 6, 5, 4), weights, (None, 2, None, None), (11, 12))
    path = tmp_path / "model.xml"
    write_openvino_ir(path, [given], compress=compress)
    (layer,) = read_openvino_ir(path, rules="spec")
    assert (layer.name, layer.operator, layer.data_shape) == (given.name, operator, given.data_shape)
    assert layer.output_shape == (11, 12)
    assert layer.weights().dtype == weights.dtype
    assert np.array_equal(layer.weights(), weights)
