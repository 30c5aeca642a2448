"""Makes a data-bin for English constituency parsing from a treebank: words are translated into brackets.

The stages are those of sentence pairs, but the treebank defines the tokens: nothing is tokenised, no tree with words
is dropped, and only the words are split into subwords. Words and brackets have separate dictionaries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .corpora import PARTS, LocalFiles
from .errors import PreparationError
from .extracting import write_parts
from .pipeline import Preparation
from .stages import Stages
from .text import read_lines, write_lines
from .trees import linearised

SIDES = ("words", "brackets")  # source and target language


@dataclass
class Treebank(LocalFiles):
    """Bracketed files of each part; a folder stands for the .mrg files in it, sorted by name."""

    paths: dict[str, list[Path]]
    title = "own treebank"
    columns = SIDES

    def __post_init__(self) -> None:
        self.files = {part: [file for path in paths for file in _files(path)] for part, paths in self.paths.items()}
        seen: dict[Path, str] = {}
        for part, files in self.files.items():
            for file in files:
                if seen.setdefault(file.resolve(), part) != part:
                    raise PreparationError(f"{file}: given with --{seen[file.resolve()]} and with --{part}; choose one")

    def pairs(self, part: str) -> Iterator[tuple[str, str]]:
        """Words and brackets of each tree."""
        for file in self.files[part]:
            yield from linearised(file)


def _files(path: Path) -> list[Path]:
    """`path`, or the treebank's files in it."""
    if not path.exists():
        raise PreparationError(f"{path}: no such file or folder; check the path")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() == ".mrg")  # LDC's are in upper case
    if not files:
        raise PreparationError(f"{path}: no file of this folder ends in .mrg; name the files with the trees")
    return files


class TreebankPreparation(Preparation):
    """The preparation of a Treebank."""

    segmented = SIDES[:1]

    def run_stages(self, stages: Stages) -> None:
        stages.run("raw", {"source": self.source.identity(), "max_pairs": self.max_pairs}, self.raw)
        stages.run("tok", {"tokenise": False, "normalise": False, "lowercase": False}, self.tok)
        stages.run("clean", {}, self.clean)
        self.run_last_stages(stages)

    def raw(self, folder: Path) -> dict:
        """Words and brackets."""
        self.check_space()
        counts = write_parts(folder, SIDES, {part: self.source.pairs(part) for part in PARTS}, self.max_pairs)
        for part in PARTS:
            if not counts[part]:
                given = ", ".join(map(str, self.source.paths[part]))
                raise PreparationError(f"{given}: no trees with words; name other files with --{part}")
        return counts

    def clean(self, folder: Path) -> dict:
        """Copies all training pairs."""
        names = [f"train.{side}" for side in SIDES]
        return {name: write_lines(folder / name, read_lines(self.output / "tok" / name)) for name in names}
