"""unstride.bridges.torch.conv_transpose beside torch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.bridges.torch_checks import STOCK, assert_right  # noqa: E402
from unstride import AttributeValueError, DTypeError, ShapeError  # noqa: E402
from unstride.bridges import _torch_ops as ops  # noqa: E402
from unstride.bridges.torch import conv_transpose  # noqa: E402

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
CASES = {
    "1d": ((2, 6, 9), (6, 4, 5), {"stride": 3, "padding": 2, "output_padding": 1}),
    "2d grouped": ((2, 6, 5, 4), (6, 2, 3, 4), {"stride": (2, 1), "padding": (1, 2), "groups": 3}),
    "2d dilated": ((1, 4, 5, 6), (4, 3, 3, 2), {"stride": 2, "dilation": (3, 2), "output_padding": (2, 1)}),
    "2d depthwise": ((2, 8, 6, 6), (8, 1, 4, 4), {"stride": 2, "padding": 1, "groups": 8}),
    "3d": ((1, 3, 3, 4, 2), (3, 2, 2, 3, 2), {"stride": (2, 1, 3)}),
}


def operands(name, dtype=torch.float32):
    x_shape, w_shape, attributes = CASES[name]
    torch.manual_seed(0)
    channels = w_shape[1] * attributes.get("groups", 1)
    x, w, bias = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in (x_shape, w_shape, (channels,)))
    return x, w, bias, attributes


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_of_every_type(name, dtype):
    x, w, bias, attributes = operands(name, dtype)
    assert_right(conv_transpose(x, w, bias, **attributes), x, w, bias, **attributes)
    assert_right(conv_transpose(x, w, None, **attributes), x, w, None, **attributes)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_samples_torch_tests_itself_with(rank, dtype):
    pytest.importorskip("expecttest", reason="torch's own samples want it; .ci/run installs it")
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (op for op in op_db if op.name == f"nn.functional.conv_transpose{rank}d")
    samples = list(info.sample_inputs("cpu", dtype))
    assert len(samples) >= 10
    for sample in samples:
        w, *rest = sample.args
        bias = rest[0] if rest else sample.kwargs.get("bias")
        attributes = {key: value for key, value in sample.kwargs.items() if key != "bias"}
        result = conv_transpose(sample.input, *sample.args, **sample.kwargs)
        assert_right(result, sample.input, w, bias, **attributes)


def test_integers_are_exact():
    x, w = torch.randint(-4, 5, (2, 8, 7, 7)).float(), torch.randint(-4, 5, (8, 3, 4, 4)).float()
    assert torch.equal(conv_transpose(x, w, stride=2), torch.conv_transpose2d(x, w, stride=2))


def test_an_image_without_batch_axis():
    x, w, bias, attributes = operands("2d grouped")
    # Of a batch of one: another size may be computed by another kernel, which rounds otherwise.
    assert torch.equal(conv_transpose(x[0], w, bias, **attributes), conv_transpose(x[:1], w, bias, **attributes)[0])


def test_empty_batch():
    assert conv_transpose(torch.ones(0, 3, 4), torch.ones(3, 2, 2), stride=2).shape == (0, 2, 8)


@pytest.mark.parametrize("name", ["2d grouped", "3d"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_channels_last_runs_as_nxc_and_stays(name, dtype, monkeypatch):
    x, w, bias, attributes = operands(name, dtype)
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()]
    seen = []
    compute = ops._family.compute
    monkeypatch.setattr(ops._family, "compute", lambda kind, p, *rest: (seen.append(p), compute(kind, p, *rest)))
    result = conv_transpose(x.to(memory_format=memory_format), w, bias, **attributes)
    assert [problem.data_layout for problem in seen] == ["NXC"]
    assert result.is_contiguous(memory_format=memory_format)
    assert_right(result, x, w, bias, **attributes)


def test_no_copies_of_operands_or_result(monkeypatch):
    x, w, bias, attributes = operands("2d grouped", torch.bfloat16)
    seen = []
    compute = ops._family.compute
    monkeypatch.setattr(ops._family, "compute", lambda *given: (seen.extend(given[2:6]), compute(*given)))
    result = conv_transpose(x, w, bias, **attributes)
    assert [array.ctypes.data for array in seen] == [tensor.data_ptr() for tensor in (x, w, bias, result)]


def test_strided_and_expanded_operands():
    _, w, bias, attributes = operands("2d grouped")
    wide = torch.randn(2, 12, 10, 4)[:, ::2, ::2]
    assert_right(conv_transpose(wide, w, bias, **attributes), wide, w, bias, **attributes)
    same = torch.randn(1, 6, 1, 1).expand(2, 6, 5, 4)
    assert_right(conv_transpose(same, w, bias, **attributes), same, w, bias, **attributes)


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivatives(name):
    *tensors, attributes = operands(name, torch.float64)
    tensors = [tensor.requires_grad_() for tensor in tensors]

    def function(x, w, bias):
        return conv_transpose(x, w, bias, **attributes)

    assert torch.autograd.gradcheck(function, tensors, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_channels_last(name):
    x, w, bias, attributes = operands(name)
    x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    ours = [t.clone().requires_grad_() for t in (x, w, bias)]
    stock = [t.clone().requires_grad_() for t in (x, w, bias)]
    y = conv_transpose(*ours, **attributes)
    weights = torch.randn(y.shape).movedim(1, -1).contiguous().movedim(-1, 1)
    (y * weights).sum().backward()
    (STOCK[w.dim() - 2](*stock, **attributes) * weights).sum().backward()
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("needed", [0, 1, 2])
def test_only_the_gradients_asked_for(needed):
    *tensors, attributes = operands("1d")
    tensors[needed].requires_grad_()
    conv_transpose(*tensors, **attributes).sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [index == needed for index in range(3)]


WINDOW = ((2, 3), (2, 1), (1, 0))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(memory_format, dtype):
    def tensor(*shape):
        return torch.randn(shape).to(dtype).to(memory_format=memory_format).requires_grad_()

    x, w, bias, y = tensor(2, 4, 5, 6), tensor(4, 3, 3, 2), torch.randn(6).to(dtype), tensor(2, 6, 10, 15)
    torch.library.opcheck(ops.scatter, (x, w, bias, *WINDOW, (10, 15), 2))
    torch.library.opcheck(ops.gather, (y, w, *WINDOW, (5, 6), 2))
    torch.library.opcheck(ops.filters, (x, y, *WINDOW, (3, 2), 2))


def test_compile_with_changing_sizes_and_gradients():
    torch._dynamo.reset()

    def function(x, w, bias):
        return torch.relu(conv_transpose(x, w, bias, stride=2, padding=1, output_padding=1)).sum()

    compiled = torch.compile(function, fullgraph=True)
    w, bias = torch.randn(4, 3, 3, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    for size in (4, 5, 7):
        x = torch.randn(2, 4, size, size, requires_grad=True)
        found = torch.autograd.grad(compiled(x, w, bias), (x, w, bias))
        for mine, eager in zip(found, torch.autograd.grad(function(x, w, bias), (x, w, bias)), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)


def test_inference_mode_and_autocast():
    x, w, bias, attributes = operands("2d grouped")
    with torch.inference_mode():
        assert_right(conv_transpose(x, w, bias, **attributes), x, w, bias, **attributes)
    with torch.autocast("cpu", torch.bfloat16):
        result = conv_transpose(x, w, bias, **attributes)
        assert result.dtype is torch.conv_transpose2d(x, w, bias, **attributes).dtype is torch.bfloat16
    low = [t.bfloat16() for t in (x, w, bias)]
    assert_right(result, *low, **attributes)


def test_vmap_over_each_operand():
    x, w, bias, attributes = operands("2d grouped", torch.float64)
    xs, ws, biases = (torch.stack([t, 2 * t + 1, t - 3]) for t in (x, w, bias))

    def function(x, w, bias):
        return conv_transpose(x, w, bias, **attributes)

    def chosen(batched, index):
        return [many[0] if axis is None else many[index] for many, axis in zip((xs, ws, biases), batched, strict=True)]

    for batched in [(0, 0, 0), (0, None, None), (None, 0, None), (0, None, 0)]:
        expected = torch.stack([function(*chosen(batched, i)) for i in range(3)])
        torch.testing.assert_close(torch.vmap(function, batched)(*chosen(batched, slice(None))), expected)


def test_torch_thread_limit_holds(monkeypatch):
    seen = []
    monkeypatch.setattr(ops._family.execute, "run", lambda *args, threads, **options: seen.append(threads))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        conv_transpose(*operands("1d")[:2])
    finally:
        torch.set_num_threads(before)
    assert seen == [1]


def test_errors_name_what_is_wrong():
    x, w = torch.ones(1, 4, 5), torch.ones(4, 2, 3)
    with pytest.raises(ShapeError, match="4 channels"):
        conv_transpose(torch.ones(1, 5, 5), w)
    with pytest.raises(ShapeError, match="bias"):
        conv_transpose(x, w, torch.ones(3))
    with pytest.raises(DTypeError, match="one type"):
        conv_transpose(x, w.double())
    with pytest.raises(DTypeError, match="float32"):
        conv_transpose(x.to(torch.complex64), w.to(torch.complex64))
    with pytest.raises(AttributeValueError, match="output_padding"):
        conv_transpose(x, w, output_padding=1)
    with pytest.raises(AttributeValueError, match="stride"):
        conv_transpose(x, w, stride=(1, 2))
    with pytest.raises(AttributeValueError, match="stride"):
        conv_transpose(x, w, stride=0)
    with pytest.raises(ShapeError, match="groups"):
        conv_transpose(x, w, groups=3)
    with pytest.raises(ShapeError, match="rank"):
        conv_transpose(torch.ones(5), w)
