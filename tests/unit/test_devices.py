"""Finds tensors that are made without the device of the others, which otherwise only a GPU would show."""

import types

import torch

from user_dir.attention.cache import Cache
from user_dir.attention.multihead import MultiheadAttention
from user_dir.attention.restricted import RestrictedAttention
from user_dir.kernels.dropout import random_mask
from user_dir.relative import kernel as relative_kernel
from user_dir.relative.attention import RelativeMultiheadAttention, by_distance
from user_dir.search.beam import fetch
from user_dir.transformer.layers import joined
from user_dir.weighted.simplex import project


def test_tensors_are_made_where_the_others_are():
    """Within torch.device("meta") one that is made without a device has no values."""
    torch.manual_seed(1)
    x, padding = torch.randn(24, 2, 8), torch.tensor([[True], [False]])
    relative = RelativeMultiheadAttention(8, 2, distance=3, self_attention=True)
    restricted = joined(RestrictedAttention, MultiheadAttention)(8, 2, neighbourhood=5, self_attention=True)

    def results():
        relative_kernel.index_of_rows.cache_clear()  # of other calls
        cache, k = Cache(), x[:2].unsqueeze(2)  # [B, h, 1, d_k]
        cache.append(k, k, padding)
        found = [cache.append(k, k, None)[2], random_mask(x, 0.0)[0], project(x)]
        found.append(by_distance(relative.relative_keys, -9, 9))
        found += [attention(x, x, x, need_weights=False)[0] for attention in (restricted, relative)]
        return [*found, *restricted(x, x, x)]

    with torch.device("meta"):
        found = results()
    torch.testing.assert_close(found, results())


def test_a_gpu_without_float64():
    """Apple's: nmt-translate --device mps."""
    part = types.SimpleNamespace(device=types.SimpleNamespace(type="mps"), cpu=lambda: torch.tensor([[1.0, 2.0]]))
    assert fetch(part)[0].tolist() == [[1.0, 2.0]]
