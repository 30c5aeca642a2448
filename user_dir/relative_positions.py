"""Self-attention with relative position representations (Shaw et al. 2018; https://arxiv.org/abs/1803.02155).

    z_i  = Σ_j α_ij (x_j W^V + a^V_ij)                                                        (eq. 3)
    e_ij = x_i W^Q (x_j W^K + a^K_ij)ᵀ / √d_z,     α_i = softmax(e_i)                         (eq. 4)
    a^K_ij = w^K_clip(j−i, k),   a^V_ij = w^V_clip(j−i, k),   clip(x, k) = max(−k, min(k, x))  (section 3.2)

The published method gathers a_ij into [n, n, d_z]. Here a query meets the 2k+1 rows of a table and not n vectors:
x_i W^Q w^Kᵀ are 2k+1 scores, of which each e_ij gets its distance's (`scores`); and Σ_j α_ij a^V_ij is (α_i summed by
distance) w^V (`mixtures`). Both need n·(2k+1) numbers a head. `RelativeAttention` is eq. 3–4 and its derivative.
"""

import functools
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import MultiheadAttention, additive

GROUP = 2**20  # scores computed at a time


class RelativeMultiheadAttention(MultiheadAttention):
    """Self-attention by eq. 3–4, encoder and decoder alike.

    Parameters beside those of MultiheadAttention, row k being distance 0 and row 0 a key k or more positions before:
        relative_keys [h, 2k+1, d_k], relative_values [h, 2k+1, d_v]; without h if the heads share one table

    Args:
        distance: k, from which on all distances are taken for k
        shared: one table for all heads, and not one for each
        keys, values: whether there is a^K and a^V
        others: as in MultiheadAttention

    Raises:
        ValueError: for a negative distance
    """

    def __init__(self, embed_dim, num_heads, *, distance: int, shared=False, keys=True, values=True, **kwargs):
        if distance < 0:
            raise ValueError(f"the clipping distance of relative positions cannot be negative ({distance})")
        super().__init__(embed_dim, num_heads, **kwargs)
        self.distance = distance
        shape = [2 * distance + 1] if shared else [num_heads, 2 * distance + 1]
        self.relative_keys = nn.Parameter(torch.empty(*shape, self.key_dim)) if keys else None
        self.relative_values = nn.Parameter(torch.empty(*shape, self.value_dim)) if values else None
        for table in (self.relative_keys, self.relative_values):
            if table is not None:
                initialise(table)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool):
        """Eq. 3–4 for all heads at once; the T queries are the last T of the S positions. As MultiheadAttention.attend."""
        if q.size(2) == 1 and not need_weights:
            # The next token while decoding: every key has one distance, so that a^K and a^V join keys and values.
            return super().attend(q, self.beside(k, self.relative_keys), self.beside(v, self.relative_values), mask, False)
        # No two positions are farther apart than S − 1: rows beyond are not needed.
        reach = min(self.distance, k.size(2) - 1)
        tables = [self.rows(table, reach, q.dtype) for table in (self.relative_keys, self.relative_values)]
        with torch.autocast(q.device.type, enabled=False):  # what comes in has been cast
            return RelativeAttention.apply(q, k, v, mask, *tables, reach, self.dropout_now(), need_weights)

    def rows(self, table: Tensor | None, reach: int, dtype: torch.dtype) -> Tensor | None:
        """The rows of distances −reach … reach, for each head: [h, 2·reach+1, d_z]."""
        if table is None:
            return None
        return table[..., self.distance - reach : self.distance + reach + 1, :].to(dtype).expand(self.num_heads, -1, -1)

    def beside(self, x: Tensor, table: Tensor | None) -> Tensor:
        """x [B, h, S, d_z] + a_ij [h, S, d_z] for the last position i."""
        if table is None:
            return x
        row = torch.arange(1 - x.size(2), 1, device=x.device).clamp_(min=-self.distance).add_(self.distance)
        return x + table[..., row, :].to(x.dtype)


def initialise(table: Tensor) -> None:
    """Uniform with the variance 2 / (2k+1 + d_z) of Glorot's initialisation of one [2k+1, d_z] matrix.

    The paper does not say which; this is a choice. A table of each head is a matrix of its own.
    """
    bound = (6 / (table.size(-2) + table.size(-1))) ** 0.5
    nn.init.uniform_(table, -bound, bound)


class RelativeAttention(torch.autograd.Function):
    """Eq. 3–4 from projected queries, keys and values, and its derivative.

    With ∂ for the loss's derivative: ∂α_ij = ∂z_i (v_j + a^V_ij)ᵀ and ∂e_ij = α_ij (∂α_ij − Σ_j' α_ij' ∂α_ij'), so that
    ∂α is made as e is (`scores`) and ∂q from ∂e as z from α (`mixtures`). ∂w^K is ∂e summed by distance times the
    queries, ∂w^V is α summed by distance times ∂z.

    Heads come first in memory, [h, B, …]: products with keys and values are then one batch of h·B matrices, those with
    the tables one of h, and neither needs a further copy.
    """

    @staticmethod
    def forward(ctx, q, k, v, mask, keys, values, reach: int, dropout: float, need_weights: bool):
        """See MultiheadAttention.attend; keys, values [h, 2·reach+1, d_z] or None. No derivative by the weights it returns."""
        index = index_of_rows(q.size(2), k.size(2), reach, q.device)
        q, k, v = by_heads(q), by_heads(k), by_heads(v)
        z, kept, scale = q.new_empty(*q.shape[:3], v.size(3)), [], q.size(3) ** -0.5
        if mask is not None:
            mask = additive(mask, q.dtype).expand(q.size(1), len(q), -1, -1).transpose(0, 1)
        for heads in groups(q, k.size(2)):
            weights = scores(q[heads], k[heads], part(keys, heads), index, scale)
            if mask is not None:
                weights.add_(mask[heads])
            torch.softmax(weights, dim=-1, out=weights)
            dropped = F.dropout(weights, dropout) if dropout else weights
            sums = mixtures(dropped, v[heads], part(values, heads), index, out=z[heads])
            kept += [weights, dropped, sums]
        ctx.save_for_backward(q, k, v, keys, values, *kept)
        ctx.index = index  # not saved with them: what a validation under inference_mode made cannot be
        all_weights = torch.cat(kept[::3]).transpose(0, 1) if need_weights else None
        if need_weights:
            ctx.mark_non_differentiable(all_weights)
        return z.transpose(0, 1), all_weights

    @staticmethod
    def backward(ctx, grad, _):
        q, k, v, keys, values, *kept = ctx.saved_tensors
        index, by_z, scale = ctx.index, by_heads(grad), q.size(3) ** -0.5
        by_q, by_k, by_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        by_keys, by_values = (None if x is None else x.new_empty(x.shape) for x in (keys, values))
        for heads, weights, dropped, sums in zip(groups(q, k.size(2)), kept[::3], kept[1::3], kept[2::3], strict=True):
            multiply(dropped.mT, by_z[heads], out=by_v[heads])
            if values is not None:
                torch.bmm(sums.mT, by_z[heads].flatten(1, 2), out=by_values[heads])
            # scale · ∂e, so that its products need no scale
            by_scores = scores(by_z[heads], v[heads], part(values, heads), index, scale).mul_(dropped)
            by_scores.addcmul_(weights, by_scores.sum(dim=-1, keepdim=True), value=-1)
            sums = mixtures(by_scores, k[heads], part(keys, heads), index, out=by_q[heads])
            multiply(by_scores.mT, q[heads], out=by_k[heads])
            if keys is not None:
                torch.bmm(sums.mT, q[heads].flatten(1, 2), out=by_keys[heads])
        return *(x.transpose(0, 1) for x in (by_q, by_k, by_v)), None, by_keys, by_values, None, None, None


def scores(x: Tensor, y: Tensor, table: Tensor | None, index: Tensor, scale: float) -> Tensor:
    """scale · x_i (y_j + a_ij)ᵀ: x [h, B, T, d], y [h, B, S, d], table [h, 2k+1, d] → [h, B, T, S]"""
    heads, batch, length, _ = x.shape
    if table is None:
        return multiply(x, y.mT).mul_(scale)
    by_row = torch.bmm(x.flatten(1, 2), (table * scale).mT)  # [h, B·T, 2k+1]
    by_key = by_row.view(heads * batch, -1).index_select(1, index).view(heads * batch, length, -1)
    return by_key.baddbmm_(x.flatten(0, 1), y.flatten(0, 1).mT, alpha=scale).unflatten(0, (heads, batch))


def mixtures(weights: Tensor, y: Tensor, table: Tensor | None, index: Tensor, out: Tensor) -> Tensor | None:
    """Writes Σ_j weights_ij (y_j + a_ij) to `out` [h, B, T, d]; returns the weights [h, B, T, S] summed by distance, [h, B·T, 2k+1]."""
    multiply(weights, y, out=out)
    if table is None:
        return None
    heads, batch, length, _ = weights.shape
    # Sums of many weights need more digits than the weights.
    wide = torch.promote_types(weights.dtype, torch.float32)
    sums = weights.new_zeros(heads * batch, length * table.size(1), dtype=wide)
    sums = sums.index_add_(1, index, weights.view(heads * batch, -1).to(wide)).to(weights.dtype).view(heads, batch * length, -1)
    out.flatten(1, 2).baddbmm_(sums, table)
    return sums


def multiply(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """x @ y for [h, B, …], into `out` without a copy"""
    out = None if out is None else out.flatten(0, 1)
    return torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out=out).unflatten(0, x.shape[:2])


def by_heads(x: Tensor) -> Tensor:
    """[B, h, S, d] → [h, B, S, d], in that order in memory too"""
    return x.transpose(0, 1).contiguous()


def part(table: Tensor | None, heads: slice) -> Tensor | None:
    """The rows of some heads: [h, 2k+1, d] → [.., 2k+1, d]"""
    return None if table is None else table[heads]


def groups(q: Tensor, positions: int) -> list[slice]:
    """Slices of the heads of q [h, B, T, d]."""
    heads, batch, length, _ = q.shape
    size = max(1, min(heads, GROUP // (batch * length * positions)))
    return [slice(start, min(start + size, heads)) for start in range(0, heads, size)]


@functools.lru_cache(maxsize=4)
def index_of_rows(length: int, positions: int, reach: int, device: torch.device) -> Tensor:
    """[T·S]: where the row of distance s − (t + S − T) stands in [T, 2·reach+1]; all layers of a model ask for the same."""
    key = torch.arange(positions, device=device)
    query = key[positions - length :, None]
    rows = (key - query).clamp_(-reach, reach).add_(reach)
    return rows.add_((query - query[0]) * (2 * reach + 1)).flatten()
