"""Self-attention with relative position representations (Shaw et al. 2018; https://arxiv.org/abs/1803.02155).

    z_i  = Σ_j α_ij (x_j W^V + a^V_ij)                                                        (eq. 3)
    e_ij = x_i W^Q (x_j W^K + a^K_ij)ᵀ / √d_z,     α_i = softmax(e_i)                         (eq. 4)
    a^K_ij = w^K_clip(j−i, k),   a^V_ij = w^V_clip(j−i, k),   clip(x, k) = max(−k, min(k, x))  (section 3.2)

The published method gathers a_ij into [n, n, d_z]. Here a query meets the 2k+1 rows of a table and not n vectors; how,
and the derivative, is in kernel.py.
"""

import torch
from torch import Tensor, nn

from ..attention.multihead import MultiheadAttention, at_least_float32
from ..config import VariantConfig
from ..errors import InputError
from .kernel import RelativeAttention


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
        InputError: for a negative distance
    """

    def __init__(self, embed_dim, num_heads, *, distance: int, shared=False, keys=True, values=True, **kwargs):
        if distance < 0:
            reason = f"the clipping distance of relative positions cannot be negative ({distance})"
            raise InputError(f"{reason}: give --relative-distance 0 or more")
        super().__init__(embed_dim, num_heads, **kwargs)
        self.distance = distance
        shape = [2 * distance + 1] if shared else [num_heads, 2 * distance + 1]
        self.relative_keys = nn.Parameter(torch.empty(*shape, self.key_dim)) if keys else None
        self.relative_values = nn.Parameter(torch.empty(*shape, self.value_dim)) if values else None
        for table in (self.relative_keys, self.relative_values):
            if table is not None:
                initialise(table)

    @staticmethod
    def from_config(cfg: VariantConfig) -> dict | None:
        """Its arguments as `cfg` has them; None if `cfg` asks for no relative positions."""
        if cfg.relative_positions == "neither":
            return None
        return {
            "distance": cfg.relative_distance,
            "shared": cfg.relative_tables == "shared",
            "keys": cfg.relative_positions in ("keys_and_values", "keys"),
            "values": cfg.relative_positions in ("keys_and_values", "values"),
        }

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool, first_query: int = 0):
        """As MultiheadAttention.attend, by eq. 3–4."""
        tables, wide = (self.relative_keys, self.relative_values), at_least_float32(q.dtype)
        if q.size(2) == 1 and not need_weights:
            # The next token while decoding: every key has one distance, so that a^K and a^V join keys and values.
            with torch.autocast(q.device.type, enabled=False):  # which would round them
                k, v = (self.beside(x.to(wide), table, first_query) for x, table in zip((k, v), tables, strict=True))
                mask = mask if mask is None or mask.dtype == torch.bool else mask.to(wide)
                heads, _ = super().attend(q.to(wide), k, v, mask, need_weights, first_query)
            return heads.to(q.dtype), None
        # No two positions are farther apart than S − 1: rows beyond are not needed.
        radius = min(self.distance, k.size(2) - 1)
        rows = [self.rows(table, radius, wide) for table in tables]
        with torch.autocast(q.device.type, enabled=False):  # what comes in has been cast
            return RelativeAttention.apply(q, k, v, mask, *rows, radius, first_query, self.dropout_now(), need_weights)

    def rows(self, table: Tensor | None, radius: int, dtype: torch.dtype) -> Tensor | None:
        """The rows of distances −radius … radius, for each head: [h, 2·radius+1, d_z]."""
        if table is None:
            return None
        return (
            table[..., self.distance - radius : self.distance + radius + 1, :].to(dtype).expand(self.num_heads, -1, -1)
        )

    def beside(self, x: Tensor, table: Tensor | None, query: int) -> Tensor:
        """x [B, h, S, d_z] + a_ij [h, S, d_z] for the position i = `query`."""
        if table is None:
            return x
        row = (torch.arange(x.size(2), device=x.device) - query).clamp_(-self.distance, self.distance) + self.distance
        return x + table[..., row, :].to(x.dtype)


def initialise(table: Tensor) -> None:
    """Uniform with the variance 2 / (2k+1 + d_z) of Glorot's initialisation of one [2k+1, d_z] matrix.

    The paper does not say which; this is a choice. A table of each head is a matrix of its own.
    """
    bound = (6 / (table.size(-2) + table.size(-1))) ** 0.5
    nn.init.uniform_(table, -bound, bound)
