"""Branched attention against loops over branches written from Ahmed et al.'s equations 5 to 7."""

import pytest
import torch
import torch.nn.functional as F

from user_dir.attention import MultiheadAttention
from user_dir.branched_attention import BranchedAttention, ResidualBranchedAttention
from user_dir.layers import joined
from user_dir.relative_positions import RelativeMultiheadAttention

from support import EOS, PRE_NORM, assert_same_with_gradients

MODEL, HEADS, FFN = 16, 4, 24


def block(of=BranchedAttention, **options):
    """A self-attention of float64 with branch weights on the simplex that are all different."""
    torch.manual_seed(1)
    options = {"ffn_dim": FFN, "self_attention": True, "random": True, **options}
    module = of(MODEL, HEADS, **options).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in ("out_proj.bias", "fc1.bias", "fc2.bias", "norm.weight", "norm.bias"):
                parameter.normal_()
    return module.eval()


def by_equation(module, heads, x):
    """Eq. 6 and 7 in a loop over branches; --branch-residual per_branch: Σ h_i + Σ M α_i FFN_i(norm(x + h_i)) + b2.

    heads [T, B, h, d_v], x [T, B, d] → [T, B, d]
    """
    branches, each = module.branches, module.num_heads // module.branches
    kappa, alpha = (torch.softmax(w, 0) if module.softmax else w for w in (module.kappa, module.alpha))
    residual = isinstance(module, ResidualBranchedAttention)
    d_v = module.value_dim * each
    width = FFN if module.shared_ffn else FFN // branches
    bars = []
    for i in range(branches):
        head = heads[:, :, i * each : (i + 1) * each].flatten(2)
        bars.append(kappa[i] * head @ module.out_proj.weight[:, i * d_v : (i + 1) * d_v].T)
    if residual:
        bars = [branches * bar + module.out_proj.bias for bar in bars]
        deviation = ((x + sum(bars)).var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    total = sum(bars) + module.fc2.bias if residual else 0
    for i, head_bar in enumerate(bars):
        units = slice(0, FFN) if module.shared_ffn else slice(i * width, (i + 1) * width)
        w1, b1 = module.fc1.weight[units].T, module.fc1.bias[units]
        w2, b2 = module.fc2.weight[:, units].T, module.fc2.bias
        if residual:
            y = x + head_bar
            y = module.norm.weight * (y - y.mean(-1, keepdim=True)) / deviation + module.norm.bias
            times = 1 if module.shared_ffn else branches
            total = total + times * alpha[i] * (torch.clamp(y @ w1 + b1, min=0) @ w2)
        else:
            b2 = b2[0 if module.shared_ffn else i]
            total = total + alpha[i] * (torch.clamp(head_bar @ w1 + b1, min=0) @ w2 + b2)
    return total


FORMS = [BranchedAttention, ResidualBranchedAttention]
READINGS = [
    {},
    {"shared_ffn": True},
    {"softmax": True},
    {"branches": 2},
    {"branches": 1},
    {"branches": 2, "shared_ffn": True},
    {"value_dim": 6, "key_dim": 3},
]


@pytest.mark.parametrize("reading", READINGS, ids=str)
@pytest.mark.parametrize("sentences", [1, 20], ids=["few tokens", "many tokens"])
@pytest.mark.parametrize("form", FORMS)
def test_equals_the_equations(form, reading, sentences):
    module = block(form, **reading)
    assert module.folding_pays(2 * sentences) == (sentences == 20)
    x = torch.randn(2, sentences, MODEL, dtype=torch.float64, requires_grad=True)
    heads, _ = module.compute_heads(x, x, None, None, None, False)
    actual, _ = module(x, x, x, need_weights=False)
    assert_same_with_gradients(actual, by_equation(module, heads, x), module, x)


@pytest.mark.parametrize("form", FORMS)
def test_heads_of_relative_branches_are_those_of_relative_attention(form):
    module = block(joined(form, RelativeMultiheadAttention), distance=2)
    plain = RelativeMultiheadAttention(MODEL, HEADS, distance=2, self_attention=True).double().eval()
    names = plain.load_state_dict(module.state_dict(), strict=False)
    assert names.missing_keys == (["out_proj.bias"] if module.out_proj.bias is None else [])  # eq. 6 has none
    x = torch.randn(7, 5, MODEL, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        of_plain, _ = plain.compute_heads(x, x, None, None, None, False)
    heads, _ = module.compute_heads(x, x, None, None, None, False)
    torch.testing.assert_close(heads, of_plain)
    actual, _ = module(x, x, x, need_weights=False)
    assert_same_with_gradients(actual, by_equation(module, heads, x), module, x)


def test_one_branch_is_the_ffn_of_attention():
    """κ = α = 1: FFN(Concat(head_1 … head_h) W^O), to the last bit where W^O and W1 are not multiplied first."""
    module = block(branches=1)
    assert module.kappa.item() == module.alpha.item() == 1
    x = torch.randn(1, 2, MODEL, dtype=torch.float64)
    attention = MultiheadAttention(MODEL, HEADS, self_attention=True).double().eval()
    attention.load_state_dict({**module.state_dict(), "out_proj.bias": torch.zeros(MODEL)}, strict=False)
    y, _ = attention(x, x, x, need_weights=False)
    y = F.linear(torch.relu(module.fc1(y)), module.fc2.weight, module.fc2.bias[0])
    assert torch.equal(module(x, x, x, need_weights=False)[0], y)


def test_one_branch_with_a_residual_is_attention_and_ffn():
    """κ = α = 1: y = MultiHead(x), y + FFN(LayerNorm(x + y)), with matrices as fairseq initialises them."""
    module = block(ResidualBranchedAttention, branches=1)
    attention, linear = MultiheadAttention(MODEL, HEADS, self_attention=True).double().eval(), torch.nn.Linear(FFN, MODEL)
    for ours, of_base in ((module.out_proj, attention.out_proj), (module.fc2, linear)):
        torch.testing.assert_close(ours.weight.std().float(), of_base.weight.std().float(), rtol=0.15, atol=0)
    attention.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(1, 20, MODEL, dtype=torch.float64)
    y, _ = attention(x, x, x, need_weights=False)
    expected = y + module.fc2(torch.relu(module.fc1(module.norm(x + y))))
    torch.testing.assert_close(module(x, x, x, need_weights=False)[0], expected)


def test_activation_dropout_and_activation():
    module = block(activation="gelu", activation_dropout=0.5)
    x = torch.randn(3, 20, MODEL, dtype=torch.float64)
    heads, _ = module.compute_heads(x, x, None, None, None, False)
    assert not torch.allclose(module(x, x, x, need_weights=False)[0], by_equation(module, heads, x))  # by ReLU
    evaluated = module(x, x, x, need_weights=False)[0]
    module.train()
    torch.manual_seed(3)
    dropped = torch.stack([module(x, x, x, need_weights=False)[0] for _ in range(400)])
    assert not torch.allclose(dropped[0], dropped[1])
    assert (dropped.mean(0) - evaluated).norm() < 0.1 * evaluated.norm()


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_branch_weights_begin_on_the_simplex(form, random, softmax):
    for weights in block(form, random=random, softmax=softmax).kappa_alpha():
        assert weights.min() >= 0
        torch.testing.assert_close(weights.sum().item(), 1.0, atol=1e-6, rtol=0)
        assert (weights.max() - weights.min() > 0.01) == random


@pytest.mark.parametrize("options, reason", [({"branches": 3}, "4 heads .* 3 branches"), ({"ffn_dim": 30}, "width 30 .* 4 branches")])
def test_what_cannot_be_dealt_out_is_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        block(**options)
    if "ffn_dim" in options:
        block(**options, shared_ffn=True)


# layers and models

DECODERS = ["encoder_decoder", "self", "both"]
RESIDUALS = ["per_branch", "none"]


@pytest.mark.parametrize("norm", [{}, PRE_NORM], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("residual", RESIDUALS)
def test_encoder_layer_is_one_block(build, residual, norm):
    """One residual connection around it and one LayerNorm; nothing else."""
    layer = build("weighted_transformer_base", branch_residual=residual, **norm).double().encoder.layers[0]
    assert {name.split(".")[0] for name, _ in layer.named_parameters()} == {"self_attn", "self_attn_layer_norm"}
    x = torch.randn(6, 3, MODEL, dtype=torch.float64)

    def attend(x):
        return layer.self_attn(x, x, x, need_weights=False)[0]

    ln = layer.self_attn_layer_norm
    torch.testing.assert_close(layer(x, None), x + attend(ln(x)) if norm else ln(x + attend(x)))


@pytest.mark.parametrize("norm", [{}, PRE_NORM], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("branched", DECODERS)
def test_decoder_layer_is_two_sublayers(build, branched, norm):
    layer = build("weighted_transformer_base", branched_attention=branched, **norm).double().decoder.layers[0]
    assert isinstance(layer.self_attn, BranchedAttention) == (branched != "encoder_decoder")
    assert isinstance(layer.encoder_attn, BranchedAttention) == (branched != "self")
    y, encoder_out = torch.randn(2, 6, 3, MODEL, dtype=torch.float64)
    mask = torch.full((6, 6), float("-inf")).triu(1)
    actual, _, _ = layer(y, encoder_out, self_attn_mask=mask)
    for attention, ln, key, options in (
        (layer.self_attn, layer.self_attn_layer_norm, None, {"attn_mask": mask}),
        (layer.encoder_attn, layer.encoder_attn_layer_norm, encoder_out, {}),
    ):
        query = ln(y) if norm else y
        key = query if key is None else key
        y = y + attention(query, key, key, need_weights=False, **options)[0]
        y = y if norm else ln(y)
    torch.testing.assert_close(actual, y)


@pytest.mark.parametrize("options", [{"branch_ffn": "shared"}, {"branch_weights": "softmax"}, {"branches": 2}], ids=str)
@pytest.mark.parametrize("branched", DECODERS)
@pytest.mark.parametrize("residual", RESIDUALS)
@pytest.mark.parametrize("family", ["weighted_transformer", "weighted_relative_transformer"])
def test_cached_decoding_equals_full(build, batch, family, residual, branched, options):
    """A token at a time, until there were enough to multiply the weights first."""
    options = {"branched_attention": branched, "branch_residual": residual, "branch_weights_init": "random", **options}
    model = build(f"{family}_base", **options).double()
    encoder_out = model.encoder(batch["src_tokens"][:1], batch["src_lengths"][:1])
    tokens, state = torch.full((1, 1), EOS), {}
    for _ in range(12):
        cached, _ = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)
        full, _ = model.decoder(tokens, encoder_out=encoder_out)
        torch.testing.assert_close(cached, full[:, -1:])
        tokens = torch.cat([tokens, torch.randint(4, 50, (1, 1))], dim=1)


@pytest.mark.parametrize("branched", DECODERS)
@pytest.mark.parametrize("residual", RESIDUALS)
def test_parameters_are_those_of_the_base_but_for_branch_weights_and_biases(build, residual, branched):
    def count(arch, **options):
        return sum(p.numel() for p in build(arch, **options).parameters())

    layers, d, d_ff, blocks = 2, 16, 32, 4
    # b2_i, or as in the base the biases of W^O and W2 and the FFN's LayerNorm
    biases = (HEADS if residual == "none" else 4) * d
    difference = blocks * (2 * HEADS + biases - 4 * d)  # κ and α beside them
    if branched == "both":
        difference += layers * (2 * d * d_ff + d_ff + 2 * HEADS + biases - d)  # an FFN and its branches, but one bias of W^O more in the base
    base = count("vaswani_transformer_base")
    assert count("weighted_transformer_base", branched_attention=branched, branch_residual=residual) == base + difference


def test_training_without_an_optimizer_for_branch_weights_is_refused(build):
    model = build("weighted_transformer_base")
    model.set_num_updates(1)  # not while training
    with pytest.raises(RuntimeError, match="--optimizer fused_adam"):
        model.train().set_num_updates(1)
