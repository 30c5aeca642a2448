"""The caches of a decoder's attentions."""

import torch

from user_dir.attention.cache import Cache, SourceCache


def test_padding_may_begin_after_words():
    """As in a beam of probability 0 beside a forced prefix."""
    cache, x = Cache(), torch.zeros(2, 1, 1, 1)
    for padding in (None, torch.tensor([[True], [False]]), None):
        _, _, found = cache.append(x, x, padding)
    assert found.tolist() == [[False, True, False], [False, False, False]]


def test_an_order_that_is_no_repetition_of_each_sentence():
    """Two sentences as 0 1 0 1 are no beams: each row keeps the keys of its own."""
    keys = torch.arange(2.0).view(2, 1, 1, 1)
    cache = SourceCache(keys, keys, None, 1)
    cache.reorder(torch.tensor([0, 1, 0, 1]), 2, {})
    assert cache.beams == 1 and cache.k.flatten().tolist() == [0, 1, 0, 1]


def test_rows_that_become_equal_are_no_beams():
    """Only the first step of a search makes beams: later rows of different sentences may change places."""
    keys = torch.arange(4.0).view(4, 1, 1, 1)
    cache = SourceCache(keys, keys, None, 1)
    for order in ([0, 0, 3, 3], [2, 3, 0, 1]):
        cache.reorder(torch.tensor(order), 2, {})
    assert cache.beams == 1 and cache.k.flatten().tolist() == [3, 3, 0, 0]
