"""Counts the parameters of the papers' models and prints them beside the published counts.

    nmt-parameter-table --vocabulary 37000

"V that fit" has the sizes of a joint vocabulary for which the rounded count is the published one. No paper prints the
size that it counted: Vaswani et al. 2017 (section 5.1) say "about 37000".

--cost adds the floating-point operations of the papers' training: of the paper's updates with 25,000 subwords a side in
sentences of 25. Vaswani et al. (Table 2) estimate 3.3e18 and 2.3e19, of base and big, from hours and GPUs.
"""

import argparse
import math
import types

import torch
from fairseq import models
from fairseq.data import Dictionary
from torch import nn

from .. import registration  # noqa: F401
from ..families import FAMILIES
from .shared.command import exit_in_one_line, new_parser, positive, table
from .shared.paper_tables import SIZES, TABLES, Row
from .shared.training_cost import operations


def build(row: Row, vocabulary: int, device: str) -> nn.Module:
    """The row's model in the papers' size, embeddings and projection shared."""
    dictionary = Dictionary()
    dictionary.symbols = [str(number) for number in range(vocabulary)]
    task = types.SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    arch = f"{row.family}_{'big' if row.big else 'base'}"
    options = {} if row.big else row.change(SIZES["base"])
    args = argparse.Namespace(arch=arch, share_all_embeddings=True, **options)
    models.ARCH_CONFIG_REGISTRY[arch](args)
    with torch.device(device):
        return models.ARCH_MODEL_REGISTRY[arch].build_model(args, task)


def count(row: Row, vocabulary: int) -> int:
    """Parameters of the row's model; nothing is allocated."""
    return sum(parameter.numel() for parameter in build(row, vocabulary, "meta").parameters())


def cost(row: Row, vocabulary: int) -> float:
    """Floating-point operations of the papers' training of the row's model."""
    updates, tokens, length = FAMILIES[row.family].updates[row.big], 25_000, 25
    return operations(build(row, vocabulary, "cpu"), length, length) / length * tokens * updates


def vocabularies(row: Row) -> tuple[int, int]:
    """The smallest and the largest vocabulary with which `row` has the published count, rounded to millions."""
    one, other = (count(row, words) for words in (1000, 2000))
    each = (other - one) / 1000
    least, most = (1000 + (1e6 * (row.millions + half) - one) / each for half in (-0.5, 0.5))
    return math.ceil(least), math.floor(most)


@exit_in_one_line("nmt-parameter-table")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-parameter-table", __doc__)
    size = "joint vocabulary size (default: %(default)s)"
    parser.add_argument("--vocabulary", type=positive, default=37000, metavar="V", help=size)
    parser.add_argument("--cost", action="store_true", help="add what training costs; it takes minutes")
    args = parser.parse_args(arguments)
    if args.vocabulary < (least := len(Dictionary())):
        parser.error(f"--vocabulary {args.vocabulary}: give at least {least}, fairseq's own symbols")
    rows = []
    for row in (row for name in ("vaswani", "ahmed-depth") for row in TABLES[name] if row.millions):
        found = count(row, args.vocabulary)
        fitting = "{:,}–{:,}".format(*vocabularies(row))
        rows.append([row.name, row.family, f"{found:,}", f"{found / 1e6:.0f}", str(row.millions), fitting])
        if args.cost:
            rows[-1].append(f"{cost(row, args.vocabulary):.1e}")
    columns = ["row", "family", f"parameters, V = {args.vocabulary:,}", "millions", "published", "V that fit"]
    columns += ["FLOPs of training"] if args.cost else []
    print(table(columns, rows))


if __name__ == "__main__":
    main()
