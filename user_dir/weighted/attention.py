"""Branched attention of the Weighted Transformer (Ahmed et al. 2017; https://arxiv.org/abs/1711.02132).

    head_i  = Attention(Q W^Q_i, K W^K_i, V W^V_i)                                   (eq. 5)
    head̄_i  = κ_i · head_i W^O_i                                                     (eq. 6)
    Branched(Q, K, V) = Σ_i α_i · FFN_i(head̄_i),   FFN_i(x) = max(0, x W1_i + b1_i) W2_i + b2_i   (eq. 7)

with κ_i, α_i ≥ 0 and Σ κ_i = Σ α_i = 1. It stands where a layer of the Transformer has attention and FFN. The paper
keeps the Transformer's residual connections and does not say where; with x = Q, what the attention is given,
--branch-residual is

    none        Σ_i α_i FFN_i(head̄_i): eq. 7 to the letter                           BranchedAttention
    per_branch  Σ_i h_i + Σ_i M α_i FFN_i(norm(x + h_i)) + b2, h_i = M head̄_i + b/M   ResidualBranchedAttention
    shared      the Transformer's two sublayers                                      weighted_heads.py

The constant M makes M κ_i and M α_i 1 at first, so that matrices begin, and Adam's steps on them count, as the base's
do: without it W^O_i and W2_i have to be M times as large, and a step of the same size changes them M times less.

In the first two only what is linear is between head_i W^O_i and W1_i: κ_i W^O_i W1_i is one d_v × d_ff/M matrix.
Multiplying the two first costs products of the size of W^O · W1 once, and saves most of what they cost for every token;
x W1 is one product for all branches, and so is Σ_i α_i (…) W2_i over the hidden units of all.

Shapes: N tokens, M branches, d = d_model, d_ff width of all FFN_i together, f = d_ff / M (d_ff if they share one FFN).
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
    """Attention whose branches have an FFN each, eq. 7 to the letter; [T, B, d] as MultiheadAttention.

    Parameters beside those of BranchWeightedAttention, each in the shape in which fairseq's layer has it:
        out_proj.weight [d, h·d_v]: W^O_i are columns; no bias (eq. 6)
        fc1.weight [d_ff, d], fc1.bias [d_ff]: W1_i, b1_i are rows
        fc2.weight [d, d_ff]: W2_i are columns; fc2.bias [M, d]: b2_i ([1, d] of a shared FFN)

    Args:
        ffn_dim: d_ff
        shared_ffn: FFN_i is the same for all i, of width d_ff (the other reading of eq. 7)
        activation, activation_dropout: of the FFN
        others: as in BranchWeightedAttention

    Raises:
        InputError: if the heads cannot be dealt out to the branches, or d_ff not
    """

    def __init__(self, *args, ffn_dim: int, shared_ffn=False, activation="relu", activation_dropout=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.shared_ffn = shared_ffn
        self.ffns = 1 if shared_ffn else self.branches
        refuse_uneven(ffn_dim, self.ffns)
        self.activation_fn = utils.get_activation_fn(activation)
        self.activation_dropout_module = FairseqDropout(activation_dropout, module_name=type(self).__name__)
        self.build_matrices(ffn_dim)

    @staticmethod
    def from_config(cfg: VariantConfig, ffn_dim: int) -> dict:
        return {
            **BranchWeightedAttention.from_config(cfg, ffn_dim),
            "ffn_dim": ffn_dim,
            "shared_ffn": cfg.branch_ffn == "shared",
            "activation": cfg.activation_fn,
            "activation_dropout": cfg.activation_dropout or cfg.relu_dropout,
        }

    @torch.no_grad()
    def build_matrices(self, ffn_dim: int) -> None:
        """W^O, W1 and W2: each W^O_i, W1_i and W2_i is at first as a matrix of its own (Glorot), biases are 0.

        W^O_i and W2_i are M times as large, so that κ_i W^O_i and α_i W2_i are at first what they would be without
        branch weights. Otherwise a block adds next to nothing to its input for long: after 300 updates of the
        quickstart the loss is 6.58 and not 6.34 (the base's: 6.16). The sum over one shared FFN keeps W2's scale.
        """
        self.out_proj = nn.Linear(self.num_heads * self.value_dim, self.embed_dim, bias=False)
        self.fc1 = nn.Linear(self.embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, self.embed_dim, bias=False)
        self.fc2.bias = nn.Parameter(torch.zeros(self.ffns, self.embed_dim))
        for weight, count, scale in (
            (self.out_proj.weight.T, self.branches, self.branches),
            (self.fc1.weight, self.ffns, 1),
            (self.fc2.weight.T, self.ffns, self.ffns),
        ):
            for matrix in weight.unflatten(0, (count, -1)):
                nn.init.xavier_uniform_(matrix, gain=scale)
        nn.init.zeros_(self.fc1.bias)

    def output(self, heads: Tensor, query: Tensor, incremental_state: dict | None) -> Tensor:
        """Eq. 6 and 7: heads [T, B, h, d_v] of the queries [T, B, d] → [T, B, d]"""
        tokens = heads.shape[:2].numel()
        bias = self.fc1.bias.to(heads.dtype)  # that of the products, which add to it
        matrices = self.matrices(tokens, incremental_state)
        return self.ffns_of(self.of_branches(heads), bias.repeat(tokens, 1), matrices).unflatten(0, heads.shape[:2])

    def of_branches(self, heads: Tensor) -> Tensor:
        """[T, B, h, d_v] → [M, N, h/M · d_v]"""
        return heads.flatten(0, 1).unflatten(1, (self.branches, -1)).flatten(2).transpose(0, 1)

    def ffns_of(self, x: Tensor, before: Tensor, matrices: "Matrices") -> Tensor:
        """Σ_i α_i FFN_i [N, d] of x_i W^O_i, x [M, N, h/M · d_v].

        `before` [N, d_ff] is what hidden units get beside x_i W^O_i W1_i; it is overwritten.
        """
        first, last = (x @ matrices.w_o, matrices.w1) if matrices.folded is None else (x, matrices.folded)
        if self.shared_ffn:
            before = before.repeat(1, self.branches)
        x = AddProducts.apply(before, first.to(before.dtype), last.to(before.dtype))  # [N, M · f]
        x = self.activation_dropout_module(self.activation_fn(x))
        if self.shared_ffn:
            x = self.kappa_alpha()[1].to(x.dtype) @ x.unflatten(1, (self.branches, -1))  # [N, f]
        return linear(x, matrices.w2, matrices.b2)

    def matrices(self, tokens: int, incremental_state: dict | None) -> "Matrices":
        """What the weights alone decide; while decoding it is made once, W^O_i W1_i when there were tokens enough."""
        constants = {} if incremental_state is None else cache_of(self, incremental_state).constants
        tokens += constants.get("tokens", 0)
        matrices = constants.get("matrices") or self.apply_branch_weights()
        if matrices.folded is None and self.folding_pays(tokens):
            matrices = matrices._replace(folded=matrices.w_o @ matrices.w1)
        constants |= {"tokens": tokens, "matrices": matrices}
        return matrices

    def apply_branch_weights(self) -> "Matrices":
        """The parameters with κ and α in them; nothing is multiplied yet."""
        kappa, alpha = self.kappa_alpha()
        b2 = (self.fc2.bias * alpha[:, None]).sum(dim=0)
        return Matrices(*self.apply_to_matrices(kappa, alpha), b2)

    def apply_to_matrices(self, kappa: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """W^O_i, W1_i and W2_i of `Matrices` with these in the place of κ [M] and α [M]."""
        w_o = self.out_proj.weight.unflatten(1, (self.branches, -1)).permute(1, 2, 0) * kappa[:, None, None]
        w1 = self.fc1.weight.unflatten(0, (self.ffns, -1)).mT.expand(self.branches, -1, -1)
        return w_o, w1, self.fc2.weight if self.shared_ffn else scale_branches(self.fc2.weight, alpha)

    def folding_pays(self, tokens: int) -> bool:
        """Whether W^O_i W1_i costs fewer multiplications than it saves for that many tokens."""
        width = self.num_heads * self.value_dim // self.branches
        hidden = self.fc1.out_features // self.ffns
        saved = width * self.embed_dim + self.embed_dim * hidden - width * hidden
        return tokens * saved > width * self.embed_dim * hidden


class AddProducts(torch.autograd.Function):
    """Adds to `before` [N, M·f], in place, what each branch's x_i [N, e] · matrix_i [e, f] is; x [M, N, e].

    A token's hidden units stay together, branch by branch: torch's baddbmm would have them sorted by branch first, and
    so would its derivative.
    """

    @staticmethod
    def forward(ctx, before: Tensor, x: Tensor, matrices: Tensor) -> Tensor:
        ctx.save_for_backward(x, matrices)
        ctx.mark_dirty(before)
        by_branch(before, len(x)).baddbmm_(x, matrices)
        return before

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        x, matrices = ctx.saved_tensors
        each = by_branch(grad, len(x))
        return grad, each @ matrices.mT, x.mT @ each


def by_branch(x: Tensor, branches: int) -> Tensor:
    """[N, M·f] → [M, N, f], a view"""
    return x.unflatten(1, (branches, -1)).transpose(0, 1)


class Matrices(NamedTuple):
    """What a token of a branched attention is multiplied by."""

    w_o: Tensor  # [M, h/M · d_v, d]: κ_i W^O_i, as FFN_i sees it
    w1: Tensor  # [M, d, f]: W1_i
    w2: Tensor  # [d, d_ff]: α_i W2_i; of a shared FFN W2, which multiplies Σ_i α_i max(0, …)
    b2: Tensor  # [d]: Σ_i α_i b2_i
    folded: Tensor | None = None  # [M, h/M · d_v, f]: κ_i W^O_i W1_i
    b1: Tensor | None = None  # [d_ff]: b1_i, where something is added to it
    w_x: Tensor | None = None  # [d_ff, d]: W1 of what all branches see


class ResidualBranchedAttention(BranchedAttention):
    """--branch-residual per_branch: Σ_i h_i + Σ_i M α_i FFN_i(norm(x + h_i)) + b2, h_i = M κ_i head_i W^O_i + b/M.

    x are the queries. norm(y) = g (y − mean y) / σ + β is a LayerNorm but for σ, the standard deviation of x + Σ_i h_i:
    one for all branches of a token. So x W1 and head_i (W^O_i W1_i) can still be products of their own, divided by σ.

    As in the base b is once in Σ_i h_i, so that a step of Adam moves that sum as far as there.

    The base drops what each of its two sublayers adds to the residual stream, and so does this: Σ_i h_i by one mask,
    which is the same for all h_i, and Σ_i M α_i FFN_i + b2 by another. FFN_i sees h_i whole, where the base's FFN sees
    what the first mask has left: trainings did not differ, and W^O_i W1_i could not be multiplied first.

    Matrices and biases are the base's, `norm` is the LayerNorm that the base has before or after its FFN. An FFN that
    all branches share is as wide as theirs together: α_i FFN instead of M α_i FFN_i.

    Args:
        residual_dropout: the probability of both masks
        others: as in BranchedAttention
    """

    def __init__(self, *args, residual_dropout=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.residual_dropout_module = FairseqDropout(residual_dropout, module_name=type(self).__name__)
        self.register_buffer("bias_count", torch.ones(()))  # how often b is in Σ_i h_i

    @staticmethod
    def from_config(cfg: VariantConfig, ffn_dim: int) -> dict:
        return {**BranchedAttention.from_config(cfg, ffn_dim), "residual_dropout": cfg.dropout}

    def build_matrices(self, ffn_dim: int) -> None:
        """As fairseq has them in the Transformer; W^O is there already."""
        self.fc1 = nn.Linear(self.embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, self.embed_dim)
        self.norm = nn.LayerNorm(self.embed_dim)

    def upgrade_state_dict_named(self, state_dict: dict, name: str) -> None:
        """Called by fairseq with a checkpoint; one from before there was a count has b in each h_i, and so it stays."""
        super().upgrade_state_dict_named(state_dict, name)
        state_dict.setdefault(f"{name}.bias_count", torch.tensor(float(self.branches)))

    def output(self, heads: Tensor, query: Tensor, incremental_state: dict | None) -> Tensor:
        matrices = self.matrices(heads.shape[:2].numel(), incremental_state)
        heads, drop, bias = heads.contiguous(), self.residual_dropout_module, self.bias_count * self.out_proj.bias
        together = linear(heads.flatten(2), matrices.w_o.flatten(0, 1).T, bias)  # Σ_i h_i
        by_deviation = self.by_deviation(query + together)
        x = (query.flatten(0, 1) + bias / self.branches) * by_deviation
        before = linear(x, matrices.w_x, matrices.b1)  # one product for all branches
        of_ffns = self.ffns_of(self.of_branches(heads) * by_deviation, before, matrices)
        return drop(together) + drop(of_ffns.view_as(together))

    def by_deviation(self, y: Tensor) -> Tensor:
        """1/σ of y [T, B, d], as of a LayerNorm: [N, 1]"""
        wide = y.flatten(0, 1).to(torch.promote_types(y.dtype, torch.float32))
        return (wide.var(dim=-1, unbiased=False, keepdim=True) + self.norm.eps).rsqrt().to(y.dtype)

    def apply_branch_weights(self) -> Matrices:
        """`norm` but for σ is in W1: (y − mean y) g W1 is y times g W1 less the mean of its rows; β is in b1."""
        kappa, alpha = self.kappa_alpha()
        w_o, _, w2 = self.apply_to_matrices(self.branches * kappa, self.ffns * alpha)
        w_x = self.fc1.weight * self.norm.weight
        w_x = w_x - w_x.mean(1, keepdim=True)
        w1 = w_x.unflatten(0, (self.ffns, -1)).mT.expand(self.branches, -1, -1)
        return Matrices(w_o, w1, w2, self.fc2.bias, b1=self.fc1(self.norm.bias), w_x=w_x)
