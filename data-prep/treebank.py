#!/usr/bin/env python3
"""Makes a fairseq data-bin for constituency parsing from bracketed trees: words are translated into brackets.

  python data-prep/treebank.py --train wsj/{02..21} --valid wsj/22 --test wsj/23 --output data/wsj
  python data-prep/treebank.py --train a.mrg b.mrg --valid c.mrg --test d.mrg --output data/mine --bpe-operations 4000

A folder stands for the .mrg files in it. The output folder is like prepare.py's, with the languages `words` and
`brackets`: raw/ (words and brackets: compare parses with raw/test.brackets), tok/ and clean/ (the same), bpe/ (words in
subwords, and their codes), data-bin/, manifest.json. A finished stage is skipped; if its options or your trees have
changed, it and the later stages are replaced.

The treebank defines the tokens: nothing is tokenised, no tree with words is dropped, and only the words are split into
subwords. Words and brackets have separate dictionaries.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from preparation.corpora import PARTS, LocalFiles
from preparation.errors import PreparationError, exit_status
from preparation.extracting import write_parts
from preparation.pipeline import Preparation
from preparation.stages import Stages
from preparation.text import read_lines, write_lines
from preparation.trees import linearised
from prepare import Once, Parser, add_workers, folder, number

SIDES = ("words", "brackets")  # source and target language


@dataclass
class Treebank(LocalFiles):
    """Bracketed files of each part; a folder stands for the .mrg files in it, sorted by name."""

    paths: dict[str, list[Path]]
    title = "own treebank"

    def __post_init__(self) -> None:
        self.files = {part: [file for path in paths for file in _files(path)] for part, paths in self.paths.items()}
        seen: dict[Path, str] = {}
        for part, files in self.files.items():
            for file in files:
                if seen.setdefault(file.resolve(), part) != part:
                    raise PreparationError(f"{file}: given with --{seen[file.resolve()]} and with --{part}; choose one")

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        for file in self.files[part]:
            yield from linearised(file)


def _files(path: Path) -> list[Path]:
    """`path`, or the treebank's files in it."""
    if not path.exists():
        raise PreparationError(f"{path}: no such file or folder; check the path")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise PreparationError(f"{path}: not an ordinary file, which can be read twice; write the trees to one")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() == ".mrg")  # LDC's are in upper case
    if not files:
        raise PreparationError(f"{path}: no file of this folder ends in .mrg; name the files with the trees")
    return files


class TreebankPreparation(Preparation):
    segmented = SIDES[:1]

    def run_stages(self, stages: Stages) -> None:
        stages.run("raw", {"source": self.source.identity(), "max_pairs": self.max_pairs}, self.raw)
        self.attribute(stages)
        stages.run("tok", {"tokenise": False, "normalise": False, "lowercase": False}, self.tok)
        stages.run("clean", {}, self.clean)
        self.run_last_stages(stages)

    def raw(self, folder: Path) -> dict:
        self.check_space()
        counts = write_parts(folder, SIDES, {part: self.source.pairs(part) for part in PARTS}, self.max_pairs)
        for part in PARTS:
            if not counts[part]:
                given = ", ".join(map(str, self.source.paths[part]))
                raise PreparationError(f"{given}: no trees with words; name other files with --{part}")
        return counts

    def clean(self, folder: Path) -> dict:
        names = [f"train.{side}" for side in SIDES]
        return {name: write_lines(folder / name, read_lines(self.output / "tok" / name)) for name in names}


def prepare(arguments: Sequence[str] | None) -> None:
    """Runs the command line; raises PreparationError and OSError."""
    parser = Parser(prog="treebank.py", description=__doc__)
    add, count = parser.add_argument, number(int, 1)
    for part in PARTS:
        help = "files with trees, or folders"
        add(f"--{part}", nargs="+", type=Path, action=Once, required=True, metavar="PATH", help=help)
    add("--output", type=folder, required=True, metavar="FOLDER", help="folder for all results")
    add("--bpe-operations", type=count, metavar="N", default=16000, help="merges to learn (default: %(default)s)")
    add("--max-pairs", type=count, metavar="N", help="train on only N trees, always the same ones")
    add_workers(parser)
    options = parser.parse_args(arguments)
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
    return exit_status("treebank.py", lambda: prepare(arguments))


if __name__ == "__main__":
    sys.exit(main())
