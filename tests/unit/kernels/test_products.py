"""Products of few rows are those of torch's own, and are computed otherwise only where that gains."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from user_dir.kernels import products
from user_dir.kernels.products import Linear, linear
from user_dir.transformer.model import use_our_modules


@pytest.fixture
def plain_calls(monkeypatch):
    """The shapes of x of all calls of F.linear."""
    calls, original = [], F.linear
    monkeypatch.setattr(F, "linear", lambda x, *args: calls.append(tuple(x.shape)) or original(x, *args))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return calls


@torch.no_grad()
@pytest.mark.parametrize("shape, bias", [((1, 2, 600), True), ((1, 64, 600), False), ((3, 5, 600), True)])
def test_equals_torchs(plain_calls, shape, bias):
    layer = nn.Linear(600, 500, bias=bias)
    x = torch.randn(*shape)
    found = linear(x, layer.weight, layer.bias)
    assert plain_calls == [] and found.is_contiguous()
    torch.testing.assert_close(found, layer(x), atol=1e-5, rtol=1e-5)
    strided = x.transpose(0, 1)
    torch.testing.assert_close(linear(strided, layer.weight, layer.bias), layer(strided), atol=1e-5, rtol=1e-5)


X, WEIGHT = torch.ones(4, 600), torch.ones(500, 600)
OTHERWISE = {
    "training": (X, WEIGHT, {"mode": torch.enable_grad()}),
    "one row": (X[:1], WEIGHT, {}),
    "many rows": (torch.ones(65, 600), WEIGHT, {}),
    "a small matrix": (torch.ones(4, 512), torch.ones(512, 512), {}),
    "other numbers": (X.bfloat16(), WEIGHT.bfloat16(), {}),
    "one thread": (X, WEIGHT, {"threads": 1}),
    "autocast": (X, WEIGHT, {"mode": torch.autocast("cpu", torch.bfloat16), "dtype": torch.bfloat16}),
}


@torch.no_grad()
@pytest.mark.parametrize("x, weight, given", OTHERWISE.values(), ids=OTHERWISE)
def test_left_to_torch(plain_calls, monkeypatch, x, weight, given):
    monkeypatch.setattr(torch, "get_num_threads", lambda: given.get("threads", 2))
    with given.get("mode", contextlib.nullcontext()):
        assert linear(x, weight).dtype == given.get("dtype", x.dtype)
    assert plain_calls == [tuple(x.shape)]


@torch.no_grad()
@pytest.mark.parametrize("batch, length", [(65, 1), (7, 1), (9, 8)])
def test_transposed_positions_are_one_product(plain_calls, batch, length):
    """torch would make of [B, T, d] B products, each with a copy of the matrix; in training it rounds otherwise."""
    x, weight = torch.randn(length, batch, 600).transpose(0, 1), torch.randn(50, 600)
    torch.testing.assert_close(linear(x, weight), x @ weight.T, atol=1e-4, rtol=1e-4)
    assert plain_calls == [(batch * length, 600)]


@pytest.mark.parametrize("arch", ["vaswani_transformer_base", "weighted_relative_transformer_base"])
def test_all_linear_layers_of_a_model_have_it(build, batch, plain_calls, monkeypatch, arch):
    model = build(arch)
    assert {type(module) for module in model.modules() if isinstance(module, nn.Linear)} == {Linear}
    with torch.no_grad():
        expected = model(**batch)[0]
        assert plain_calls
        plain_calls.clear()
        monkeypatch.setattr(products, "SIZE", 0)
        found = model(**batch)[0]
    assert {*plain_calls} <= {(16,)}  # `norm`'s bias of a block
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_layers_of_a_kind_of_their_own_are_left():
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(2, 2), Own(2, 2))
    use_our_modules(model)
    assert [type(module) for module in model] == [Linear, Own]
