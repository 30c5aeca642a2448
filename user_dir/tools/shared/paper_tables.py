"""The papers' tables of ablations: what each row changes, and what it gave on newstest2013 (English–German).

    python3 -m user_dir.tools.shared.paper_tables                      # the tables' names
    python3 -m user_dir.tools.shared.paper_tables vaswani quickstart   # each row: name, family, options, published BLEU

Plain data for tools/parameter_table and, like families.py, for the shell of examples/: hence no fairseq or torch here.
A table is of the papers' base size, or of the quickstart's, where its rows change heads, widths and layers in
proportion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...families import FAMILIES

Size = dict[str, tuple[int, int]]  # of encoder and decoder, by the names of fairseq-train's options
SIZES = {
    "base": {"layers": (6, 6), "embed_dim": (512, 512), "ffn_embed_dim": (2048, 2048), "attention_heads": (8, 8)},
    "quickstart": {"layers": (3, 2), "embed_dim": (128, 128), "ffn_embed_dim": (512, 512), "attention_heads": (4, 4)},
}


class Row(NamedTuple):
    name: str
    family: str
    change: Callable[[Size], dict]  # options of fairseq-train beside those of the family
    bleu: float | None = None
    millions: int | None = None  # parameters
    big: bool = False  # of the big architecture, where the table is of the base size


def times(**shares: float) -> Callable[[Size], dict]:
    """Options of a size, each multiplied by its share."""
    return lambda size: {
        f"{side}_{name}": max(1, round(number * share))
        for name, share in shares.items()
        for side, number in zip(("encoder", "decoder"), size[name])
    }


def width(share: float) -> Callable[[Size], dict]:
    """Another d_model; where the size is the papers', also its rate, d_model^-0.5 · 4000^-0.5 (Vaswani et al., 5.3)."""
    rate = {"lr": f"{(512 * share * 4000) ** -0.5:.3g}"}
    return lambda size: {**times(embed_dim=share)(size), **(rate if size == SIZES["base"] else {})}


def key_dim(share: float) -> Callable[[Size], dict]:
    return lambda size: {"attention_key_dim": int(size["embed_dim"][0] / size["attention_heads"][0] * share)}


def given(**options) -> Callable[[Size], dict]:
    return lambda size: options


def deep_weighted(size: Size) -> dict:
    """Eight layers for six; where the size is the papers' also their dropout (Ahmed et al. 2017, section 4.1)."""
    dropout = {"dropout": 0.3, "attention_dropout": 0.3} if size == SIZES["base"] else {}
    return {**times(layers=4 / 3)(size), **dropout}


def big(size: Size) -> dict:
    return {**times(embed_dim=2, ffn_embed_dim=2, attention_heads=2)(size), "dropout": 0.3}


VASWANI, RELATIVE, WEIGHTED = "vaswani_transformer", "relative_transformer", "weighted_transformer"

TABLES = {
    # Vaswani et al. 2017, Table 3. Its base has dropout 0.1 and label smoothing 0.1; the quickstart's has dropout 0.
    "vaswani": [
        Row("base", VASWANI, given(), 25.8, 65),
        Row("A.heads-1", VASWANI, times(attention_heads=1 / 8), 24.9),
        Row("A.heads-4", VASWANI, times(attention_heads=1 / 2), 25.5),
        Row("A.heads-16", VASWANI, times(attention_heads=2), 25.8),
        Row("A.heads-32", VASWANI, times(attention_heads=4), 25.4),
        Row("B.key-16", VASWANI, key_dim(1 / 4), 25.1, 58),
        Row("B.key-32", VASWANI, key_dim(1 / 2), 25.4, 60),
        Row("C.layers-2", VASWANI, times(layers=1 / 3), 23.7, 36),
        Row("C.layers-4", VASWANI, times(layers=2 / 3), 25.3, 50),
        Row("C.layers-8", VASWANI, times(layers=4 / 3), 25.5, 80),
        Row("C.width-256", VASWANI, width(1 / 2), 24.5, 28),
        Row("C.width-1024", VASWANI, width(2), 26.0, 168),
        Row("C.ffn-1024", VASWANI, times(ffn_embed_dim=1 / 2), 25.4, 53),
        Row("C.ffn-4096", VASWANI, times(ffn_embed_dim=2), 26.2, 90),
        Row("D.dropout-0", VASWANI, given(dropout=0.0), 24.6),
        Row("D.dropout-0.1", VASWANI, given(dropout=0.1), 25.8),  # the paper's base
        Row("D.dropout-0.2", VASWANI, given(dropout=0.2), 25.5),
        Row("D.smoothing-0", VASWANI, given(label_smoothing=0.0), 25.3),
        Row("D.smoothing-0.2", VASWANI, given(label_smoothing=0.2), 25.7),
        Row("E.learned", VASWANI, given(encoder_learned_pos=True, decoder_learned_pos=True), 25.7),
        Row("big", VASWANI, big, 26.4, 213, big=True),
    ],
    # Shaw et al. 2018, Table 2: k. Row 0 has no positions at all.
    "shaw-distance": [
        Row(f"k-{k}", RELATIVE, given(relative_distance=k), bleu)
        for k, bleu in {16: 25.8, 0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 64: 25.9, 256: 25.8}.items()
    ],
    # Shaw et al. 2018, Table 3: what distances are added to.
    "shaw-terms": [
        Row(name, RELATIVE, given(relative_positions=name), bleu)
        for name, bleu in {"keys_and_values": 25.8, "keys": 25.8, "values": 25.3, "neither": 12.5}.items()
    ],
    # Ahmed et al. 2017, section 4: depth, each beside the Transformer.
    "ahmed-depth": [
        Row("vaswani.layers-6", VASWANI, times(layers=1), 25.8, 65),
        Row("weighted.layers-6", WEIGHTED, times(layers=1), 26.5, 65),
        Row("vaswani.layers-2", VASWANI, times(layers=1 / 3), 23.7, 36),
        Row("weighted.layers-2", WEIGHTED, times(layers=1 / 3), 24.8, 36),
        Row("vaswani.layers-4", VASWANI, times(layers=2 / 3), 25.3, 50),
        Row("weighted.layers-4", WEIGHTED, times(layers=2 / 3), 26.2, 50),
        Row("vaswani.layers-8", VASWANI, times(layers=4 / 3), 25.5, 80),
        Row("weighted.layers-8", WEIGHTED, deep_weighted, 25.6, 80),
        Row("weighted.big", WEIGHTED, big, 27.2, 213, big=True),
    ],
    # Ahmed et al. 2017: what was worse, without numbers (3, a softmax; 4.4, drawn in each step; 4.5, the largest α).
    "ahmed-weights": [
        Row("learned", WEIGHTED, given()),
        Row("softmax", WEIGHTED, given(branch_weights="softmax")),
        Row("drawn", WEIGHTED, given(branch_weights="random")),
        Row("top-half", WEIGHTED, lambda size: {"top_branches": max(1, size["attention_heads"][0] // 2)}),
    ],
    # Where the decoder has branches; no table of theirs.
    "ahmed-decoder": [
        Row(where, WEIGHTED, given(branched_attention=where))
        for where in ("encoder_decoder", "self", "both_halves", "both")
    ],
    # Ahmed et al. 2017: 15 to 40% fewer updates to the final score. No table of theirs.
    "convergence": [Row(family, family, given()) for family in FAMILIES],
}


def option_words(options: dict) -> Iterator[str]:
    """`options` as they are typed; one that is True is a flag."""
    for name, value in options.items():
        yield "--" + name.replace("_", "-")
        if value is not True:
            yield str(value)


def main(arguments: list[str]) -> None:
    if not arguments:
        print(*TABLES)
        return
    name, size = (*arguments, "base")[:2]
    if name not in TABLES or size not in SIZES:
        sys.exit(f"{' '.join(arguments)}: the tables are {', '.join(TABLES)}, the sizes {', '.join(SIZES)}")
    for row in TABLES[name]:
        print(row.name, row.family, " ".join(option_words(row.change(SIZES[size]))), row.bleu or "", sep="\t")


if __name__ == "__main__":
    main(sys.argv[1:])
