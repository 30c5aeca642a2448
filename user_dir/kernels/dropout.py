"""Dropout (Srivastava et al. 2014) on CPUs: the mask comes from a quarter of the random words that torch draws.

torch draws two words an element, on AMD's processors on one core whatever the threads: 6% of a training step at base
size. Here 16 of 64 random bits decide about an element, so that its probability is exact to 2^-16. The words come from
the same generator: a seed gives one mask, and a resumed run goes on with the next. Elsewhere dropout is torch's.
"""

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor


class FewWordsDropout(torch.autograd.Function):
    """x · keep / P(keep) and its derivative; keep is kept as bytes."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        dropped = round(p * 2**16)  # of 2^16 values of the bits
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        keep = (words.view(torch.int16)[: x.numel()] >= dropped - 2**15).view(x.shape)
        ctx.scale = 2**16 / (2**16 - dropped) if dropped < 2**16 else 0.0
        ctx.save_for_backward(keep)
        return x.mul(keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return grad.mul(keep).mul_(ctx.scale), None


class Dropout(FairseqDropout):
    """fairseq's module: it acts in training, and with --retain-dropout."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        if x.device.type != "cpu" or self.p == 0 or not (self.training or self.apply_during_inference):
            return super().forward(x, inplace)
        return FewWordsDropout.apply(x, self.p)
