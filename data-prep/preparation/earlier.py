"""An earlier preparation, whose tokenisation, subwords and dictionaries other text is to share (--like)."""

import json
from dataclasses import dataclass
from pathlib import Path

from .errors import PreparationError
from .text import sha256


@dataclass(frozen=True)
class Earlier:
    """The options and files of the prepared `folder`."""

    folder: Path
    options: dict  # prepare.py's
    normalise: bool

    @classmethod
    def read(cls, folder: Path) -> "Earlier":
        """The preparation in `folder`; raises a PreparationError if it is not there or not finished."""
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            stages = manifest["stages"]
            tokens = {"tokenise": True, "normalise": True} | stages["tok"]["options"]
            pieces = stages["bpe"]["options"]
            options = {
                "source_lang": str(manifest["source language"]),
                "target_lang": str(manifest["target language"]),
                "pretokenised": not tokens["tokenise"],
                "lowercase": tokens["lowercase"],
                "separate_bpe": pieces["separate"],
                "bpe_operations": pieces["operations"],
            }
            earlier = cls(folder, options, tokens["normalise"])
            missing = [path for path in earlier.files() if not path.is_file()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            missing = [f"{folder / 'manifest.json'} ({type(error).__name__})"]
        if missing:
            raise PreparationError(f"--like {folder}: no usable {missing[0]}; name a folder that prepare.py finished")
        return earlier

    def codes(self, language: str) -> Path:
        return self.folder / "bpe" / (f"codes.{language}" if self.options["separate_bpe"] else "codes")

    def dictionary(self, language: str) -> Path:
        return self.folder / "data-bin" / f"dict.{language}.txt"

    def files(self) -> list[Path]:
        languages = self.options["source_lang"], self.options["target_lang"]
        return [find(language) for language in languages for find in (self.codes, self.dictionary)]

    def identity(self) -> list[str]:
        """Everything on which the subwords depend."""
        return [sha256(path) for path in self.files()]

    def adopt(self, options) -> None:
        """Sets prepare.py's options as they were; raises a PreparationError for one that is given otherwise."""
        for name, value in self.options.items():
            if (given := getattr(options, name)) and given != value:
                option = f"--{name.replace('_', '-')}" + ("" if given is True else f" {given}")
                was = "without it" if value is False else f"with {value}"
                raise PreparationError(f"{option}: --like {self.folder} was prepared {was}; omit this option")
            setattr(options, name, value)
