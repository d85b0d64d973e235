"""The ONNX backend under ONNX's own runner, and the repaired reference evaluator."""

from __future__ import annotations

import unittest

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import unstride
from unstride import AttributeValueError
from unstride.bridges.onnx import Backend, ConvTranspose

OFFICIAL_TESTS = 14  # of ONNX 1.23; a later release may bring more


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ONNX makes the data of all its tests, overflow and all
def test_onnx_runner_finds_every_result_right():
    runner = onnx.backend.test.BackendTest(Backend, __name__)
    runner.include("(?i)test_.*convtranspose.*_cpu")
    result = unittest.TestResult()
    runner.test_suite.run(result)
    skipped = {case.id() for case, _ in result.skipped}
    ran = [name for case in runner.test_suite for name in [case.id().rpartition(".")[2]] if case.id() not in skipped]
    assert result.wasSuccessful(), (result.errors + result.failures)[0][1]
    assert len(ran) >= OFFICIAL_TESTS, ran
    assert {"test_convtranspose_group_2_cpu", "test_ConvTranspose2d_cpu", "test_operator_convtranspose_cpu"} <= {*ran}


def model(w_shape, bias, opset=22, element=TensorProto.FLOAT, **attributes):
    free = [None] * len(w_shape)
    inputs = [helper.make_tensor_value_info(name, element, free) for name in ("x", "w")]
    inputs += [helper.make_tensor_value_info("b", element, [None])] * bias
    output = helper.make_tensor_value_info("y", element, free)
    node = helper.make_node("ConvTranspose", [value.name for value in inputs], ["y"], **attributes)
    graph = helper.make_graph([node], "case", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def draw(*shape):
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(np.float32)


def test_groups_with_bias_where_the_reference_evaluator_is_wrong():
    x, w, b = draw(1, 4, 3, 3), draw(4, 2, 3, 3), np.array([1, 2, 3, 4], np.float32)
    proto = model(w.shape, True, group=2, strides=[2, 2])
    (found,) = ReferenceEvaluator(proto, new_ops=[ConvTranspose]).run(None, {"x": x, "w": w, "b": b})
    halves = [unstride.conv_transpose(x[:, i : i + 2], w[i : i + 2], stride=2) for i in (0, 2)]
    np.testing.assert_array_equal(found, np.concatenate(halves, 1) + b[:, None, None])


def test_output_shape():
    import onnxruntime

    x, w = draw(1, 2, 4, 4), draw(2, 3, 3, 3)
    proto = model(w.shape, False, strides=[2, 2], output_shape=[8, 7], auto_pad="SAME_UPPER")
    (found,) = Backend.prepare(proto).run([x, w])
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(found, session.run(None, {"x": x, "w": w})[0])


@pytest.mark.parametrize("opset", [1, 11, 22])
def test_every_opset(opset):
    x, w = draw(1, 2, 4), draw(2, 3, 3)
    (found,) = Backend.run_model(model(w.shape, False, opset=opset, strides=[2]), [x, w])
    np.testing.assert_array_equal(found, unstride.conv_transpose(x, w, stride=2))


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_every_float_type(element):
    dtype = helper.tensor_dtype_to_np_dtype(element)
    x, w = draw(1, 2, 4).astype(dtype), draw(2, 3, 3).astype(dtype)
    (found,) = Backend.run_model(model(w.shape, False, element=element), {"x": x, "w": w})
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, unstride.conv_transpose(x, w))


def test_a_whole_graph_around_it():
    x, w = draw(1, 2, 4), draw(2, 3, 3)
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ConvTranspose", ["r", "w"], ["c"], strides=[2]),
        helper.make_node("Tanh", ["c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [info("x", TensorProto.FLOAT, [1, 2, None])],
        [info("y", TensorProto.FLOAT, [1, 3, None])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    prepared = Backend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10))
    expected = np.tanh(unstride.conv_transpose(np.maximum(x, 0), w, stride=2))
    np.testing.assert_allclose(prepared.run(x)[0], expected, rtol=1e-6)


def test_device_and_inputs_are_checked():
    x, w = draw(1, 2, 4), draw(2, 3, 3)
    assert Backend.supports_device("CPU")
    assert not Backend.supports_device("CUDA:0")
    with pytest.raises(AttributeValueError, match="device"):
        Backend.prepare(model(w.shape, False), device="CUDA")
    with pytest.raises(AttributeValueError, match="inputs"):
        Backend.prepare(model(w.shape, False)).run([x, w, x])
