"""ONNX files of every opset, with weights wherever a file may keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unstride import onnx as dialect
from unstride.errors import FormatError
from unstride.formats import read
from unstride.reference import error_bound

onnx = pytest.importorskip("onnx")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

SHAPES = {
    "up1d": ((2, 6, 11), (6, 4, 5)),
    "up2d": ((1, 4, 6, 5), (4, 3, 4, 4)),
    "up3d": ((1, 4, 3, 4, 5), (4, 1, 2, 2, 2)),
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "up1d": {"strides": [3], "pads": [1, 2], "dilations": [2], "kernel_shape": [5]},
    "up2d": {"strides": [2, 2], "auto_pad": "SAME_UPPER", "output_padding": [1, 0]},
    "up3d": {"strides": [2, 2, 2], "group": 4, "output_shape": [5, 8, 9]},
}


def zoo(keep: str = "initializer", opset: int = 11, declare_inner: bool = True, bias: bool = True) -> Any:
    """Three ConvTranspose layers of different ranks behind Identity nodes; `keep` says where the weights are."""
    rng = np.random.default_rng(3)
    nodes, inputs, outputs, tensors, infos = [], [], [], [], []
    for name, (data_shape, filter_shape) in SHAPES.items():
        attributes = ATTRIBUTES[name]
        weights = rng.standard_normal(filter_shape).astype(np.float32)
        operands = [f"{name}_h", f"{name}_w"]
        tensor = numpy_helper.from_array(weights, f"{name}_w")
        if keep == "initializer":
            tensors.append(tensor)
        elif keep == "typed":
            values = weights.ravel().tolist()
            tensors.append(helper.make_tensor(f"{name}_w", TensorProto.FLOAT, filter_shape, values))
        else:
            nodes.append(helper.make_node("Constant", [], [f"{name}_w"], value=tensor))
        if bias:
            channels = filter_shape[1] * attributes.get("group", 1)
            tensors.append(numpy_helper.from_array(rng.standard_normal(channels).astype(np.float32), f"{name}_b"))
            operands.append(f"{name}_b")
        nodes.append(helper.make_node("Identity", [f"{name}_x"], [f"{name}_h"]))
        nodes.append(helper.make_node("ConvTranspose", operands, [f"{name}_y"], name, **attributes))
        inputs.append(helper.make_tensor_value_info(f"{name}_x", TensorProto.FLOAT, ["batch", *data_shape[1:]]))
        outputs.append(helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None))
        infos.append(helper.make_tensor_value_info(f"{name}_h", TensorProto.FLOAT, ["batch", *data_shape[1:]]))
    graph = helper.make_graph(nodes, "zoo", inputs, outputs, tensors, value_info=infos if declare_inner else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def save(folder: Path, model: Any) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def agree_with_onnxruntime(path: Path) -> None:
    """Every layer of the file, run by itself, gives what the engine gives for the whole model."""
    engine = pytest.importorskip("onnxruntime")
    options = engine.SessionOptions()
    options.log_severity_level = 4
    session = engine.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(5)
    layers = read(path)
    assert {len(layer.filter_shape) - 2 for layer in layers} == {1, 2, 3}
    data = {name: rng.standard_normal(shape).astype(np.float32) for name, (shape, _) in SHAPES.items()}
    expected = dict(zip(data, session.run(None, {f"{name}_x": value for name, value in data.items()}), strict=True))
    for layer, name in zip(layers, SHAPES, strict=True):
        weights, bias = layer.weights(), layer.bias()
        result = layer.operator(data[name], weights, bias)
        problem = layer.operator.problem(data[name].shape, weights.shape)
        bound = 2 * error_bound(problem, data[name], weights, bias)
        assert (np.abs(result - expected[name]) <= bound).all(), name


@pytest.mark.parametrize("keep", ["initializer", "typed", "constant"])
@pytest.mark.parametrize("bias", [False, True])
def test_every_layer_agrees_with_onnxruntime(tmp_path: Path, keep: str, bias: bool) -> None:
    agree_with_onnxruntime(save(tmp_path, zoo(keep, bias=bias)))


@pytest.mark.parametrize("opset", [1, 11, 22])
def test_attributes_of_every_opset(tmp_path: Path, opset: int) -> None:
    layers = {layer.name: layer for layer in read(save(tmp_path, zoo(opset=opset)))}
    assert layers["up1d"].operator == dialect.ConvTranspose([3], [1, 2], [2], kernel_shape=[5])
    assert layers["up2d"].operator == dialect.ConvTranspose([2, 2], auto_pad="SAME_UPPER", output_padding=[1, 0])
    assert layers["up3d"].operator == dialect.ConvTranspose([2, 2, 2], group=4, output_shape=[5, 8, 9])
    assert layers["up1d"].data_shape == (None, 6, 11)


def test_sizes_that_the_file_leaves_out_are_inferred(tmp_path: Path) -> None:
    layers = {layer.name: layer for layer in read(save(tmp_path, zoo(declare_inner=False)))}
    assert layers["up3d"].data_shape == (None, 4, 3, 4, 5)


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(zoo(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size > 0
    agree_with_onnxruntime(path)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
@pytest.mark.parametrize("raw", [False, True])
def test_other_element_types(tmp_path: Path, dtype: str, raw: bool) -> None:
    import ml_dtypes

    kind = {"float16": np.float16, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16}[dtype]
    values = np.arange(-4, 5).reshape(1, 1, 9).astype(kind)
    element = getattr(TensorProto, {"float64": "DOUBLE"}.get(dtype, dtype.upper()))
    tensor = TensorProto(name="w", data_type=element, dims=values.shape)
    if raw:
        tensor.raw_data = values.tobytes()
    elif dtype == "float64":
        tensor.double_data.extend(values.ravel().tolist())
    else:
        tensor.int32_data.extend(values.view(np.uint16).ravel().tolist())
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", element, [1, 1, 4])],
        [helper.make_tensor_value_info("y", element, [1, 1, 12])],
        [tensor],
    )
    (layer,) = read(save(tmp_path, helper.make_model(graph)))
    assert layer.weights().dtype == values.dtype
    assert np.array_equal(layer.weights(), values)
    assert layer.name == "y"


def test_layers_inside_a_branch_see_the_tensors_outside(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up")],
        "branch",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    choice = helper.make_node("If", ["c"], ["z"], "choice", then_branch=branch, else_branch=branch)
    graph = helper.make_graph(
        [choice],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", 1, [1, 1, 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((1, 1, 3), np.float32), "w")],
    )
    layers = read(save(tmp_path, helper.make_model(graph)))
    assert [layer.name for layer in layers] == ["choice/up", "choice/up"]
    assert np.array_equal(layers[0].weights(), np.ones((1, 1, 3)))


def test_weights_that_the_model_computes_are_named(tmp_path: Path) -> None:
    """Quantised models keep integers behind DequantizeLinear; everything but the weights is still known."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[2]),
    ]
    tensors = [
        numpy_helper.from_array(np.ones((1, 2, 3), np.int8), "q"),
        numpy_helper.from_array(np.float32(0.5), "scale"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 1, 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    (layer,) = read(save(tmp_path, model))
    assert (layer.filter_shape, layer.dtype) == ((1, 2, 3), "f32")
    assert "DequantizeLinear" in layer.weights_note
    with pytest.raises(FormatError, match="stores no weights"):
        layer.weights()


def test_the_whole_output_shape_is_accepted(tmp_path: Path) -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], output_shape=[1, 1, 7], strides=[2])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 1, 4])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.ones((1, 1, 3), np.float32), "w")],
    )
    (layer,) = read(save(tmp_path, helper.make_model(graph)))
    assert layer.operator.infer_shape((1, 1, 4), (1, 1, 3)) == (1, 1, 7)


def test_a_model_exported_by_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its exporter is not tested here")

    class Zoo(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.up1d = torch.nn.ConvTranspose1d(6, 4, 5, stride=3, padding=1, dilation=2)
            self.up2d = torch.nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2, bias=False)
            self.up3d = torch.nn.ConvTranspose3d(3, 2, 2, stride=2, output_padding=1)

        def forward(self, a: Any, b: Any, c: Any) -> Any:
            return self.up1d(a.relu()), self.up2d(b.relu()), self.up3d(c.relu())

    torch.manual_seed(0)
    model, path = Zoo().eval(), tmp_path / "torch.onnx"
    data = [torch.randn(2, 6, 11), torch.randn(1, 4, 6, 5), torch.randn(1, 3, 3, 4, 5)]
    torch.onnx.export(model, tuple(data), str(path), dynamo=False)
    layers = read(path)
    assert len(layers) == 3
    engine = pytest.importorskip("onnxruntime")
    session = engine.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {node.name: x.numpy() for node, x in zip(session.get_inputs(), data, strict=True)}
    with torch.no_grad():
        expected = [y.numpy() for y in model(*data)]
    for layer, x, y, z in zip(layers, data, expected, session.run(None, inputs), strict=True):
        assert layer.data_shape == tuple(x.shape), "inferred, for the exporter leaves inner sizes out"
        values, weights, bias = x.relu().numpy(), layer.weights(), layer.bias()
        result = layer.operator(values, weights, bias)
        bound = 2 * error_bound(layer.operator.problem(values.shape, weights.shape), values, weights, bias)
        assert (np.abs(result - y) <= bound).all()
        assert (np.abs(result - z) <= bound).all()


def test_without_the_onnx_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, zoo())
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(FormatError, match=r"unstride\[onnx\]"):
        read(path)
