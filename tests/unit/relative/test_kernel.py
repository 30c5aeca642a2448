"""The kernel of relative positions, as the attention calls it: its derivative, dropout, and what calls leave behind.

That it computes the paper's equations, and their derivative without dropout, is in test_relative_positions.py.
"""

import torch

from user_dir.relative import kernel as relative_kernel
from user_dir.relative.attention import RelativeMultiheadAttention

MODEL = 8


def build_attention(**options):
    torch.manual_seed(1)
    return RelativeMultiheadAttention(MODEL, 2, distance=2, self_attention=True, **options).double()


def test_derivative_is_right_with_dropout():
    """With the same weights dropped, the derivative along a direction is the difference quotient.

    d_k and d_v are free.
    """
    module = build_attention(dropout=0.4, key_dim=3, value_dim=5).train()
    x = torch.randn(7, 3, MODEL, dtype=torch.double, requires_grad=True)
    inputs = [x, *module.parameters()]

    def loss():
        torch.manual_seed(4)
        return module(x, x, x, need_weights=False)[0].square().sum()

    for tensor, gradient in zip(inputs, torch.autograd.grad(loss(), inputs)):
        step = 1e-6 * torch.randn_like(tensor)
        with torch.no_grad():
            tensor += step
            above = loss()
            tensor -= 2 * step
            below = loss()
            tensor += step
        torch.testing.assert_close((gradient * step).sum(), (above - below) / 2, rtol=1e-5, atol=1e-11)


def test_dropout_keeps_the_mean():
    module, x = build_attention(dropout=0.3), torch.randn(6, 3, MODEL, dtype=torch.double)
    with torch.no_grad():
        mean = torch.stack([module(x, x, x, need_weights=False)[0] for _ in range(4000)]).mean(dim=0)
        expected = module.eval()(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(mean, expected, atol=0.02, rtol=0)


def test_trains_after_a_call_under_inference_mode():
    """What a call keeps for later ones (where the tables' rows go) may be made without autograd."""
    relative_kernel.index_of_rows.cache_clear()
    module, x = build_attention(), torch.randn(6, 3, MODEL, dtype=torch.double)
    with torch.inference_mode():
        expected, _ = module(x, x, x, need_weights=False)
    output, _ = module(x, x, x, need_weights=False)
    output.sum().backward()
    assert torch.equal(output, expected) and torch.isfinite(module.relative_keys.grad).all()
