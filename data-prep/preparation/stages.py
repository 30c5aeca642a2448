"""Runs the stages of a preparation, each in its own folder, and keeps the manifest.

A stage is repeated if and only if its options other than VERSIONS have changed, its files are incomplete, or an earlier
stage was repeated. It writes to a temporary folder. When this is complete, the folders of its old result and of all
later stages are deleted, and it takes its name.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from .errors import PreparationError
from .text import sha256

RECIPE = 7  # increase this whenever the same options produce different files
VERSIONS = ("recipe", "sacremoses", "subword-nmt")  # the files of earlier ones are kept
ORDER = ("raw", "tok", "clean", "bpe", "data-bin")


class Stages:
    """The stages of one output folder, which the caller has locked. `about` is added to the manifest."""

    def __init__(self, output: Path, about: dict) -> None:
        self.output = output
        output.mkdir(parents=True, exist_ok=True)
        self.manifest_path = output / "manifest.json"
        self.manifest = self._load()
        self.attributed = bool(self.manifest.get("licence"))  # by an earlier run, to the authors of its corpus
        self.manifest.update(about)

    def _load(self) -> dict:
        try:
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
            for stage in manifest["stages"].values():
                stage["options"], [file["bytes"] for file in stage["files"].values()]  # fails if one lacks them
            return manifest
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            message = f"{self.manifest_path}: not a manifest of this command; delete it and the folders beside it"
            raise PreparationError(message) from None
        foreign = [name for name in ORDER if (self.output / name).exists()]
        if foreign:  # they would be replaced, although this command did not make them
            raise PreparationError(f"{self.output / foreign[0]}: not made by this command; choose another --output")
        return {"stages": {}}

    def _save(self) -> None:
        partial = self.manifest_path.with_suffix(".partial")
        partial.write_text(json.dumps(self.manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(partial, self.manifest_path)

    def _is_whole(self, name: str, files: dict) -> bool:
        paths = {self.output / name / file: known["bytes"] for file, known in files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())

    def run(self, name: str, options: dict, make: Callable[[Path], dict]) -> None:
        """Lets `make` fill the stage's folder and return its counts, unless this is done already with these options."""
        options = json.loads(json.dumps({"recipe": RECIPE} | options))  # in the form read from the manifest
        known = self.manifest["stages"].get(name)
        same = known and known["options"] | {key: options[key] for key in VERSIONS if key in options} == options
        if same and self._is_whole(name, known["files"]):  # a trained model needs its own data
            earlier = f"made by an earlier version; for this one's, remove {self.output}, and train again"
            print(f"{name}: {'nothing to do' if known['options'] == options else earlier}")
            return
        if known and known["options"] != options:
            print(f"{name}: its options have changed; it and the later stages are replaced")
        outdated = ORDER[ORDER.index(name) :]
        if links := [path for path in map(self.output.joinpath, outdated) if path.is_symlink()]:
            raise PreparationError(f"{links[0]} is a link, which a new folder would replace; remove it")
        start = time.perf_counter()
        partial = self.output / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            counts = make(partial)
            files = {
                str(path.relative_to(partial)): {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(partial.rglob("*"))
                if path.is_file()
            }
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for later in outdated:
            self.manifest["stages"].pop(later, None)
        self._save()
        for later in outdated:
            shutil.rmtree(self.output / later, ignore_errors=True)
        partial.rename(self.output / name)
        seconds = round(time.perf_counter() - start, 1)
        self.manifest["stages"][name] = {"options": options, "counts": counts, "seconds": seconds, "files": files}
        self._save()
        print(f"{name}: {seconds} s")
