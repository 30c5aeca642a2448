"""Multi-head attention (Vaswani et al. 2017, eq. 1 and section 3.2.2; https://arxiv.org/abs/1706.03762).

Plain loop: `attention` in tests/equations.py.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V
    MultiHead(Q, K, V) = Concat(head_1 … head_h) W^O,   head_i = Attention(Q W^Q_i, K W^K_i, V W^V_i)

Shapes: T target (query) length, S source (key) length, B batch, d = d_model, h heads, d_k and d_v per head.
"""

import torch
import torch.nn.functional as F
from fairseq import modules
from torch import Tensor, nn

from ..kernels.products import linear
from .cache import ONE_ORDER, Cache, SourceCache, cache_of, keep, shared_beams, ungroup_beams
from .masks import additive, visible_keys

# Up to this many keys the derivative of torch's CPU kernel is slower in bfloat16 than in float32 with casts: 3 to 5
# times with 16 keys; about as fast with 256. (On CPUs without products in bfloat16 it is slower with any number.)
WIDENED = 256


class MultiheadAttention(modules.MultiheadAttention):
    """fairseq's parameters (`q_proj`, `k_proj`, `v_proj`, `out_proj`), initialisation and call; our computation.

    A variant is a subclass with a static method from_config(cfg, …) that returns its arguments, or None if `cfg` does
    not select it. It may override any of these methods:

        attend               eq. 1, for other scores or values
        compute_heads        all heads of a call, before W^O
        project              queries, keys and values without a cache
        project_with_cache   the same while decoding, one token at a time
        output               W^O, for heads that are not simply concatenated

    `joined` (transformer/layers.py) derives a class from branches or RestrictedAttention and a variant, in this order:
    an override passes what it does not change to `super()`. Branches have an `output` of their own, RestrictedAttention
    a `compute_heads`: with them, a variant that overrides it is refused.

    Args:
        key_dim: d_k, size of a head's queries and keys (default d / h)
        value_dim: d_v, size of a head's values (default d / h)
        others: as in fairseq

    Raises:
        ValueError: unless either `self_attention` or `encoder_decoder_attention` is True

    Attributes:
        observers: functions that are called with the weights [B, h, T, S] of each call (tools/shared/attentions.py)
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        key_dim=None,
        value_dim=None,
        *,
        kdim=None,
        vdim=None,
        dropout=0.0,
        self_attention=False,
        encoder_decoder_attention=False,
    ):
        if self_attention == encoder_decoder_attention:
            raise ValueError("give one of self_attention and encoder_decoder_attention")
        kind = {"self_attention": self_attention, "encoder_decoder_attention": encoder_decoder_attention}
        super().__init__(embed_dim, num_heads, kdim=kdim, vdim=vdim, dropout=dropout, **kind)
        self.observers = []
        self.key_dim = key_dim or self.head_dim
        self.value_dim = value_dim or self.head_dim
        if (self.key_dim, self.value_dim) != (self.head_dim, self.head_dim):
            self.q_proj = nn.Linear(embed_dim, num_heads * self.key_dim)
            self.k_proj = nn.Linear(self.kdim, num_heads * self.key_dim)
            self.v_proj = nn.Linear(self.vdim, num_heads * self.value_dim)
            self.out_proj = nn.Linear(num_heads * self.value_dim, embed_dim)
            self.reset_parameters()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool, first_query: int = 0):
        """Eq. 1 for all heads at once.

        Args:
            q [B, h, T, d_k], k [B, h, S, d_k], v [B, h, S, d_v]: queries, keys and values of the heads
            mask: broadcastable to [B, h, T, S]; bool (True: the key may be seen) or added to the scores
            first_query: index of the first query: key s is j − i = s − (first_query + t) positions after query t. It is
                0 for a whole sentence; while decoding, the number of tokens before the query (in self-attention, of
                those that RestrictedAttention keeps); the radius for a block of it, whose keys are those of the block
                and its neighbours. Absent positions are masked.

        Returns:
            heads [B, h, T, d_v]; their weights [B, h, T, S] if needed, else None
        """
        dropout = self.dropout_now()
        if not need_weights:
            return fused_attention(q, k, v, mask, dropout, self.training), None
        wide = torch.promote_types(q.dtype, torch.float32)  # as in torch's kernels
        with torch.autocast(q.device.type, enabled=False):
            scores = q.to(wide) @ k.to(wide).mT * self.key_dim**-0.5  # [B, h, T, S]
            if mask is not None:
                scores = scores + additive(mask, wide)
            weights = torch.softmax(scores, dim=-1)
            return (F.dropout(weights, dropout) @ v.to(wide)).to(q.dtype), weights.to(q.dtype)

    def dropout_now(self) -> float:
        """The dropout probability of the weights: 0 outside training, unless fairseq's --retain-dropout keeps it."""
        return self.dropout_module.p if self.training or self.dropout_module.apply_during_inference else 0.0

    def project(self, query: Tensor, key: Tensor):
        """q [B, h, T, d_k], k [B, h, S, d_k], v [B, h, S, d_v]; those with the same input share one product."""
        if self.self_attention:
            return self.split_heads(query, *fuse(self.q_proj, self.k_proj, self.v_proj))
        return (*self.split_heads(query, *fuse(self.q_proj)), *self.split_heads(key, *fuse(self.k_proj, self.v_proj)))

    def split_heads(self, x: Tensor, weight: Tensor, bias: Tensor, sizes: list[int]) -> list[Tensor]:
        """Projects x [T, B, d] and splits the product into `sizes` and heads: each [B, h, T, size / h]."""
        parts = linear(x, weight, bias).split(sizes, dim=-1)
        return [part.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for part in parts]

    def output(self, heads: Tensor, query: Tensor, incremental_state: dict | None) -> Tensor:
        """Concat(head_1 … head_h) W^O: heads [T, B, h, d_v] of the queries [T, B, d] → [T, B, d]"""
        return self.out_proj(heads.flatten(2))

    # fairseq's call

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
    ):
        """Multi-head attention, called as fairseq calls its own.

        Args:
            query: [T, B, d]
            key: [S, B, d_encoder]; not read in self-attention, where `query` serves as keys and values
            value, static_kv: not read, since `key` gives the values, too, and encoder–decoder attention always reuses
                the keys and values of its first cached call
            key_padding_mask: [B, S], True at padding
            incremental_state: the cache of a decoder that is fed one token at a time (T = 1)
            attn_mask: [T, S], added to the scores; or bool, True where a key is hidden, as in torch
            need_weights: also return the attention weights, averaged over the heads
            need_head_weights: also return the attention weights of each head

        Returns:
            output [T, B, d]; weights [B, T, S], or [h, B, T, S] of each head, or None

        Raises:
            ValueError: for several queries with a cache; fairseq's decoder passes one, even for forced prefixes
        """
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask, float("-inf"))
        returned = need_weights or need_head_weights
        needed = returned or bool(self.observers)
        heads, weights = self.compute_heads(query, key, key_padding_mask, incremental_state, attn_mask, needed)
        for observe in self.observers:
            observe(weights)
        if returned:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self.output(heads, query, incremental_state), weights if returned else None

    def compute_heads(self, query, key, key_padding_mask, incremental_state, attn_mask, need_weights):
        """head_1 … head_h before W^O, [T, B, h, d_v]; their weights [B, h, T, S] if needed, else None."""
        length, batch = query.shape[:2]
        if incremental_state is None:
            q, k, v = self.project(query, key)
            mask = visible_keys(key_padding_mask, attn_mask, q.dtype)
        else:
            q, k, v, mask = self.project_with_cache(query, key, key_padding_mask, incremental_state)
        if self.self_attention:
            first_query = k.size(2) - length
        else:
            first_query = 0 if incremental_state is None else cache_of(self, incremental_state).steps - 1
        heads, weights = self.attend(q, k, v, mask, need_weights, first_query)
        if k.size(0) != batch:
            heads, weights = ungroup_beams(heads), ungroup_beams(weights)
        return heads.permute(2, 0, 1, 3), weights

    # cached decoding

    def project_with_cache(self, query, key, key_padding_mask, incremental_state):
        """As `project`, for the token after those in `incremental_state`; also returns the mask.

        Returns:
            in self-attention q [B, h, 1, d_k], and k [B, h, S, d_k], v [B, h, S, d_v] of all S positions so far; in
            encoder–decoder attention the beams of a sentence are its queries: q [B / beams, h, beams, d_k], …
        """
        if len(query) != 1:
            raise ValueError(f"cached attention takes one query at a time, as fairseq's decoder does, not {len(query)}")
        cache = cache_of(self, incremental_state)
        if self.self_attention:
            if cache is None:
                cache = keep(self, incremental_state, Cache())
                cache.kept["fused"] = fuse(self.q_proj, self.k_proj, self.v_proj)
            q, k, v = self.split_heads(query, *cache.kept["fused"])
            k, v, padding = cache.append(k, v, key_padding_mask)
            return q, k, v, visible_keys(padding, None, q.dtype)
        if cache is None:
            beams = shared_beams(key, self.beam_size)
            k, v = self.split_heads(key[:, ::beams], *fuse(self.k_proj, self.v_proj))
            padding = None if key_padding_mask is None else key_padding_mask[::beams]
            mask = visible_keys(padding, None, query.dtype)
            cache = keep(self, incremental_state, SourceCache(k, v, mask, beams))
        cache.steps += 1
        (q,) = self.split_heads(query, *fuse(self.q_proj))
        return cache.group(q), cache.k, cache.v, cache.mask

    def reorder_incremental_state(self, incremental_state, new_order: Tensor):
        """Called by fairseq: row i of the batch continues row new_order[i]."""
        cache = cache_of(self, incremental_state)
        if cache is not None:
            cache.reorder(new_order, self.beam_size, incremental_state.get(ONE_ORDER, {}))
        return incremental_state


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, training: bool) -> Tensor:
    """Eq. 1 in one kernel; see MultiheadAttention.attend.

    The kernel must not depend on grad mode: the first of the two forward passes of activation checkpointing records no
    gradients, and both must compute the same. (On CPUs torch has another kernel for a mask with a gradient, which
    rounds differently; RelativeMultiheadAttention does not leave its scalars to it.)
    """
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and training and k.size(2) <= WIDENED:
        with torch.autocast("cpu", enabled=False):
            mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout)


def fuse(*projections: nn.Linear):
    """Weight, bias and output sizes of one projection that does the work of `projections`, which share an input."""
    sizes = [p.out_features for p in projections]
    if len(projections) == 1:
        return projections[0].weight, projections[0].bias, sizes
    return torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections]), sizes
