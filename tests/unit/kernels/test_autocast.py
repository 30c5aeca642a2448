"""--autocast bf16 of a module: what does not show in whole models, whose layers have one product of each input."""

import types

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from user_dir.attention.multihead import MultiheadAttention
from user_dir.kernels.autocast import autocast
from user_dir.relative.attention import RelativeMultiheadAttention


class TwoProducts(nn.Module):
    """Products of one input, as a variant may have them."""

    cfg = types.SimpleNamespace(autocast="bf16")

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    @autocast
    def forward(self, x):
        return (self.first(x) * self.second(x)).float()


def test_activation_checkpointing_adds_gradients_in_float32():
    """Run again, a layer's input is a leaf, of which torch would keep one cast for all products."""
    torch.manual_seed(1)
    module, x = TwoProducts(), torch.randn(32, 64, requires_grad=True)
    gradients = []
    for y in (module(x * 1), checkpoint(module, x * 1, use_reentrant=True)):  # as fairseq's checkpoint_wrapper
        y.square().sum().backward()
        gradients.append(x.grad)
        x.grad = None
    assert torch.equal(*gradients)


def test_a_model_in_float16_computes_in_float16(build, batch):
    """As fairseq-generate --fp16 makes it of one that was trained with --autocast bf16."""
    expected, actual = (build("relative_transformer_base", autocast=value).half() for value in ("off", "bf16"))
    assert torch.equal(actual(**batch)[0], expected(**batch)[0])


def test_on_or_off_where_the_tensors_are(monkeypatch):
    """On a GPU autocast of the CPU would change nothing. Its results do not matter here."""

    def refuse(device, **_):
        raise NotImplementedError(device)

    monkeypatch.setattr(torch, "autocast", refuse)
    plain = MultiheadAttention(8, 2, self_attention=True)
    relative = RelativeMultiheadAttention(8, 2, distance=3, self_attention=True)
    q = torch.empty(1, 2, 5, 4, device="meta")
    for call in (
        lambda: TwoProducts().to("meta")(q),
        lambda: plain.attend(q, q, q, None, True),
        lambda: relative.attend(q, q, q, None, False),
        lambda: relative.attend(q[:, :, :1], q, q, None, False, 4),  # the next token
    ):
        with pytest.raises(NotImplementedError, match="^meta$"):
            call()
