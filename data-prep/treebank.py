#!/usr/bin/env python3
"""Makes a fairseq data-bin for constituency parsing from bracketed trees: words are translated into brackets.

  treebank.py --train wsj/{02..21} --valid wsj/22 --test wsj/23 --output data/wsj
  treebank.py --train a.mrg b.mrg --valid c.mrg --test d.mrg --output data/mine --bpe-operations 4000

A folder stands for the .mrg files in it. The output folder is like prepare.py's, with the languages `words` and
`brackets`: raw/ (words and brackets: compare parses with raw/test.brackets), tok/ and clean/ (the same), bpe/ (words in
subwords, and their codes), data-bin/, manifest.json. Finished steps are skipped.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from preparation.corpora import PARTS
from preparation.errors import exit_status
from preparation.treebank import SIDES, Treebank, TreebankPreparation
from prepare import Once, Parser, add_workers, number


def parser() -> Parser:
    """The options of the command."""
    result = Parser(prog="treebank.py", description=__doc__)
    add, count = result.add_argument, number(int, 1)
    for part in PARTS:
        help = "files with trees, or folders"
        add(f"--{part}", nargs="+", type=Path, action=Once, required=True, metavar="PATH", help=help)
    add("--output", type=Path, required=True, metavar="FOLDER", help="folder for all results")
    add("--bpe-operations", type=count, metavar="N", default=16000, help="merges to learn (default: %(default)s)")
    add("--max-pairs", type=count, metavar="N", help="train on only N trees, always the same ones")
    add_workers(result)
    return result


def prepare(arguments: Sequence[str] | None) -> None:
    """Runs the command line; raises PreparationError and OSError."""
    options = parser().parse_args(arguments)
    TreebankPreparation(
        source=Treebank({part: getattr(options, part) for part in PARTS}),
        languages=SIDES,
        output=options.output,
        max_pairs=options.max_pairs,
        pretokenised=True,
        separate_bpe=True,
        bpe_operations=options.bpe_operations,
        workers=options.workers,
    ).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return exit_status("treebank.py", lambda: prepare(arguments))


if __name__ == "__main__":
    sys.exit(main())
