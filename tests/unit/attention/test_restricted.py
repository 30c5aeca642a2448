"""Restricted self-attention against a loop over sentences, heads and the positions that are seen."""

import argparse

import pytest
import torch

from user_dir.attention.cache import cache_of
from user_dir.attention.multihead import MultiheadAttention
from user_dir.attention.restricted import SMALLEST_BLOCK, RestrictedAttention
from user_dir.config import VariantConfig
from user_dir.transformer.architectures import FAMILIES
from user_dir.transformer.layers import SELF_ATTENTIONS, joined

from comparing import comparison, future, heads_by_equation

MODEL, HEADS, LENGTH = 4, 2, 24
KINDS = {MultiheadAttention: {}}  # and the others, as families have them, but with k = 3
for family in FAMILIES.values():
    cfg = VariantConfig.from_namespace(argparse.Namespace(**family.options | {"relative_distance": 3}))
    selected = {kind: kind.from_config(cfg) for kind in SELF_ATTENTIONS.values()}
    KINDS |= {kind: options for kind, options in selected.items() if options is not None}


def test_every_self_attention_is_tried():
    assert KINDS.keys() == {MultiheadAttention, *SELF_ATTENTIONS.values()}


def build_attention(kind, neighbourhood):
    torch.manual_seed(1)
    options = {"neighbourhood": neighbourhood, "self_attention": True, **KINDS[kind]}
    return joined(RestrictedAttention, kind)(MODEL, HEADS, **options).double()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("neighbourhood", [1, 6, 21, 46])  # 46: the whole sentence
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
def test_values_and_gradients_equal_the_equation(kind, neighbourhood, causal):
    module = build_attention(kind, neighbourhood)
    x = torch.randn(LENGTH, 2, MODEL, dtype=torch.double, requires_grad=True)
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[0, -3:] = neighbourhood > 1  # else these see nothing
    real = ~padding.T[:, :, None]  # what padded ones get is read nowhere
    comparison(module, x, x, padding, *heads_by_equation(module, x, x, padding, causal), causal, real)()


def test_a_block_of_queries_has_the_keys_around_it(monkeypatch):
    """So memory does not grow with the square of the length."""
    module, x, keys = build_attention(MultiheadAttention, 6), torch.randn(100, 2, MODEL, dtype=torch.double), []
    monkeypatch.setattr(module, "attend", lambda q, k, *_, **__: (q, keys.append(k.size(2))))
    module(x, x, x, need_weights=False)
    assert keys == [3 + SMALLEST_BLOCK + 3]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("neighbourhood", [1, 6])
def test_cached_self_attention_equals_full(kind, neighbourhood):
    """Nothing that came before is kept but the neighbours."""
    module, x = build_attention(kind, neighbourhood), torch.randn(LENGTH, 3, MODEL, dtype=torch.double)
    full, _ = module(x, x, x, attn_mask=future(LENGTH), need_weights=False)
    state, outputs = {}, []
    for part in x.split(1):
        outputs.append(module(part, part, part, incremental_state=state, need_weights=False)[0])
        cache = cache_of(module, state)
        assert cache.length <= module.radius and len(cache.keys) <= 2 * module.radius
    torch.testing.assert_close(torch.cat(outputs), full)


@pytest.mark.parametrize("side", ["none", "encoder", "decoder", "both"])
@pytest.mark.parametrize("family", FAMILIES)
def test_of_which_side(build, family, side):
    """A far word changes what a position of one layer computes where that side is not restricted."""
    options = {"restricted_attention": side, "neighbourhood": 5, "encoder_layers": 1, "decoder_layers": 1}
    model = build(f"{family}_base", **options).double()
    words = torch.randint(4, 50, (1, 30))
    other = words.clone()
    other[0, 3] = 4 + (words[0, 3] - 3) % 46
    encoded = [model.encoder(each, torch.tensor([30]))["encoder_out"][0] for each in (words, other)]
    same = torch.isclose(*encoded).all(-1)[:, 0].tolist()
    assert same == [side in ("encoder", "both") and abs(position - 3) > 2 for position in range(30)]
    constant = model.encoder(words, torch.tensor([30]))
    decoded = [model.decoder(each, encoder_out=constant)[0][0] for each in (words, other)]
    same = torch.isclose(*decoded).all(-1).tolist()
    assert same == [position < 3 or (side in ("decoder", "both") and position > 5) for position in range(30)]
