"""Branched attention against loops over branches: values, gradients, layers, cached decoding, parameters."""

import functools

import pytest
import torch

from user_dir.attention.multihead import MultiheadAttention
from user_dir.kernels.dropout import Dropout
from user_dir.relative.attention import RelativeMultiheadAttention
from user_dir.transformer.layers import joined
from user_dir.weighted.attention import BranchedAttention
from user_dir.weighted.residual import InverseDeviation, ResidualBranchedAttention

import equations
from comparing import assert_decodes_word_by_word, assert_same_with_gradients, future, heads_by_equation
from support import PRE_NORM

MODEL, HEADS, FFN = 16, 4, 24


def block(of=BranchedAttention, **options):
    """A self-attention of float64 with branch weights on the simplex that are all different."""
    torch.manual_seed(1)
    options = {"ffn_dim": FFN, "self_attention": True, "random_init": True, **options}
    module = of(MODEL, HEADS, **options).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in ("out_proj.bias", "fc1.bias", "fc2.bias", "norm.weight", "norm.bias"):
                parameter.normal_()
        if module.top:
            module.alpha.copy_((1 - module.kappa) / 3)  # the largest where κ has the smallest
    return module.eval()


def by_equation(module, x, key=None, causal=False, masks=(1, 1), biases=1, weights=None):
    """The block that `module` computes for x [T, B, d] and key [S, B, d], from its parameters cut into branches'.

    biases: how often W^O's bias is in Σ_i h_i; weights: κ and α, if they are not the module's
    """
    heads, _ = heads_by_equation(module, x, x if key is None else key, causal=causal)
    if not isinstance(module, BranchedAttention):
        return module.out_proj(heads.flatten(2))
    branches = module.branches
    heads = [part.flatten(2) for part in heads.chunk(branches, dim=2)]
    w_o = [part.T for part in module.out_proj.weight.chunk(branches, dim=1)]
    kappa, alpha = module.kappa_alpha() if weights is None else weights
    if module.top:
        given = [w.softmax(0) if module.softmax else w for w in (module.kappa, module.alpha)]
        kappa, alpha = equations.most_probable(*given, module.top)
    residual = isinstance(module, ResidualBranchedAttention)
    fc1, fc2 = module.fc1, module.fc2
    parts = zip(fc1.weight.chunk(branches), fc1.bias.chunk(branches), fc2.weight.chunk(branches, 1))
    b2 = torch.zeros(branches) if residual else module.fc2.bias
    own = [functools.partial(equations.ffn, w1=w1.T, b1=b1, w2=w2.T, b2=b2[i]) for i, (w1, b1, w2) in enumerate(parts)]
    if not residual:
        return equations.branched(heads, kappa, alpha, w_o, own)

    def norm(y, other):
        return equations.layer_norm(y, module.norm.weight, module.norm.bias, other)

    parameters = (kappa, alpha, w_o, module.out_proj.bias * biases, own, module.fc2.bias, norm)
    return equations.branched_with_residual(x, heads, *parameters, masks)


FORMS = [BranchedAttention, ResidualBranchedAttention]
READINGS = [{}, {"softmax": True}, {"value_dim": 6, "key_dim": 3}, {"branches": 2, "ffn_dim": 30}, {"top": HEADS}]
READINGS += [{"softmax": True, "top": 2}]
READINGS += [{name: count} for name in ("branches", "top") for count in (1, 2)]


@pytest.mark.parametrize("reading", READINGS, ids=str)
@pytest.mark.parametrize("sentences", [1, 20], ids=["few tokens", "many tokens"])
@pytest.mark.parametrize("form", FORMS)
def test_equals_the_equations(form, reading, sentences):
    module = block(form, **reading)
    assert module.folding_pays(2 * sentences) == (sentences == 20)
    x = torch.randn(2, sentences, MODEL, dtype=torch.float64, requires_grad=True)
    actual, _ = module(x, x, x, need_weights=False)
    assert_same_with_gradients(actual, by_equation(module, x), module, x)


@pytest.mark.parametrize("form", FORMS)
def test_heads_may_be_those_of_relative_attention(form):
    module = block(joined(form, RelativeMultiheadAttention), distance=2)
    x = torch.randn(7, 5, MODEL, dtype=torch.float64, requires_grad=True)
    actual, _ = module(x, x, x, need_weights=False)
    assert_same_with_gradients(actual, by_equation(module, x), module, x)


@pytest.mark.parametrize("branches", [1, 4])
def test_matrices_begin_as_the_bases(branches):
    module = block(ResidualBranchedAttention, branches=branches)
    attention = MultiheadAttention(MODEL, HEADS, self_attention=True).double().eval()
    linear = torch.nn.Linear(FFN, MODEL)
    for ours, of_base in ((module.out_proj, attention.out_proj), (module.fc2, linear)):
        torch.testing.assert_close(ours.weight.std().float(), of_base.weight.std().float(), rtol=0.15, atol=0)


def test_the_bias_of_the_heads_counts_once_and_in_old_checkpoints_once_a_branch(build):
    """These have no count: what they compute stays, and so does how fast the sum of their biases learns."""
    model = build("weighted_transformer_base", branches=2).double()
    block, x = model.encoder.layers[0].self_attn, torch.randn(5, 2, MODEL, dtype=torch.float64, requires_grad=True)
    torch.nn.init.normal_(block.out_proj.bias)
    assert_same_with_gradients(block(x, x, x, need_weights=False)[0], by_equation(block, x), block, x)
    state = model.state_dict()
    model.load_state_dict(state)
    model.load_state_dict({}, strict=False)  # nor does a part of a state change the rest
    assert block.bias_count == 1
    model.load_state_dict({name: value for name, value in state.items() if not name.endswith("bias_count")})
    actual, _ = block(x, x, x, need_weights=False)
    assert_same_with_gradients(actual, by_equation(block, x, biases=2), block, x)


def test_activation_dropout_and_activation(monkeypatch):
    module = block(activation="gelu", activation_dropout=0.5)
    x = torch.randn(3, 20, MODEL, dtype=torch.float64)
    assert not torch.allclose(module(x, x, x, need_weights=False)[0], by_equation(module, x))  # by ReLU
    evaluated = module(x, x, x, need_weights=False)[0]
    monkeypatch.setattr(equations, "ffn", lambda x, w1, b1, w2, b2: torch.nn.functional.gelu(x @ w1 + b1) @ w2 + b2)
    torch.testing.assert_close(evaluated, by_equation(module, x), atol=1e-5, rtol=1e-5)  # fairseq's is of float32
    module.train()
    torch.manual_seed(3)
    dropped = torch.stack([module(x, x, x, need_weights=False)[0] for _ in range(400)])
    assert not torch.allclose(dropped[0], dropped[1])
    assert (dropped.mean(0) - evaluated).norm() < 0.1 * evaluated.norm()


@pytest.mark.parametrize("form", FORMS)
def test_weights_can_be_drawn_in_every_step(form):
    """Evenly from the simplex, whose variance is Dirichlet's; an evaluation has 1/M."""
    module = block(form, drawn=True, random_init=False)
    assert not module.kappa.requires_grad and not module.alpha.requires_grad
    x = torch.randn(3, 20, MODEL, dtype=torch.float64)
    evaluated, _ = module(x, x, x, need_weights=False)
    torch.testing.assert_close(evaluated, by_equation(module, x, weights=torch.full((2, 4), 0.25)))
    module.train()
    for seed in (1, 2):
        torch.manual_seed(seed)
        actual, _ = module(x, x, x, need_weights=False)
        torch.manual_seed(seed)
        torch.testing.assert_close(actual, by_equation(module, x, weights=module.kappa_alpha()))
        assert not torch.allclose(actual, evaluated)
    draws = torch.stack([torch.cat(module.kappa_alpha()) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), torch.full((8,), 0.25).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(draws.var(0), torch.full((8,), 3 / (4**2 * 5)).double(), atol=0.005, rtol=0)
    assert abs(torch.corrcoef(draws[:, [0, 4]].T)[0, 1]) < 0.1  # κ and α are drawn each by themselves


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_branch_weights_begin_on_the_simplex(form, random, softmax):
    module = block(form, random_init=random, softmax=softmax)
    for weights, plain in zip(module.kappa_alpha(), block(form, random_init=random).kappa_alpha()):
        torch.testing.assert_close(weights, plain, atol=0.01, rtol=0)  # those that were drawn
    for _ in range(20):  # some draws have a branch of weight 0, whose logarithm is not finite
        module.reset_branch_weights(random)
        assert torch.isfinite(module.kappa).all() and torch.isfinite(module.alpha).all()
    for weights in module.kappa_alpha():
        assert weights.min() >= 0
        torch.testing.assert_close(weights.sum().item(), 1.0, atol=1e-6, rtol=0)
        assert (weights.max() - weights.min() > 0.01) == random


# layers and models

DECODERS = ["encoder_decoder", "self", "both", "both_halves"]
RESIDUALS = ["per_branch", "none"]


@pytest.mark.parametrize("norm", [{}, PRE_NORM], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("branched", DECODERS)
def test_decoder_layer_is_two_sublayers(build, branched, norm):
    sizes = {"branched_attention": branched, "branches": 1, "decoder_ffn_embed_dim": 49}
    model = build("weighted_transformer_base", **sizes, **norm).double()
    assert model.encoder.layers[0].self_attn.fc1.out_features == 32
    layer = model.decoder.layers[0]
    assert isinstance(layer.self_attn, BranchedAttention) == (branched != "encoder_decoder")
    assert isinstance(layer.encoder_attn, BranchedAttention) == (branched != "self")
    widths = [a.fc1.out_features for a in (layer.self_attn, layer.encoder_attn) if isinstance(a, BranchedAttention)]
    assert widths == {"both": [49, 49], "both_halves": [24, 25]}.get(branched, [49])
    y, encoder_out = torch.randn(2, 6, 3, MODEL, dtype=torch.float64)
    actual, _, _ = layer(y, encoder_out, self_attn_mask=future(6))
    for attention, ln, key, options in (
        (layer.self_attn, layer.self_attn_layer_norm, None, {"attn_mask": future(6)}),
        (layer.encoder_attn, layer.encoder_attn_layer_norm, encoder_out, {}),
    ):
        query = ln(y) if norm else y
        key = query if key is None else key
        y = y + attention(query, key, key, need_weights=False, **options)[0]
        y = y if norm else ln(y)
    torch.testing.assert_close(actual, y)


@pytest.fixture
def masks(monkeypatch):
    """Dropout multiplies by these, in the order in which it has drawn them."""
    drawn = []

    def forward(module, x, inplace=False):
        if not module.training or not module.p:
            return x
        drawn.append(torch.bernoulli(torch.full_like(x, 1 - module.p)) / (1 - module.p))
        return x * drawn[-1]

    monkeypatch.setattr(Dropout, "forward", forward)
    return drawn


FORMS_WITH_DROPOUT = {
    "the base": ("vaswani_transformer_base", {}, 2, 3),
    "shared": ("weighted_transformer_base", {"branch_residual": "shared"}, 2, 3),
    "per_branch": ("weighted_transformer_base", {}, 2, 3),
    "per_branch, encoder_decoder": ("weighted_transformer_base", {"branched_attention": "encoder_decoder"}, 2, 3),
    # One residual connection, one mask.
    "none": ("weighted_transformer_base", {"branch_residual": "none"}, 1, 2),
}


@pytest.mark.parametrize("norm", [{}, PRE_NORM], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("form", FORMS_WITH_DROPOUT)
def test_dropout_stands_where_the_base_has_it(build, masks, form, norm):
    """As many masks in a layer as in the base's, each on what is added to the residual stream, in values and gradients.

    Drawn anew each time: layers are run first, and the equations take their masks.
    """
    arch, options, in_encoder, in_decoder = FORMS_WITH_DROPOUT[form]
    model = build(arch, dropout=0.5, branch_weights_init="random", **options, **norm).double().train()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)

    def added(attention, query, key=None, causal=False):
        if isinstance(attention, ResidualBranchedAttention):
            return by_equation(attention, query, key, causal, (masks.pop(0), masks.pop(0)))
        return masks.pop(0) * by_equation(attention, query, key, causal)

    def sublayer(x, ln, attention, **others):
        return x + added(attention, ln(x), **others) if norm else ln(x + added(attention, x, **others))

    def with_ffn(x, layer):
        """Vaswani et al. 2017, eq. 2, after an attention that does not contain it."""
        if layer.fc1 is None:
            return x
        ln, own = layer.final_layer_norm, (layer.fc1.weight.T, layer.fc1.bias, layer.fc2.weight.T, layer.fc2.bias)
        mask = masks.pop(0)
        return x + mask * equations.ffn(ln(x), *own) if norm else ln(x + mask * equations.ffn(x, *own))

    x = torch.randn(5, 2, MODEL, dtype=torch.float64, requires_grad=True)
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    actual = encoder(x, None)
    assert len(masks) == in_encoder
    if form != "shared":  # test_heads.py has its equations
        expected = with_ffn(sublayer(x, encoder.self_attn_layer_norm, encoder.self_attn), encoder)
        assert_same_with_gradients(actual, expected, encoder, x)
        assert not masks
    masks.clear()
    encoder_out = torch.randn(4, 2, MODEL, dtype=torch.float64)
    actual, _, _ = decoder(x, encoder_out, self_attn_mask=future(5))
    assert len(masks) == in_decoder
    if form != "shared":
        expected = sublayer(x, decoder.self_attn_layer_norm, decoder.self_attn, causal=True)
        expected = sublayer(expected, decoder.encoder_attn_layer_norm, decoder.encoder_attn, key=encoder_out)
        expected = with_ffn(expected, decoder)
        assert_same_with_gradients(actual, expected, decoder, x)


CACHED = [{"branch_weights": "softmax"}, {"branches": 2}, {"top_branches": 2}]


@pytest.mark.parametrize("options", CACHED, ids=str)
@pytest.mark.parametrize("branched", DECODERS)
@pytest.mark.parametrize("residual", RESIDUALS)
def test_cached_decoding_equals_full(build, batch, residual, branched, options):
    """A token at a time, until there were enough to multiply the weights first."""
    options = {"branched_attention": branched, "branch_residual": residual, "branch_weights_init": "random", **options}
    model = build("weighted_relative_transformer_base", **options).double()
    assert_decodes_word_by_word(model, model.encoder(batch["src_tokens"][:1], batch["src_lengths"][:1]), 12)


@pytest.mark.parametrize("branched", DECODERS)
@pytest.mark.parametrize("residual", RESIDUALS)
def test_parameters_are_those_of_the_base_but_for_branch_weights_and_biases(build, residual, branched):
    def count(arch, **options):
        return sum(p.numel() for p in build(arch, **options).parameters())

    layers, d, d_ff, blocks = 2, 16, 32, 4
    # b2_i, or as in the base the biases of W^O and W2 and the FFN's LayerNorm
    biases = (HEADS if residual == "none" else 4) * d
    difference = blocks * (2 * HEADS + biases - 4 * d)  # κ and α beside them
    if branched.startswith("both"):  # a block more in each layer of the decoder; the base has the bias of its W^O
        difference += layers * (2 * HEADS + biases - d)
    if branched == "both":  # and an FFN
        difference += layers * (2 * d * d_ff + d_ff)
    weighted = count("weighted_transformer_base", branched_attention=branched, branch_residual=residual)
    assert weighted == count("vaswani_transformer_base") + difference


def test_weights_that_never_learn_train_with_any_optimizer(build, batch):
    model = build("weighted_transformer_base", branch_weights="random", optimizer="adam").train()
    model.set_num_updates(1)
    model(**batch)[0].sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.endswith(("kappa", "alpha")) != parameter.requires_grad


def test_training_without_an_optimizer_for_branch_weights_is_refused(build):
    model = build("weighted_transformer_base")
    model.set_num_updates(1)  # not while training
    with pytest.raises(ValueError, match="--optimizer fused_adam"):
        model.train().set_num_updates(1)
    build("weighted_transformer_base").train().set_num_updates(1)  # a checkpoint's, before there is an optimizer
    with pytest.raises(ValueError, match="--optimizer fused_adam"):
        build("weighted_transformer_base").train().set_num_updates(0)


def test_a_second_derivative_is_refused():
    x = torch.randn(5, MODEL, requires_grad=True)
    (gradient,) = torch.autograd.grad(InverseDeviation.apply(x, 1e-5).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("of", [BranchedAttention, ResidualBranchedAttention])
def test_torch_compiles_it(of):
    module, x = block(of), torch.randn(5, 2, MODEL, dtype=torch.double, requires_grad=True)
    compiled = torch.compile(module, backend="aot_eager")
    assert_same_with_gradients(compiled(x, x, x)[0], module(x, x, x)[0], module, x)
