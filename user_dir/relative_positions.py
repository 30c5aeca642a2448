"""Self-attention with relative position representations (Shaw et al. 2018; https://arxiv.org/abs/1803.02155).

    z_i  = Σ_j α_ij (x_j W^V + a^V_ij)                                                        (eq. 3)
    e_ij = x_i W^Q (x_j W^K + a^K_ij)ᵀ / √d_z,     α_i = softmax(e_i)                         (eq. 4)
    a^K_ij = w^K_clip(j−i, k),   a^V_ij = w^V_clip(j−i, k),   clip(x, k) = max(−k, min(k, x))  (section 3.2)

The published method gathers a_ij into [n, n, d_z]. Here a query meets the 2k+1 rows of a table and not n vectors:
x_i W^Q w^Kᵀ are 2k+1 scores, added to e_ij by distance; and Σ_j α_ij a^V_ij is (α_i summed by distance) w^V. Both need
n·(2k+1) numbers a head. `Distances` does the adding and the summing, `RelativeAttention` is eq. 3–4 and its derivative.
"""

import functools
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import MultiheadAttention

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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], need_weights: bool):
        """Eq. 3–4 for all heads at once; the T queries are the last T of the S positions. As MultiheadAttention.attend."""
        if q.size(2) == 1 and not need_weights:
            # The next token while decoding: every key has one distance, so that a^K and a^V join keys and values.
            return super().attend(q, self.beside(k, self.relative_keys), self.beside(v, self.relative_values), mask, False)
        # No two positions are farther apart than S − 1: rows beyond are not needed.
        reach = min(self.distance, k.size(2) - 1)
        tables = [self.rows(table, reach, q.dtype) for table in (self.relative_keys, self.relative_values)]
        dropout = self.dropout_module.p if self.training or self.dropout_module.apply_during_inference else 0.0
        with torch.autocast(q.device.type, enabled=False):  # what comes in has been cast
            return RelativeAttention.apply(q, k, v, mask, *tables, reach, dropout, need_weights)

    def rows(self, table: Optional[Tensor], reach: int, dtype: torch.dtype) -> Optional[Tensor]:
        """The rows of distances −reach … reach, for each head: [h, 2·reach+1, d_z]."""
        if table is None:
            return None
        return table[..., self.distance - reach : self.distance + reach + 1, :].to(dtype).expand(self.num_heads, -1, -1)

    def beside(self, x: Tensor, table: Optional[Tensor]) -> Tensor:
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

    With ∂ for the loss's derivative: ∂α_ij = ∂z_i·(v_j + a^V_ij) and ∂e_ij = α_ij (∂α_ij − ∂z_i·z_i). ∂e summed by
    distance gives ∂w^K and the relative part of ∂q, α summed by distance gives ∂w^V. Kept for it: α, input and output.

    Keys and values get `reach` rows of zeros where their product fills the spare cells of Distances too: torch multiplies
    a batch of matrices in one call only into contiguous memory (into a view with gaps: one call each, 50 to 56 ms
    and not 39 to 48 for the whole at n = 32, 2048 tokens and 8 heads).
    """

    @staticmethod
    def forward(ctx, q, k, v, mask, keys, values, reach: int, dropout: float, need_weights: bool):
        """See MultiheadAttention.attend; keys, values [h, 2·reach+1, d_z] or None. No derivative by the weights it returns."""
        batch, _, length, key_dim = q.shape
        positions = k.size(2)
        distances, scale = Distances(length, positions, reach), key_dim**-0.5
        z = q.new_empty(length, batch, q.size(1), v.size(3)).permute(1, 2, 0, 3)  # [B, h, T, d_v], as W^O wants it
        mask = F.pad(q.new_zeros(1, 1, 1, positions) if mask is None else additive(mask, q.dtype), (0, reach), value=float("-inf"))
        kept, all_weights = [], []
        for heads in groups(q, positions):
            count = len(range(q.size(1))[heads])
            queries = flatten(q, heads)
            scores = distances.buffer(batch * count, q)
            distances.rows(scores).unflatten(0, (batch, count)).copy_(mask)
            distances.rows(scores).baddbmm_(queries, flatten(k, heads, spare=reach).mT, alpha=scale)
            if keys is not None:
                distances.add(scores, torch.bmm(queries, (table(keys, heads, batch) * scale).mT))
            weights = distances.buffer(batch * count, q)
            torch.softmax(distances.rows(scores), dim=-1, out=distances.rows(weights))
            dropped = F.dropout(weights, dropout) if dropout else weights
            part = torch.bmm(distances.cells(dropped), flatten(v, heads))
            if values is not None:
                part.baddbmm_(distances.sum(dropped), table(values, heads, batch))
            z[:, heads] = part.unflatten(0, (batch, count))
            kept += [weights, dropped]
            if need_weights:
                all_weights.append(distances.cells(weights).unflatten(0, (batch, count)))
        ctx.save_for_backward(q, k, v, keys, values, z, *kept)
        ctx.distances = distances
        all_weights = torch.cat(all_weights, dim=1) if need_weights else None
        if need_weights:
            ctx.mark_non_differentiable(all_weights)
        return z, all_weights

    @staticmethod
    def backward(ctx, grad, _):
        q, k, v, keys, values, z, *kept = ctx.saved_tensors
        batch, scale, distances = q.size(0), q.size(3) ** -0.5, ctx.distances
        # In the projections' memory order, [T, B, h, d]: what split them joins their derivatives without a transposition.
        grads = [torch.empty_like(x.permute(2, 0, 1, 3), memory_format=torch.contiguous_format).permute(1, 2, 0, 3) for x in (q, k, v)]
        grad_keys, grad_values = (None if x is None else torch.empty_like(x) for x in (keys, values))
        inner = (grad * z).sum(dim=-1, keepdim=True)  # [B, h, T, 1]: Σ_j α_ij ∂α_ij
        for heads, weights, dropped in zip(groups(q, k.size(2)), kept[::2], kept[1::2], strict=True):
            count = len(range(q.size(1))[heads])
            queries, by_z = flatten(q, heads), flatten(grad, heads)
            by_scores = distances.buffer(len(by_z), q)
            torch.bmm(by_z, flatten(v, heads, distances.reach).mT, out=distances.rows(by_scores))
            if values is not None:
                distances.add(by_scores, torch.bmm(by_z, table(values, heads, batch).mT))
                by_values = torch.bmm(distances.sum(dropped).mT, by_z)
                grad_values[heads] = by_values.unflatten(0, (batch, count)).sum(dim=0)
            by_scores.mul_(dropped)  # the spare cells become 0 here
            distances.rows(by_scores).addcmul_(distances.rows(weights), flatten(inner, heads), value=-1)
            by_q = torch.bmm(distances.cells(by_scores), flatten(k, heads)).mul_(scale)
            if keys is not None:
                summed = distances.sum(by_scores).mul_(scale)
                by_q.baddbmm_(summed, table(keys, heads, batch))
                by_keys = torch.bmm(summed.mT, queries)
                grad_keys[heads] = by_keys.unflatten(0, (batch, count)).sum(dim=0)
            by_k = torch.bmm(distances.cells(by_scores).mT, queries).mul_(scale)
            by_v = torch.bmm(distances.cells(dropped).mT, by_z)
            for whole, part in zip(grads, (by_q, by_k, by_v)):
                whole[:, heads] = part.unflatten(0, (batch, count))
        return *grads, None, grad_keys, grad_values, None, None, None


def groups(q: Tensor, positions: int) -> list[slice]:
    """Slices of the heads of q [B, h, T, d]."""
    batch, heads, length, _ = q.shape
    size = max(1, min(heads, GROUP // (batch * length * positions)))
    return [slice(start, min(start + size, heads)) for start in range(0, heads, size)]


def flatten(x: Tensor, heads: slice, spare: int = 0) -> Tensor:
    """[B, h, S, d] → [B·heads, S + spare, d] with zeros at the end; no copy for a single head without spare rows."""
    x = x[:, heads]
    return (F.pad(x, (0, 0, 0, spare)) if spare else x).flatten(0, 1)


def table(rows: Tensor, heads: slice, batch: int) -> Tensor:
    """[h, 2k+1, d] → [B·heads, 2k+1, d]"""
    return rows[heads].expand(batch, -1, -1, -1).flatten(0, 1)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask of `attend` as a term of the scores; finite, so that a row that sees nothing gives no NaN."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min / 2)


class Distances:
    """Adds to, or sums, cells (t, s) by their clipped distance s − (t + S − T), with no copy of [T, S] in between.

    Rows of S cells are stored with `reach` spare cells after each, and as many before the first. Then the cells of
    distance −reach … reach of a row, spare ones among them, are 2·reach+1 neighbours in memory, and those of the next row
    begin one row and one cell further: a strided view of [N, T, 2·reach+1].
    """

    def __init__(self, length: int, positions: int, reach: int):
        self.length, self.positions, self.reach = length, positions, reach
        self.row = positions + reach

    def buffer(self, count: int, like: Tensor) -> Tensor:
        """Memory for `count` matrices [T, S] and their spare cells, the first of which hold 0."""
        buffer = like.new_empty(self.reach + count * self.length * self.row)
        buffer[: self.reach] = 0
        return buffer

    def rows(self, buffer: Tensor) -> Tensor:
        """[N, T, S + reach]: each row with the spare cells after it."""
        return buffer[self.reach :].view(-1, self.length, self.row)

    def cells(self, buffer: Tensor) -> Tensor:
        """[N, T, S]"""
        return self.rows(buffer)[..., : self.positions]

    def near(self, buffer: Tensor) -> Tensor:
        """[N, T, 2·reach+1]: the cells of distance −reach … reach."""
        count = self.rows(buffer).size(0)
        shape, strides = (count, self.length, 2 * self.reach + 1), (self.length * self.row, self.row + 1, 1)
        return buffer.as_strided(shape, strides, self.positions - self.length)

    def add(self, buffer: Tensor, by_distance: Tensor) -> None:
        """Adds by_distance [N, T, 2·reach+1] to the cells of that distance; spare cells are left with anything finite."""
        self.near(buffer).add_(by_distance)
        if (far := self.far(buffer)) is not None:
            cells = self.cells(buffer)
            cells.addcmul_(by_distance[..., :1], far[:, 0]).addcmul_(by_distance[..., -1:], far[:, 1])

    def sum(self, buffer: Tensor) -> Tensor:
        """[N, T, 2·reach+1]: the sums of the cells of each distance; spare cells must hold 0."""
        sums = self.near(buffer).clone(memory_format=torch.contiguous_format)
        if (far := self.far(buffer)) is not None:
            ends = torch.bmm(self.cells(buffer).transpose(0, 1), far.mT).transpose(0, 1)
            sums[..., 0] += ends[..., 0]
            sums[..., -1] += ends[..., 1]
        return sums

    def far(self, like: Tensor) -> Optional[Tensor]:
        """[T, 2, S]: 1 where a cell is more than `reach` before, and behind; None if there is none."""
        if self.reach >= self.positions - 1:
            return None
        return far_cells(self.length, self.positions, self.reach, like.dtype, like.device)


@functools.lru_cache(maxsize=4)
def far_cells(length: int, positions: int, reach: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """See Distances.far; all layers of a model ask for the same."""
    ones = torch.ones(length, positions, dtype=dtype, device=device)
    last = positions - length
    return torch.stack([ones.tril(last - reach - 1), ones.triu(last + reach + 1)], dim=1)
