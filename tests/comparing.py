"""Attention beside the equations, and comparison of outputs, gradients and hypotheses."""

import functools

import torch

import equations
from support import EOS


def future(length):
    """A mask: −inf where a query may not look."""
    return torch.full((length, length), float("-inf"), dtype=torch.double).triu(1)


def heads_by_equation(module, query, key, padding=None, causal=False):
    """The heads [T, B, h, d_v] of attention `module` and their weights [B, h, T, S], one sentence and head at a time.

    query [T, B, d], key [S, B, d], padding [B, S]; causal: no query sees a later position. In a module with a `radius`
    no query sees a key farther away.
    """
    sides = ((module.q_proj, query), (module.k_proj, key), (module.v_proj, key))
    q, k, v = (projection(x).unflatten(2, (module.num_heads, -1)) for projection, x in sides)
    radius = getattr(module, "radius", len(query) + len(key))

    def one(b, head):
        def seen(i):
            near = range(max(0, i - radius), min(len(key), (i if causal else i + radius) + 1))
            return [j for j in near if padding is None or not padding[b, j]]

        own = q[:, b, head], k[:, b, head], v[:, b, head]
        if not hasattr(module, "distance"):
            return equations.attention(*own, seen)
        tables = ((module.relative_keys, 2), (module.relative_values, 2), (module.relative_scalars, 1))
        tables = [table[head] if table is not None and table.dim() > shared else table for table, shared in tables]
        return equations.relative_attention(*own, *tables[:2], module.distance, seen, tables[2])

    sentences = [[one(b, head) for head in range(module.num_heads)] for b in range(query.size(1))]
    heads = torch.stack([torch.stack([z for z, _ in sentence], dim=1) for sentence in sentences], dim=1)
    return heads, torch.stack([torch.stack([weights for _, weights in sentence]) for sentence in sentences])


def comparison(module, query, key, padding, heads, weights, causal=False, read=1):
    """A function compare() that checks the outputs, weights and gradients of attention `module` against these.

    It calls `module` with and without need_weights. read [T, B, 1]: 1 for outputs that count, 0 for others.
    """
    expected, inputs = module.out_proj(heads.flatten(2)), [query, *module.parameters()] + [key] * (key is not query)
    direction = torch.randn_like(query) * read
    gradients = torch.autograd.grad((expected * direction).sum(), inputs)
    of_weights = read if isinstance(read, int) else read.transpose(0, 1)[:, None]  # [B, 1, T, 1]

    def compare():
        for need in (False, True):
            options = {"need_weights": False, "need_head_weights": need, "key_padding_mask": padding}
            output, found = module(query, key, key, attn_mask=future(len(query)) if causal else None, **options)
            torch.testing.assert_close(output * read, expected * read)
            torch.testing.assert_close(torch.autograd.grad((output * direction).sum(), inputs), gradients)
        torch.testing.assert_close(found.transpose(0, 1) * of_weights, weights * of_weights)

    return compare


def assert_decodes_word_by_word(model, encoder_out, words):
    """The decoder gives with a cache what it gives at once, while hypotheses change their places as in beam search.

    Half-way there is one fewer, as when a sentence has ended.
    """
    rows = encoder_out["encoder_out"][0].size(1)
    torch.manual_seed(3)
    tokens, state = torch.full((rows, 1), EOS), {}
    for word in range(words):
        cached, _ = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)
        full, _ = model.decoder(tokens, encoder_out=encoder_out)
        torch.testing.assert_close(cached, full[:, -1:])
        order = torch.randint(0, rows, (max(1, rows - (word == words // 2)),))
        rows = len(order)
        model.decoder.reorder_incremental_state_scripting(state, order)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
        tokens = torch.cat([tokens[order], torch.randint(4, 50, (rows, 1))], dim=1)


def assert_same_with_gradients(actual, expected, module, x):
    """Compares outputs of `module` for x, and the gradients of a random direction by x and by every parameter."""
    torch.testing.assert_close(actual, expected)
    inputs = {"x": x, **dict(module.named_parameters())}
    direction = torch.randn_like(expected)
    losses = ((y * direction).sum() for y in (actual, expected))
    ours, theirs = (torch.autograd.grad(loss, list(inputs.values()), retain_graph=True) for loss in losses)
    for name, one, other in zip(inputs, ours, theirs):
        torch.testing.assert_close(one, other, msg=functools.partial("{}: {}".format, name))
        assert name.endswith("k_proj.bias") or other.abs().max() > 0, name


def randomise(model, seed):
    """`model` with other weights, so that no bias is zero and could be missing unnoticed. κ and α stay."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "output_projection" not in name and not hasattr(parameter, "param_group"):
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.decoder.output_projection.weight.data[EOS] *= 2  # some end early
    return model


def assert_same(found, expected):
    """The same hypotheses of fairseq's generator, with their scores and attention."""
    for ours, theirs in zip(found, expected, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        for a, b in zip(ours, theirs, strict=True):
            for name in ("score", "positional_scores", "attention"):
                torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-5, check_dtype=False)
            # These are pairs of positions, or each position's attention in six decimals.
            alignments = (torch.tensor([[float(value) for value in pair] for pair in h["alignment"]]) for h in (a, b))
            torch.testing.assert_close(*alignments, atol=2e-6, rtol=0)


def words(found):
    return [h["tokens"].tolist() for hypotheses in found for h in hypotheses]
