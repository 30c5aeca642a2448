"""Branch weights κ, α (Ahmed et al. 2017): what model and optimizer tell each other about them.

The model gives each κ and α one `BranchWeights` as attribute `param_group`; fairseq's FP16Optimizer hands that
attribute on to its float32 copies, unless it flattens all parameters into one. An optimizer that trains the branch
weights as the paper does sets `adopted`; the model refuses to be trained by any other (`require_adopted`).
"""

from dataclasses import dataclass

import torch
from fairseq.logging import metrics
from torch import nn


class BranchWeightsError(RuntimeError):
    """κ and α would not be trained as Ahmed et al. 2017 train them."""


@dataclass(eq=False)
class BranchWeights:
    """One object for all κ and α of a model.

    lr_scale: (d_model / N)^-0.5 with N layers, the factor of their learning rate
    simplex: project κ and α onto the simplex after each update; False where the model takes a softmax of them
    adopted: set by the optimizer that has taken them
    """

    lr_scale: float
    simplex: bool = True
    adopted: bool = False

    def learning_rate(self, update: int, warmup: int) -> float:
        """(d_model / N)^-0.5 · min(t^-0.5, t · warmup^-1.5) for update t = 1, 2, … (Ahmed et al. 2017, section 4)."""
        return self.lr_scale * min(update**-0.5, update * max(warmup, 1) ** -1.5)


def require_adopted(branch_weights: BranchWeights) -> None:
    """Raises BranchWeightsError unless an optimizer has taken the branch weights; for a model's first training step."""
    if not branch_weights.adopted:
        raise BranchWeightsError(
            "The branch weights κ and α need a learning rate of their own and to be kept on the simplex: train with "
            "--optimizer fused_adam, and with --fp16 also --fp16-no-flatten-grads (or --memory-efficient-fp16)."
        )


def branched_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of `model` that have κ and α, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "kappa")}


def log_branch_weights(model: nn.Module) -> None:
    """Shows min, max and entropy (nats; ln M if uniform) of κ and α of each block in fairseq's log and TensorBoard."""
    blocks = branched_blocks(model)
    weights = torch.stack([w.detach().float() for block in blocks.values() for w in block.branch_weights()])  # [2·blocks, M]
    shown = torch.stack([weights.amin(1), weights.amax(1), torch.special.entr(weights).sum(1)], dim=1).tolist()
    names = [f"{name}.{which}" for name in blocks for which in ("kappa", "alpha")]
    for name, values in zip(names, shown, strict=True):
        for what, value in zip(("min", "max", "entropy"), values):
            metrics.log_scalar(f"{name}_{what}", value, weight=0, priority=400, round=3)
