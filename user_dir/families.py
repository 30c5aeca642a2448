"""The families: what each computes, as options, and what its paper trains.

    python3 user_dir/families.py                         # prints their names
    python3 user_dir/families.py relative_transformer    # prints updates, checkpoints averaged and dropout of
                                                         # attention weights: each of base and of big

Plain data for architectures.py and for the shell of examples/, which reads them before anything is installed: hence
any Python from 3.8 on, and nothing of fairseq or torch.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Family(NamedTuple):
    """Pairs are of the paper's base and of its big models."""

    options: dict  # what makes the family; they hold unless the command line says otherwise
    big: dict = {}  # what the paper sets otherwise in its big models
    updates: tuple[int, int] = (100_000, 300_000)
    averaged: tuple[int, int] = (5, 20)  # checkpoints; 1 is the last one as it is
    attention_dropout: tuple[float, float] = (0.0, 0.0)

    def options_of(self, size: str) -> dict:
        return {**self.options, **self.big} if size.startswith("big") else self.options


RELATIVE = {
    "relative_positions": "keys_and_values",
    "relative_distance": 16,
    "relative_tables": "per_head",
    "absolute_positions": "omit",
}
RELATIVE_BIG = {"relative_distance": 8, "relative_tables": "shared"}
WEIGHTED = {"branched_attention": "encoder_decoder", "branch_residual": "per_branch"}

FAMILIES = {
    # Vaswani et al. 2017, Table 3: post-norm, sinusoids, no dropout inside attention or FFN; sections 5.2 and 6.1.
    "vaswani_transformer": Family(options={}, big={}, updates=(100_000, 300_000), averaged=(5, 20)),
    # Shaw et al. 2018, section 4.1: no sinusoids; k = 16 and a table for each head, big models k = 8 and one for all.
    "relative_transformer": Family(RELATIVE, RELATIVE_BIG, updates=(100_000, 300_000), averaged=(1, 20)),
    # Ahmed et al. 2017, section 3: a branch for each head, the decoder's in its encoder–decoder attention; section 4.1.
    "weighted_transformer": Family(
        WEIGHTED, big={}, updates=(60_000, 250_000), averaged=(1, 1), attention_dropout=(0.1, 0.3)
    ),
    # Published nowhere: trained as the weighted one.
    "weighted_relative_transformer": Family(
        {**RELATIVE, **WEIGHTED}, RELATIVE_BIG, updates=(60_000, 250_000), averaged=(1, 1), attention_dropout=(0.1, 0.3)
    ),
}


def main(arguments: list[str]) -> None:
    if not arguments:
        print(*FAMILIES)
        return
    trained = {**FAMILIES, "transformer": FAMILIES["vaswani_transformer"]}  # fairseq's own
    if arguments[0] not in trained:
        sys.exit(f"{arguments[0]} is none of {', '.join(trained)}")
    family = trained[arguments[0]]
    print(*family.updates, *family.averaged, *family.attention_dropout)


if __name__ == "__main__":
    main(sys.argv[1:])
