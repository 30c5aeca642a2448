"""The families and sizes of the architectures, and the training in each family's paper.

    python3 user_dir/families.py                            # prints the families' names
    python3 user_dir/families.py relative_transformer_big   # prints updates, averaged checkpoints, attention dropout

This is plain data for architectures.py and for the shell scripts of examples/, which read it before anything is
installed. So it needs only Python 3.6 or newer (RHEL 8's), and neither fairseq nor torch.
"""

import sys
from typing import NamedTuple


class Family(NamedTuple):
    """Pairs hold the values of the paper's base and big models."""

    options: dict  # defaults, which the command line overrides
    big: dict = {}  # other defaults of the paper's big models
    updates: tuple = (100_000, 300_000)
    averaged: tuple = (5, 20)  # checkpoints; 1: the last one, unchanged
    attention_dropout: tuple = (0.0, 0.0)

    def options_of(self, size: str) -> dict:
        return {**self.options, **self.big} if size.startswith("big") else self.options

    def training_of(self, size: str) -> tuple:
        """Updates, checkpoints to average, and attention dropout."""
        return tuple(pair[size.startswith("big")] for pair in (self.updates, self.averaged, self.attention_dropout))


# size: layers (encoder and decoder each), d_model, d_ff, heads, dropout
SIZES = {
    "tiny": (4, 128, 256, 4, 0.1),  # of the recipes for small corpora
    "iwslt_de_en": (6, 512, 1024, 4, 0.1),  # fairseq's recipe for IWSLT14; its command line sets dropout 0.3
    "base": (6, 512, 2048, 8, 0.1),  # Vaswani et al. 2017, Table 3, "base"
    "big": (6, 1024, 4096, 16, 0.3),  # Vaswani et al. 2017, Table 3, "big"
    "big_en_fr": (6, 1024, 4096, 16, 0.1),  # Vaswani et al. 2017, section 6.1: English–French with dropout 0.1
}

RELATIVE = {
    "relative_positions": "keys_and_values",
    "relative_distance": 16,
    "relative_tables": "per_head",
    "absolute_positions": "omit",
}
RELATIVE_BIG = {"relative_distance": 8, "relative_tables": "shared"}
WEIGHTED = {"branched_attention": "self", "branch_residual": "per_branch"}  # in version 0.1: encoder_decoder

FAMILIES = {
    # Vaswani et al. 2017, Table 3: post-norm, sinusoids, no dropout inside attention or FFN; sections 5.2 and 6.1.
    "vaswani_transformer": Family(options={}, updates=(100_000, 300_000), averaged=(5, 20)),
    # Shaw et al. 2018, section 4.1: no sinusoids; k = 16 and a table per head, in big models k = 8 and one table.
    "relative_transformer": Family(RELATIVE, RELATIVE_BIG, updates=(100_000, 300_000), averaged=(1, 20)),
    # Ahmed et al. 2017, section 3: a branch per head, in the decoder in its masked attention; section 4.1.
    "weighted_transformer": Family(WEIGHTED, updates=(60_000, 250_000), averaged=(1, 1), attention_dropout=(0.1, 0.3)),
    # Not published; trained as the weighted one.
    "weighted_relative_transformer": Family(
        {**RELATIVE, **WEIGHTED}, RELATIVE_BIG, updates=(60_000, 250_000), averaged=(1, 1), attention_dropout=(0.1, 0.3)
    ),
}


def main(arguments: list) -> None:
    if not arguments:
        print(*FAMILIES)
        return
    trained = {**FAMILIES, "transformer": FAMILIES["vaswani_transformer"]}  # fairseq's own
    known = {f"{name}_{size}": family.training_of(size) for name, family in trained.items() for size in SIZES}
    if arguments[0] not in known:
        sys.exit(f"{arguments[0]}: the families are {', '.join(trained)}, and the sizes {', '.join(SIZES)}")
    print(*known[arguments[0]])


if __name__ == "__main__":
    main(sys.argv[1:])
