"""Attention masks: which keys a query may see.

fairseq passes padding [B, S], True at padding, and attn_mask [T, S], which is added to the scores: its decoder's
`buffered_future_mask`, -inf in the future, when all positions are computed at once. `attend` takes one mask for both,
broadcastable to [B, h, T, S]: either bool, True where a key may be seen, or added to the scores.
"""

import torch
from torch import Tensor


def visible_keys(padding: Tensor | None, attn_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The mask of `attend` from padding [B, S] (True at padding) and attn_mask [T, S] (added to the scores)."""
    if padding is None:
        return None if attn_mask is None else attn_mask.to(dtype)
    visible = ~padding[:, None, None, :].bool()
    return visible if attn_mask is None else attn_mask.to(dtype) + additive(visible, dtype)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask of `attend` as a term of the scores; of a bool it is finite: a row that sees no key gives no NaN."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min / 2)
