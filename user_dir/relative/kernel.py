"""Eq. 3 and 4 of Shaw et al. 2018 for all heads at once, and their derivative by hand.

x_i W^Q w^Kᵀ are 2k+1 scores, of which each e_ij gets its distance's (`scores`); and Σ_j α_ij a^V_ij is (α_i summed by
distance) w^V (`weighted_values`). Both need n·(2k+1) numbers a head, where a_ij gathered is [n, n, d_z].

Shapes: h heads, B batch, T queries, S keys, d_k and d_v per head, r = 2·radius+1 rows of a table. Heads come first in
memory, [h, B, …]: products with keys and values are then one batch of h·B matrices, those with the tables one of h, and
neither needs a further copy. Queries, keys and values in half precision are widened in the copy that does this, to the
type of the tables: scores, weights and their sums keep float32's digits, as inside torch's kernels.
"""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.masks import additive
from ..attention.multihead import at_least_float32

GROUP = 2**20  # scores computed at a time


class Kept(NamedTuple):
    """What the derivative needs of a group of heads."""

    weights: Tensor  # [h, B, T, S]: α
    dropped: Tensor  # [h, B, T, S]: α after dropout
    by_distance: Tensor | None  # [h, B·T, r]: `dropped` summed by distance


class RelativeAttention(torch.autograd.Function):
    """z of eq. 3 from projected queries, keys and values.

    With ∂ for the loss's derivative: ∂α_ij = ∂z_i (v_j + a^V_ij)ᵀ and ∂e_ij = α_ij (∂α_ij − Σ_j' α_ij' ∂α_ij'), so that
    ∂α is made as e is (`scores`) and ∂q from ∂e as z from α (`weighted_values`). ∂w^K is ∂e summed by distance times
    the queries, ∂w^V is α summed by distance times ∂z.
    """

    @staticmethod
    def forward(
        ctx, q, k, v, mask, table_k, table_v, radius: int, first_query: int, dropout: float, need_weights: bool
    ):
        """See MultiheadAttention.attend; table_k [h, r, d_k] and table_v [h, r, d_v] of at_least_float32, or None.

        The weights that it returns have no derivative.
        """
        narrow, wide = q.dtype, at_least_float32(q.dtype)
        index = index_of_rows(q.size(2), k.size(2), radius, first_query, q.device)
        q, k, v = (heads_first(x, wide) for x in (q, k, v))
        z, scale = q.new_empty(*q.shape[:3], v.size(3)), q.size(3) ** -0.5
        if mask is not None:
            mask = additive(mask, wide).expand(q.size(1), len(q), -1, -1).transpose(0, 1)
        kept = []
        for group in groups(q, k.size(2)):
            weights = scores(q[group], k[group], rows_of(table_k, group), index, scale)
            if mask is not None:
                weights.add_(mask[group])
            torch.softmax(weights, dim=-1, out=weights)
            dropped = F.dropout(weights, dropout) if dropout else weights
            by_distance = weighted_values(dropped, v[group], rows_of(table_v, group), index, out=z[group])
            kept.append(Kept(weights, dropped, by_distance))
        ctx.save_for_backward(q, k, v, table_k, table_v, *(tensor for of_group in kept for tensor in of_group))
        ctx.narrow = narrow
        ctx.index = index  # not saved with them: what a validation under inference_mode made cannot be
        all_weights = None
        if need_weights:
            all_weights = torch.cat([of_group.weights for of_group in kept]).transpose(0, 1).to(narrow)
            ctx.mark_non_differentiable(all_weights)
        return z.transpose(0, 1).to(narrow), all_weights

    @staticmethod
    def backward(ctx, grad_z, _):
        q, k, v, table_k, table_v, *saved = ctx.saved_tensors
        index, grad_z, scale = ctx.index, heads_first(grad_z, q.dtype), q.size(3) ** -0.5
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        grad_table_k, grad_table_v = (None if x is None else x.new_empty(x.shape) for x in (table_k, table_v))
        kept = (Kept(*saved[i : i + 3]) for i in range(0, len(saved), 3))
        for group, (weights, dropped, by_distance) in zip(groups(q, k.size(2)), kept, strict=True):
            multiply(dropped.mT, grad_z[group], out=grad_v[group])
            if table_v is not None:
                torch.bmm(by_distance.mT, grad_z[group].flatten(1, 2), out=grad_table_v[group])
            # scale · ∂e, so that its products need no scale
            grad_e = scores(grad_z[group], v[group], rows_of(table_v, group), index, scale).mul_(dropped)
            grad_e.addcmul_(weights, grad_e.sum(dim=-1, keepdim=True), value=-1)
            grad_e_by_distance = weighted_values(grad_e, k[group], rows_of(table_k, group), index, out=grad_q[group])
            multiply(grad_e.mT, q[group], out=grad_k[group])
            if table_k is not None:
                torch.bmm(grad_e_by_distance.mT, q[group].flatten(1, 2), out=grad_table_k[group])
        grads = (x.transpose(0, 1).to(ctx.narrow) for x in (grad_q, grad_k, grad_v))
        return *grads, None, grad_table_k, grad_table_v, None, None, None, None


def scores(x: Tensor, y: Tensor, table: Tensor | None, index: Tensor, scale: float) -> Tensor:
    """scale · x_i (y_j + a_ij)ᵀ: x [h, B, T, d], y [h, B, S, d], table [h, r, d] → [h, B, T, S]"""
    h, batch, length, _ = x.shape
    if table is None:
        return multiply(x, y.mT).mul_(scale)
    of_rows = torch.bmm(x.flatten(1, 2), (table * scale).mT)  # [h, B·T, r]
    of_keys = of_rows.view(h * batch, -1).index_select(1, index).view(h * batch, length, -1)
    return of_keys.baddbmm_(x.flatten(0, 1), y.flatten(0, 1).mT, alpha=scale).unflatten(0, (h, batch))


def weighted_values(weights: Tensor, y: Tensor, table: Tensor | None, index: Tensor, out: Tensor) -> Tensor | None:
    """Writes Σ_j weights_ij (y_j + a_ij) to `out` [h, B, T, d].

    weights [h, B, T, S], y [h, B, S, d], table [h, r, d]; returns the weights summed by distance, [h, B·T, r].
    """
    multiply(weights, y, out=out)
    if table is None:
        return None
    h, batch, length, _ = weights.shape
    sums = weights.new_zeros(h * batch, length * table.size(1))
    sums.index_add_(1, index, weights.view(h * batch, -1))
    sums = sums.view(h, batch * length, -1)
    out.flatten(1, 2).baddbmm_(sums, table)
    return sums


def multiply(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """x @ y for [h, B, …], into `out` without a copy"""
    out = None if out is None else out.flatten(0, 1)
    return torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out=out).unflatten(0, x.shape[:2])


def heads_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, h, S, d] → [h, B, S, d], in that order in memory too"""
    x = x.transpose(0, 1)
    return x.new_empty(x.shape, dtype=dtype).copy_(x)


def rows_of(table: Tensor | None, group: slice) -> Tensor | None:
    """The rows of a group of heads: [h, r, d] → [.., r, d]"""
    return None if table is None else table[group]


def groups(q: Tensor, positions: int) -> list[slice]:
    """Slices of the heads of q [h, B, T, d]."""
    h, batch, length, _ = q.shape
    size = max(1, min(h, GROUP // (batch * length * positions)))
    return [slice(start, min(start + size, h)) for start in range(0, h, size)]


def distance_rows(length: int, positions: int, radius: int, first_query: int, device: torch.device) -> Tensor:
    """[T, S]: the row of a table [r, …] for distance s − (first_query + t), clipped to −radius … radius."""
    query = torch.arange(first_query, first_query + length, device=device)[:, None]
    return (torch.arange(positions, device=device) - query).clamp_(-radius, radius).add_(radius)


@functools.lru_cache(maxsize=4)
def index_of_rows(length: int, positions: int, radius: int, first_query: int, device: torch.device) -> Tensor:
    """[T·S]: where those rows stand in [T, r]. All layers of a model ask for the same."""
    rows = distance_rows(length, positions, radius, first_query, device)
    return rows.add_(torch.arange(length, device=device)[:, None] * (2 * radius + 1)).flatten()
