"""Self-attention to a neighbourhood (Vaswani et al. 2017, section 4 and Table 1, "restricted").

    head_t = Attention(q_t, K_N(t), V_N(t)),   N(t) = {s: |s − t| ≤ ⌊r / 2⌋}

where N(t) are r positions centred on t (r + 1 if r is even); a masked decoder omits those after t. Queries are
processed in blocks, each with the keys of the block and of its neighbours, so that time and memory grow with n·r
instead of n² (but not where attention weights are asked for):

    queries          [ block 0 ][ block 1 ][ block 2 ]
    keys of block 1      [ radius][ block 1 ][ radius]
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import cache_of
from .masks import additive

SMALLEST_BLOCK = 16  # products of fewer queries are no faster


class RestrictedAttention:
    """A mixin before an attention class (`joined`, transformer/layers.py), which it restricts to neighbours.

    Args:
        neighbourhood: r; an even number counts as the next odd one, so that there are as many before as after
        others: as in the attention
    """

    def __init__(self, *args, neighbourhood: int, **kwargs):
        super().__init__(*args, **kwargs)
        self.radius = neighbourhood // 2

    def compute_heads(self, query, key, key_padding_mask, incremental_state, attn_mask, need_weights):
        """As MultiheadAttention.compute_heads; any attn_mask is assumed to be that of a masked decoder."""
        length = len(query)
        if incremental_state is None and length > self.radius + 1:
            if not need_weights:
                q, k, v = self.project(query, key)
                return self.by_blocks(q, k, v, key_padding_mask, masked=attn_mask is not None), None
            position = torch.arange(length, device=query.device)
            far = (position - position[:, None]).abs() > self.radius
            beyond = torch.zeros(far.shape, device=query.device).masked_fill_(far, float("-inf"))  # [T, T]
            attn_mask = beyond if attn_mask is None else attn_mask + beyond
        return super().compute_heads(query, key, key_padding_mask, incremental_state, attn_mask, need_weights)

    def by_blocks(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, masked: bool) -> Tensor:
        """The heads [T, B, h, d_v] of q [B, h, T, d_k], k and v, padding [B, T]; masked: no query sees a later key."""
        batch, _, length, _ = q.shape
        after = 0 if masked else self.radius
        block = max(self.radius, SMALLEST_BLOCK)
        missing = -length % block
        size = self.radius + block + after  # keys of a block of queries
        key, query = torch.arange(size, device=q.device), torch.arange(block, device=q.device)[:, None] + self.radius
        visible = ((key - query).abs() <= self.radius) & (key <= query + after)  # [block, size]
        absent = q.new_zeros(batch, length, dtype=torch.bool) if padding is None else padding.bool()
        absent = F.pad(absent, (self.radius, missing + after), value=True).unfold(1, size, block)  # [B, blocks, size]
        mask = additive((visible & ~absent[:, :, None]).flatten(0, 1)[:, None], q.dtype)  # [B · blocks, 1, block, size]

        q = F.pad(q, (0, 0, 0, missing)).unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1)
        windows = (F.pad(x, (0, 0, self.radius, missing + after)).unfold(2, size, block).mT for x in (k, v))
        k, v = (x.transpose(1, 2).flatten(0, 1) for x in windows)  # [B · blocks, h, size, d_z]
        heads, _ = self.attend(q, k, v, mask, need_weights=False, first_query=self.radius)
        heads = heads.unflatten(0, (batch, -1)).permute(1, 3, 0, 2, 4).flatten(0, 1)  # [blocks · block, B, h, d_v]
        return heads[:length]

    def project_with_cache(self, query, key, key_padding_mask, incremental_state):
        """As MultiheadAttention.project_with_cache; only neighbours stay in the cache."""
        q, k, v, mask = super().project_with_cache(query, key, key_padding_mask, incremental_state)
        cache_of(self, incremental_state).trim(self.radius)
        return q, k, v, mask
