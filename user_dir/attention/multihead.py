"""Multi-head attention (Vaswani et al. 2017, eq. 1 and section 3.2.2; https://arxiv.org/abs/1706.03762).

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V
    MultiHead(Q, K, V) = Concat(head_1 … head_h) W^O,   head_i = Attention(Q W^Q_i, K W^K_i, V W^V_i)

Shapes: T target (query) length, S source (key) length, B batch, d = d_model, h heads, d_k and d_v per head.
A variant with another score or value term overrides `attend`; one that treats each head by itself overrides `output`.
"""

import torch
import torch.nn.functional as F
from fairseq import modules
from torch import Tensor, nn

from ..kernels.products import linear
from .masks import visible_keys

# Up to so many keys the derivative of torch's kernel for CPUs is slower in bfloat16 than in float32 with casts: 3 to 5
# times with 16 keys, 1.4 to 1.6 with 64, as fast with 256.
WIDENED = 256
# Entry of the incremental state while the decoder reorders it: what one attention finds out for all.
ONE_ORDER = "one order"


class MultiheadAttention(modules.MultiheadAttention):
    """fairseq's parameters (`q_proj`, `k_proj`, `v_proj`, `out_proj`), initialisation and call; our computation.

    Args:
        key_dim: d_k, size of a head's queries and keys (default d / h)
        value_dim: d_v, size of a head's values (default d / h)
        others: as in fairseq; one of `self_attention` and `encoder_decoder_attention` is True
    """

    def __init__(self, embed_dim, num_heads, key_dim=None, value_dim=None, **kwargs):
        super().__init__(embed_dim, num_heads, **kwargs)
        self.key_dim = key_dim or self.head_dim
        self.value_dim = value_dim or self.head_dim
        if (self.key_dim, self.value_dim) != (self.head_dim, self.head_dim):
            self.q_proj = nn.Linear(embed_dim, num_heads * self.key_dim)
            self.k_proj = nn.Linear(self.kdim, num_heads * self.key_dim)
            self.v_proj = nn.Linear(self.vdim, num_heads * self.value_dim)
            self.out_proj = nn.Linear(num_heads * self.value_dim, embed_dim)
            self.reset_parameters()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool, first_query: int = 0):
        """Eq. 1 for all heads at once; a variant with other scores or values overrides this.

        Args:
            q [B, h, T, d_k], k [B, h, S, d_k], v [B, h, S, d_v]: their queries, keys and values
            mask: broadcastable to [B, h, T, S]; bool (True: the key may be seen) or added to the scores
            first_query: in self-attention, the place of the first query among the keys: key s is j − i =
                s − (first_query + t) positions after query t. 0 for a whole sentence; S − 1 for the token that decoding
                has reached (of all S so far, or of those that a restricted attention keeps); elsewhere for a block of
                restricted attention, whose keys are the block's and its neighbours'. Absent positions are masked.

        Returns:
            heads [B, h, T, d_v]; their weights [B, h, T, S] if needed, else None
        """
        dropout = self.dropout_now()
        if not need_weights:
            return fused_attention(q, k, v, mask, dropout, self.training), None
        wide = at_least_float32(q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            scores = q.to(wide) @ k.to(wide).mT * self.key_dim**-0.5  # [B, h, T, S]
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
            weights = torch.softmax(scores, dim=-1)
            return (F.dropout(weights, dropout) @ v.to(wide)).to(q.dtype), weights.to(q.dtype)

    def dropout_now(self) -> float:
        """The dropout of the weights: 0 outside training, unless fairseq's --retain-dropout keeps it."""
        return self.dropout_module.p if self.training or self.dropout_module.apply_during_inference else 0.0

    def project(self, query: Tensor, key: Tensor):
        """q [B, h, T, d_k], k [B, h, S, d_k], v [B, h, S, d_v], with one product for all that share an input."""
        if self.self_attention:
            return self.split_heads(query, *fuse(self.q_proj, self.k_proj, self.v_proj))
        return (*self.split_heads(query, *fuse(self.q_proj)), *self.split_heads(key, *fuse(self.k_proj, self.v_proj)))

    def split_heads(self, x: Tensor, weight: Tensor, bias: Tensor, sizes: list[int]) -> list[Tensor]:
        """Projects x [T, B, d] and splits the product into `sizes` and heads: each [B, h, T, size / h]."""
        parts = linear(x, weight, bias).split(sizes, dim=-1)
        return [part.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for part in parts]

    def output(self, heads: Tensor, query: Tensor, incremental_state: dict | None) -> Tensor:
        """Concat(head_1 … head_h) W^O: heads [T, B, h, d_v], of the queries [T, B, d] → [T, B, d]"""
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
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ):
        """Multi-head attention, called as fairseq calls its own.

        Args:
            query: [T, B, d]
            key, value: the same tensor, [S, B, d_encoder] (self-attention: `query`)
            key_padding_mask: [B, S], True at padding
            incremental_state: the cache of a decoder that is fed one token at a time (T = 1)
            static_kv: keys and values of the first cached call hold for all later ones (encoder–decoder attention)
            attn_mask: [T, S], added to the scores
            need_weights: also return the attention weights, averaged over the heads
            need_head_weights: also return the attention weights of each head

        Returns:
            output [T, B, d]; weights [B, T, S], or [h, B, T, S] of each head, or None

        Raises:
            ValueError: for several queries and a cache, which fairseq's decoder never gives: not for forced prefixes
        """
        if before_softmax:
            raise NotImplementedError("scores before the softmax are not kept by this attention")
        need_weights = need_weights or need_head_weights
        heads, weights = self.compute_heads(query, key, key_padding_mask, incremental_state, attn_mask, need_weights)
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return self.output(heads, query, incremental_state), weights

    def compute_heads(self, query, key, key_padding_mask, incremental_state, attn_mask, need_weights):
        """head_1 … head_h before W^O: [T, B, h, d_v]; and the weights [B, h, T, S] if they are needed."""
        length, batch = query.shape[:2]
        if incremental_state is None:
            q, k, v = self.project(query, key)
            mask = visible_keys(key_padding_mask, attn_mask, q.dtype)
        else:
            q, k, v, mask = self.project_with_cache(query, key, key_padding_mask, incremental_state)
        first_query = k.size(2) - length if self.self_attention else 0
        heads, weights = self.attend(q, k, v, mask, need_weights, first_query)
        if k.size(0) != batch:
            heads, weights = ungroup_beams(heads), ungroup_beams(weights)
        return heads.permute(2, 0, 1, 3), weights

    # cached decoding

    def project_with_cache(self, query, key, key_padding_mask, incremental_state):
        """As `project`, for the query that continues what `incremental_state` holds; also the mask.

        Self-attention: the query is the last of the S positions seen so far, whose keys and values are in buffers
        [capacity, B, h, d_z], written in place. Encoder–decoder attention: the keys of a sentence are kept once for all
        its beams, and the beams become queries of that sentence.
        """
        if len(query) != 1:
            raise ValueError(f"cached attention takes one query at a time, as fairseq's decoder does, not {len(query)}")
        cache = self._get_input_buffer(incremental_state)
        if self.self_attention:
            if not cache:  # no weight changes while a batch is decoded: join them once
                cache = {"fused": fuse(self.q_proj, self.k_proj, self.v_proj)}
            q, *new = self.split_heads(query, *cache["fused"])
            seen = cache.get("length", 0)
            keys, values = (append(cache.get(name), seen, x) for name, x in zip(("keys", "values"), new, strict=True))
            length = seen + 1
            k, v = (buffer[:length].permute(1, 2, 0, 3) for buffer in (keys, values))
            padding = self._append_prev_key_padding_mask(
                key_padding_mask, cache.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv=False
            )
            padding = None if padding is None else padding.bool()
            mask = visible_keys(padding, None, q.dtype)
            cache |= {"keys": keys, "values": values, "length": length, "prev_key_padding_mask": padding}
        else:
            if not cache:
                beams = shared_beams(key, self.beam_size)
                k, v = self.split_heads(key[:, ::beams], *fuse(self.k_proj, self.v_proj))
                padding = None if key_padding_mask is None else key_padding_mask[::beams]
                mask = visible_keys(padding, None, query.dtype)
                cache = {"beams": beams, "prev_key": k, "prev_value": v, "mask": mask}
            k, v, mask = cache["prev_key"], cache["prev_value"], cache["mask"]
            (q,) = self.split_heads(query, *fuse(self.q_proj))
            if cache["beams"] > 1:  # [B·beams, h, 1, d_k] → [B, h, beams, d_k]
                q = q.squeeze(2).unflatten(0, (-1, cache["beams"])).transpose(1, 2)
        self._set_input_buffer(incremental_state, cache)
        return q, k, v, mask

    def reorder_incremental_state(self, incremental_state, new_order: Tensor):
        """Follows a search: row i goes on with what row new_order[i] holds.

        Beams share the keys of their sentence while all of them stay; once only some do, each row has keys of its own.
        An order of as many rows as before is taken for one within the sentences, as by fairseq's own attention: beam
        search has no other, and to look would be to wait for the device at every step.
        """
        cache = self._get_input_buffer(incremental_state)
        if not cache:
            return incremental_state
        if self.self_attention:
            for name in ("keys", "values"):
                cache[name] = reorder(cache[name], cache["length"], new_order)
        beams, answers = cache.get("beams", 1), incremental_state.get(ONE_ORDER, {})
        if "prev_key" in cache and beams == 1 and repeats(new_order, self.beam_size, len(cache["prev_key"]), answers):
            cache["beams"] = self.beam_size
            return incremental_state
        if beams > 1:
            if len(new_order) == beams * len(cache["prev_key"]):
                return incremental_state
            if stay_together(new_order, beams, answers):
                new_order = new_order[::beams] // beams
            else:
                new_order, cache["beams"] = new_order // beams, 1
        for name in ("prev_key", "prev_value", "mask", "prev_key_padding_mask"):
            if cache.get(name) is not None:
                cache[name] = cache[name].index_select(0, new_order)
        return self._set_input_buffer(incremental_state, cache)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type of scores and weights for queries of that type: torch's kernels keep float32 inside, and so do ours."""
    return torch.promote_types(dtype, torch.float32)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, training: bool) -> Tensor:
    """Eq. 1 in one kernel; see MultiheadAttention.attend.

    Not whether gradients are recorded decides about the kernel: they are not in the first of the two forward passes of
    activation checkpointing, and both must compute the same.
    """
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and training and k.size(2) <= WIDENED:
        with torch.autocast("cpu", enabled=False):
            mask = mask if mask is None or mask.dtype == torch.bool else mask.float()
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), mask, dropout).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout)


def fuse(*projections: nn.Linear):
    """Weight, bias and output sizes of several projections of one input as one."""
    sizes = [p.out_features for p in projections]
    if len(projections) == 1:
        return projections[0].weight, projections[0].bias, sizes
    return torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections]), sizes


def append(buffer: Tensor | None, length: int, new: Tensor) -> Tensor:
    """A buffer [capacity, B, h, d_z]: the first `length` positions of `buffer`, then that of `new` [B, h, 1, d_z]."""
    if buffer is None or length == len(buffer):
        grown = new.new_empty(max(1, 2 * length), *new.squeeze(2).shape)
        if length:
            grown[:length] = buffer[:length]
        buffer = grown
    buffer[length] = new.squeeze(2)
    return buffer


def reorder(buffer: Tensor, length: int, order: Tensor) -> Tensor:
    """The first `length` positions of `buffer` [capacity, B, h, d_z] for the rows in `order`, and room for one more."""
    used = buffer[:length]
    if used.requires_grad:  # autograd has no out=; `append` makes room then
        return used.index_select(1, order)
    reordered = buffer.new_empty(length + 1, len(order), *buffer.shape[2:])
    torch.index_select(used, 1, order, out=reordered[:length])
    return reordered


def ungroup_beams(x: Tensor | None) -> Tensor | None:
    """[B, h, beams, …] → [B·beams, h, 1, …]"""
    return None if x is None else x.transpose(1, 2).flatten(0, 1).unsqueeze(2)


def shared_beams(key: Tensor, beams: int) -> int:
    """`beams` if key [S, B·beams, d] holds each sentence that often, one after the other; else 1.

    It is looked at, because fairseq announces a beam size but not that a later caller uses none.
    """
    if beams == 1 or key.size(1) % beams:
        return 1
    sentences = key.unflatten(1, (-1, beams))
    return beams if torch.equal(sentences, sentences[:, :, :1].expand_as(sentences)) else 1


def repeats(order: Tensor, times: int, rows: int, answers: dict) -> bool:
    """Whether `order` is that of a search in which each of `rows` sentences gets `times` beams; see `stay_together`."""
    if times == 1 or len(order) != times * rows:
        return False
    if "repeats" not in answers:
        answers["repeats"] = torch.equal(order, torch.arange(rows, device=order.device).repeat_interleave(times))
    return answers["repeats"]


def stay_together(order: Tensor, beams: int, answers: dict) -> bool:
    """Whether `order` goes on with the rows of one sentence in each of its groups of `beams` rows.

    The rows of a batch that repeats a sentence look like beams until one of them ends. To look is to wait for the
    device: the answer is put into `answers`, which the attentions of all layers are given for one order.
    """
    if len(order) % beams:
        return False
    if beams not in answers:
        sentences = (order // beams).unflatten(0, (-1, beams))
        answers[beams] = bool((sentences == sentences[:, :1]).all())
    return answers[beams]
