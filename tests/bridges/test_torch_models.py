"""accelerate(model): the same answers, the same state_dict, and no trace left behind."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from tests.bridges.models import HifiGan, UNet3dDecoder, dcgan  # noqa: E402
from unstride.bridges import _torch_packed  # noqa: E402
from unstride.bridges.torch import accelerate  # noqa: E402


def small_model():
    torch.manual_seed(1)
    last = nn.ConvTranspose2d(6, 3, 3, 2, output_padding=1, groups=3)
    return nn.Sequential(nn.ConvTranspose2d(4, 6, 4, 2, 1), nn.ReLU(), last).eval()


def model_and_inputs(name):
    torch.manual_seed(2)
    if name == "dcgan":
        return dcgan(width=8), (torch.randn(3, 100, 1, 1),)
    if name == "hifigan":
        return HifiGan(width=32).eval(), (torch.randn(1, 80, 9),)
    skips = torch.randn(1, 8, 6, 8, 4), torch.randn(1, 4, 12, 16, 8)
    return UNet3dDecoder((16, 8, 4)).eval(), (torch.randn(1, 16, 3, 4, 2), *skips)


@pytest.fixture
def packs(monkeypatch):
    """How often weights were packed."""
    seen = []
    layer = _torch_packed.Layer
    monkeypatch.setattr(_torch_packed, "Layer", lambda *args, **options: (seen.append(1), layer(*args, **options))[1])
    return seen


@pytest.mark.parametrize("name", ["dcgan", "hifigan", "unet3d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_networks_give_the_same_answer(name, dtype, packs):
    model, inputs = model_and_inputs(name)
    model, inputs = model.to(dtype), [x.to(dtype) for x in inputs]
    with torch.inference_mode():
        expected = model(*inputs)
        with accelerate(model) as handle:
            assert handle.names
            assert not handle.skipped
            found = model(*inputs)
            assert len(packs) == len(handle.names)
            again = model(*inputs)
            assert len(packs) == len(handle.names)
    assert torch.equal(found, again)
    tolerance = {torch.bfloat16: 0.06, torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["dcgan", "unet3d"])
def test_networks_in_channels_last_stay_so(name):
    model, inputs = model_and_inputs(name)
    memory_format = torch.channels_last if name == "dcgan" else torch.channels_last_3d
    with torch.inference_mode():
        expected = model(*inputs)
        model = model.to(memory_format=memory_format)
        layouts = []
        for module in model.modules():
            if isinstance(module, (nn.ConvTranspose2d, nn.ConvTranspose3d)):
                module.register_forward_hook(
                    lambda m, i, o: layouts.append([t.is_contiguous(memory_format=memory_format) for t in (*i, o)])
                )
        with accelerate(model):
            found = model(*(x.to(memory_format=memory_format) for x in inputs))
    assert layouts[0] == [True, True]
    assert all(before == after for before, after in layouts)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_training_gives_the_same_gradients():
    model = small_model().train()
    x = torch.randn(2, 4, 5, 5)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with accelerate(model):
        model(x).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-3)


def test_it_undoes_itself():
    model = small_model()
    keys, text, attributes = list(model.state_dict()), repr(model), [dict(vars(m)) for m in model.modules()]
    handle = accelerate(model)
    assert list(model.state_dict()) == keys
    assert repr(model) == text
    assert handle.names == ["0", "2"]
    handle.undo()
    handle.undo()
    assert [dict(vars(m)) for m in model.modules()] == attributes
    assert "undone" in repr(handle)


def test_a_raise_inside_the_block_undoes_it_too():
    model = small_model()
    with pytest.raises(KeyError), accelerate(model):
        raise KeyError
    assert "forward" not in vars(model[0])


CHANGES = {
    "counted by torch": lambda m: m[0].weight.mul_(2),
    "through .data, which torch does not count": lambda m: m[0].weight.data.mul_(2),
    "through NumPy": lambda m: m[0].weight.numpy().__imul__(2),
    "the bias": lambda m: m[0].bias.data.add_(1),
    "another tensor": lambda m: setattr(m[0], "weight", nn.Parameter(3 * m[0].weight)),
    "storage exchanged": lambda m: setattr(m[0].weight, "data", m[0].weight.data * 3),
    "a state_dict": lambda m: m.load_state_dict({key: 2 * value for key, value in m.state_dict().items()}),
    "another padding": lambda m: setattr(m[0], "padding", (0, 0)),
    "the bias dropped": lambda m: setattr(m[0], "bias", None),
    "another type": lambda m: m.to(torch.float32).double().float(),
    "channels_last": lambda m: m.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changed_weights_are_packed_again(change):
    model, x = small_model(), torch.randn(1, 4, 5, 5)
    with accelerate(model):
        model(x)
        CHANGES[change](model)
        found = model(x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_channels_last_weights_are_packed_once(packs):
    model, x = small_model().to(memory_format=torch.channels_last), torch.randn(1, 4, 5, 5)
    with accelerate(model):
        for _ in range(3):
            model(x.to(memory_format=torch.channels_last))
    assert len(packs) == 2


def test_weights_made_in_inference_mode_are_compared_whole(packs):
    with torch.inference_mode():
        model, x = small_model(), torch.randn(1, 4, 5, 5)
        with accelerate(model):
            model(x)
            model(x)
            assert len(packs) == 2
            model[0].weight[0, 0, 0, 0] = 100  # a single element, which nothing counts
            found = model(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-3)


def test_copies_and_pickles_work_on_their_own():
    model, x = small_model(), torch.randn(1, 4, 5, 5)
    with accelerate(model), torch.no_grad():
        expected = model(x)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin(x), expected)
            twin[0].weight.zero_()
            assert twin[0].forward.args[0] is twin[0]
            assert not torch.equal(twin(x), expected)
        assert torch.equal(model(x), expected)


def test_compiled_model_packs_once_and_again_after_a_change(packs):
    torch._dynamo.reset()
    model, x = small_model(), torch.randn(1, 4, 5, 5)
    with torch.no_grad(), accelerate(model) as handle:
        compiled = torch.compile(model, fullgraph=True)
        for factor, packed in ((1, 2), (1, 2), (2, 3)):
            if factor != 1:
                model[2].weight.mul_(factor)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
            assert len(packs) == packed
        handle.undo()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_exported_model():
    model, x = small_model(), torch.randn(1, 4, 5, 5)
    with accelerate(model):
        program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-4)


def test_output_size_and_unbatched_input():
    layer = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)
    x = torch.randn(1, 2, 5, 5)
    with torch.no_grad():
        expected, alone = layer(x, output_size=[10, 9]), layer(x[0])
        with accelerate(layer):
            torch.testing.assert_close(layer(x, output_size=[10, 9]), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer(input=x[0]), alone, rtol=1e-4, atol=1e-5)
            with pytest.raises(ValueError, match="output size"):
                layer(x, output_size=[20, 20])


def test_weight_norm_and_its_removal():
    from torch.nn.utils import parametrizations, parametrize

    layer = parametrizations.weight_norm(nn.ConvTranspose1d(4, 2, 4, 2))
    x = torch.randn(1, 4, 6)
    with torch.no_grad():
        expected = layer(x)
        with accelerate(layer) as handle:
            assert handle.names == [""]
            torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
            layer.parametrizations.weight.original0.mul_(2)
            offset = layer.bias[:, None]
            torch.testing.assert_close(layer(x) - offset, 2 * (expected - offset), rtol=1e-4, atol=1e-5)
            parametrize.remove_parametrizations(layer, "weight")
            assert not torch.equal(layer(x), expected)


def test_what_it_cannot_take_is_left_to_torch_or_named():
    class Own(nn.ConvTranspose1d):
        def forward(self, input, output_size=None):
            return super().forward(input, output_size) + 1

    model = nn.Sequential(Own(1, 1, 2), nn.ConvTranspose1d(1, 1, 2).to(torch.complex64))
    with accelerate(model) as handle:
        assert list(handle.skipped) == ["0"]
        assert "Own" in handle.skipped["0"]
        assert accelerate(model).names == []
        value = torch.ones(1, 1, 3, dtype=torch.complex64)
        inside = model[1](value)
    assert torch.equal(inside, model[1](value))


def test_hooks_still_run():
    model, seen = small_model(), []
    model[0].register_forward_hook(lambda m, i, o: seen.append(o.shape))
    with accelerate(model):
        model(torch.randn(1, 4, 5, 5))
    assert seen == [(1, 6, 10, 10)]
