"""Sources of sentence pairs: a corpus of the registry, or a user's own files."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .archives import lines_within, verses_within
from .errors import PreparationError
from .fetching import Remote, fetch
from .text import check_parallel, read_lines, sha256

PARTS = ("train", "valid", "test")
ABOUT = ("title", "licence", "attribution", "homepage")  # texts in the registry that are shown
CORPUS = {*ABOUT, "address", "files", "pairs", "max-length", "max-ratio", "valid-every"}  # the entries of a corpus,
TEXTS = {"table", "columns", "texts", "verses", "bytes"}  # and of each of its pairs
LEAST = {"max-length": 1, "max-ratio": 1.0, "valid-every": 2, "bytes": 0}  # smallest values of the registry's numbers


class LocalFiles:
    """A user's own `files` of each part, without what only the registry's corpora have."""

    files: dict[str, Sequence[Path]]
    max_length = max_ratio = valid_every = None
    licence = attribution = homepage = ""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.files)

    def identity(self) -> dict:
        """Everything on which the sentences depend."""
        return {part: [sha256(file) for file in files] for part, files in self.files.items()}

    def size(self) -> int:
        """Approximate bytes of text."""
        return sum(file.stat().st_size for files in self.files.values() for file in files)

    def fetch(self, cache: Path, mirror: Path | None) -> None:
        """Nothing to do: the files are local."""


@dataclass
class OwnFiles(LocalFiles):
    """Two text files per part: sentences of the source language, and their translations line by line."""

    files: dict[str, tuple[Path, Path]]
    languages: tuple[str, str]
    title = "own files"

    def __post_init__(self) -> None:
        for pair in self.files.values():
            check_parallel(*pair)
        if {"valid", "test"} <= self.files.keys() and any(map(Path.samefile, self.files["valid"], self.files["test"])):
            raise PreparationError("--valid and --test share a file: the test set would choose the model; give two")
        # The split must not depend on the direction, so the alphabetically first language decides.
        if self.languages[0] > self.languages[1]:
            self.languages = (self.languages[1], self.languages[0])
            self.files = {part: (second, first) for part, (first, second) in self.files.items()}
        self.columns = self.languages  # that `pairs` yields

    def pairs(self, part: str) -> Iterator[tuple[str, ...]]:
        """Sentences of the part in the order of `languages`."""
        yield from zip(*map(read_lines, self.files[part]))


@dataclass
class Corpus:
    """A language pair of a corpus in the registry; `languages` is in the registry's order."""

    title: str
    licence: str
    attribution: str
    homepage: str
    languages: tuple[str, str]
    remotes: dict[str, Remote]
    entry: dict  # the pair's: table and columns, texts, or verses
    max_length: int | None = None
    max_ratio: float | None = None
    valid_every: int | None = None  # if set, it is split and cleaned as published: see `extract_as_published`
    local: dict[str, Path] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the published corpus; the others have to be split off."""
        return tuple(self.entry.get("texts", ["train"]))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that `pairs` yields."""
        return self.languages + (("attribution",) if "attribution" in self.entry.get("columns", ()) else ())

    def identity(self) -> dict:
        """Everything on which the sentences depend."""
        files = {name: remote.sha256 or remote.url for name, remote in self.remotes.items()}
        return {"entry": self.entry, "files": files}

    def size(self) -> int:
        """Approximate bytes of text: text compresses to a third, but archives may contain more than is needed."""
        return self.entry.get("bytes") or 3 * sum(remote.bytes for remote in self.remotes.values())

    def fetch(self, cache: Path, mirror: Path | None) -> None:
        """Fetches the files that this language pair needs."""
        self.local = {name: fetch(remote, cache, mirror) for name, remote in self.remotes.items()}

    def pairs(self, part: str) -> Iterator[tuple[str, ...]]:
        """Sentences of the part in the order of `languages`, and their contributors if the corpus names them."""
        if "texts" in self.entry:
            for paths in zip(*(_several(self.entry["texts"][part][language]) for language in self.languages)):
                try:
                    yield from zip(*(self._lines(path) for path in paths), strict=True)
                except ValueError:
                    names = " and ".join(path[-1] for path in paths)
                    raise PreparationError(f"{self.title}: {names} have different numbers of sentences") from None
            return
        if "verses" in self.entry:
            books = (self.entry["verses"][language] for language in self.languages)
            yield from aligned(*(verses_within(self.local[archive], folder) for archive, folder in books))
            return
        columns = [self.entry["columns"].index(column) for column in self.columns]
        for number, line in enumerate(self._lines(self.entry["table"]), 1):
            cells = line.split("\t")
            if len(cells) <= max(columns):
                where = f"{self.entry['table'][-1]}, line {number}"
                raise PreparationError(f"{where}: fewer columns than in the registry of corpora; correct the registry")
            yield tuple(cells[column] for column in columns)

    def _lines(self, path: list[str]) -> Iterator[str]:
        return lines_within(self.local[path[0]], path[1:])


def aligned(first: dict[tuple, str], second: dict[tuple, str]) -> Iterator[tuple[str, str]]:
    """Verses of two Bibles with the same book, chapter and number, from chapters that are equally long in both.

    In other chapters the numbers do not match: a psalm's title is a separate verse in only one of the two.
    """
    sizes = [Counter(place[:2] for place in verses) for verses in (first, second)]
    for place, verse in first.items():
        if place in second and sizes[0][place[:2]] == sizes[1][place[:2]]:
            yield verse, second[place]


def _several(paths: list) -> list[list[str]]:
    """One path, or a list of paths whose texts are concatenated, as a list."""
    return paths if isinstance(paths[0], list) else [paths]


def _paths(entry: dict) -> list[list[str]]:
    """Paths of all texts of a language pair."""
    texts = [text for part in entry.get("texts", {}).values() for text in part.values()]
    texts = texts or list(entry.get("verses", {}).values()) or [entry["table"]]
    return [path for text in texts for path in _several(text)]


def read_registry(registry: Path) -> dict:
    """The corpora by name.

    Raises:
        PreparationError: if it is not TOML, or a corpus lacks something
    """
    try:
        known = tomllib.loads(registry.read_text(encoding="utf-8-sig"))  # Windows may begin it with a mark
    except (OSError, ValueError) as error:
        raise PreparationError(f"{registry}: not readable as a registry of corpora: {error}") from None
    for name, record in known.items():
        try:
            for file, source in record["files"].items() if "address" in record else ():
                if not source.keys() & {"url", "package"}:
                    source["url"] = record["address"] + file
            fault = next(_faults(record), None)
        except (AttributeError, KeyError, TypeError, IndexError):
            fault = "not of the form of a corpus"
        if fault:
            raise PreparationError(f"{registry}, {name}: {fault}; the first lines of corpora.toml explain the form")
    return known


def _faults(record: dict) -> Iterator[str]:
    """The faults in a corpus of the registry, of which the first counts: each check relies on those before it."""
    yield from (f"{key} is missing" for key in (*ABOUT, "files", "pairs") if key not in record)
    for table in (record, *record["pairs"].values()):
        if unknown := table.keys() - (CORPUS if table is record else TEXTS):
            yield f"not of the form of a corpus, which has no {', '.join(sorted(unknown))}"
    yield from (f"{key} has to be a text in quotes" for key in ABOUT if not isinstance(record[key], str))
    for table in (record, *record["files"].values(), *record["pairs"].values()):
        for key, least in LEAST.items():
            value, kinds = table.get(key, least), {int, type(least)}
            if type(value) not in kinds or not value >= least:
                yield f"{key} is {value!r}; it has to be a {'whole ' * (kinds == {int})}number, at least {least}"
    for file, source in record["files"].items():
        if not source.keys() & {"url", "package"} or source.keys() - {"url", "package", "bytes", "sha256"}:
            yield f"{file} has to have a url or package, optionally bytes and sha256, and nothing else"
        if not all(isinstance(source.get(key, ""), str) for key in ("url", "package", "sha256")):
            yield f"url, package and sha256 of {file} have to be texts in quotes"
        if Path(file).name != file or file == ".." or not re.fullmatch(r"([0-9a-f]{64})?", source.get("sha256", "")):
            yield f"{file} has to be the name of a file, without folders, and its sha256 64 letters and digits"
    for pair, entry in record["pairs"].items():
        yield from _faults_of_pair(pair, entry, record)


def _faults_of_pair(pair: str, entry: dict, record: dict) -> Iterator[str]:
    languages, texts = set(pair.split("-")), entry.get("texts", {})
    if pair.count("-") != 1:
        yield f"{pair} has to be two languages joined by a hyphen, such as de-en"
    if "table" in entry and not languages <= set(entry["columns"]):
        yield f"the columns of {pair} are not its languages"
    if "verses" in entry and (set(entry["verses"]) != languages or {*map(len, entry["verses"].values())} != {2}):
        yield f"verses of {pair} have to be an archive and a folder of each language"
    if "texts" in entry and "train" not in texts:
        yield f"{pair} has no train"
    for part, by_language in texts.items():
        if set(by_language) != languages or part not in PARTS:
            yield f"{part} of {pair} has to be one of {', '.join(PARTS)}, with a text of each language"
    if "valid-every" in record and {*texts} != {"train", "test"}:
        yield f"{pair} has valid-every and so needs texts, those of train and test"
    for path in _paths(entry):
        if not isinstance(path, list) or not all(isinstance(step, str) for step in path):
            yield f"{path!r} of {pair} has to be a path, a list of texts in quotes"
        if path[0] not in record["files"]:
            yield f"{path[0]} of {pair} is not among the files"
    for part, by_language in texts.items():
        if len({len(_several(text)) for text in by_language.values()}) > 1:  # the last ones would be left out
            yield f"{part} of {pair} has more texts of one language than of the other"


def find(name: str, languages: tuple[str, str], registry: Path) -> Corpus:
    """The corpus called `name` with these two languages, in either order."""
    known = read_registry(registry)
    if name not in known:
        raise PreparationError(f"no corpus is called {name}; choose one of {', '.join(sorted(known))}")
    record = known[name]
    for pair, entry in record["pairs"].items():
        if set(pair.split("-")) == set(languages):
            needed = {path[0] for path in _paths(entry)}
            remotes = {file: Remote(name=file, **source) for file, source in record["files"].items() if file in needed}
            about = {key: record[key] for key in ABOUT}
            first, second = pair.split("-")
            settings = {key: record.get(key.replace("_", "-")) for key in ("max_length", "max_ratio", "valid_every")}
            return Corpus(**about, languages=(first, second), remotes=remotes, entry=entry, **settings)
    pairs = ", ".join(record["pairs"])
    raise PreparationError(f"{name} has no {'-'.join(languages)}; choose one of {pairs}, in either direction")
