"""Counts the parameters of the papers' models and prints them beside the published counts.

    python -m user_dir.tools.parameter_table --vocabulary 37000

The last column has the sizes of a joint vocabulary with which a model has, rounded, the published number. No paper
prints the size that it counted: Vaswani et al. 2017 (section 5.1) say "about 37000".
"""

import argparse
import types

import torch
from fairseq import models
from fairseq.data import Dictionary

from .. import registration  # noqa: F401
from ..paper_tables import SIZES, TABLES, Row
from .shared.command import exit_in_one_line, new_parser, positive
from .shared.metrics import table


def count(row: Row, vocabulary: int) -> int:
    """Parameters of the row's model in the papers' size, embeddings and projection shared; nothing is allocated."""
    dictionary = Dictionary()
    dictionary.symbols = [str(number) for number in range(vocabulary)]
    task = types.SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    arch = f"{row.family}_{'big' if row.big else 'base'}"
    options = {} if row.big else row.change(SIZES["base"])
    args = argparse.Namespace(arch=arch, share_all_embeddings=True, **options)
    models.ARCH_CONFIG_REGISTRY[arch](args)
    with torch.device("meta"):
        model = models.ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    return sum(parameter.numel() for parameter in model.parameters())


def vocabularies(row: Row) -> tuple[int, int]:
    """The smallest and the largest vocabulary with which `row` has the published count, rounded to millions."""
    one, other = (count(row, words) for words in (1000, 2000))
    each = (other - one) / 1000
    return tuple(int(1000 + (1e6 * (row.millions + half) - one) / each) for half in (-0.5, 0.5))


@exit_in_one_line("parameter_table")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("parameter_table", __doc__)
    parser.add_argument("--vocabulary", type=positive, default=37000, metavar="V", help="(default: %(default)s)")
    args = parser.parse_args(arguments)
    rows = []
    for row in (row for name in ("vaswani", "ahmed-depth") for row in TABLES[name] if row.millions):
        found = count(row, args.vocabulary)
        fitting = "{:,}–{:,}".format(*vocabularies(row))
        rows.append([row.name, row.family, f"{found:,}", f"{found / 1e6:.0f}", str(row.millions), fitting])
    columns = ["row", "family", f"parameters, V = {args.vocabulary:,}", "millions", "published", "V that fit"]
    print(table(columns, rows))


if __name__ == "__main__":
    main()
