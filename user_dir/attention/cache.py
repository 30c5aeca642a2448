"""The caches of a decoder's attentions while a batch is decoded, one token at a time.

Each attention has its own cache. Only this file knows where it is: in fairseq's incremental state, a dict that the
decoder passes to all of its layers. B counts rows: the beams of all sentences.
"""

import torch
from torch import Tensor

# While the decoder reorders the incremental state, this key holds `answers`, in which caches share comparisons.
ONE_ORDER = "one order"


class Cache:
    """Keys and values of the positions so far, in buffers [capacity, B, h, d_z] that are written in place."""

    def __init__(self):
        self.keys = self.values = None
        self.padding: Tensor | None = None  # [B, S], True at padding; None where there is none
        self.length = 0  # S
        self.kept = {}  # by the attention from step to step, such as products of its weights

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None):
        """Adds k [B, h, 1, d_k], v [B, h, 1, d_v] and padding [B, 1] or None.

        Returns k [B, h, S, d_k], v [B, h, S, d_v] and padding [B, S] or None, for all S positions so far.
        """
        if padding is not None or self.padding is not None:
            before = k.new_zeros(len(k), self.length, dtype=torch.bool) if self.padding is None else self.padding
            last = k.new_zeros(len(k), 1, dtype=torch.bool) if padding is None else padding.bool()
            self.padding = torch.cat([before, last], dim=1)
        self.keys, self.values = with_room(self.keys, self.length, k), with_room(self.values, self.length, v)
        self.keys[self.length], self.values[self.length] = k.squeeze(2), v.squeeze(2)
        self.length += 1
        k, v = (buffer[: self.length].permute(1, 2, 0, 3) for buffer in (self.keys, self.values))
        return k, v, self.padding

    def trim(self, length: int) -> None:
        """Forgets all but the last `length` positions."""
        first = max(0, self.length - length)
        self.keys, self.values, self.length = self.keys[first:], self.values[first:], self.length - first
        self.padding = None if self.padding is None else self.padding[:, first:]

    def reorder(self, order: Tensor, *_) -> None:
        """Row i continues row order[i]."""
        self.keys, self.values = (reordered(buffer, self.length, order) for buffer in (self.keys, self.values))
        self.padding = None if self.padding is None else self.padding.index_select(0, order)


class SourceCache:
    """Keys and values of the source, kept once per sentence and shared by the queries of all its beams.

    k [B / beams, h, S, d_k], v [B / beams, h, S, d_v], mask [B / beams, 1, 1, S] or None.
    """

    def __init__(self, k: Tensor, v: Tensor, mask: Tensor | None, beams: int):
        self.k, self.v, self.mask, self.beams = k, v, mask, beams
        self.words_first: Tensor | None = None  # [B, S]: places of the keys before padding on their left went last
        self.steps = 0  # queries so far, of each row
        self.kept = {}  # as in Cache

    def group(self, q: Tensor) -> Tensor:
        """[B, h, 1, d_k] → [B / beams, h, beams, d_k]"""
        return q if self.beams == 1 else q.squeeze(2).unflatten(0, (-1, self.beams)).transpose(1, 2)

    def reorder(self, order: Tensor, beam_size: int, answers: dict) -> None:
        """Row i continues row order[i].

        Beams share the keys of their sentence while all of them stay. Once only some do, each row gets its own keys.
        While beams share keys, an order with as many rows as before is assumed to stay within the sentences, as
        fairseq's own attention assumes: beam search has no other, and checking would wait for the device at every step.
        """
        if self.beams > 1 and len(order) == self.beams * len(self.k):
            return
        repeated = self.beams == 1 and len(order) == beam_size * len(self.k)  # after the first step of a search
        beams = beam_size if repeated else self.beams
        rows = order // self.beams  # of k
        self.beams = beams if beams > 1 and stay_together(rows, beams, answers) else 1
        self.k, self.v, self.mask, self.words_first = (
            None if x is None else x.index_select(0, rows[:: self.beams])
            for x in (self.k, self.v, self.mask, self.words_first)
        )


def cache_of(attention, incremental_state: dict | None) -> Cache | SourceCache | None:
    """The cache of `attention`; None before the first token."""
    return attention.get_incremental_state(incremental_state, "cache")


def keep(attention, incremental_state: dict, cache: Cache | SourceCache):
    """Stores `cache` as that of `attention`, and returns it."""
    attention.set_incremental_state(incremental_state, "cache", cache)
    return cache


def with_room(buffer: Tensor | None, length: int, new: Tensor) -> Tensor:
    """A buffer [more than `length`, B, h, d_z] with the first `length` positions of `buffer`; `new`: [B, h, 1, d_z]."""
    if buffer is not None and length < len(buffer) and not new.requires_grad:  # autograd needs what it held before
        return buffer
    grown = new.new_empty(max(1, 2 * length), *new.squeeze(2).shape)
    if length:
        grown[:length] = buffer[:length]
    return grown


def reordered(buffer: Tensor, length: int, order: Tensor) -> Tensor:
    """The first `length` positions of `buffer` [capacity, B, h, d_z] for the rows in `order`, and room for one more."""
    used = buffer[:length]
    if used.requires_grad:  # autograd does not support out=, so `with_room` makes the room later
        return used.index_select(1, order)
    larger = buffer.new_empty(length + 1, len(order), *buffer.shape[2:])
    torch.index_select(used, 1, order, out=larger[:length])
    return larger


def ungroup_beams(x: Tensor | None) -> Tensor | None:
    """[B / beams, h, beams, …] → [B, h, 1, …]"""
    return None if x is None else x.transpose(1, 2).flatten(0, 1).unsqueeze(2)


def shared_beams(key: Tensor, beams: int) -> int:
    """`beams` if key [S, B, d] repeats each sentence that many times in a row; else 1.

    The rows are compared, because fairseq sets a beam size but never resets it.
    """
    if beams == 1 or key.size(1) % beams:
        return 1
    sentences = key.unflatten(1, (-1, beams))
    return beams if torch.equal(sentences, sentences[:, :, :1].expand_as(sentences)) else 1


def stay_together(rows: Tensor, beams: int, answers: dict) -> bool:
    """Whether each group of `beams` in `rows` has one row of keys, repeated.

    The rows of a batch that repeats a sentence look like beams until one of them ends. The comparison waits for the
    device, so its result is put into `answers`, which the caches of all layers share for one order.
    """
    if len(rows) % beams:
        return False
    if beams not in answers:
        groups = rows.unflatten(0, (-1, beams))
        answers[beams] = bool((groups == groups[:, :1]).all())
    return answers[beams]
