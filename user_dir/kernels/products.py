"""Products of a few rows with a large matrix, on CPUs: x Wᵀ as (W xᵀ)ᵀ, the same sums.

While a batch is decoded, x has a row for each hypothesis. torch's matrix library (MKL) gives the outputs of so flat a
product to one thread of two, and those of W xᵀ to both: at `_base` size whole searches of 4 and 16 sentences take 0.8
and 0.9 of the time. With one thread, in training, for more rows or smaller matrices there is nothing to gain.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64  # at most
SIZE = 2**18  # of W, more than


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
