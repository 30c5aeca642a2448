"""Euclidean projection onto the probability simplex {w : w ≥ 0, Σ_i w_i = 1}.

The nearest point to v is w_i = max(v_i − θ, 0) with the one θ for which Σ_i w_i = 1 (Held, Wolfe and Crowder 1974,
"Validation of subgradient optimization"; Duchi et al. 2008, "Efficient projections onto the ℓ1-ball", figure 1).
"""

from collections import defaultdict

import torch


def project(points: torch.Tensor) -> torch.Tensor:
    """The nearest point of the simplex for each row of `points` [..., M]: [..., M], ≥ 0, sum 1 up to rounding.

    If the j largest values were the positive ones, θ would be θ_j = (their sum − 1) / j. No θ_j exceeds θ, because
    Σ_{i≤j} (v_i − θ) ≤ Σ_i max(v_i − θ, 0) = 1. So θ = max_j θ_j.
    """
    points = points - points.amax(-1, keepdim=True)  # shifts θ too; the values that stay positive lie in [−1, 0]
    sums = points.sort(dim=-1, descending=True).values.cumsum(-1)  # [..., M]
    counts = torch.arange(1, points.size(-1) + 1, device=points.device)
    theta = ((sums - 1) / counts).amax(-1, keepdim=True)  # [..., 1]
    return (points - theta).clamp(min=0)


@torch.no_grad()
def project_(vectors) -> None:
    """Projects each of `vectors` [M] in place, those of equal M together."""
    by_size = defaultdict(list)
    for vector in vectors:
        by_size[vector.numel()].append(vector)
    for same in by_size.values():
        torch._foreach_copy_(same, project(torch.stack(same)).unbind())
