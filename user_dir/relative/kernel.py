"""Eq. 3 and 4 of Shaw et al. 2018 for all heads at once, and their derivative by hand.

x_i W^Q w^Kᵀ are 2k+1 scores per query; each e_ij adds the one of its distance (`add_by_distance`). Σ_j α_ij a^V_ij is
(α_i summed by distance) w^V (`sum_by_distance`). Both need n·(2k+1) numbers per head; gathering a_ij needs n·n·d_z.

Scores and weights exist for a block of queries at a time. Keys that are k or more positions away from all queries of a
block get one number a query, without an index. For long sentences no weights are kept: the derivative computes them
again (as in Dao et al. 2022, https://arxiv.org/abs/2205.14135), with the same random numbers for dropout. So memory
grows with n, not n², except for a decoder's mask, [T, T] or, in a batch with padding, [B, T, T].

Shapes: h heads, B batch, T queries, S keys, d_k and d_v per head, r = 2·radius+1 rows of a table. Heads come first in
memory, [h, B, …]: products with keys and values are then one batch of p ≤ h·B matrices, those with the tables one of h,
and neither needs a further copy. Queries, keys and values in half precision are widened in the copy that does this, to
the type of the tables: scores, weights and their sums keep float32's digits, as inside torch's kernels.
"""

import functools
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from ..attention.masks import additive
from ..kernels.dropout import random_mask

SCORES = 2**19  # computed at a time on a CPU, because so many fit its cache
QUERIES = 64  # in a block
KEPT = 256  # with at most this many keys weights are kept for the derivative, else computed again


class Block(NamedTuple):
    """Queries that are computed together."""

    queries: slice
    seen: slice  # the keys up to the last that any of them may see
    near: slice  # the keys among which their distances differ; those before have the first row, those after the last
    index: Tensor  # [T·S]: index_of_rows of `queries` and `near`


class RelativeAttention(torch.autograd.Function):
    """z of eq. 3 from projected queries, keys and values.

    With ∂ for the loss's derivative: ∂α_ij = ∂z_i (v_j + a^V_ij)ᵀ, plus that of a loss of alignments, and
    ∂e_ij = α_ij (∂α_ij − Σ_j' α_ij' ∂α_ij'), so that ∂α is made as e is and ∂q from ∂e as z from α. ∂w^K is ∂e summed
    by distance times the queries, ∂w^V is α summed by distance times ∂z.
    """

    @staticmethod
    def forward(
        ctx, q, k, v, mask, table_k, table_v, radius: int, first_query: int, dropout: float, need_weights: bool
    ):
        """See MultiheadAttention.attend; table_k [h, r, d_k] and table_v [h, r, d_v] of at least float32, or None.

        Returns z [B, h, T, d_v] and, if needed, the weights [B, h, T, S] before dropout, both in the type of q.
        """
        ctx.narrow, wide, positions = q.dtype, torch.promote_types(q.dtype, torch.float32), k.size(2)
        q, k, v = (heads_first(x, wide) for x in (q, k, v))  # [h, B, T, d_k], [h, B, S, d_k], [h, B, S, d_v]
        q.mul_(q.size(3) ** -0.5)
        mask = None if mask is None else additive(mask, wide)
        ctx.blocks = blocks(q.size(2), positions, mask, radius, first_query, q.device)
        if mask is not None:
            mask = mask.expand(q.size(1), len(q), q.size(2), -1).transpose(0, 1)  # [h, B, T, S]
        ctx.dropout, ctx.seed = dropout, torch.randint(2**62, ()).item() if dropout else 0
        z = q.new_empty(*q.shape[:3], v.size(3))  # [h, B, T, d_v]
        sums = None if table_v is None else q.new_zeros(*q.shape[:3], table_v.size(1))  # [h, B, T, r]
        all_weights = q.new_zeros(*q.shape[:3], positions) if need_weights else None  # [h, B, T, S]
        kept = []
        for group, block, weights, dropped in all_blocks(q, k, mask, table_k, ctx):
            part(z, group, block.queries).baddbmm_(dropped, part(v, group, block.seen), beta=0)
            sum_by_distance(dropped, block, part(sums, group, block.queries))
            if positions <= KEPT:
                kept += [weights, dropped]
            if need_weights:
                part(all_weights, group, block.queries)[..., block.seen] = weights
        if table_v is not None:
            z.flatten(1, 2).baddbmm_(sums.flatten(1, 2), table_v)
        ctx.mask = mask  # save_for_backward refuses one that was made under inference_mode
        ctx.save_for_backward(q, k, v, table_k, table_v, sums, *kept)
        if need_weights:
            all_weights = all_weights.transpose(0, 1).to(ctx.narrow)
        return z.transpose(0, 1).to(ctx.narrow), all_weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_z, grad_weights):
        q, k, v, table_k, table_v, sums_v, *kept = ctx.saved_tensors  # q / √d_k
        grad_z = heads_first(grad_z, q.dtype)  # [h, B, T, d_v]
        grad_weights = None if grad_weights is None else heads_first(grad_weights, q.dtype)  # of a loss of alignments
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        sums_k = None if table_k is None else q.new_zeros(*q.shape[:3], table_k.size(1))  # [h, B, T, r]
        of_table = products(grad_z, table_v)  # [h, B, T, r]
        for group, block, weights, dropped in all_blocks(q, k, ctx.mask, table_k, ctx, kept):
            own_q, own_grad_z = (part(x, group, block.queries) for x in (q, grad_z))
            part(grad_v, group, block.seen).baddbmm_(dropped.mT, own_grad_z)
            grad_e = torch.bmm(own_grad_z, part(v, group, block.seen).mT)  # [p, T', S']
            add_by_distance(grad_e, part(of_table, group, block.queries), block)
            grad_e.mul_(dropped)
            if grad_weights is not None:
                grad_e.addcmul_(weights, part(grad_weights, group, block.queries)[..., block.seen])
            grad_e.addcmul_(weights, grad_e.sum(dim=-1, keepdim=True), value=-1)
            part(grad_q, group, block.queries).baddbmm_(grad_e, part(k, group, block.seen), beta=0)
            part(grad_k, group, block.seen).baddbmm_(grad_e.mT, own_q)
            sum_by_distance(grad_e, block, part(sums_k, group, block.queries))
        if table_k is not None:
            grad_q.flatten(1, 2).baddbmm_(sums_k.flatten(1, 2), table_k)
        grad_q.mul_(q.size(3) ** -0.5)
        grads = (x.transpose(0, 1).to(ctx.narrow) for x in (grad_q, grad_k, grad_v))
        grad_table_k, grad_table_v = (
            None if sums is None else torch.bmm(sums.flatten(1, 2).mT, x.flatten(1, 2))
            for sums, x in ((sums_k, q), (sums_v, grad_z))
        )
        return *grads, None, grad_table_k, grad_table_v, None, None, None, None


def all_blocks(q, k, mask, table_k, ctx, kept=()):
    """Yields each group of heads and sentences and each block, with α and α after dropout [p, T, S].

    α comes from `kept` or is computed; p = heads · sentences of the group.
    """
    h, batch, length, _ = q.shape
    pairs = SCORES * (1 if q.device.type == "cpu" else 32) // (min(length, QUERIES) * k.size(2))
    groups = itertools.product(slices(h, pairs // batch), slices(batch, pairs))
    each = itertools.product(groups, ctx.blocks)
    if kept:
        for (group, block), weights, dropped in zip(each, kept[::2], kept[1::2]):
            yield group, block, weights, dropped
        return
    of_table = products(q, table_k)  # [h, B, T, r]
    generator = torch.Generator(q.device).manual_seed(ctx.seed) if ctx.dropout else None
    for group, block in each:
        weights = torch.bmm(part(q, group, block.queries), part(k, group, block.seen).mT)  # [p, T', S']
        add_by_distance(weights, part(of_table, group, block.queries), block)
        if mask is not None:
            own = mask[*group, block.queries, block.seen]
            weights.view(own.shape).add_(own)
        torch.softmax(weights, dim=-1, out=weights)
        dropped = weights
        if ctx.dropout:
            keep, scale = random_mask(weights, ctx.dropout, generator)
            dropped = weights.mul(keep).mul_(scale)
        yield group, block, weights, dropped


def part(x: Tensor | None, group: tuple[slice, slice], positions: slice) -> Tensor | None:
    """A view [p, T', …] of x [h, B, T, …]: a group of heads and sentences (see `all_blocks`) at `positions`."""
    return None if x is None else x[group].flatten(0, 1)[:, positions]


def add_by_distance(scores: Tensor, of_table: Tensor | None, block: Block) -> None:
    """Adds to each score its query's number for the key's distance: scores [p, T, S], of_table [p, T, r]."""
    if of_table is not None:
        near = scores[..., block.near]
        near.add_(of_table.flatten(1).index_select(1, block.index).view(near.shape))
        scores[..., : block.near.start].add_(of_table[..., :1])
        scores[..., block.near.stop :].add_(of_table[..., -1:])


def sum_by_distance(weights: Tensor, block: Block, sums: Tensor | None) -> None:
    """Adds weights [p, T, S] to sums [p, T, r]."""
    if sums is not None:
        sums.flatten(1).index_add_(1, block.index, weights[..., block.near].flatten(1))
        sums[..., 0].add_(weights[..., : block.near.start].sum(dim=-1))
        sums[..., -1].add_(weights[..., block.near.stop :].sum(dim=-1))


def products(x: Tensor, table: Tensor | None) -> Tensor | None:
    """x_i w_rᵀ for all rows of a table: [h, B, T, d], [h, r, d] → [h, B, T, r]"""
    return None if table is None else torch.bmm(x.flatten(1, 2), table.mT).unflatten(1, x.shape[1:3])


def heads_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, h, S, d] → [h, B, S, d], in that order in memory too"""
    return x.transpose(0, 1).to(dtype, copy=True, memory_format=torch.contiguous_format)


def slices(length: int, size: int) -> list[slice]:
    """Slices of `size`, or of 1, that cover `length` positions."""
    size = max(1, size)
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def blocks(length: int, positions: int, mask: Tensor | None, radius: int, first_query: int, device) -> list[Block]:
    """The blocks of a sentence; on CPUs each without the last keys, if a mask hides them from all its queries."""
    visible, found = None, []
    if mask is not None and mask.size(-2) == length > QUERIES and device.type == "cpu":
        visible = (mask > float("-inf")).sum_to_size(length, positions)
    for queries in slices(length, QUERIES):
        last = [] if visible is None else visible[queries].any(0).nonzero()
        seen = int(last[-1]) + 1 if len(last) else positions
        first, end = first_query + queries.start, first_query + queries.stop
        start = min(max(0, first - radius + 1), seen)
        stop = max(start, min(seen, end - 1 + radius))
        index = index_of_rows(end - first, stop - start, radius, first - start, device)
        found.append(Block(queries, slice(0, seen), slice(start, stop), index))
    return found


def distance_rows(length: int, positions: int, radius: int, first_query: int, device: torch.device) -> Tensor:
    """[T, S]: the row of a table [r, …] for distance s − (first_query + t), clipped to −radius … radius."""
    query = torch.arange(first_query, first_query + length, device=device)[:, None]
    return (torch.arange(positions, device=device) - query).clamp_(-radius, radius).add_(radius)


@functools.lru_cache(maxsize=16)
def index_of_rows(length: int, positions: int, radius: int, first_query: int, device: torch.device) -> Tensor:
    """[T·S]: the indices of `distance_rows` in a flattened [T, r]; cached, because all layers ask for them."""
    rows = distance_rows(length, positions, radius, first_query, device)
    return rows.add_(torch.arange(length, device=device)[:, None] * (2 * radius + 1)).flatten()
