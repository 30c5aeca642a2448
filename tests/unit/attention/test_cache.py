"""The caches of a decoder's attentions."""

import torch

from user_dir.attention.cache import SourceCache


def test_an_order_that_is_no_repetition_of_each_sentence():
    """Two sentences as 0 1 0 1 are no beams: each row keeps the keys of its own."""
    keys = torch.arange(2.0).view(2, 1, 1, 1)
    cache = SourceCache(keys, keys, None, 1)
    cache.reorder(torch.tensor([0, 1, 0, 1]), 2, {})
    assert cache.beams == 1 and cache.k.flatten().tolist() == [0, 1, 0, 1]
