"""The stages of a preparation, in order: raw, tok, clean, bpe, data-bin."""

import platform
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import subwords
from .binarising import UNKNOWN, make_data_bin
from .cleaning import Cleaner, remedy, without_repeats
from .corpora import PARTS, Corpus, LocalFiles, OwnFiles
from .earlier import Earlier
from .errors import PreparationError
from .extracting import extract, extract_as_published
from .locking import locked
from .parallel import map_file, progress, start_worker
from .splitting import folded
from .stages import Stages
from .text import read_lines, write_columns, write_lines
from .tokenising import LANGUAGES, tokenise_lines

VOCABULARY = "vocabulary"  # in bpe/, with --like or of own text: no subword is made that this dictionary lacks
DISK_FACTOR = 8  # bytes written by all stages per byte of text; 7 were measured on Tatoeba
MANY = 1 / 4  # the user is warned if a stage drops at least this share of its pairs
FEW = 50  # the user is warned of fewer validation or test pairs


@dataclass(kw_only=True)
class Preparation:
    """One corpus on its way to a data-bin in the folder `output`."""

    source: Corpus | LocalFiles
    languages: tuple[str, str]  # source language, target language
    output: Path
    cache: Path | None = None
    mirror: Path | None = None
    held_out: int | None = None
    max_pairs: int | None = None
    max_length: int = 0
    max_ratio: float = 0
    pretokenised: bool = False
    lowercase: bool = False
    separate_bpe: bool = False
    bpe_operations: int
    workers: int
    like: Earlier | None = None  # its subwords and dictionaries are used
    new_characters: bool = False  # appended to those dictionaries

    def __post_init__(self) -> None:
        self.pool = ProcessPoolExecutor(self.workers, initializer=start_worker)

    @property
    def segmented(self) -> tuple[str, ...]:
        """The languages whose words are split into subwords."""
        return self.languages

    @property
    def as_published(self) -> bool:
        """Whether the corpus has a published split and cleaning; then its punctuation is not normalised."""
        return bool(self.source.valid_every)

    @property
    def normalise(self) -> bool:
        return self.like.normalise if self.like else not self.as_published

    def run(self) -> None:
        """Runs every stage that is not finished."""
        for option, given in (("held-out", self.held_out), ("pretokenised", self.pretokenised)):
            if self.as_published and given:
                title = self.source.title
                raise PreparationError(f"--{option}: {title} is split and tokenised as published; omit this option")
        if self.held_out and {"valid", "test"} <= set(self.source.parts):
            raise PreparationError("--held-out: validation and test set are given, and none is split off; omit it")
        with locked(self.output / ".lock", str(self.output)):
            try:
                self.run_stages(Stages(self.output, self.about()))
            finally:  # no worker may write after the lock is released
                before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which would make it wait below for ever
                self.pool.shutdown(cancel_futures=True)
                signal.signal(signal.SIGINT, before)

    def run_stages(self, stages: Stages) -> None:
        """Every stage, with the options on which it depends besides the earlier stages."""
        limits = {"max_length": self.max_length, "max_ratio": self.max_ratio}
        split = {"held_out": self.held_out, "max_pairs": self.max_pairs}
        if self.as_published:
            split["valid_every"] = self.source.valid_every
        stages.run("raw", {"source": self.source.identity(), "columns": self.source.columns} | split | limits, self.raw)
        self.attribute(stages)
        tokens = {"lowercase": self.lowercase}
        tokens |= {"tokenise": False} if self.pretokenised else {"sacremoses": installed("sacremoses")}
        if self.pretokenised or not self.normalise:
            tokens["normalise"] = False
        stages.run("tok", tokens, self.tok)
        stages.run("clean", limits, self.clean)
        report(*(stages.manifest["stages"][name]["counts"] for name in ("raw", "clean")))
        self.run_last_stages(stages)

    def run_last_stages(self, stages: Stages) -> None:
        """Subwords and binary data."""
        pieces = {"operations": self.bpe_operations, "separate": self.separate_bpe}
        if self.like:
            pieces |= {"like": self.like.identity(), "new_characters": self.new_characters}
        stages.run("bpe", pieces | {"subword-nmt": installed("subword-nmt")}, self.bpe)
        stages.run("data-bin", {"source": self.languages[0], "target": self.languages[1]}, self.data_bin)
        extended = self.new_characters or not self.like
        report_unknown(stages.manifest["stages"]["data-bin"]["counts"], extended)
        print(f"{self.output / 'data-bin'} is ready")

    def about(self) -> dict:
        """The entries of the manifest besides the stages."""
        packages = ("sacremoses", "subword-nmt", "fairseq-fixed", "torch")
        return {
            "corpus": self.source.title,
            "licence": self.source.licence,
            "source language": self.languages[0],
            "target language": self.languages[1],
            "versions": {"python": platform.python_version()} | {name: installed(name) for name in packages},
        }

    def attribute(self, stages: Stages) -> None:
        """Writes the text that must accompany the sentences, and prints their attribution."""
        path, source = self.output / "ATTRIBUTION", self.source
        if not source.attribution:
            if stages.attributed:  # of another corpus, prepared here earlier; any other file is the reader's own
                path.unlink(missing_ok=True)
            return
        lines = [source.title, source.attribution, source.homepage, f"Licence: {source.licence}"]
        if "attribution" in source.columns:
            lines.append("Line n of raw/PART.attribution names the contributors of line n of raw/PART.LANGUAGE.")
        lines.append("Changes: Unicode composed, spaces folded, some pairs removed, the others split into parts;")
        lines.append(
            "tok/, clean/, bpe/ and data-bin/ hold them normalised, tokenised, in subwords (see manifest.json)."
        )
        write_lines(path, lines)
        print(f"{source.attribution}. {source.licence}. See {path}")

    def check_space(self) -> None:
        """Raises a PreparationError if the disk is too full for all stages."""
        factor = DISK_FACTOR if self.max_pairs is None else 2  # raw alone writes all pairs, twice
        needed, free = factor * self.source.size(), shutil.disk_usage(self.output).free
        if free < needed:
            raise PreparationError(f"{self.output}: needs {needed:,} bytes of disk space, {free:,} are free; free some")

    def raw(self, folder: Path) -> dict:
        """Cleans and splits the source's pairs."""
        self.check_space()
        self.source.fetch(self.cache, self.mirror)
        cleaner = Cleaner(self.max_length, self.max_ratio)
        if self.as_published:
            return extract_as_published(self.source, folder, cleaner, self.max_pairs)
        return extract(self.source, folder, cleaner, self.held_out, self.max_pairs)

    def tok(self, folder: Path) -> dict:
        """All sentences normalised and tokenised, unless they are `pretokenised`."""
        counts = {}
        for language in self.languages:
            if not self.pretokenised and language not in LANGUAGES:
                remedy = "'Other tokenisers' in data-prep/README.md names the languages that need another tokeniser"
                warn(f"Moses has no rules of its own for {language}, only for {', '.join(LANGUAGES)}: {remedy}")
            for part in PARTS:
                name = f"{part}.{language}"
                text = self.output / "raw" / name
                options = (language, self.lowercase, self.normalise, not self.pretokenised)
                counts[name] = map_file(self.pool, tokenise_lines, text, folder / name, *options)
        return counts

    def clean(self, folder: Path) -> dict:
        """The training pairs that are still clean when lengths are in tokens and spellings are normalised."""
        cleaner = Cleaner(self.max_length, self.max_ratio)
        texts = [self.output / "tok" / f"train.{language}" for language in self.languages]

        def clean() -> Iterator[tuple]:
            cleaner.dropped.clear()  # the pairs are read twice
            return cleaner.clean(progress(zip(*map(read_lines, texts)), "clean", unit=" pairs"))

        pairs = clean() if self.as_published else without_repeats(clean, folder, cleaner.dropped)
        kept = write_columns([folder / text.name for text in texts], pairs)
        dropped = dict(cleaner.dropped)
        if not kept:
            raise PreparationError(f"no training pairs are left (dropped: {dropped}); {remedy(dropped)}")
        return {"in": kept + sum(dropped.values()), "dropped": dropped, "train": kept}

    def bpe(self, folder: Path) -> dict:
        """All texts in subwords, whose codes are learned from the training texts or are those of `like`.

        A subword that the training text has only within larger ones would be unknown to the model; with few pairs there
        are many. In other parts of own text such a subword is split. Corpora of the registry have codes alone, as
        published experiments have.
        """
        if self.like:
            self.warn_of_known_pairs()
        # It takes seconds, and learning uses one core only; data_bin needs at most two for long.
        for _ in range(min(self.workers, 2)):
            self.pool.submit(exec, "import fairseq.data")
        counts, given = {}, {}
        for languages in [[language] for language in self.segmented] if self.separate_bpe else [self.languages]:
            made, files = self.segment_training_texts(folder, languages)
            counts |= made
            given |= dict.fromkeys(languages, files)
        for language in self.languages:
            for part in PARTS:
                name = f"{part}.{language}"
                text = self.output / ("clean" if part == "train" else "tok") / name
                if language not in given:
                    counts[name] = write_lines(folder / name, read_lines(text))
                elif part != "train":
                    counts[name] = map_file(self.pool, subwords.segment_lines, text, folder / name, *given[language])
        return counts

    def segment_training_texts(self, folder: Path, languages: Sequence[str]) -> tuple[dict, list[Path]]:
        """Learns or copies the codes that `languages` share, and splits their training texts into subwords.

        Returns counts, and the files for the other parts: the codes, and the vocabulary if one limits the subwords.
        """
        ending = f".{languages[0]}" if self.separate_bpe else ""
        codes, vocabulary = folder / f"codes{ending}", folder / f"{VOCABULARY}{ending}"
        texts = [self.output / "clean" / f"train.{language}" for language in languages]
        counts, given = {}, [codes]
        if self.like:
            shutil.copyfile(self.like.codes(languages[0]), codes)
            known = self.like.dictionary(languages[0])
            new = subwords.unknown_pieces(texts, codes, known) if self.new_characters else {}
            counts[vocabulary.name] = subwords.extend(known, new, vocabulary)
            given.append(vocabulary)
        else:
            counts[codes.name] = subwords.learn(texts, codes, self.bpe_operations)
        for text in texts:
            counts[text.name] = map_file(self.pool, subwords.segment_lines, text, folder / text.name, *given)
        if isinstance(self.source, OwnFiles) and not self.like:
            pieces = subwords.count_words(folder / text.name for text in texts)
            write_lines(vocabulary, (f"{piece} {count}" for piece, count in sorted(pieces.items())))
            given.append(vocabulary)
        return counts, given

    def warn_of_known_pairs(self) -> None:
        """Warns of held-out pairs that share a sentence with the training text of `like`, whose models know it."""
        held, known = {}, []
        for part in PARTS[1:]:
            files = [self.output / f"raw/{part}.{language}" for language in self.languages]
            held[part] = [[*map(folded, read_lines(file))] for file in files]
        for language, valid, test in zip(self.languages, *held.values()):
            earlier = self.like.folder / f"raw/train.{language}"  # may be missing beside a model of somebody else
            lines = progress(read_lines(earlier), f"bpe known {language}", unit=" lines") if earlier.is_file() else ()
            known.append({*valid, *test}.intersection(map(folded, lines)))
        remedy = "; give others with --valid and --test" if isinstance(self.source, OwnFiles) else ""
        for part, sides in held.items():
            count = sum(any(text in texts for text, texts in zip(pair, known)) for pair in zip(*sides))
            if count:
                shared = f"{count:,} of {len(sides[0]):,} {part} pairs share a sentence with the training text"
                warn(f"{shared} of {self.like.folder}, whose models know it{remedy}")

    def data_bin(self, folder: Path) -> dict:
        """fairseq's binary data; one dictionary for both languages if they share their subwords."""
        given = None
        if self.like:
            names = [f"{VOCABULARY}.{language}" if self.separate_bpe else VOCABULARY for language in self.languages]
            given = [self.output / "bpe" / name for name in names]
        return make_data_bin(self.output / "bpe", folder, self.languages, not self.separate_bpe, self.pool, given)


def report(raw: dict, clean: dict) -> None:
    """Prints the number of pairs, and how many each rule dropped; warns if too many were dropped or too few remain."""
    parts = {**raw, "train": clean["train"]}
    rules = Counter(raw["dropped"]) + Counter(clean["dropped"])
    kept = ", ".join(f"{parts[part]:,} {part}" for part in PARTS)
    left_out = ", ".join(f"{count:,} {rule}" for rule, count in rules.most_common())
    print(f"{raw['in']:,} pairs: {kept}; dropped: {left_out or 'none'}")
    for counts in (raw, clean):
        lost = sum(counts["dropped"].values())
        if lost >= MANY * counts["in"]:
            share = f"{lost:,} of {counts['in']:,} pairs ({lost / counts['in']:.0%})"
            warn(f"{share} were dropped; {remedy(counts['dropped'])}")
    few = " and ".join(f"{part} has {raw[part]:,}" for part in ("valid", "test") if raw[part] < FEW)
    if few:
        warn(f"{few} pairs, too few to choose a checkpoint or to compare scores; give more text, or --valid and --test")


def report_unknown(totals: dict, extended: bool) -> None:
    """Prints how many subwords the dictionaries lack, by part, and what to do if they are not `extended`."""
    sums = {part: Counter() for part in PARTS}
    for part in PARTS:
        for language in totals["dictionaries"]:
            sums[part].update(totals[f"{part}.{language}"])
    shares = ", ".join(f"{sums[part][UNKNOWN]:,} of {sums[part]['subwords']:,} in {part}" for part in PARTS)
    hint = "; --new-characters adds entries for those in train" if sums["train"][UNKNOWN] and not extended else ""
    print(f"<unk>: {shares}{hint}")


def warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed under this name"
