"""Branched attention of the Weighted Transformer (Ahmed et al. 2017; https://arxiv.org/abs/1711.02132).

    head_i  = Attention(Q W^Q_i, K W^K_i, V W^V_i)                                   (eq. 5)
    head̄_i  = κ_i · head_i W^O_i                                                     (eq. 6)
    Branched(Q, K, V) = Σ_i α_i · FFN_i(head̄_i),   FFN_i(x) = max(0, x W1_i + b1_i) W2_i + b2_i   (eq. 7)

with κ_i, α_i ≥ 0 and Σ κ_i = Σ α_i = 1. It stands where a layer of the Transformer has attention and FFN.

Nothing is between head̄_i and FFN_i, so κ_i W^O_i W1_i is one d_v × d_ff/M matrix. Multiplying the two first costs
products of the size of W^O · W1 once, and saves most of what they cost for every token. Σ_i α_i (…) W2_i is one product
over the hidden units of all branches.

Shapes: N tokens, M branches, d = d_model, d_ff width of all FFN_i together, f = d_ff / M (d_ff if they share one FFN).
"""

from typing import Optional

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from .attention import MultiheadAttention
from .relative_positions import RelativeMultiheadAttention
from .simplex import project


class BranchedAttention(MultiheadAttention):
    """Attention whose heads are M weighted branches, each with an FFN of its own; [T, B, d] as MultiheadAttention.

    Parameters beside those of MultiheadAttention, each in the shape in which fairseq's layer has it:
        kappa, alpha [M]
        out_proj.weight [d, h·d_v]: W^O_i are columns; no bias (eq. 6)
        fc1.weight [d_ff, d], fc1.bias [d_ff]: W1_i, b1_i are rows
        fc2.weight [d, d_ff]: W2_i are columns; fc2.bias [M, d]: b2_i

    Args:
        ffn_dim: d_ff
        branches: M (default: a branch for each head); a divisor of the heads, which several then share a branch
        shared_ffn: FFN_i is the same for all i, of width d_ff (the other reading of eq. 7)
        softmax: κ and α are the softmax of free weights, which Ahmed et al. found worse than the simplex
        random: κ and α are at first random and not 1/M
        activation, activation_dropout: of the FFN
        others: as in MultiheadAttention

    Raises:
        ValueError: if the heads cannot be dealt out to the branches, or d_ff not
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        *,
        ffn_dim: int,
        branches: Optional[int] = None,
        shared_ffn=False,
        softmax=False,
        random=False,
        activation="relu",
        activation_dropout=0.0,
        **kwargs,
    ):
        super().__init__(embed_dim, num_heads, **kwargs)
        self.branches = branches or num_heads
        if num_heads % self.branches:
            raise ValueError(
                f"{num_heads} heads cannot be dealt out to {self.branches} branches: a branch is one head or several "
                "(Ahmed et al. 2017, eq. 5). Choose a number of branches that divides the heads."
            )
        if ffn_dim % self.branches and not shared_ffn:
            raise ValueError(
                f"an FFN of width {ffn_dim} cannot be dealt out to {self.branches} branches (Ahmed et al. 2017, eq. 7). "
                "Choose a width that the number of branches divides, or one FFN for all."
            )
        self.shared_ffn = shared_ffn
        self.softmax = softmax
        self.activation_fn = utils.get_activation_fn(activation)
        self.activation_dropout_module = FairseqDropout(activation_dropout, module_name=type(self).__name__)
        self.out_proj = nn.Linear(num_heads * self.value_dim, embed_dim, bias=False)
        self.fc1 = nn.Linear(embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, embed_dim, bias=False)
        self.fc2.bias = nn.Parameter(torch.empty(1 if shared_ffn else self.branches, embed_dim))
        self.kappa = nn.Parameter(torch.empty(self.branches))
        self.alpha = nn.Parameter(torch.empty(self.branches))
        self.reset_branches(random)

    @torch.no_grad()
    def reset_branches(self, random: bool) -> None:
        """Initialises each W^O_i, W1_i and W2_i as a matrix of its own (Glorot), biases with 0, κ and α with 1/M.

        The paper has κ and α random and does not say how. Here 1/M is the default: no branch begins with an advantage,
        and the spread that is seen later has been learned. `random` projects a draw from [0, 2/M].

        W^O_i and W2_i are M times as large, so that κ_i W^O_i and α_i W2_i are at first what they would be without branch
        weights. Otherwise a block adds next to nothing to its input for long: after 300 updates of the quickstart the
        loss is 6.58 and not 6.34 (the base's: 6.16). The sum over one shared FFN keeps W2's scale.
        """
        ffns = 1 if self.shared_ffn else self.branches
        for weight, count, scale in (
            (self.out_proj.weight.T, self.branches, self.branches),
            (self.fc1.weight, ffns, 1),
            (self.fc2.weight.T, ffns, ffns),
        ):
            for matrix in weight.unflatten(0, (count, -1)):
                nn.init.xavier_uniform_(matrix, gain=scale)
        nn.init.zeros_(self.fc1.bias)
        nn.init.zeros_(self.fc2.bias)
        for weights in (self.kappa, self.alpha):
            weights.copy_(project(torch.rand(self.branches) * 2 / self.branches) if random else torch.full_like(weights, 1 / self.branches))
            if self.softmax:
                weights.copy_(weights.clamp(min=1e-2 / self.branches).log())

    def branch_weights(self) -> tuple[Tensor, Tensor]:
        """κ [M], α [M]"""
        return (self.kappa.softmax(0), self.alpha.softmax(0)) if self.softmax else (self.kappa, self.alpha)

    def output(self, heads: Tensor, incremental_state: Optional[dict]) -> Tensor:
        """Eq. 6 and 7: heads [T, B, h, d_v] → [T, B, d]. While decoding, what the weights alone decide is kept."""
        x = heads.flatten(0, 1).unflatten(1, (self.branches, -1)).flatten(2).transpose(0, 1)  # [M, N, h/M · d_v]
        cache = {} if incremental_state is None else self._get_input_buffer(incremental_state)
        tokens = x.size(1) + cache.get("tokens", 0)
        first, w2, b2 = cache.get("matrices") or self.matrices()
        if len(first) == 2 and self.folding_pays(tokens):  # while decoding: once there were so many, in small steps
            first = [first[0] @ first[1]]
        if incremental_state is not None:
            self._set_input_buffer(incremental_state, {**cache, "tokens": tokens, "matrices": (first, w2, b2)})
        *w_o, last = first
        for matrix in w_o:
            x = x @ matrix
        x = torch.baddbmm(self.fc1.bias.view(-1, 1, last.size(2)), x, last)  # [M, N, f]
        x = self.activation_dropout_module(self.activation_fn(x))
        if self.shared_ffn:
            x = (self.branch_weights()[1].to(x.dtype) @ x.flatten(1)).unflatten(0, x.shape[1:])  # [N, f]
        else:
            x = x.transpose(0, 1).flatten(1)  # [N, d_ff]
        return F.linear(x, w2, b2).unflatten(0, heads.shape[:2])

    def matrices(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """κ_i W^O_i [M, h/M · d_v, d] and W1_i [M, d, f]; α_i W2_i [d, d_ff]; Σ_i α_i b2_i [d].

        Of a shared FFN the third is W2: what it multiplies is Σ_i α_i max(0, …).
        """
        kappa, alpha = self.branch_weights()
        w_o = self.out_proj.weight.unflatten(1, (self.branches, -1)).permute(1, 2, 0) * kappa[:, None, None]
        w1 = self.fc1.weight.unflatten(0, (1 if self.shared_ffn else self.branches, -1)).mT.expand(self.branches, -1, -1)
        w2 = self.fc2.weight
        if not self.shared_ffn:
            w2 = (w2.unflatten(1, (self.branches, -1)) * alpha[:, None]).flatten(1)
        return [w_o, w1], w2, (self.fc2.bias * alpha[:, None]).sum(dim=0)

    def folding_pays(self, tokens: int) -> bool:
        """Whether W^O_i W1_i costs fewer multiplications than it saves for that many tokens."""
        width = self.num_heads * self.value_dim // self.branches
        hidden = self.fc1.out_features if self.shared_ffn else self.fc1.out_features // self.branches
        return tokens * (width * self.embed_dim + self.embed_dim * hidden - width * hidden) > width * self.embed_dim * hidden


class BranchedRelativeAttention(BranchedAttention, RelativeMultiheadAttention):
    """Branches whose heads are those of Shaw et al. 2018."""
