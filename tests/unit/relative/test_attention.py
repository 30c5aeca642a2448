"""Relative positions against a loop over sentences, heads and pairs of positions."""

import pytest
import torch

from user_dir.relative import kernel as relative_kernel
from user_dir.relative.attention import RelativeMultiheadAttention, by_distance

from comparing import assert_decodes_word_by_word, comparison, future, heads_by_equation
from support import EOS, PAD, PRE_NORM

HEADS, MODEL = 2, 8


def build_attention(k, kind="self_attention", **options):
    torch.manual_seed(1)
    module = RelativeMultiheadAttention(MODEL, HEADS, distance=k, **{kind: True}, **options).double()
    if module.relative_scalars is not None:  # 0 at first
        torch.nn.init.normal_(module.relative_scalars)
    return module


TABLES = [
    {"keys": True, "values": True, "shared": False, "key_dim": 3, "value_dim": 5},
    {"keys": True, "values": True, "shared": True},
    {"keys": True, "values": False, "shared": False},
    {"keys": False, "values": True, "shared": True},
    {"keys": False, "values": False, "scalars": True, "shared": False},
    {"keys": False, "values": False, "scalars": True, "shared": True},
]
every_kind_of_table = pytest.mark.parametrize("tables", TABLES, ids=lambda t: "+".join(name for name in t if t[name]))
KINDS = [("encoder", "left"), ("encoder", "right"), ("encoder", ""), ("decoder", ""), ("decoder", "right")]
LENGTHS = [(3, 5), (5, 4), (5, 5), (6, 5), (9, 2), (9, 1), (5, 0), (1, 2)]  # below, at and beyond k
# Each length with three kinds and three tables, so that any two values of the three lists meet or nearly so.
CASES = [(*LENGTHS[n], *KINDS[(n + 2 * m) % 5], TABLES[(3 * n + m) % 6]) for n in range(8) for m in range(3)]


@pytest.mark.parametrize("length, k, kind, padded, tables", CASES, ids=str)
def test_values_and_gradients_equal_the_equations(kind, padded, length, k, tables, monkeypatch):
    """In one piece; and a few queries of one head and sentence at a time, with weights kept and computed again."""
    module = build_attention(k, **tables)
    x = torch.randn(length, 3, MODEL, dtype=torch.double, requires_grad=True)
    padding = torch.zeros(3, length, dtype=torch.bool)
    if padded and length > 1:
        padding[0, 0 if padded == "left" else -1] = True
        padding[1, slice(0, 2) if padded == "left" else slice(-2, None)] = length > 2
    causal = kind == "decoder"
    expected = heads_by_equation(module, x, x, padding, causal)
    compare = comparison(module, x, x, padding if padded else None, *expected, causal)
    for pieces in ({}, {"SCORES": 1, "QUERIES": 1}, {"SCORES": 40, "QUERIES": 2, "KEPT": 0}, {"KEPT": 0}):
        for name, value in pieces.items():
            monkeypatch.setattr(relative_kernel, name, value)
        compare()


@every_kind_of_table
def test_cached_self_attention_equals_full(tables):
    """Five times k."""
    module, x = build_attention(3, **tables), torch.randn(15, 3, MODEL, dtype=torch.double)
    full, full_weights = module(x, x, x, attn_mask=future(15))
    for need_weights in (False, True):
        state, outputs = {}, []
        for seen, part in enumerate(x.split(1), start=1):
            output, weights = module(part, part, part, incremental_state=state, need_weights=need_weights)
            if need_weights:
                torch.testing.assert_close(weights, full_weights[:, seen - 1 : seen, :seen])
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs), full)


@pytest.mark.parametrize("k", [0, 1, 4])
def test_rows_of_successive_distances(k):
    """Before, within, around and after −k … k; within them a view."""
    table = torch.randn(2, 2 * k + 1, 3)
    for start in range(-7, 8):
        for stop in range(start + 1, 9):
            expected = table[:, torch.arange(start, stop).clamp(-k, k) + k]
            assert torch.equal(by_distance(table, start, stop), expected)
    assert by_distance(table, -k, k + 1).data_ptr() == table.data_ptr()
    assert by_distance(None, 0, 1) is None


@pytest.mark.parametrize("k", [1, 3, 9])
@every_kind_of_table
def test_distances_from_target_to_source(tables, k):
    """Encoder–decoder attention: of the source's words, wherever their padding is, at once and from the cache."""
    module = build_attention(k, "encoder_decoder_attention", **tables)
    module.set_beam_size(2)  # sentences 0 and 1 are equal, and 2 and 3
    query, key = (torch.randn(length, 4, MODEL, dtype=torch.double, requires_grad=True) for length in (5, 6))
    with torch.no_grad():
        key[:, 1::2] = key[:, ::2]
    padding = torch.tensor([[True, True] + [False] * 4] * 2 + [[False] * 5 + [True]] * 2)
    words = [slice(2, None), slice(2, None), slice(0, 5), slice(0, 5)]
    expected_heads, expected_weights = [], torch.zeros(4, HEADS, 5, 6, dtype=torch.double)
    for b, own in enumerate(words):
        heads, weights = heads_by_equation(module, query[:, b : b + 1], key[own, b : b + 1])
        expected_heads.append(heads)
        expected_weights[b, :, :, own] = weights[0].detach()
    heads = torch.cat(expected_heads, 1)
    comparison(module, query, key, padding, heads, expected_weights)()
    for need_weights in (False, True):
        options = {"key_padding_mask": padding, "need_weights": need_weights, "need_head_weights": need_weights}
        state, steps = {}, []
        for part in query.split(1):
            steps.append(module(part, key, key, incremental_state=state, static_kv=True, **options))
        torch.testing.assert_close(torch.cat([step for step, _ in steps]), module.out_proj(heads.flatten(2)))
    torch.testing.assert_close(torch.cat([of_step for _, of_step in steps], dim=2).transpose(0, 1), expected_weights)


def test_weights_of_hypotheses_that_change_places():
    module = build_attention(2, "encoder_decoder_attention")
    key, order = torch.randn(4, 3, MODEL, dtype=torch.double), torch.tensor([2, 0, 1])
    padding = torch.tensor([[True, True, False, False], [False] * 4, [False] * 3 + [True]])
    query, state = torch.randn(2, 3, MODEL, dtype=torch.double), {}
    _, expected = module(query[:, order], key[:, order], key[:, order], key_padding_mask=padding[order])
    module(query[:1], key, key, key_padding_mask=padding, incremental_state=state, static_kv=True)
    module.reorder_incremental_state(state, order)
    _, weights = module(query[1:, order], key, key, incremental_state=state, static_kv=True)
    torch.testing.assert_close(weights, expected[:, 1:])


def test_scalars_of_half_precision_learn_from_sums_of_float32():
    """Thousands of scores share one scalar."""
    module, gradients = build_attention(2, **TABLES[4]), []
    q, k, v, direction = torch.randn(4, 2, HEADS, 200, 4).bfloat16()
    for dtype in (torch.double, torch.bfloat16):
        heads, _ = module.to(dtype).attend(q.to(dtype), k.to(dtype), v.to(dtype), None, need_weights=False)
        (gradient,) = torch.autograd.grad((heads * direction).sum(), module.relative_scalars)
        gradients.append(gradient.double())
    assert (gradients[1] - gradients[0]).norm() < 0.03 * gradients[0].norm()


def test_a_row_that_sees_only_padding_is_finite():
    module, x = build_attention(2), torch.randn(5, 3, MODEL, dtype=torch.double, requires_grad=True)
    padding = torch.tensor([[True] * 5, [False] * 5, [True] * 4 + [False]])
    output, _ = module(x, x, x, key_padding_mask=padding, need_weights=False)
    output.sum().backward()
    assert torch.isfinite(output).all() and torch.isfinite(x.grad).all()


# whole models


EVERYWHERE = {"relative_attention": "all"}


@pytest.fixture(params=[{}, {**PRE_NORM, **EVERYWHERE}, {**EVERYWHERE, "relative_positions": "scalars"}], ids=str)
def model(request, build):
    model = build("relative_transformer_base", relative_distance=3, **request.param).double()
    for name, parameter in model.named_parameters():
        if name.endswith("relative_scalars"):  # 0 at first
            torch.nn.init.normal_(parameter)
    return model


def test_tables_are_where_the_options_say(build):
    def tables(size, **options):
        attention = build(f"relative_transformer_{size}", **options).encoder.layers[0].self_attn
        return {name: tuple(value.shape) for name, value in attention.state_dict().items() if "relative" in name}

    assert tables("base") == {"relative_keys": (4, 33, 4), "relative_values": (4, 33, 4)}
    assert tables("big") == {"relative_keys": (17, 4), "relative_values": (17, 4)}
    assert tables("base", relative_positions="keys") == {"relative_keys": (4, 33, 4)}
    assert tables("base", relative_positions="values", relative_distance=1) == {"relative_values": (4, 3, 4)}
    assert tables("base", relative_positions="scalars") == {"relative_scalars": (4, 33)}
    assert tables("big", relative_positions="scalars") == {"relative_scalars": (17,)}
    assert tables("base", relative_positions="neither") == {}
    names = [name for name, _ in build("relative_transformer_base").named_parameters() if "relative" in name]
    assert len(names) == 8 and all(".self_attn." in name for name in names)  # 2 tables × (2 + 2) layers
    names = [name for name, _ in build("relative_transformer_base", **EVERYWHERE).named_parameters()]
    assert sum(".encoder_attn.relative" in name for name in names) == 4
    for form in ("per_branch", "shared", "none"):  # also where that attention has branches
        options = {**EVERYWHERE, "branched_attention": "encoder_decoder", "branch_residual": form}
        names = [name for name, _ in build("weighted_relative_transformer_base", **options).named_parameters()]
        assert sum(".encoder_attn.relative" in name for name in names) == 4


def test_initial_tables_have_glorots_variance():
    """Scalars begin at 0."""
    torch.manual_seed(1)
    scalars = RelativeMultiheadAttention(MODEL, HEADS, distance=3, self_attention=True, **TABLES[4]).relative_scalars
    assert not scalars.any()
    for shared in (True, False):
        module = RelativeMultiheadAttention(512, 8, distance=16, shared=shared, self_attention=True)
        for table in (module.relative_keys, module.relative_values):
            assert abs(table.std() / (2 / (33 + 64)) ** 0.5 - 1) < 0.05
        assert not torch.equal(module.relative_keys, module.relative_values)


def test_shifting_a_sentence_by_padding_changes_nothing(model, batch):
    source, target = batch["src_tokens"][:1], batch["prev_output_tokens"][:1]
    expected, _ = model(source, None, target)
    pad = torch.full((1, 9), PAD)
    for shifted in (torch.cat([pad, source], 1), torch.cat([source, pad], 1), torch.cat([pad, source, pad], 1)):
        torch.testing.assert_close(model(shifted, None, target)[0], expected)
    if not hasattr(model.decoder.layers[0].encoder_attn, "distance"):  # where the target begins counts there
        logits, _ = model(source, None, torch.cat([pad, target], 1))
        torch.testing.assert_close(logits[:, 9:], expected)


def test_position_embeddings_are_added_only_if_asked(build):
    """Order is seen by a bag-of-words model only where there are positions of some kind; scale and dropout stay."""
    words = torch.tensor([[5, 6, 7, 8, EOS]])
    for positions in ("keys_and_values", "neither"):
        for absolute in ("add", "omit"):
            model = build("relative_transformer_base", relative_positions=positions, absolute_positions=absolute)
            for side in (model.encoder, model.decoder):
                assert (side.embed_positions is None) == (absolute == "omit")
                assert (side.embed_scale, side.dropout_module.p) == (4, 0.1)
            outputs = [model.encoder(x, None)["encoder_out"][0].sum(0) for x in (words, words[:, [1, 3, 0, 2, 4]])]
            assert torch.allclose(*outputs, atol=1e-5) == (positions == "neither" and absolute == "omit")


def test_with_sinusoids_and_no_tables_it_is_the_plain_transformer(build, batch):
    plain = build("vaswani_transformer_base")
    model = build("relative_transformer_base", relative_positions="neither", absolute_positions="add")
    assert torch.equal(model(**batch)[0], plain(**batch)[0])


def test_decoding_far_beyond_k(model):
    """Lengths of ten times k, with sources as long."""
    source = torch.randint(4, 50, (5, 30))
    source[1, :4] = source[2, -3:] = PAD
    assert_decodes_word_by_word(model, model.encoder(source, None), 32)
