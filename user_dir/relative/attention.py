"""Attention with relative position representations (Shaw et al. 2018; https://arxiv.org/abs/1803.02155).

    z_i  = Σ_j α_ij (x_j W^V + a^V_ij)                                                        (eq. 3)
    e_ij = x_i W^Q (x_j W^K + a^K_ij)ᵀ / √d_z,     α_i = softmax(e_i)                         (eq. 4)
    a^K_ij = w^K_clip(j−i, k),   a^V_ij = w^V_clip(j−i, k),   clip(x, k) = max(−k, min(k, x))  (section 3.2)

The plain loop is `relative_attention` in tests/equations.py. The published method gathers a_ij into [n, n, d_z]. Here
the 2k+1 rows of a table replace the n vectors of a query; kernel.py has the method and its derivative.

Two variants of Ontañón et al. 2022 (https://arxiv.org/abs/2108.04378, section 4.1): a scalar for each distance,
e_ij = x_i W^Q (x_j W^K)ᵀ / √d_z + b_clip(j−i, k), as in Raffel et al. 2020 (section 2.1) but clipped like Shaw's; and
distances in encoder–decoder attention, where i is a position of the target and j one of the source.
"""

import torch
from torch import Tensor, nn

from ..attention.cache import cache_of
from ..attention.masks import additive
from ..attention.multihead import MultiheadAttention
from ..config import VariantConfig
from .kernel import RelativeAttention, distance_rows


class RelativeMultiheadAttention(MultiheadAttention):
    """Attention by eq. 3–4 in the encoder and the decoder.

    Parameters beside those of MultiheadAttention, where row k is distance 0 and row 0 a key k or more positions before:
        relative_keys [h, 2k+1, d_k], relative_values [h, 2k+1, d_v], relative_scalars [h, 2k+1]; without h if the heads
        share one table

    Args:
        distance: k, to which distances are clipped
        shared: use one table for all heads instead of one for each
        keys, values, scalars: whether there are a^K, a^V and b
        others: as in MultiheadAttention
    """

    def __init__(
        self, embed_dim, num_heads, *, distance: int, shared=False, keys=True, values=True, scalars=False, **kwargs
    ):
        super().__init__(embed_dim, num_heads, **kwargs)
        self.distance = distance
        shape = [2 * distance + 1] if shared else [num_heads, 2 * distance + 1]
        self.relative_keys = nn.Parameter(torch.empty(*shape, self.key_dim)) if keys else None
        self.relative_values = nn.Parameter(torch.empty(*shape, self.value_dim)) if values else None
        self.relative_scalars = nn.Parameter(torch.zeros(shape)) if scalars else None
        for table in (self.relative_keys, self.relative_values):
            if table is not None:
                for matrix in table.detach().view(-1, *table.shape[-2:]):  # one, or one of each head
                    nn.init.xavier_uniform_(matrix)  # our choice: the paper does not give it

    @staticmethod
    def from_config(cfg: VariantConfig) -> dict | None:
        """The constructor's arguments for `cfg`; None if `cfg` asks for no relative positions."""
        if cfg.relative_positions == "neither":
            return None
        return {
            "distance": cfg.relative_distance,
            "shared": cfg.relative_tables == "shared",
            "keys": cfg.relative_positions in ("keys_and_values", "keys"),
            "values": cfg.relative_positions in ("keys_and_values", "values"),
            "scalars": cfg.relative_positions == "scalars",
        }

    def compute_heads(self, query, key, key_padding_mask, incremental_state, attn_mask, need_weights):
        """As in MultiheadAttention; where fairseq pads a source on its left, the padding is moved behind the words."""
        if self.self_attention:
            return super().compute_heads(query, key, key_padding_mask, incremental_state, attn_mask, need_weights)
        cache = cache_of(self, incremental_state)
        words_first = None if cache is None else cache.words_first  # [B, S], a permutation of each row
        if cache is None and key_padding_mask is not None:
            words_first = key_padding_mask.int().argsort(dim=1, stable=True)
            key = key.gather(0, words_first.T[:, :, None].expand_as(key))
            key_padding_mask = key_padding_mask.gather(1, words_first)
        heads, weights = super().compute_heads(query, key, key_padding_mask, incremental_state, attn_mask, need_weights)
        if words_first is None:
            return heads, weights
        if incremental_state is not None:
            cache_of(self, incremental_state).words_first = words_first
        if weights is not None:
            weights = torch.empty_like(weights).scatter_(3, words_first[:, None, None].expand_as(weights), weights)
        return heads, weights

    def set_beam_size(self, beam_size: int) -> None:
        """Does nothing: beams are not grouped, because `attend` expects queries at successive positions."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool, first_query: int = 0):
        """As MultiheadAttention.attend, by eq. 3–4."""
        wide = torch.promote_types(q.dtype, torch.float32)  # in which the tables' gradients are summed
        if self.relative_scalars is not None:
            rows = distance_rows(q.size(2), k.size(2), self.distance, first_query, k.device)
            b = self.relative_scalars.to(wide)[..., rows].to(q.dtype)  # [h, T, S]
            mask = b if mask is None else additive(mask, q.dtype) + b
            # torch's CPU kernel differs for a mask that has a gradient, which only the second of the two passes of
            # activation checkpointing sees; so both compute the weights.
            in_both = self.training and q.device.type == "cpu"
            heads, weights = super().attend(q, k, v, mask, need_weights or in_both, first_query)
            return heads, weights if need_weights else None
        tables = (self.relative_keys, self.relative_values)
        if q.size(2) == 1 and not need_weights:
            # The next token while decoding: each key has one distance, so a^K and a^V can be added to keys and values.
            with torch.autocast(q.device.type, enabled=False):  # which would round them
                tables = [by_distance(table, -first_query, k.size(2) - first_query) for table in tables]
                k, v = (x.to(wide) if a is None else x + a.to(wide) for x, a in zip((k, v), tables))
                mask = mask if mask is None or mask.dtype == torch.bool else mask.to(wide)
                heads, _ = super().attend(q.to(wide), k, v, mask, need_weights, first_query)
            return heads.to(q.dtype), None
        # No distance exceeds this, so rows beyond it are not needed.
        radius = min(self.distance, max(k.size(2) - 1 - first_query, first_query + q.size(2) - 1))
        tables = (by_distance(table, -radius, radius + 1) for table in tables)
        tables = [a if a is None else a.to(wide).expand(self.num_heads, -1, -1) for a in tables]  # [h, r, d_z]
        with torch.autocast(q.device.type, enabled=False):  # what comes in has been cast
            return RelativeAttention.apply(
                q, k, v, mask, *tables, radius, first_query, self.dropout_now(), need_weights
            )


def by_distance(table: Tensor | None, start: int, stop: int) -> Tensor | None:
    """The rows of distances start … stop − 1, clipped: […, 2k+1, d_z] → […, stop − start, d_z], a view up to k."""
    if table is None:
        return None
    k = table.size(-2) // 2
    if -k <= start and stop <= k + 1:
        return table[..., start + k : stop + k, :]
    return table.index_select(-2, torch.arange(start, stop, device=table.device).clamp_(-k, k).add_(k))
