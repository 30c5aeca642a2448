"""How the branch weights κ and α are trained (Ahmed et al. 2017, section 4): what model and optimizer agree on.

In the order in which it happens:

1. `TransformerModel.build_model` is given the options of the command line before any data are read, and refuses those
   with which κ and α could not be trained (`refuse_training`).
2. It makes one `BranchTraining` for all κ and α of the model and hangs it on each as attribute `param_group`. fairseq's
   FP16Optimizer hands that attribute on to its float32 copies, unless it flattens all parameters into one.
3. `FusedAdam` looks for parameters with that attribute, makes a group of its own of them, and sets `adopted`.
4. Before each update fairseq calls `TransformerModel.set_num_updates`, which refuses to train if nobody has
   (`require_adopted`): another optimizer that step 1 could not see, or one whose parameters have lost the attribute.
5. `FusedAdam.step` updates κ and α with the rate of `learning_rate`, projects them onto the simplex (simplex.py), and
   counts the update in its checkpoint. `BranchLog` (branch_log.py) shows them in fairseq's log.
"""

from dataclasses import dataclass

from fairseq.optim import OPTIMIZER_REGISTRY
from omegaconf import DictConfig, OmegaConf

from ..errors import InputError


class BranchTrainingError(InputError):
    """κ and α would not be trained as Ahmed et al. 2017 train them."""


@dataclass(eq=False)
class BranchTraining:
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

    def require_adopted(self) -> None:
        """Raises BranchTrainingError unless an optimizer has taken κ and α; for a model's training steps."""
        if not self.adopted:
            raise BranchTrainingError(UNSUITABLE_OPTIMIZER)


UNSUITABLE_OPTIMIZER = (
    "The branch weights κ and α need a learning rate of their own and to be kept on the simplex: train with "
    "--optimizer fused_adam, and with --fp16 also --fp16-no-flatten-grads."
)


def refuse_training(options) -> None:
    """Raises BranchTrainingError if `options` of fairseq-train could not train κ and α as the paper does.

    A model is built before any data is read. Once the loader's thread lives, "terminate called …" would be the last
    line and the exit 134.
    """
    options = training_options(options)
    if options.get("ddp_backend") == "fully_sharded":
        raise BranchTrainingError(
            "--ddp-backend fully_sharded cuts parameters into pieces, and κ and α cannot be kept on the simplex in "
            "pieces: train with --ddp-backend pytorch_ddp or legacy_ddp."
        )
    optimizer = OPTIMIZER_REGISTRY.get(options.get("optimizer"))
    unsuitable = optimizer is not None and not getattr(optimizer, "trains_branch_weights", False)
    # With the latter half-precision parameters stay as they are, and `fused_adam` says why it does not train them.
    whole = options.get("fp16_no_flatten_grads") or options.get("memory_efficient_fp16")
    if unsuitable or (options.get("fp16") and not whole):
        raise BranchTrainingError(UNSUITABLE_OPTIMIZER)


def training_options(options) -> dict:
    """What the model being built is to be trained with, by name, as far as it is known.

    fairseq-train gives a model all options of the command line; fairseq-hydra-train a group of its configuration, with
    the others beside it.
    """
    if not isinstance(options, DictConfig):
        return vars(options)
    found = {}
    for group in ("common", "distributed_training"):
        found |= OmegaConf.select(options, f"..{group}", default={})
    return {**found, "optimizer": OmegaConf.select(options, "..optimizer._name", default=None)}
