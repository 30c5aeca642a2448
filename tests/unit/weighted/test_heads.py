"""--branch-residual shared: the Transformer with branch weights. And which form a checkpoint has."""

import argparse
import functools

import pytest
import torch
from fairseq import models
from fairseq.sequence_generator import SequenceGenerator

from user_dir.errors import InputError
from user_dir.weighted.heads import WeightedHeads, WeightedLinear

import equations
from support import PRE_NORM, SMALL, assert_same_with_gradients, heads_by_equation

WEIGHTED = "weighted_transformer_base"
BRANCHES = 4


def shared(build, arch=WEIGHTED, **options):
    return build(arch, branch_residual="shared", **options)


def fold(model) -> dict:
    """The state of fairseq's `transformer` that computes the same: W^O_i times M κ_i, W2_i times M α_i."""
    state = {name: value.clone() for name, value in model.state_dict().items() if not name.endswith(("kappa", "alpha"))}
    for name, module in model.named_modules():
        if isinstance(module, WeightedHeads):
            layer = name.rpartition(".")[0]
            for matrix, weights in ((f"{name}.out_proj.weight", module.kappa), (f"{layer}.fc2.weight", module.alpha)):
                for i, columns in enumerate(state[matrix].chunk(BRANCHES, dim=1)):
                    columns *= BRANCHES * weights[i].detach()
    return state


@pytest.fixture(params=[{}, PRE_NORM], ids=["post-norm", "pre-norm"])
def norm(request):
    return request.param


def test_equal_weights_are_the_transformer(build, batch, norm):
    """κ = α = 1/M, with stock's weights: stock's logits, to the bit."""
    stock, ours = build("transformer", **norm), shared(build, **norm)
    names = ours.load_state_dict(stock.state_dict(), strict=False)
    assert not names.unexpected_keys and all(name.endswith(("kappa", "alpha")) for name in names.missing_keys)
    assert len(names.missing_keys) == 2 * 4  # two blocks in each of encoder and decoder
    assert torch.equal(ours(**batch)[0], build("vaswani_transformer_base", **norm)(**batch)[0])
    torch.testing.assert_close(ours(**batch)[0], stock(**batch)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["weighted_transformer", "weighted_relative_transformer"])
def test_equals_the_sum_over_branches(build, family, norm):
    """Encoder layer: u = x + Σ M κ_i head_i W^O_i + b; u + Σ M α_i FFN_i(u), in float64, with all gradients."""
    model = shared(build, f"{family}_base", branch_weights_init="random", **norm)
    layer = model.double().encoder.layers[0]
    for bias in (layer.self_attn.out_proj.bias, layer.fc2.bias):
        torch.nn.init.normal_(bias)
    x = torch.randn(6, 3, 16, dtype=torch.float64, requires_grad=True)
    attention, first, second = layer.self_attn, layer.self_attn_layer_norm, layer.final_layer_norm
    query = first(x) if norm else x
    heads, _ = heads_by_equation(attention, query, query, torch.zeros(3, 6, dtype=torch.bool), causal=False)
    w_o = [part.T for part in attention.out_proj.weight.chunk(BRANCHES, dim=1)]
    parts = zip(layer.fc1.weight.chunk(BRANCHES), layer.fc1.bias.chunk(BRANCHES), layer.fc2.weight.chunk(BRANCHES, 1))
    ffns = [functools.partial(equations.ffn, w1=w1.T, b1=b1, w2=w2.T, b2=0) for w1, b1, w2 in parts]
    ffns[0] = functools.partial(ffns[0], b2=layer.fc2.bias / (BRANCHES * attention.alpha[0]))  # once, unweighted
    norms = (second, identity, identity) if norm else (identity, first, second)
    parameters = (attention.kappa, attention.alpha, w_o, attention.out_proj.bias, ffns, norms)
    expected = equations.transformer_with_branch_weights(x, heads.unbind(2), *parameters)
    assert_same_with_gradients(layer(x, None), expected, layer, x)


def identity(x):
    return x


@pytest.mark.parametrize("where", ["self", "encoder_decoder"])
def test_folds_into_a_plain_transformer(build, batch, dictionary, norm, where):
    """The same logits, and the same hypotheses from fairseq's generator."""
    ours, stock = (
        shared(build, branch_weights_init="random", branched_attention=where, **norm),
        build("transformer", **norm),
    )
    stock.load_state_dict(fold(ours), strict=True)
    torch.testing.assert_close(ours(**batch)[0], stock(**batch)[0], atol=1e-5, rtol=0)
    sample = {"net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}}
    found = []
    for model in (ours, stock):
        model.prepare_for_inference_(argparse.Namespace(generation=argparse.Namespace(no_beamable_mm=False)))
        generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=12)
        found.append([[h["tokens"].tolist() for h in hypotheses] for hypotheses in generator.generate([model], sample)])
    assert found[0] == found[1]


def test_what_is_kept_while_generating_follows_the_weights(build, batch):
    """make_generation_fast_ keeps products; other branch weights (as in the ablation) and training are seen."""
    model = shared(build)
    block = model.encoder.layers[0]
    for module in (block.self_attn, block.fc2):
        module.make_generation_fast_()
    with torch.no_grad():
        before = model(**batch)[0]
        assert torch.equal(model(**batch)[0], before)
        for weights in (block.self_attn.kappa, block.self_attn.alpha):
            expected = weights.clone()
            weights.copy_(torch.tensor([0.7, 0.1, 0.1, 0.1]))
            assert not torch.allclose(model(**batch)[0], before)
            weights.copy_(expected)
            assert torch.equal(model(**batch)[0], before)
        assert model.double()(**batch)[0].dtype == torch.float64


def test_parameters_are_the_transformers_and_two_weights_a_branch(build):
    def count(model):
        return sum(p.numel() for p in model.parameters())

    assert count(shared(build)) == count(build("vaswani_transformer_base")) + 4 * 2 * BRANCHES
    assert isinstance(shared(build).encoder.layers[0].fc2, WeightedLinear)


OTHERS = [{"branched_attention": where} for where in ("both", "both_halves")] + [{"branch_ffn": "shared"}]


@pytest.mark.parametrize("option", OTHERS, ids=str)
def test_other_readings_are_refused(build, option):
    with pytest.raises(InputError, match="--branch-residual shared .*: omit"):
        shared(build, **option)


def test_a_width_that_branches_do_not_divide_is_refused(build):
    with pytest.raises(ValueError, match="width 30 .* 4 branches"):
        shared(build, encoder_ffn_embed_dim=30)


def test_a_checkpoint_from_before_there_were_forms_is_the_letter(dictionary):
    """Its options went through the architecture's function without this one."""

    def options(**given):
        args = argparse.Namespace(arch=WEIGHTED, **SMALL, **given)
        models.ARCH_CONFIG_REGISTRY[WEIGHTED](args)
        return args

    assert options().branch_residual == "per_branch"
    assert options(branched_attention="self").branch_residual == "per_branch"  # given on the command line
    old = options()
    del old.branch_residual
    models.ARCH_CONFIG_REGISTRY[WEIGHTED](old)
    assert old.branch_residual == "none"
    again = options(branch_residual="shared")
    models.ARCH_CONFIG_REGISTRY[WEIGHTED](again)
    assert again.branch_residual == "shared"


def test_what_is_kept_while_generating_follows_which_branches_count(build, batch):
    """--top-branches: α decides, for κ too."""
    model = shared(build, top_branches=1)
    attention = model.encoder.layers[0].self_attn
    attention.make_generation_fast_()
    with torch.no_grad():
        for first in (0.7, 0.1):
            attention.alpha.copy_(torch.tensor([first, 0.3, 0.0, 0.0]))
            kept = attention.scaled(attention.out_proj.weight, attention, 0).chunk(4, dim=1)
            assert [part.abs().max() > 0 for part in kept] == [first == 0.7, first == 0.1, False, False]


def test_in_inference_mode(build, batch):
    """Tensors made there have no versions, by which a change would be noticed."""
    with torch.inference_mode():
        model = shared(build)
        expected = model(**batch)[0]
        model.make_generation_fast_()
        assert torch.equal(model(**batch)[0], expected)
