"""κ and α of every block in fairseq's log; their entropies in TensorBoard, too."""

import functools

import torch
from fairseq.logging import metrics
from torch import nn

from .heads import branched_blocks

# The place of a branched attention in the model, and its name in the log.
BLOCKS = {"encoder self_attn": "enc", "decoder self_attn": "dec", "decoder encoder_attn": "encdec"}


def log_name(parameter: str) -> str:
    """The name in the log of a κ or α: kappa_enc1 for encoder.layers.0.self_attn.kappa, with layers counted from 1."""
    side, _, layer, attention, weights = parameter.split(".")
    return f"{weights}_{BLOCKS[f'{side} {attention}']}{int(layer) + 1}"


class BranchLog:
    """κ and α of every block of `model` after the last update, for fairseq's log.

    kappa_enc1=0.2613/0.2408/… are κ_1, κ_2, … of a block (`log_name`), as one text, because hundreds of numbers would
    be too many for a line. kappa_enc1_entropy is their entropy in nats (ln M if uniform), a number, which TensorBoard
    draws, too. fairseq asks for a derived value when it writes a line; only then all of them are fetched from the
    device, at once.
    """

    def __init__(self, model: nn.Module):
        self.blocks = branched_blocks(model)
        self.names = [log_name(f"{name}.{which}") for name in self.blocks for which in ("kappa", "alpha")]
        self.values = None

    def follow(self) -> None:
        """To be called before each update: enters the values in fairseq's log, and discards those of the last line."""
        self.values = None
        if all(self.names[0] in values for values in metrics.get_active_aggregators()):
            return
        for name in (name + ending for name in self.names for ending in ("", "_entropy")):
            metrics.log_derived(name, functools.partial(self.value, name), priority=400)

    def value(self, name: str, _) -> str | float:
        if self.values is None:
            # Encoder and decoder may have different numbers of branches.
            weights = [w.detach().float() for block in self.blocks.values() for w in block.kappa_alpha()]
            entropies = torch.stack([torch.special.entr(w).sum() for w in weights])
            numbers = iter(torch.cat([*weights, entropies]).tolist())
            rows = [[f"{next(numbers):.4f}" for _ in w] for w in weights]
            self.values = {}
            for key, row, entropy in zip(self.names, rows, numbers, strict=True):
                self.values |= {key: "/".join(row), f"{key}_entropy": round(entropy, 3)}
        return self.values[name]
