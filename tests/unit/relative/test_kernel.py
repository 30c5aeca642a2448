"""The kernel of relative positions, as the attention calls it: its derivative, dropout, and what calls leave behind.

That it computes the paper's equations, and their derivative without dropout, is in test_attention.py.
"""

import itertools

import pytest
import torch

from user_dir.attention.masks import visible_keys
from user_dir.relative import kernel as relative_kernel
from user_dir.relative.attention import RelativeMultiheadAttention

from comparing import future

MODEL = 8


def build_attention(**options):
    torch.manual_seed(1)
    return RelativeMultiheadAttention(MODEL, 2, distance=2, self_attention=True, **options).double()


@pytest.mark.parametrize("read", [False, True], ids=["heads alone", "heads and weights"])
@pytest.mark.parametrize("pieces", [{}, {"KEPT": 0, "QUERIES": 2, "SCORES": 30}], ids=["kept", "computed again"])
def test_derivative_is_right_with_dropout(pieces, read, monkeypatch):
    """With the same weights dropped, the derivative along a direction is the difference quotient.

    d_k and d_v are free. A loss of alignments reads the weights, too.
    """
    for name, value in pieces.items():
        monkeypatch.setattr(relative_kernel, name, value)
    module = build_attention(dropout=0.4, key_dim=3, value_dim=5).train()
    x = torch.randn(7, 3, MODEL, dtype=torch.double, requires_grad=True)
    inputs = [x, *module.parameters()]

    def loss():
        torch.manual_seed(4)
        heads, weights = module(x, x, x, need_weights=read, need_head_weights=read)
        return heads.square().sum() + (3 * weights[..., 1].square().sum() if read else 0)

    for tensor, gradient in zip(inputs, torch.autograd.grad(loss(), inputs)):
        step = 1e-6 * torch.randn_like(tensor)
        with torch.no_grad():
            tensor += step
            above = loss()
            tensor -= 2 * step
            below = loss()
            tensor += step
        torch.testing.assert_close((gradient * step).sum(), (above - below) / 2, rtol=1e-5, atol=1e-11)


def test_every_call_drops_other_weights(monkeypatch):
    """By random numbers of the device that has the weights: a generator without a device is the CPU's."""
    monkeypatch.setattr(torch, "Generator", lambda device, new=torch.Generator: new(device))
    module, x = build_attention(dropout=0.5).train(), torch.randn(6, 3, MODEL, dtype=torch.double)
    first, second = (module(x, x, x, need_weights=False)[0] for _ in range(2))
    assert not torch.allclose(first, second)


def test_trains_after_a_call_under_inference_mode():
    """The index of the tables' rows, which a call keeps for later ones, and a mask may be made without autograd."""
    relative_kernel.index_of_rows.cache_clear()
    module, x = build_attention(), torch.randn(6, 3, MODEL, dtype=torch.double)
    with torch.inference_mode():
        mask = future(6)
        expected, _ = module(x, x, x, attn_mask=mask, need_weights=False)
    output, _ = module(x, x, x, attn_mask=mask, need_weights=False)
    output.sum().backward()
    assert torch.equal(output, expected) and torch.isfinite(module.relative_keys.grad).all()


def test_a_second_derivative_is_refused():
    module, x = build_attention(), torch.randn(6, 3, MODEL, dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x, x, x, need_weights=False)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_memory_grows_with_length(monkeypatch):
    """The peak of a call with its derivative doubles with the length: no [n, n] is in memory."""
    monkeypatch.setattr(relative_kernel, "SCORES", 1)
    monkeypatch.setattr(relative_kernel, "KEPT", 0)
    module = build_attention(dropout=0.1).train()

    def peak(length):
        x = torch.randn(length, 1, MODEL, dtype=torch.double, requires_grad=True)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            module(x, x, x, need_weights=False)[0].sum().backward()
        events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda event: event.start_ns())))

    short, long = peak(256), peak(512)
    assert 1.5 * short < long < 2.3 * short


def test_keys_in_the_future_are_not_computed():
    """Also with padding on the right, as in a batch of targets."""
    padding = torch.tensor([[False] * 150, [False] * 100 + [True] * 50])
    for mask in (future(150), visible_keys(padding, future(150), torch.float32)):
        found = relative_kernel.blocks(150, 150, mask, 16, 0, torch.device("cpu"))
        assert [block.seen.stop for block in found] == [64, 128, 150]
    found = relative_kernel.blocks(150, 150, visible_keys(padding, None, torch.float32), 16, 0, torch.device("cpu"))
    assert [block.seen.stop for block in found] == [150, 150, 150]
