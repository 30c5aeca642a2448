"""The Weighted Transformer's default block, --branch-residual per_branch: each FFN_i also receives the block's input.

    Σ_i h_i + Σ_i M α_i FFN_i(norm(x + h_i)) + b2,   h_i = M κ_i head_i W^O_i + b/M

Ahmed et al. 2017 (https://arxiv.org/abs/1711.02132) leave the residual connections open; this form is a choice, which
examples/weighted.md compares with others. x are the queries. norm(y) = g (y − mean y) / σ + β is a LayerNorm except for
σ, which is the standard deviation of x + Σ_i h_i for all branches of a token. So x W1, one product for all branches,
and head_i (W^O_i W1_i) can still be separate products, divided by σ.

The two sublayers of the base (post-norm) beside `per_branch`, without dropout and biases:

    base          ┌───────────┐   ┌───────────┐   ┌─────┐   ┌───────────┐
            x ─┬──┤ heads·W^O ├─+─┤ LayerNorm ├─┬─┤ FFN ├─+─┤ LayerNorm ├──
               │  └───────────┘ │ └───────────┘ │ └─────┘ │ └───────────┘
               └────────────────┘               └─────────┘
    per_branch   ┌ branch i = 1 … M ────────────────────────────────┐
                 │  ┌─────┐   ┌───────────────┐   ┌───────────────┐ │   ┌───────────┐
            x ─┬─┼──┤ h_i ├─┬─┤ norm(x + h_i) ├───┤ M α_i · FFN_i ├─┼─+─┤ LayerNorm ├──
               │ │  └─────┘ │ └───────────────┘   └───────────────┘ │ │ └───────────┘
               │ │          └───────────────────────────────────────┼─┤
               │ └──────────────────────────────────────────────────┘ │
               └──────────────────────────────────────────────────────┘

M κ_i and M α_i are 1 at first, so that the matrices start, and Adam's steps change them, as in the base. Without the
constant M, W^O_i and W2_i have to be M times as large, and a step of the same size changes them M times less.

As in the base, b occurs once in Σ_i h_i, so that a step of Adam moves that sum as far as in the base.

Like the base, this applies dropout to both terms that it adds to the residual stream: one mask for Σ_i h_i, the same
for all h_i, and another for Σ_i M α_i FFN_i + b2. FFN_i sees h_i without dropout, where the base's FFN sees it with the
first mask: trainings did not differ, and with the mask W^O_i W1_i could not be multiplied first.

Shapes: N tokens, M branches, d = d_model, d_ff width of all FFN_i together, f = d_ff / M.
"""

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from ..config import VariantConfig
from ..kernels.products import linear
from .attention import BranchedAttention, Matrices


class ResidualBranchedAttention(BranchedAttention):
    """Attention in which each branch's FFN also receives the block's input, by the formula above; [T, B, d].

    Parameters besides those of MultiheadAttention and κ, α [M], all as in the base:
        fc1.weight [d_ff, d], fc1.bias [d_ff]; fc2.weight [d, d_ff], fc2.bias [d]
        norm.weight, norm.bias [d]: the LayerNorm that the base has before or after its FFN

    Args:
        residual_dropout: the dropout probability of both masks
        others: as in BranchedAttention
    """

    def __init__(self, *args, residual_dropout=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.residual_dropout_module = FairseqDropout(residual_dropout)
        self.register_buffer("bias_count", torch.ones(()))  # how often b occurs in Σ_i h_i

    @staticmethod
    def from_config(cfg: VariantConfig, ffn_dim: int) -> dict:
        return {**BranchedAttention.from_config(cfg, ffn_dim), "residual_dropout": cfg.dropout}

    def build_matrices(self, ffn_dim: int) -> None:
        """W1, W2 and the LayerNorm as in fairseq's Transformer; MultiheadAttention has built W^O."""
        self.fc1 = nn.Linear(self.embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, self.embed_dim)
        self.norm = nn.LayerNorm(self.embed_dim)

    def upgrade_state_dict_named(self, state_dict: dict, name: str) -> None:
        """Called by fairseq with a checkpoint; one saved before `bias_count` existed keeps its b in each h_i."""
        super().upgrade_state_dict_named(state_dict, name)
        if f"{name}.out_proj.bias" in state_dict:  # not for a part of the model that is not in it
            state_dict.setdefault(f"{name}.bias_count", torch.tensor(float(self.branches)))

    def output(self, heads: Tensor, query: Tensor, incremental_state: dict | None) -> Tensor:
        """The formula above: heads [T, B, h, d_v] of the queries [T, B, d] → [T, B, d]"""
        matrices, drop = self.matrices(heads.shape[:2].numel(), incremental_state), self.residual_dropout_module
        heads = heads.contiguous()  # [T, B, h, d_v]
        head_sum = linear(heads.flatten(2), matrices.w_o.flatten(0, 1).T, matrices.b_o)  # [T, B, d]: Σ_i h_i
        y = (query + head_sum).flatten(0, 1)  # [N, d]
        wide = y.to(torch.promote_types(y.dtype, torch.float32))
        scale = InverseDeviation.apply(wide, self.norm.eps).to(y.dtype)  # [N, 1]: 1/σ
        x = (query.flatten(0, 1) + matrices.b_o_each) * scale  # [N, d]
        hidden = linear(x, matrices.w_x, matrices.b1)  # [N, d_ff], one product for all branches
        ffn_sum = self.apply_ffns(self.split_branches(heads) * scale, hidden, matrices)  # [N, d]
        return drop(head_sum) + drop(ffn_sum.view_as(head_sum))

    def apply_branch_weights(self) -> Matrices:
        """Puts `norm`, except for σ, into W1 and b1.

        (y − mean y) g W1 is y times (g W1 minus the mean of its rows); β adds to b1.
        """
        kappa, alpha = self.kappa_alpha()  # [M], [M]
        w_o, _, w2 = self.weighted_matrices(self.branches * kappa, self.branches * alpha)
        w_x = self.fc1.weight * self.norm.weight  # [d_ff, d]
        w_x = w_x - w_x.mean(1, keepdim=True)  # [d_ff, d]
        w1 = w_x.unflatten(0, (self.branches, -1)).mT  # [M, d, f]
        b_o = self.bias_count * self.out_proj.bias  # [d]
        constants = {"b1": self.fc1(self.norm.bias), "w_x": w_x, "b_o": b_o, "b_o_each": b_o / self.branches}
        return Matrices(w_o, w1, w2, self.fc2.bias, **constants)


class InverseDeviation(torch.autograd.Function):
    """1/σ [N, 1] of y [N, d] by torch's kernel of LayerNorm; torch.var takes several times as long on CPUs.

    With ŷ = (y − mean y) / σ: ∂(1/σ) / ∂y = −ŷ / (d σ²).
    """

    @staticmethod
    def forward(ctx, y: Tensor, eps: float) -> Tensor:
        normalised, _, inverse = torch.native_layer_norm(y, y.shape[-1:], None, None, eps)
        ctx.save_for_backward(normalised, inverse)
        return inverse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        normalised, inverse = ctx.saved_tensors
        return normalised * (grad * inverse.square() / -normalised.size(1)), None
