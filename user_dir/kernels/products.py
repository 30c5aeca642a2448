"""Products without gradients: the same sums in an order that is faster on CPUs.

The first product of an encoder or decoder and a decoder's last one have a transposed x. If no gradient is needed, torch
takes that for B or T products, and in bfloat16 copies W for each of them: the quickstart's test set took 82 CPU seconds
instead of 8. So x gets two dimensions first, as torch gives it where gradients are needed, and with the same rounding.

If x has few rows, x Wᵀ is computed as (W xᵀ)ᵀ: torch's matrix library (MKL) computes such a flat product in one thread
of two, but W xᵀ in both: searches at `_base` size are faster (tests/benchmarks/README.md). There is nothing to gain
with one thread, in training, and for more rows or smaller matrices. (In the first pass of activation checkpointing
torch computes no gradients, as in a search: its sums may be rounded differently from the second pass's.)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64  # the most rows for which this pays
SIZE = 2**18  # W has to be larger than this


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as F.linear: x […, inputs], weight [outputs, inputs], bias [outputs] → […, outputs]"""
    if x.dim() == 3 and x.stride(0) != x.size(1) * x.stride(1):
        return linear(x.flatten(0, 1), weight, bias).unflatten(0, x.shape[:2])
    rows = x.shape[:-1].numel()
    suited = 1 < rows <= ROWS and weight.numel() > SIZE and x.device.type == "cpu" and x.dtype == torch.float32
    if not suited or torch.is_grad_enabled() or torch.get_num_threads() == 1 or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    columns = x.reshape(rows, -1).T
    product = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return product.T.contiguous().unflatten(0, x.shape[:-1])


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
