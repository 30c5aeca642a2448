"""--branch-residual shared: the Transformer with branch weights. And which form a checkpoint has."""

import argparse
import copy
import functools

import pytest
import torch
from fairseq import models
from fairseq.sequence_generator import SequenceGenerator

from user_dir.weighted.heads import WeightedHeads

import equations
from comparing import assert_same_with_gradients, heads_by_equation
from support import PRE_NORM, SMALL

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


READINGS = [{}, {"branch_weights": "softmax"}, {"top_branches": 3}, {"branches": 2, "encoder_ffn_embed_dim": 30}]


@pytest.mark.parametrize("weights", READINGS, ids=str)
@pytest.mark.parametrize("family", ["weighted_transformer", "weighted_relative_transformer"])
def test_equals_the_sum_over_branches(build, family, weights, norm):
    """Encoder layer: u = x + Σ M κ_i head_i W^O_i + b; u + Σ M α_i FFN_i(u) + b2, in float64, with all gradients."""
    model = shared(build, f"{family}_base", branch_weights_init="random", **weights, **norm)
    layer = model.double().encoder.layers[0]
    for bias in (layer.self_attn.out_proj.bias, layer.fc2.bias):
        torch.nn.init.normal_(bias)
    x = torch.randn(6, 3, 16, dtype=torch.float64, requires_grad=True)
    attention, first, second = layer.self_attn, layer.self_attn_layer_norm, layer.final_layer_norm
    query = first(x) if norm else x
    heads, _ = heads_by_equation(attention, query, query)
    branches = attention.branches
    heads = [part.flatten(2) for part in heads.chunk(branches, dim=2)]
    w_o = [part.T for part in attention.out_proj.weight.chunk(branches, dim=1)]
    parts = zip(layer.fc1.weight.chunk(branches), layer.fc1.bias.chunk(branches), layer.fc2.weight.chunk(branches, 1))
    ffns = [functools.partial(equations.ffn, w1=w1.T, b1=b1, w2=w2.T, b2=0) for w1, b1, w2 in parts]
    kappa, alpha = attention.kappa_alpha()
    if "top_branches" in weights:
        assert [*map(torch.count_nonzero, (kappa, alpha))] == [3, 3]
    norms = (second, identity, identity) if norm else (identity, first, second)
    parameters = (kappa, alpha, w_o, attention.out_proj.bias, ffns, layer.fc2.bias, norms)
    expected = equations.transformer_with_branch_weights(x, heads, *parameters)
    assert_same_with_gradients(layer(x, None), expected, layer, x)


def identity(x):
    return x


@pytest.mark.parametrize("where", ["self", "encoder_decoder"])
def test_folds_into_a_plain_transformer(build, batch, dictionary, norm, where):
    """The same logits, and the same hypotheses from fairseq's generator."""
    ours = shared(build, branch_weights_init="random", branched_attention=where, **norm)
    stock = build("transformer", **norm)
    stock.load_state_dict(fold(ours), strict=True)
    torch.testing.assert_close(ours(**batch)[0], stock(**batch)[0], atol=1e-5, rtol=0)
    sample = {"net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}}
    found = []
    for model in (ours, stock):
        model.prepare_for_inference_(argparse.Namespace(generation=argparse.Namespace(no_beamable_mm=False)))
        generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=12)
        found.append([[h["tokens"].tolist() for h in hypotheses] for hypotheses in generator.generate([model], sample)])
    assert found[0] == found[1]


def test_drawn_branches_are_the_same_in_both_sublayers(build):
    """Seen where only the branch of the largest α of a draw is used."""
    layer = shared(build, branch_weights="random", dropout=0.0).encoder.layers[0].train()
    layer.self_attn.top = 1
    for _ in range(10):
        layer.zero_grad()
        layer(torch.randn(9, 5, 16), None)[..., 0].sum().backward()
        gradients = (matrix.weight.grad.chunk(BRANCHES, dim=1) for matrix in (layer.self_attn.out_proj, layer.fc2))
        heads, ffns = ([part.any().item() for part in parts] for parts in gradients)
        assert heads == ffns and sum(heads) == 1


def test_drawn_branches_can_be_trained_after_an_evaluation(build):
    model = shared(build, branch_weights="random")
    layer, names = model.encoder.layers[0], [*model.state_dict()]
    for mode in (True, False, True):
        layer.train(mode)(torch.randn(9, 5, 16), None)
        assert [*model.state_dict()] == names


def test_a_layer_can_be_copied_after_a_training_step(build):
    layer = shared(build, branch_weights="softmax").encoder.layers[0].train()
    layer(torch.randn(9, 5, 16), None)
    copy.deepcopy(layer)


def test_a_checkpoint_from_before_there_were_forms_is_the_letter():
    """Its options went through the architecture's function without this one."""

    def options(**given):
        args = argparse.Namespace(arch=WEIGHTED, **SMALL, **given)
        models.ARCH_CONFIG_REGISTRY[WEIGHTED](args)
        return args

    assert options().branch_residual == "per_branch"
    assert options(branched_attention="self").branch_residual == "per_branch"  # given on the command line
    assert options(adaptive_softmax_cutoff=None).branch_residual == "per_branch"  # null in hydra's configuration
    old = options()
    del old.branch_residual
    models.ARCH_CONFIG_REGISTRY[WEIGHTED](old)
    assert old.branch_residual == "none"
    again = options(branch_residual="shared")
    models.ARCH_CONFIG_REGISTRY[WEIGHTED](again)
    assert again.branch_residual == "shared"


def test_random_weights_begin_evenly_spread_up_to_two_mth():
    """The projection moves them little: of a wider range it would set most to 0."""
    torch.manual_seed(1)
    module = WeightedHeads(800, 800, branches=400, random_init=True, self_attention=True)
    for weights in (module.kappa.detach(), module.alpha.detach()):
        torch.testing.assert_close(400 * weights.sort().values, torch.linspace(0, 2, 400), atol=0.2, rtol=0)
    assert not torch.equal(module.kappa, module.alpha)


def test_of_equally_probable_branches_the_first_are_used():
    """As all are at first; another choice on another device would be another model."""
    for weights in WeightedHeads(32, 32, branches=16, top=3, self_attention=True).kappa_alpha():
        assert weights.tolist() == [1 / 16] * 3 + [0] * 13
