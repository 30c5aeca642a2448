"""Training of the branch weights κ and α (Ahmed et al. 2017, section 4): the contract of model and optimizer.

In chronological order:

1. `TransformerModel.build_model` receives the command line's options before data are loaded, and refuses those with
   which κ and α cannot be trained (`refuse_training`).
2. It makes one `BranchTraining` for all κ and α of the model and sets it as their attribute `param_group`. fairseq's
   FP16Optimizer copies that attribute to its float32 parameters, unless it flattens all parameters into one.
3. `FusedAdam` puts the parameters with that attribute into a separate group, and sets `adopted`.
4. Before each update fairseq calls `TransformerModel.set_num_updates`, which refuses to train unless `adopted` is set
   (`require_adopted`): step 1 cannot see an optimizer that is made elsewhere, and flattening loses the attribute.
5. `FusedAdam.step` updates κ and α with the rate of `learning_rate`, projects them onto the simplex (simplex.py), and
   counts the update in its checkpoint. `BranchLog` (log.py) shows them in fairseq's log.
"""

from dataclasses import dataclass

from fairseq.optim import OPTIMIZER_REGISTRY

from ..config import training_options
from ..errors import InputError


@dataclass(eq=False)
class BranchTraining:
    """One object for all κ and α of a model, in their attribute `param_group`, whose name fairseq prescribes.

    lr_scale: (d_model / N)^-0.5 with N layers, the factor of their learning rate
    simplex: project κ and α onto the simplex after each update; False if the model takes a softmax of them
    adopted: set by the optimizer that trains them
    """

    lr_scale: float
    simplex: bool = True
    adopted: bool = False

    def learning_rate(self, update: int, warmup: int) -> float:
        """(d_model / N)^-0.5 · min(t^-0.5, t · warmup^-1.5) for update t = 1, 2, … (Ahmed et al. 2017, section 4)."""
        return self.lr_scale * min(update**-0.5, update * max(warmup, 1) ** -1.5)

    def require_adopted(self) -> None:
        """Raises InputError unless an optimizer trains κ and α."""
        if not self.adopted:
            raise InputError(UNSUITABLE_OPTIMIZER)


UNSUITABLE_OPTIMIZER = (
    "the branch weights κ and α need their own learning rate and a projection onto the simplex: train with "
    "--optimizer fused_adam, and with --fp16 also --fp16-no-flatten-grads"
)


def refuse_training(options) -> None:
    """Raises InputError if fairseq-train with `options` could not train κ and α as the paper does."""
    options, faults = training_options(options), []
    if options.get("path"):  # of fairseq-validate, whose --fp16 is among the options, too; a training has none
        return
    if options.get("use_bmuf") or options.get("ddp_backend") in ("fully_sharded", "slowmo"):
        faults.append(
            "--use-bmuf and --ddp-backend fully_sharded or slowmo take κ and α off the simplex: "
            "train with --ddp-backend pytorch_ddp or legacy_ddp"
        )
    optimizer = OPTIMIZER_REGISTRY.get(options.get("optimizer"))
    unsuitable = optimizer is not None and not getattr(optimizer, "trains_branch_weights", False)
    # --memory-efficient-fp16 keeps the parameters as they are; `fused_adam` explains why it does not train them.
    unflattened = options.get("fp16_no_flatten_grads") or options.get("memory_efficient_fp16")
    if unsuitable or (options.get("fp16") and not unflattened):
        faults.append(UNSUITABLE_OPTIMIZER)
    if faults:
        raise InputError("; ".join(faults))
