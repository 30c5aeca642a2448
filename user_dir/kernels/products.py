"""Products while decoding: the same sums in an order that is faster on CPUs.

A decoder's last product has x [B, 1, d], transposed from [1, B, d]. In bfloat16 torch takes that for B products and
copies W for each of them: the quickstart's test set took 82 CPU seconds instead of 8. So x gets two dimensions first.

If x has few rows, x Wᵀ is computed as (W xᵀ)ᵀ: torch's matrix library (MKL) computes such a flat product in one thread
of two, but W xᵀ in both: at `_base` size whole searches of 4 and 16 sentences take 0.8 and 0.9 of the time. There is
nothing to gain with one thread, in training, and for more rows or smaller matrices.

With one thread and more rows, the product with a vocabulary is computed for BLOCK words at a time. The bits are the
same, and at the quickstart's size the product takes about 0.85 of the time; at `_base` size as long.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64  # the most rows for which this pays
SIZE = 2**18  # W has to be larger than this
BLOCK = 512
WORDS = 8 * BLOCK  # W has to have as many outputs for blocks to pay


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as F.linear: x […, inputs], weight [outputs, inputs], bias [outputs] → […, outputs]"""
    if x.dim() == 3 and x.size(1) == 1:  # in training, too: both passes of activation checkpointing compute the same
        return linear(x.squeeze(1), weight, bias).unsqueeze(1)
    rows, threads = x.shape[:-1].numel(), torch.get_num_threads()
    few = 1 < rows <= ROWS and threads > 1 and weight.numel() > SIZE
    many = rows > ROWS and threads == 1 and len(weight) >= WORDS and bias is None
    if not (few or many) or x.device.type != "cpu" or x.dtype != torch.float32:
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if many:
        return in_blocks(x.reshape(rows, -1), weight).unflatten(0, x.shape[:-1])
    columns = x.reshape(rows, -1).T
    product = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return product.T.contiguous().unflatten(0, x.shape[:-1])


def in_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ for BLOCK outputs at a time: x [N, inputs], weight [outputs, inputs] → [N, outputs]"""
    product = x.new_empty(len(x), len(weight))
    for own, columns in zip(weight.split(BLOCK), product.split(BLOCK, dim=1), strict=True):
        torch.mm(x, own.T, out=columns)
    return product


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
