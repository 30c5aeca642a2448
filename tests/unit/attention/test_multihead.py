"""Multi-head attention against a loop over sentences, heads and positions."""

import pytest
import torch
from fairseq import modules

from user_dir.attention.cache import cache_of
from user_dir.attention.masks import visible_keys
from user_dir.attention.multihead import WIDENED, MultiheadAttention, fused_attention
from user_dir.relative import kernel as relative_kernel
from user_dir.relative.attention import RelativeMultiheadAttention

from comparing import comparison, future, heads_by_equation
from support import EOS, PAD

HEADS, MODEL = 2, 8
KINDS = {MultiheadAttention: {}, RelativeMultiheadAttention: {"distance": 3, "values": False}}


@pytest.mark.parametrize("key_dim, value_dim", [(None, None), (3, 4), (4, 7)])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_values_and_gradients_equal_the_equation(kind, key_dim, value_dim):
    torch.manual_seed(1)
    kinds = {"self_attention": True}
    if kind == "encoder-decoder":  # whose sides may have different widths
        kinds = {"encoder_decoder_attention": True, "kdim": 6, "vdim": 6}
    module = MultiheadAttention(MODEL, HEADS, key_dim, value_dim, **kinds).double()
    query = torch.randn(4, 3, MODEL, dtype=torch.double, requires_grad=True)
    key = torch.randn(5, 3, 6, dtype=torch.double, requires_grad=True) if kind == "encoder-decoder" else query
    padding = torch.zeros(3, len(key), dtype=torch.bool)
    padding[0, -1] = True
    if kind != "decoder":
        padding[1, :2] = True  # fairseq pads sources on the left
    causal = kind == "decoder"
    comparison(module, query, key, padding, *heads_by_equation(module, query, key, padding, causal), causal)()


@pytest.mark.parametrize("key_dim, value_dim", [(16, 64), (32, 64), (64, 32)])
def test_head_sizes_change_only_the_projections(build, key_dim, value_dim):
    """Vaswani et al. 2017, Table 3, rows B: d_k by itself; h = 4 here."""
    model = build("vaswani_transformer_base", attention_key_dim=key_dim, attention_value_dim=value_dim)
    shapes = {name: tuple(p.shape) for name, p in model.encoder.layers[0].self_attn.named_parameters()}
    assert shapes["q_proj.weight"] == shapes["k_proj.weight"] == (4 * key_dim, 16)
    assert shapes["v_proj.weight"] == (4 * value_dim, 16)
    assert shapes["out_proj.weight"] == (16, 4 * value_dim)


@pytest.mark.parametrize("key_dim, value_dim", [(None, None), (16, None), (None, 16), (128, 32)])
def test_initial_projections_have_glorots_variance(key_dim, value_dim):
    """With fairseq's gain of 1/√2 for q, k and v: a model begins as one whose heads have the usual size."""
    torch.manual_seed(1)
    module = MultiheadAttention(512, 8, key_dim, value_dim, self_attention=True)
    for projection, gain in ((module.q_proj, 0.5), (module.k_proj, 0.5), (module.v_proj, 0.5), (module.out_proj, 1)):
        expected = gain * 2 / (projection.in_features + projection.out_features)
        assert abs(projection.weight.var() / expected - 1) < 0.05
    assert not module.out_proj.bias.any()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("length", [7, WIDENED + 1])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_bfloat16_stays_close(length, kind, training):
    """Below and above the length up to which training computes in float32: heads and gradients, with either mask."""
    torch.manual_seed(1)
    q, k, v, direction = torch.randn(4, 2, HEADS, length, 4, dtype=torch.bfloat16)
    padding = torch.zeros(2, length, dtype=torch.bool)
    padding[0, -3:] = True
    mask = visible_keys(padding, future(length) if kind == "decoder" else None, torch.bfloat16)
    results = []
    for dtype in (torch.float, torch.bfloat16):
        inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            output = fused_attention(*inputs, mask if mask.dtype == torch.bool else mask.to(dtype), 0.0, training)
        assert output.dtype == dtype
        results.append([x.float() for x in (output, *torch.autograd.grad((output * direction).sum(), inputs))])
    torch.testing.assert_close(*results, atol=0.03, rtol=0.03)


def test_no_kernel_is_planned_for_each_length():
    """cuDNN's would be; only a GPU runs it, but the setting exists everywhere."""
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_dropout_zeroes_or_rescales_each_weight(kind, need_weights, monkeypatch):
    """Whether the weights are read or not. Values that are unit vectors show the weights that were used."""
    torch.manual_seed(1)
    options = {"key_dim": 4, "value_dim": 24, "dropout": 0.25, "self_attention": True, **KINDS[kind]}
    module = kind(MODEL, HEADS, **options).double().requires_grad_(False)
    q, k = torch.randn(2, 3, HEADS, 24, 4, dtype=torch.double)
    v = torch.eye(24, dtype=torch.double).expand(3, HEADS, -1, -1)
    dropped, told = module.attend(q, k, v, None, need_weights)
    weights, _ = module.eval().attend(q, k, v, None, need_weights)
    if need_weights:
        torch.testing.assert_close(told, weights)
    zero = dropped == 0
    assert 0.2 < zero.double().mean() < 0.3
    torch.testing.assert_close(dropped, (weights / 0.75).masked_fill(zero, 0))
    monkeypatch.setattr(relative_kernel, "QUERIES", 1)  # at a time; each drops other weights
    zero = module.train().attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), None, need_weights)[0] == 0
    assert 0.2 < zero.double().mean() < 0.3 and (zero[0, 0, 0] != zero[0, 0, 1]).any()


OURS = [(MultiheadAttention, True), (RelativeMultiheadAttention, True), (RelativeMultiheadAttention, False)]


@pytest.mark.parametrize("queries", [64, 20, 1])
@pytest.mark.parametrize("kind, need_weights", OURS)
def test_bfloat16_rounds_results_only(kind, need_weights, queries):
    """Scores and weights keep float32's digits, as in torch's kernel (which every other attention is left to)."""
    torch.manual_seed(1)
    module = kind(MODEL, HEADS, key_dim=32, value_dim=32, self_attention=True, **KINDS[kind])
    k, v = torch.randn(2, 4, HEADS, 64, 32).bfloat16()
    q, direction = torch.randn(2, 4, HEADS, queries, 32).bfloat16()
    results = []
    for dtype in (torch.double, torch.bfloat16):
        module.to(torch.promote_types(dtype, torch.float))
        inputs = [x.to(dtype).requires_grad_() for x in (3 * q, k, v)]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            heads, weights = module.attend(*inputs, None, need_weights, 64 - queries)
        assert heads.dtype == dtype and (weights is not None) == need_weights
        gradients = torch.autograd.grad((heads * direction).sum(), inputs)
        results.append([x.double() for x in (heads, *[weights] * need_weights, *gradients)])
    for expected, found in zip(*results, strict=True):
        assert (found - expected).norm() < 1.01 * 2**-9 * expected.norm()


@pytest.mark.parametrize("options", [{}, {"restricted_attention": "both", "neighbourhood": 5}], ids=str)
@pytest.mark.parametrize("family", ["vaswani_transformer", "relative_transformer"])
def test_padded_tokens_are_not_seen_later(build, batch, family, options):
    """Beginnings of several lengths, padded on the left, decoded step by step while beams change places.

    Without fairseq's position embeddings, which count padding when they decode step by step.
    """
    model = build(f"{family}_base", absolute_positions="omit", **options).double()
    encoder_out = model.encoder(batch["src_tokens"][[0, 0, 0]], batch["src_lengths"][[0, 0, 0]])
    tokens, state = torch.randint(4, 50, (3, 12)), {}
    tokens[0, :3] = tokens[1, :1] = PAD
    for end in range(1, 13):
        full = model.decoder(tokens[:, :end], encoder_out=encoder_out)[0][:, -1]
        step = model.decoder(tokens[:, :end], encoder_out=encoder_out, incremental_state=state)[0][:, -1]
        seen = tokens[:, end - 1] != PAD  # what stands at padding is read nowhere
        torch.testing.assert_close(step[seen], full[seen])
        order = torch.tensor([1, 2, 0])
        model.decoder.reorder_incremental_state_scripting(state, order)
        tokens = tokens[order]


def test_weights_are_those_of_fairseqs_module():
    """The mean over the heads, where those of each are not asked for: for a layer of your own."""
    module = MultiheadAttention(MODEL, HEADS, self_attention=True).double()
    stock = modules.MultiheadAttention(MODEL, HEADS, self_attention=True).double()
    stock.load_state_dict(module.state_dict())
    x = torch.randn(4, 3, MODEL, dtype=torch.double)
    torch.testing.assert_close(module(x, x, x)[1], stock(x, x, x)[1])


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_mask_of_bools_hides_keys(kind, need_weights):
    """As in torch, and so in fairseq's module."""
    module = kind(MODEL, HEADS, self_attention=True, **KINDS[kind]).double()
    x, mask = torch.randn(4, 3, MODEL, dtype=torch.double), future(4)
    expected, found = (module(x, x, x, attn_mask=m, need_weights=need_weights)[0] for m in (mask, mask.isinf()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("unread", [{"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_what_would_not_be_read_is_refused(unread):
    """`value` is not, either, so that an attention of neither kind would take the keys for values."""
    with pytest.raises(TypeError, match=next(iter(unread))):
        MultiheadAttention(MODEL, HEADS, self_attention=True, **unread)
    with pytest.raises(ValueError, match="one of self_attention"):
        MultiheadAttention(MODEL, HEADS)


def test_a_cached_call_takes_one_query():
    module, x = MultiheadAttention(MODEL, HEADS, self_attention=True), torch.randn(2, 3, MODEL)
    with pytest.raises(ValueError, match="one query at a time"):
        module(x, x, x, incremental_state={})


@pytest.mark.parametrize("tied", [True, False])
def test_beams_of_a_sentence_share_keys_only_where_they_are_the_same(tied):
    """fairseq announces a beam size; a later caller that decodes without beams must not be taken for one."""
    torch.manual_seed(1)
    module = MultiheadAttention(MODEL, HEADS, encoder_decoder_attention=True).double()
    source = torch.randn(5, 2, MODEL, dtype=torch.double).repeat_interleave(3, dim=1)  # 2 sentences × 3 beams
    if not tied:
        source[0, 1] += 1
    padding = torch.tensor([[False] * 5, [True] + [False] * 4]).repeat_interleave(3, dim=0)
    query = torch.randn(1, 6, MODEL, dtype=torch.double)
    expected, expected_weights = module(query, source, source, key_padding_mask=padding, static_kv=True)
    module.set_beam_size(3)
    state = {}
    for _ in range(2):  # fills the cache, then reads it
        output, weights = module(query, source, source, padding, incremental_state=state, static_kv=True)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(weights, expected_weights)
    assert len(cache_of(module, state).k) == (2 if tied else 6)


ORDERS = [
    [5, 3, 3],  # a sentence has ended, its beams with it; the other's have changed places
    [2, 0, 0, 4, 5, 3],
    [3, 4, 5, 5, 5, 3, 0, 1, 2],
    [1, 2, 5],  # as many rows as a sentence has beams, but of two sentences
    [1, 5, 2],  # and one of the other between them
    [0, 2, 3, 4, 5],
    [1, 4],
    [4],
]


@pytest.mark.parametrize("order", map(torch.tensor, ORDERS), ids=map(str, ORDERS))
def test_rows_that_share_keys_may_go_one_by_one(order):
    """Six sentences without beams may be two repeated three times, which end when they will."""
    torch.manual_seed(1)
    module = MultiheadAttention(MODEL, HEADS, encoder_decoder_attention=True).double()
    module.set_beam_size(3)
    source = torch.randn(5, 2, MODEL, dtype=torch.double).repeat_interleave(3, dim=1)
    padding = torch.tensor([[False] * 5, [True] + [False] * 4]).repeat_interleave(3, dim=0)
    state, rows = {}, torch.arange(6)
    for chosen in (rows, order, torch.arange(len(order))):
        module.reorder_incremental_state(state, chosen)
        rows = rows[chosen]
        query = torch.randn(1, len(rows), MODEL, dtype=torch.double)
        expected, expected_weights = module(query, source[:, rows], source[:, rows], key_padding_mask=padding[rows])
        output, weights = module(query, source[:, rows], source[:, rows], padding[rows], state, static_kv=True)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(weights, expected_weights)


def test_each_order_is_compared_anew(build, batch):
    """One of three sentences ends first, then a row of each of the others."""
    model, tokens, state, beams = build("vaswani_transformer_base").double(), torch.full((6, 1), EOS), {}, []
    model.set_beam_size(2)
    encoder_out = model.encoder(batch["src_tokens"][:3].repeat_interleave(2, 0), None)
    for order in (torch.arange(6), torch.arange(4), torch.tensor([1, 2])):
        model.decoder.reorder_incremental_state_scripting(state, order)
        encoder_out, tokens = model.encoder.reorder_encoder_out(encoder_out, order), tokens[order]
        expected, _ = model.decoder(tokens, encoder_out=encoder_out)
        found, _ = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)
        torch.testing.assert_close(found, expected[:, -1:])
        beams.append(cache_of(model.decoder.layers[0].encoder_attn, state).beams)
        tokens = torch.nn.functional.pad(tokens, (0, 1), value=5)
    assert beams == [2, 2, 1]
