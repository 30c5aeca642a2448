"""The three papers' equations once, and the forms that we add, as plain loops to be read beside the papers.

Nothing here is fast, masked in place or computed for a batch at once. A sentence is x [positions, d]; in float64 the
values and, through autograd, the gradients are exact to a dozen digits.

    Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762
    Shaw et al. 2018, "Self-Attention with Relative Position Representations", https://arxiv.org/abs/1803.02155
    Ahmed et al. 2017, "Weighted Transformer Network for Machine Translation", https://arxiv.org/abs/1711.02132
"""

from itertools import chain, combinations

import torch

# ---- Vaswani et al. 2017


def attention(q, k, v, seen):
    """Eq. 1 for one head: softmax(q kᵀ / √d_k) v.

    q [T, d_k], k [S, d_k], v [S, d_v]; seen(i): the positions that query i may look at. Returns [T, d_v] and the
    weights [T, S].
    """
    heads, all_weights = [], []
    for i in range(len(q)):
        scores = [q[i] @ k[j] / q.size(1) ** 0.5 for j in seen(i)]
        weights = softmax(scores)
        heads.append(sum(weight * v[j] for weight, j in zip(weights, seen(i), strict=True)))
        all_weights.append(q.new_zeros(len(k)).index_put((torch.tensor(seen(i)),), weights))
    return torch.stack(heads), torch.stack(all_weights)


def softmax(scores):
    exponentials = torch.stack(scores).exp()
    return exponentials / exponentials.sum()


def ffn(x, w1, b1, w2, b2):
    """Eq. 2: max(0, x W1 + b1) W2 + b2."""
    return torch.clamp(x @ w1 + b1, min=0) @ w2 + b2


def layer_norm(x, gain, bias, other):
    """Ba et al. 2016, eq. 4, with the deviation of other vectors: gain · (x − mean x) / deviation + bias."""
    deviation = ((other - other.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    return gain * (x - x.mean(-1, keepdim=True)) / deviation + bias


# ---- Shaw et al. 2018


def clip(x, k):
    """Section 3.2: max(−k, min(k, x))."""
    return max(-k, min(k, x))


def relative_attention(q, k, v, table_k, table_v, distance, seen, scalars=None):
    """Eq. 3 and 4 for one head: z_i = Σ_j α_ij (v_j + a^V_ij), α_i = softmax_j(q_i (k_j + a^K_ij)ᵀ / √d_z + b_ij).

    table_k, table_v [2·distance+1, d_z] are w^K and w^V, row `distance` being w_0; None: no such term. The scalars
    b_ij [2·distance+1] are not Shaw's (Raffel et al. 2020, section 2.1). Others as in `attention`.
    """

    def a(table, i, j):
        return 0 if table is None else table[clip(j - i, distance) + distance]

    z, all_weights = [], []
    for i in range(len(q)):
        scores = [q[i] @ (k[j] + a(table_k, i, j)) / q.size(1) ** 0.5 + a(scalars, i, j) for j in seen(i)]
        weights = softmax(scores)
        z.append(sum(weight * (v[j] + a(table_v, i, j)) for weight, j in zip(weights, seen(i), strict=True)))
        all_weights.append(q.new_zeros(len(k)).index_put((torch.tensor(seen(i)),), weights))
    return torch.stack(z), torch.stack(all_weights)


# ---- Ahmed et al. 2017


def branched(heads, kappa, alpha, w_o, ffns):
    """Eq. 6 and 7 as printed: Σ_i α_i FFN_i(κ_i head_i W^O_i).

    heads: head_i [T, d_v] of each branch; kappa, alpha [M]; w_o: W^O_i [d_v, d]; ffns: the FFN_i, functions.
    """
    total = 0
    for head, kappa_i, alpha_i, w_o_i, ffn_i in zip(heads, kappa, alpha, w_o, ffns, strict=True):
        total = total + alpha_i * ffn_i(kappa_i * (head @ w_o_i))
    return total


def branched_with_residual(x, heads, kappa, alpha, w_o, b, ffns, b2, norm, masks=(1, 1)):
    """--branch-residual per_branch: Σ_i h_i + Σ_i M α_i FFN_i(norm(x + h_i)) + b2, h_i = M κ_i head_i W^O_i + b/M.

    x [T, d] is what the attention is given; norm: a function of vectors and of those whose deviation it takes, which
    are x + Σ_i h_i for all branches. In training dropout multiplies by `masks`: Σ_i h_i, and what the FFNs
    add. Others as in `branched`.
    """
    branches, parts = len(heads), zip(heads, kappa, w_o, strict=True)
    h = [branches * kappa_i * (head @ w_o_i) + b / branches for head, kappa_i, w_o_i in parts]
    mask_of_heads, mask_of_ffns = masks
    total = b2
    for h_i, alpha_i, ffn_i in zip(h, alpha, ffns, strict=True):
        total = total + branches * alpha_i * ffn_i(norm(x + h_i, x + sum(h)))
    return mask_of_heads * sum(h) + mask_of_ffns * total


def most_probable(kappa, alpha, k):
    """Section 4.5: κ and α with which the k branches of the largest α_i alone are in a sum over branches."""
    kept = sorted(range(len(alpha)), key=lambda i: alpha[i].item(), reverse=True)[:k]
    return [torch.stack([w_i if i in kept else 0 * w_i for i, w_i in enumerate(w)]) for w in (kappa, alpha)]


def transformer_with_branch_weights(x, heads, kappa, alpha, w_o, b, ffns, b2, norms):
    """--branch-residual shared, for heads of x: u = x + Σ_i M κ_i head_i W^O_i + b, then u + Σ_i M α_i FFN_i(u) + b2.

    norms: what is done to u before the FFN, to u in the sum, and to the result (post-norm: the second two).
    """
    before_ffn, of_u, after = norms
    branches, u = len(heads), x + b
    for head, kappa_i, w_o_i in zip(heads, kappa, w_o, strict=True):
        u = u + branches * kappa_i * (head @ w_o_i)
    total, u = b2, of_u(u)
    for alpha_i, ffn_i in zip(alpha, ffns, strict=True):
        total = total + branches * alpha_i * ffn_i(before_ffn(u))
    return after(u + total)


def nearest_on_simplex(point):
    """The nearest point p ≥ 0 with Σ p_i = 1, by looking at each set of coordinates that may be positive."""
    size, candidates = len(point), []
    for support in chain.from_iterable(combinations(range(size), n) for n in range(1, size + 1)):
        support = list(support)
        candidate = torch.zeros_like(point)
        candidate[support] = point[support] - (point[support].sum() - 1) / len(support)
        if candidate.min() >= 0:
            candidates.append(candidate)
    return min(candidates, key=lambda candidate: (candidate - point).norm().item())


def branch_learning_rate(update, d_model, layers, warmup=400):
    """Section 4: (d_model / N)^−0.5 · min(t^−0.5, t · 400^−1.5)."""
    return (d_model / layers) ** -0.5 * min(update**-0.5, update * warmup**-1.5)
