"""Heads with branch weights (Ahmed et al. 2017; https://arxiv.org/abs/1711.02132), and a Transformer made of them.

--branch-residual shared keeps the Transformer's two sublayers. For self-attention and FFN, post-norm, it computes

    u = LayerNorm(x + Σ_i M κ_i head_i W^O_i + b),   LayerNorm(u + Σ_i M α_i FFN_i(u) + b2)

with the columns W^O_i and W2_i of the base's matrices. If all κ_i and α_i are 1/M, this is the Transformer; otherwise
it equals a Transformer with the matrices M κ_i W^O_i and M α_i W2_i. Only training differs.

Shapes: T positions, B sentences, M branches, h heads, d = d_model.
"""

import torch
from torch import Tensor, nn

from ..attention.multihead import MultiheadAttention
from ..config import VariantConfig
from ..errors import InputError
from ..kernels.products import linear
from .simplex import project


class BranchWeightedAttention(MultiheadAttention):
    """Attention whose heads form M weighted branches: parameters kappa, alpha [M] besides those of MultiheadAttention.

    Args:
        branches: M, which divides the number of heads (default: one branch per head)
        softmax: κ and α are the softmax of free weights, which Ahmed et al. found worse than the simplex
        random_init: κ and α are initialised at random instead of with 1/M
        drawn: κ and α are never learned: each forward pass of training draws them, and evaluation uses 1/M
        top: only the `top` branches with the largest α_i are used (default: all)
        others: as in MultiheadAttention

    Raises:
        InputError: if the heads are not divisible by the branches, or there are fewer branches than `top`
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        *,
        branches: int | None = None,
        softmax=False,
        random_init=False,
        drawn=False,
        top: int | None = None,
        **kwargs,
    ):
        super().__init__(embed_dim, num_heads, **kwargs)
        self.branches = branches or num_heads
        refuse_uneven(num_heads, "{} heads", self.branches)
        if top is not None and top > self.branches:
            raise InputError(f"--top-branches {top}: choose at most {self.branches}, the number of branches")
        self.softmax, self.drawn, self.top = softmax, drawn, top
        self.kappa = nn.Parameter(torch.empty(self.branches), requires_grad=not drawn)
        self.alpha = nn.Parameter(torch.empty(self.branches), requires_grad=not drawn)
        self.reset_branch_weights(random_init)

    @staticmethod
    def from_config(cfg: VariantConfig, ffn_dim: int) -> dict:
        """The arguments that `cfg` asks for, in a layer with an FFN of width ffn_dim."""
        return {
            "branches": cfg.branches,
            "softmax": cfg.branch_weights == "softmax",
            "random_init": cfg.branch_weights_init == "random",
            "drawn": cfg.branch_weights == "random",
            "top": cfg.top_branches,
        }

    @torch.no_grad()
    def reset_branch_weights(self, random: bool) -> None:
        """Initialises κ and α with 1/M, or with a draw from [0, 2/M] projected onto the simplex.

        In the paper κ and α start at random; it does not give the distribution. Here 1/M is the default: no branch
        starts with an advantage, and any later spread has been learned.
        """
        for weights in (self.kappa, self.alpha):
            weights.fill_(1 / self.branches)
            if random:
                weights.copy_(project(torch.rand(self.branches) * 2 / self.branches))
            if self.softmax:
                weights.copy_(weights.clamp(min=1e-2 / self.branches).log())

    def kappa_alpha(self) -> tuple[Tensor, Tensor]:
        """κ [M], α [M] as they are used now; 0 for branches beyond `top`."""
        weights = (self.kappa, self.alpha)
        if self.softmax:
            weights = (self.kappa.softmax(0), self.alpha.softmax(0))
        elif self.drawn and self.training:
            draws = [torch.empty_like(w).exponential_() for w in weights]  # uniform over the simplex
            weights = tuple(draw / draw.sum() for draw in draws)
        if self.top:
            # Among equal α_i the first is kept, on any device.
            best = weights[1].argsort(descending=True, stable=True)[: self.top]
            kept = torch.zeros_like(weights[1]).index_fill(0, best, 1.0)
            weights = tuple(w * kept for w in weights)
        return weights


class WeightedHeads(BranchWeightedAttention):
    """--branch-residual shared, first half: Σ_i M κ_i head_i W^O_i + b, the base's attention if all κ_i are 1/M."""

    def output(self, heads: Tensor, query: Tensor, incremental_state: dict | None) -> Tensor:
        kappa, alpha = self.kappa_alpha()
        # For WeightedLinear, of the same draw; in evaluation it is self.alpha, which must not get a second name.
        self.drawn_alpha = alpha.detach() if self.drawn else None
        weight = scale_branches(self.out_proj.weight, self.branches * kappa)
        return linear(heads.flatten(2), weight, self.out_proj.bias)


class WeightedLinear(nn.Linear):
    """--branch-residual shared, second half: W2 [d, d_ff], b2 [d] of Σ_i M α_i FFN_i, as one FFN; α is in `attention`.

    Maps [T, B, d_ff] to [T, B, d].

    Raises:
        InputError: if d_ff is not divisible by the branches
    """

    def __init__(self, in_features: int, out_features: int, attention: WeightedHeads):
        refuse_uneven(in_features, "an FFN of width {}", attention.branches)
        super().__init__(in_features, out_features)
        self.attention = (attention,)  # a tuple keeps it from becoming a submodule, whose parameters would count twice

    def forward(self, x: Tensor) -> Tensor:
        (attention,) = self.attention
        alpha = attention.drawn_alpha if attention.drawn else attention.kappa_alpha()[1]
        return linear(x, scale_branches(self.weight, attention.branches * alpha), self.bias)


def scale_branches(matrix: Tensor, weights: Tensor) -> Tensor:
    """matrix [d, M·f] with the columns of branch i multiplied by weights[i]; weights [M]."""
    return (matrix.unflatten(1, (len(weights), -1)) * weights[:, None]).flatten(1)


def refuse_uneven(number: int, unit: str, branches: int) -> None:
    """Raises InputError if the branches do not divide a number, whose unit is, for example, "{} heads"."""
    if number % branches:
        reason = f"{unit.format(number)} cannot be divided among {branches} branches (Ahmed et al. 2017, eq. 5 to 7)"
        raise InputError(f"{reason}: change --branches, the heads or d_ff")


def branched_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of `model` that have κ and α, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "kappa")}
