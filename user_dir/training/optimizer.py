"""--optimizer fused_adam: torch's Adam (Kingma and Ba 2015), one kernel for all parameters; and branch weights.

The update is that of fairseq's `adam` (decoupled weight decay, as in torch's AdamW) except for the place of ε: it is
added to √(v/(1 − β₂ᵗ)) as in the paper, where fairseq adds it to √v.

κ and α of the Weighted Transformer (Ahmed et al. 2017, section 4) form a separate group. Their learning rate depends
on the number of the update, not on --lr-scheduler, and is 0 for the last updates. They have no weight decay. After each
update they are projected onto the simplex. The group counts its updates in the optimizer's checkpoint, so that a
resumed run continues exactly and updates skipped for overflow do not count.
"""

import ast
import math
from dataclasses import dataclass

import torch
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from omegaconf import II
from torch import Tensor

from ..config import option
from ..errors import InputError, flag
from ..weighted.simplex import project_
from ..weighted.training import BranchTraining

HALF = (torch.float16, torch.bfloat16)


@dataclass
class FusedAdamConfig(FairseqAdamConfig):
    branch_warmup_updates: int = option(
        400, "number of warm-up updates for the learning rate of branch weights (Ahmed et al. 2017, section 4)"
    )
    branch_frozen_updates: int = option(
        10000,
        "freeze branch weights for the last N updates before --max-update (Ahmed et al. 2017, section 4); 0: never",
    )
    max_update: int = II("optimization.max_update")
    fp16: bool = II("common.fp16")
    amp: bool = II("common.amp")


@register_optimizer("fused_adam", dataclass=FusedAdamConfig)
class FusedAdam(FairseqAdam):
    """fairseq's `adam` with its options, in one kernel; fairseq's runs a Python loop of small kernels per parameter.

    Half-precision parameters (--memory-efficient-fp16) get fairseq's Adam, which computes in float32; torch's does not.

    Raises:
        InputError: for --fp16-adam-stats and --use-old-adam, which need fairseq's Adam, for numbers that Adam does not
            accept, and for options with which branch weights would not be trained
    """

    trains_branch_weights = True
    params = ()  # in the order given, by which fairseq's --debug-param-names names them, not in that of the groups
    _step_supports_amp_scaling = True  # read by torch's GradScaler: with --amp fairseq has unscaled the gradients

    def __init__(self, cfg: FusedAdamConfig, params):
        FairseqOptimizer.__init__(self, cfg)
        for name in ("fp16_adam_stats", "use_old_adam"):
            if getattr(cfg, name):
                raise InputError(f"{flag(name)} needs fairseq's adam: omit it")
        refuse_betas(cfg.adam_betas)
        cfg.adam_betas = str(cfg.adam_betas)  # fairseq fails at a tuple, its default without a DictConfig
        self.params = params = list(params)
        groups, self.branch_training = params, None
        branch = [p for p in params if isinstance(getattr(p, "param_group", None), BranchTraining)]
        if branch:
            refuse_unsuitable(cfg, branch)
            (self.branch_training,) = {p.param_group for p in branch}
            self.branch_training.adopted = True
            others = [p for p in params if not isinstance(getattr(p, "param_group", None), BranchTraining)]
            groups = [{"params": others}, {"params": branch, "updates": 0}]
        if any(p.dtype in HALF for p in params):
            self._optimizer = Adam(groups, **self.optimizer_config)
        else:
            try:
                self._optimizer = torch.optim.AdamW(groups, fused=True, **self.optimizer_config)
            except ValueError as error:
                raise InputError(f"{error}: change --lr, --adam-betas, --adam-eps or --weight-decay") from error
        # With --amp fairseq loads a checkpoint into torch's optimizer without asking us.
        self._optimizer.register_load_state_dict_post_hook(self.keep_options)

    def keep_options(self, optimizer: torch.optim.Optimizer) -> None:
        """Keeps the --adam-betas, --adam-eps and --weight-decay given now, where fairseq takes a checkpoint's."""
        given = {name: value for name, value in self.optimizer_config.items() if name != "lr"}  # the scheduler's
        for group in optimizer.param_groups:
            group.update(given)

    def set_up_branches(self):
        """Sets the branch weights' rate for the next update; a scheduler or overrides may have changed all groups."""
        group = self.param_groups[1]
        group["weight_decay"], group["updates"] = 0.0, group["updates"] + 1
        rate = self.branch_training.learning_rate(group["updates"], self.cfg.branch_warmup_updates)
        last = self.cfg.branch_frozen_updates
        group["lr"] = 0.0 if 0 < last and self.cfg.max_update - last < group["updates"] else rate

    @torch.no_grad()
    def clip_grad_norm(self, max_norm, aggregate_norm_fn=None):
        """As fairseq's, but with one kernel for the norms of all gradients.

        Raises:
            InputError: if the norm is not finite and a smaller scale of the loss cannot help
        """
        grads = [p.grad for p in self.params if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, dtype=torch.float32)))
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self.params, max_norm, norm)
        if not (self.cfg.fp16 or self.cfg.amp or torch.isfinite(norm)):  # these continue with a smaller loss scale
            self.refuse_divergence()
        return norm

    def refuse_divergence(self):
        """Raises InputError, because fairseq's NaN detector fails on encoders that return a dict."""
        size, name = max(
            (p.detach().abs().max().nan_to_num(math.inf, math.inf).item(), getattr(p, "name_in_model", "a parameter"))
            for p in self.params
        )
        update = 1 + max((int(state["step"]) for state in self._optimizer.state.values()), default=0)
        raise InputError(
            f"update {update}: the training has diverged, the gradient is not finite and {name} has values of up to "
            f"{size:.1e}: lower --lr, increase --warmup-updates or set --clip-norm, and continue from an earlier "
            "checkpoint"
        )

    def step(self, *args, **kwargs):
        if getattr(self, "found_inf", 0):  # GradScaler sets it: an overflow with --amp
            return
        if self.branch_training is None:
            return super().step(*args, **kwargs)
        self.set_up_branches()
        super().step(*args, **kwargs)
        group = self.param_groups[1]
        if self.branch_training.simplex and group["lr"] > 0:  # a projection could change the last bit when frozen
            project_(group["params"])
        metrics.log_scalar("lr_branch_weights", group["lr"], weight=0, priority=301)  # as fairseq's trainer logs lr

    @property
    def supports_flat_params(self):
        """Read by fairseq's trainer for FSDP. FP16Optimizer flattens before it asks; require_adopted reports that."""
        return self.branch_training is None


def refuse_betas(betas) -> None:
    """Raises InputError unless --adam-betas are two numbers: fairseq evaluates any Python code in a configuration."""
    try:
        _, _ = (0.0 + beta for beta in (ast.literal_eval(betas) if isinstance(betas, str) else betas))
    except (ValueError, TypeError, SyntaxError):
        raise InputError(f"--adam-betas {betas}: give two numbers, such as '(0.9, 0.98)'") from None


def refuse_unsuitable(cfg: FusedAdamConfig, branch: list[Tensor]) -> None:
    """Raises InputError for options with which branch weights would not be trained."""
    if isinstance(cfg.max_update, str):  # a reference to fairseq's options, of a program that has not given its own
        raise InputError("fused_adam needs max_update, fp16 and amp for branch weights: add them to its options")
    counts = [(name, getattr(cfg, name)) for name in ("branch_warmup_updates", "branch_frozen_updates")]
    faults = [f"{flag(name)} {count}: give at least 0" for name, count in counts if count < 0]
    if len({p.param_group for p in branch}) > 1:
        faults.append("κ and α are those of several models: build an optimizer for each model")
    if any(p.dtype in HALF for p in branch):  # float16 has steps of 1/4096 at 1/4; most updates are less than half that
        faults.append(
            "--memory-efficient-fp16 or -bf16 keeps κ and α in half precision, where rounding undoes their updates: "
            "train with --fp16 --fp16-no-flatten-grads, which keeps them in float32, or with --autocast bf16"
        )
    if 0 < cfg.branch_frozen_updates and cfg.max_update <= cfg.branch_frozen_updates:
        faults.append(
            f"κ and α are frozen for the last {cfg.branch_frozen_updates} updates before --max-update {cfg.max_update} "
            "and would never be trained: set a larger --max-update or a smaller --branch-frozen-updates (0: never)"
        )
    if faults:
        raise InputError("; ".join(faults))
