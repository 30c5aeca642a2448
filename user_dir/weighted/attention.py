"""Branched attention of the Weighted Transformer (Ahmed et al. 2017; https://arxiv.org/abs/1711.02132).

    head_i  = Attention(Q W^Q_i, K W^K_i, V W^V_i)                                   (eq. 5)
    head̄_i  = κ_i · head_i W^O_i                                                     (eq. 6)
    Branched(Q, K, V) = Σ_i α_i · FFN_i(head̄_i),   FFN_i(x) = max(0, x W1_i + b1_i) W2_i + b2_i   (eq. 7)

with κ_i, α_i ≥ 0 and Σ κ_i = Σ α_i = 1. It replaces both attention and FFN of a Transformer layer. The paper keeps the
Transformer's residual connections and does not say where. With x = Q, the block's input (pre-norm: its LayerNorm),
--branch-residual is

    none        Σ_i α_i FFN_i(head̄_i): eq. 7 as printed                              here
    per_branch  each FFN_i also receives x: the default                              residual.py
    shared      the Transformer's two sublayers                                      heads.py

In the first two forms only linear maps lie between head_i and W1_i (in per_branch after the division by one σ per
token, see residual.py), so κ_i W^O_i W1_i is one d_v × d_ff/M matrix. Multiplying W^O_i and W1_i first costs, once a
pass, an M-th of the product W^O · W1, and saves most of the cost of both for every token. Σ_i α_i (…) W2_i is one
product over all hidden units.

Shapes: N tokens, M branches, d = d_model, d_ff width of all FFN_i together, f = d_ff / M.
"""

from typing import NamedTuple

import torch
from fairseq import utils
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from ..attention.cache import cache_of
from ..config import VariantConfig
from ..kernels.products import linear
from .heads import BranchWeightedAttention, refuse_uneven, scale_branches


class BranchedAttention(BranchWeightedAttention):
    """Attention in which each branch has an FFN, eq. 7 as printed; [T, B, d] as MultiheadAttention.

    Parameters besides those of BranchWeightedAttention, in the shapes of fairseq's layer:
        out_proj.weight [d, h·d_v]: W^O_i are columns; no bias (eq. 6)
        fc1.weight [d_ff, d], fc1.bias [d_ff]: W1_i, b1_i are rows
        fc2.weight [d, d_ff]: W2_i are columns; fc2.bias [M, d]: b2_i

    Args:
        ffn_dim: d_ff
        activation, activation_dropout: of the FFN
        others: as in BranchWeightedAttention

    Raises:
        InputError: if the heads or d_ff are not divisible by the branches
    """

    def __init__(self, *args, ffn_dim: int, activation="relu", activation_dropout=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        refuse_uneven(ffn_dim, "an FFN of width {}", self.branches)
        self.activation_fn = utils.get_activation_fn(activation)
        self.activation_dropout_module = FairseqDropout(activation_dropout)
        self.build_matrices(ffn_dim)

    @staticmethod
    def from_config(cfg: VariantConfig, ffn_dim: int) -> dict:
        return {
            **BranchWeightedAttention.from_config(cfg, ffn_dim),
            "ffn_dim": ffn_dim,
            "activation": cfg.activation_fn,
            "activation_dropout": cfg.activation_dropout or cfg.relu_dropout,
        }

    @torch.no_grad()
    def build_matrices(self, ffn_dim: int) -> None:
        """W^O, W1 and W2: each W^O_i, W1_i and W2_i is initialised as a separate matrix (Glorot), biases are 0.

        W^O_i and W2_i are M times as large, so that κ_i W^O_i and α_i W2_i start as they would without branch weights.
        Otherwise a block adds almost nothing to its input for a long time.
        """
        self.out_proj = nn.Linear(self.num_heads * self.value_dim, self.embed_dim, bias=False)
        self.fc1 = nn.Linear(self.embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, self.embed_dim, bias=False)
        self.fc2.bias = nn.Parameter(torch.zeros(self.branches, self.embed_dim))
        for weight, scale in (
            (self.out_proj.weight.T, self.branches),
            (self.fc1.weight, 1),
            (self.fc2.weight.T, self.branches),
        ):
            for matrix in weight.unflatten(0, (self.branches, -1)):
                nn.init.xavier_uniform_(matrix, gain=scale)
        nn.init.zeros_(self.fc1.bias)

    def output(self, heads: Tensor, query: Tensor, incremental_state: dict | None) -> Tensor:
        """Eq. 6 and 7: heads [T, B, h, d_v] of the queries [T, B, d] → [T, B, d]"""
        tokens = heads.shape[:2].numel()
        bias = self.fc1.bias.to(heads.dtype)  # [d_ff], in the type of the products that are added to it
        matrices = self.matrices(tokens, incremental_state)
        x = self.apply_ffns(self.split_branches(heads), bias.repeat(tokens, 1), matrices)  # [N, d]
        return x.unflatten(0, heads.shape[:2])

    def split_branches(self, heads: Tensor) -> Tensor:
        """[T, B, h, d_v] → [M, N, h/M · d_v]"""
        return heads.flatten(0, 1).unflatten(1, (self.branches, -1)).flatten(2).transpose(0, 1)

    def apply_ffns(self, x: Tensor, hidden: Tensor, matrices: "Matrices") -> Tensor:
        """Σ_i α_i FFN_i(x_i W^O_i) [N, d] of x [M, N, h/M · d_v].

        `hidden` [N, d_ff] holds the other inputs of the hidden units, to which x_i W^O_i W1_i is added in place.
        """
        if matrices.folded is None:
            x, last = x @ matrices.w_o, matrices.w1  # [M, N, d], [M, d, f]
        else:
            last = matrices.folded  # [M, h/M · d_v, f]
        x, last = x.to(hidden.dtype), last.to(hidden.dtype)
        if torch.is_grad_enabled():
            hidden = AddProducts.apply(hidden, x, last)  # [N, d_ff]
        else:
            add_products(hidden, x, last)  # without what an autograd.Function costs at each step of a search
        hidden = self.activation_dropout_module(self.activation_fn(hidden))  # [N, d_ff]
        return linear(hidden, matrices.w2, matrices.b2)  # [N, d]

    def matrices(self, tokens: int, incremental_state: dict | None) -> "Matrices":
        """The weights in the form that is applied to `tokens` tokens; decoding makes it once and keeps it.

        Decoding multiplies W^O_i W1_i once it has seen enough tokens for that to pay.
        """
        kept = {} if incremental_state is None else cache_of(self, incremental_state).kept
        tokens += kept.get("tokens", 0)
        matrices = kept.get("matrices") or self.apply_branch_weights()
        if matrices.folded is None and self.folding_pays(tokens):
            matrices = matrices._replace(folded=matrices.w_o @ matrices.w1)
        kept |= {"tokens": tokens, "matrices": matrices}
        return matrices

    def apply_branch_weights(self) -> "Matrices":
        """The matrices with κ and α in them, not yet multiplied with each other."""
        kappa, alpha = self.kappa_alpha()  # [M], [M]
        b2 = (self.fc2.bias * alpha[:, None]).sum(dim=0)  # [d]
        return Matrices(*self.weighted_matrices(kappa, alpha), b2)

    def weighted_matrices(self, kappa: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """w_o, w1 and w2 of `Matrices`, with `kappa` [M] as κ and `alpha` [M] as α."""
        w_o = self.out_proj.weight.unflatten(1, (self.branches, -1)).permute(1, 2, 0)  # [M, h/M · d_v, d]
        w1 = self.fc1.weight.unflatten(0, (self.branches, -1)).mT  # [M, d, f]
        return w_o * kappa[:, None, None], w1, scale_branches(self.fc2.weight, alpha)

    def folding_pays(self, tokens: int) -> bool:
        """Whether W^O_i W1_i costs fewer multiplications than it saves for `tokens` tokens."""
        width = self.num_heads * self.value_dim // self.branches
        hidden = self.fc1.out_features // self.branches
        saved = width * self.embed_dim + self.embed_dim * hidden - width * hidden
        return tokens * saved > width * self.embed_dim * hidden


class AddProducts(torch.autograd.Function):
    """Adds x_i · matrix_i of each branch to `hidden` [N, M·f] in place; x [M, N, e], matrices [M, e, f].

    The hidden units of a token stay together, ordered by branch: torch's baddbmm and its derivative would need the
    branches as the first dimension.
    """

    @staticmethod
    def forward(ctx, hidden: Tensor, x: Tensor, matrices: Tensor) -> Tensor:
        ctx.save_for_backward(x, matrices)
        ctx.mark_dirty(hidden)
        add_products(hidden, x, matrices)
        return hidden

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        x, matrices = ctx.saved_tensors
        grads = by_branch(grad, len(x))  # [M, N, f]
        return grad, grads @ matrices.mT, x.mT @ grads


def add_products(hidden: Tensor, x: Tensor, matrices: Tensor) -> None:
    if torch.compiler.is_compiling():  # which cannot change a view with such strides in place
        hidden.add_((x @ matrices).transpose(0, 1).flatten(1))
    else:
        by_branch(hidden, len(x)).baddbmm_(x, matrices)  # [M, N, f]


def by_branch(x: Tensor, branches: int) -> Tensor:
    """[N, M·f] → [M, N, f], a view"""
    return x.unflatten(1, (branches, -1)).transpose(0, 1)


class Matrices(NamedTuple):
    """The matrices and biases of a branched attention, with κ and α in them.

    In ResidualBranchedAttention M κ_i and M α_i stand for κ_i and α_i, w1 includes the LayerNorm, and b2 is its b2.
    """

    w_o: Tensor  # [M, h/M · d_v, d]: κ_i W^O_i, as FFN_i sees it
    w1: Tensor  # [M, d, f]: W1_i
    w2: Tensor  # [d, d_ff]: α_i W2_i
    b2: Tensor  # [d]: Σ_i α_i b2_i
    folded: Tensor | None = None  # [M, h/M · d_v, f]: κ_i W^O_i W1_i
    # of ResidualBranchedAttention:
    b1: Tensor | None = None  # [d_ff]: b1_i and the constants that are added to it
    w_x: Tensor | None = None  # [d_ff, d]: W1 for x, which all branches see
    b_o: Tensor | None = None  # [d]: b, as often as it occurs in Σ_i h_i (`bias_count`)
    b_o_each: Tensor | None = None  # [d]: b_o / M
