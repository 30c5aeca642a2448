"""Branch weights κ, α (Ahmed et al. 2017): what model and optimizer tell each other about them.

The model gives each κ and α one `BranchWeights` as attribute `param_group`; fairseq's FP16Optimizer hands that
attribute on to its float32 copies, unless it flattens all parameters into one. An optimizer that trains the branch
weights as the paper does says so (`trains_branch_weights`) and sets `adopted`; the model refuses to be trained by any
other.
"""

import functools
from dataclasses import dataclass

import torch
from fairseq.logging import metrics
from fairseq.optim import OPTIMIZER_REGISTRY
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


UNSUITABLE_OPTIMIZER = (
    "The branch weights κ and α need a learning rate of their own and to be kept on the simplex: train with "
    "--optimizer fused_adam, and with --fp16 also --fp16-no-flatten-grads (or --memory-efficient-fp16)."
)


def refuse_training(options) -> None:
    """Raises BranchWeightsError if `options` of fairseq-train could not train κ and α as the paper does.

    A model built by fairseq-train is given all options of the command line, before any data is read. Where it is given
    its own alone (fairseq-hydra-train), `require_adopted` has to notice at the first update.
    """
    if getattr(options, "ddp_backend", None) == "fully_sharded":
        raise BranchWeightsError(
            "--ddp-backend fully_sharded cuts parameters into pieces, and κ and α cannot be kept on the simplex in pieces: "
            "train with --ddp-backend pytorch_ddp or legacy_ddp."
        )
    optimizer = OPTIMIZER_REGISTRY.get(getattr(options, "optimizer", None))
    unsuitable = optimizer is not None and not getattr(optimizer, "trains_branch_weights", False)
    whole = getattr(options, "fp16_no_flatten_grads", False) or getattr(options, "memory_efficient_fp16", False)
    if unsuitable or (getattr(options, "fp16", False) and not whole):
        raise BranchWeightsError(UNSUITABLE_OPTIMIZER)


def require_adopted(branch_weights: BranchWeights) -> None:
    """Raises BranchWeightsError unless an optimizer has taken the branch weights; for a model's first training step."""
    if not branch_weights.adopted:
        raise BranchWeightsError(UNSUITABLE_OPTIMIZER)


def branched_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of `model` that have κ and α, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "kappa")}


# where a branched attention stands in the model: its name in the log
BLOCKS = {"encoder self_attn": "enc", "decoder self_attn": "dec", "decoder encoder_attn": "encdec"}


def log_name(parameter: str) -> str:
    """The name in the log of a κ or α: kappa_enc1 for encoder.layers.0.self_attn.kappa, with layers counted from 1."""
    side, _, layer, attention, weights = parameter.split(".")
    return f"{weights}_{BLOCKS[f'{side} {attention}']}{int(layer) + 1}"


class BranchWeightsLog:
    """κ and α of every block of `model` in fairseq's log and TensorBoard, as the update has left them.

    kappa_enc1=0.2613/0.2408/… are κ_1, κ_2, … of a block (`log_name`): text, because fairseq's values are numbers, and
    hundreds of numbers would make no line. kappa_enc1_entropy is their entropy in nats (ln M if uniform), a number.
    fairseq asks for a derived value when it writes a line; all are fetched from the device then, at once.
    """

    def __init__(self, model: nn.Module):
        self.blocks = branched_blocks(model)
        self.names = [log_name(f"{name}.{which}") for name in self.blocks for which in ("kappa", "alpha")]
        self.values = None

    def follow(self) -> None:
        """To be called in each update: enters the values in fairseq's log, and forgets those of an earlier line."""
        self.values = None
        if all(self.names[0] in values for values in metrics.get_active_aggregators()):
            return
        for name in (name + ending for name in self.names for ending in ("", "_entropy")):
            metrics.log_derived(name, functools.partial(self.value, name), priority=400)

    def value(self, name: str, _) -> str | float:
        if self.values is None:
            weights = torch.stack([w.detach().float() for block in self.blocks.values() for w in block.branch_weights()])
            entropies = torch.special.entr(weights).sum(1, keepdim=True)
            self.values = {}
            for key, (*row, entropy) in zip(self.names, torch.cat([weights, entropies], dim=1).tolist(), strict=True):
                self.values |= {key: "/".join(f"{weight:.4f}" for weight in row), f"{key}_entropy": round(entropy, 3)}
        return self.values[name]
