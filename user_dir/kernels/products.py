"""Products of few rows with a large matrix on CPUs: x Wᵀ as (W xᵀ)ᵀ, which are the same sums.

During decoding x has one row per hypothesis. torch's matrix library (MKL) computes such a flat product in one thread of
two, but W xᵀ in both: at `_base` size whole searches of 4 and 16 sentences take 0.8 and 0.9 of the time. There is
nothing to gain with one thread, in training, and for more rows or smaller matrices.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64  # the most rows for which this pays
SIZE = 2**18  # W has to be larger than this


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, as F.linear: x […, inputs], weight [outputs, inputs], bias [outputs] → […, outputs]"""
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
