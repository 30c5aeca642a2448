"""The rows of user_dir/papers.md on what the papers leave open and what is otherwise here, one by one."""

import itertools
import math

import pytest
import torch
from fairseq import optim
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from user_dir.attention.multihead import MultiheadAttention
from user_dir.families import FAMILIES, SIZES
from user_dir.training.criterion import ProjectedLoss
from user_dir.weighted.heads import branched_blocks

from branches import adam_options, fused_adam_options
from support import PROJECT, families_with, one_line

SIZE = {"encoder_embed_dim": 64, "decoder_embed_dim": 64, "encoder_ffn_embed_dim": 128, "decoder_ffn_embed_dim": 128}


def test_position_encodings(build):
    positions = build("vaswani_transformer_base").encoder.embed_positions(torch.full((1, 3), 5))[0]
    for row, position in zip(positions, (2, 3, 4)):
        angles = [position * 10000 ** (-i / 7) for i in range(8)]  # d = 16
        expected = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        torch.testing.assert_close(row, torch.tensor(expected))


def test_biases_and_initialisation(build):
    model = build("vaswani_transformer_base", **SIZE)
    layer = model.encoder.layers[0]
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        assert getattr(layer.self_attn, projection).bias is not None

    def assert_uniform(weight, bound):
        assert bound * 0.98 < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)

    assert_uniform(layer.self_attn.q_proj.weight, (6 / (64 + 64) / 2) ** 0.5)
    assert_uniform(layer.self_attn.out_proj.weight, (6 / (64 + 64)) ** 0.5)
    assert_uniform(layer.fc1.weight, 64**-0.5)
    assert_uniform(layer.fc2.weight, 128**-0.5)
    assert model.encoder.embed_tokens.weight[4:].std().item() == pytest.approx(64**-0.5, rel=0.05)


def test_embeddings_are_shared_when_asked(build):
    for shared in (False, True):
        model = build("vaswani_transformer_base", **({"share_all_embeddings": True} if shared else {}))
        modules = (model.encoder.embed_tokens, model.decoder.embed_tokens, model.decoder.output_projection)
        assert len({id(module.weight) for module in modules}) == (1 if shared else 3)


def test_neighbourhood(build):
    for r, side in ((1, 0), (6, 3), (7, 3)):
        model = build("vaswani_transformer_base", restricted_attention="both", neighbourhood=r)
        assert {part.layers[0].self_attn.radius for part in (model.encoder, model.decoder)} == {side}


def test_label_smoothing():
    """The fused loss's and fairseq's: the rest is shared by the other words, not by all."""
    scores, target = torch.randn(5, 7), torch.arange(5)
    right = torch.nn.functional.one_hot(target, 7).float()
    expected = -((0.9 * right + 0.1 / 6 * (1 - right)) * scores.log_softmax(-1)).sum()
    torch.testing.assert_close(label_smoothed_nll_loss(scores.log_softmax(-1), target[:, None], 0.1)[0], expected)
    fused = ProjectedLoss.apply(scores, torch.eye(7), target, 0.1, torch.float, False, False)[0]
    torch.testing.assert_close(fused, expected)


@pytest.mark.parametrize("given, corrected_first", [(fused_adam_options, True), (adam_options, False)])
def test_epsilon_of_adam(given, corrected_first):
    """The first step, with a gradient of the size of ε."""
    weight = torch.nn.Parameter(torch.zeros(1))
    options = given(lr=[1.0], adam_betas="(0.9, 0.98)", adam_eps=0.1, weight_decay=0.0)
    optimizer = optim.build_optimizer(options, [weight])
    weight.grad = torch.full((1,), 0.5)
    optimizer.step()
    v = 0.02 * 0.5**2
    expected = 0.5 / (math.sqrt(v / 0.02) + 0.1) if corrected_first else 0.5 * math.sqrt(0.02) / (math.sqrt(v) + 0.1)
    assert -weight.item() == pytest.approx(expected, rel=1e-5)


def test_relative_positions(build):
    assert SIZES["base"][2] == 2048
    model = build("relative_transformer_base", **SIZE)
    layer = model.decoder.layers[0]
    assert hasattr(layer.self_attn, "relative_keys") and not hasattr(layer.encoder_attn, "relative_keys")
    bound = (6 / (33 + 16)) ** 0.5  # 2k + 1 and d_z
    assert bound * 0.98 < layer.self_attn.relative_keys.abs().max() <= bound


def test_branches(build):
    wide = build("weighted_transformer_base", encoder_layers=3, decoder_embed_dim=32)
    model = build("weighted_transformer_base", encoder_layers=3)
    assert model.branch_training.lr_scale == wide.branch_training.lr_scale == pytest.approx((16 / 3) ** -0.5)
    places = {(name.split(".")[0], name.split(".")[3]) for name in branched_blocks(model)}
    assert places == {("encoder", "self_attn"), ("decoder", "self_attn")}
    for where, attentions in (("encoder_decoder", {"encoder_attn"}), ("both_halves", {"self_attn", "encoder_attn"})):
        other = build("weighted_transformer_base", branched_attention=where)
        assert {name.split(".")[2] for name in branched_blocks(other.decoder)} == attentions
    assert model.branch_training.simplex
    free = build("weighted_transformer_base", branch_weights="softmax")
    assert not free.branch_training.simplex
    assert all((block.kappa < 0).all() for block in branched_blocks(free).values())  # log 1/M
    for block in branched_blocks(model).values():
        for weights in block.kappa_alpha():
            assert weights.tolist() == [0.25] * 4
        assert block.fc1.weight.shape == (32, 16)  # of all FFN_i together
    drawn = build("weighted_transformer_base", branch_weights_init="random").encoder.layers[0].self_attn.kappa
    assert len(set(drawn.tolist())) > 1


def test_parameters_of_branches(build):
    """κ and α are those of twelve blocks in the paper's big model."""
    six = {f"{side}_layers": 6 for side in ("encoder", "decoder")}
    big = build("weighted_transformer_big", **six, encoder_attention_heads=16, decoder_attention_heads=16)
    assert sum(w.numel() for block in branched_blocks(big).values() for w in block.kappa_alpha()) == 384


@pytest.mark.parametrize("branches", [4, 2])
def test_the_letters_matrices_begin_m_times_as_large(build, branches):
    """W^O_i and W2_i; each W^O_i, W1_i and W2_i as Glorot begins a matrix of its own, of f = d_ff / M."""
    options = {"encoder_ffn_embed_dim": 32, "branch_residual": "none", "branches": branches}
    block = build("weighted_transformer_base", **options).encoder.layers[0].self_attn
    d, d_v, f = 16, 16 // branches, 32 // branches  # d_v of all heads of a branch
    for matrices, rows, scale in (
        (block.out_proj.weight.chunk(branches, 1), d_v, branches),
        (block.fc1.weight.chunk(branches), f, 1),
        (block.fc2.weight.chunk(branches, 1), f, branches),
    ):
        bound = scale * (6 / (d + rows)) ** 0.5
        for matrix in matrices:
            assert bound * 0.9 < matrix.abs().max() <= bound
        assert not torch.equal(matrices[0], matrices[1])
    assert not block.fc1.bias.any() and not block.fc2.bias.any()


def test_the_letters_matrices_begin_larger_than_the_bases(build):
    sizes = {"embed_dim": 512, "ffn_embed_dim": 2048, "attention_heads": 8}
    options = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    base = build("vaswani_transformer_base", **options).encoder.layers[0]
    block = build("weighted_transformer_base", **options, branch_residual="none").encoder.layers[0].self_attn
    pairs = ((block.out_proj, base.self_attn.out_proj), (block.fc1, base.fc1), (block.fc2, base.fc2))
    ratios = [f"{ours.weight.abs().max() / theirs.weight.abs().max():.3g}" for ours, theirs in pairs]
    page = one_line(PROJECT / "user_dir/papers.md")
    assert "W^O, W1 and W2 begin {}, {} and {} times as large".format(*ratios) in page


def test_dropout_of_branches(build):
    """weighted/test_attention.py has where it stands."""
    for size, dropout in (("base", 0.1), ("big", 0.3), ("big_en_fr", 0.1)):
        layer = build(f"weighted_transformer_{size}").encoder.layers[0]
        assert layer.self_attn.residual_dropout_module.p == layer.dropout_module.p == dropout
        assert layer.self_attn.dropout_module.p == 0  # of attention weights
    assert FAMILIES["weighted_transformer"].attention_dropout == (0.1, 0.3)


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_that_of_the_options(build, family):
    given = {"attention_dropout": 0.2, "activation_fn": "gelu"}
    given |= {"relative_attention": "all"} if family in families_with("relative_positions") else {}
    forms = ("per_branch", "shared", "none") if family in families_with("branched_attention") else ("per_branch",)
    for residual, option in itertools.product(forms, ("activation_dropout", "relu_dropout")):
        model = build(f"{family}_base", branch_residual=residual, **given, **{option: 0.3})
        attentions = [module for module in model.modules() if isinstance(module, MultiheadAttention)]
        assert len(attentions) == 6 and {attention.dropout_module.p for attention in attentions} == {0.2}
        ffns = [module for module in model.modules() if hasattr(module, "activation_dropout_module")]
        used = [ffn for ffn in ffns if getattr(ffn, "fc1", None) is not None]
        assert len(used) >= 4 and {ffn.activation_dropout_module.p for ffn in used} == {0.3}
        assert {ffn.activation_fn.__name__ for ffn in used} == {"gelu"}


def test_what_a_branch_sees(build):
    """With --branch-residual none a block whose heads give nothing computes the same whatever it is given."""
    for residual in ("per_branch", "none"):
        block = build("weighted_transformer_base", branch_residual=residual).encoder.layers[0].self_attn
        torch.nn.init.zeros_(block.out_proj.weight)
        outputs = [block(x, x, x, need_weights=False)[0] for x in torch.randn(2, 3, 1, 16)]
        assert torch.equal(*outputs) == (residual == "none")
