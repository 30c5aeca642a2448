"""Dropout (Srivastava et al. 2014) on CPUs, with fewer random words than torch.

torch draws 64 bits per element, and on AMD's processors it uses a single core: 6% of a training step at base size.
Here each element takes 16 bits, so that its probability is exact to 2^-16. The words come from torch's generator: a
seed determines the mask, and a resumed run continues the sequence. On other devices dropout is torch's, except in
relative/kernel.py, whose derivative draws the mask again.
"""

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor


def random_mask(x: Tensor, p: float, generator: torch.Generator | None = None) -> tuple[Tensor, float]:
    """The elements of x to keep (bool), and 1 / P(keep); from `generator`, or torch's."""
    dropped = round(p * 2**16)  # of the 2^16 values that 16 bits have
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
    words.random_(-(2**63), None, generator=generator)
    keep = (words.view(torch.int16)[: x.numel()] >= dropped - 2**15).view(x.shape)
    return keep, 2**16 / (2**16 - dropped) if dropped < 2**16 else 0.0


class FewWordsDropout(torch.autograd.Function):
    """x · keep / P(keep) and its derivative; keep is stored as bytes."""

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = random_mask(x, p)
        ctx.save_for_backward(keep)
        return x.mul(keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return grad.mul(keep).mul_(ctx.scale), None


class Dropout(FairseqDropout):
    """fairseq's module, which is active in training and with --retain-dropout."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        if x.device.type != "cpu" or self.p == 0 or not (self.training or self.apply_during_inference):
            return super().forward(x, inplace)
        return FewWordsDropout.apply(x, self.p)
