"""The first stage: reads sentence pairs from their source, cleans and splits them, and writes untokenised text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .cleaning import Cleaner, remedy, without_repeats
from .corpora import PARTS, Corpus, OwnFiles
from .errors import PreparationError
from .parallel import progress
from .splitting import LEAKAGE, Pair, held_out, sample, without_leakage
from .text import read_lines, tidy, write_columns, write_lines
from .tokenising import tokeniser


def extract(source: Corpus | OwnFiles, folder: Path, cleaner: Cleaner, size: int | None, most: int | None) -> dict:
    """Writes train, valid and test, one file per language, and one for the contributors if the source names them.

    Parts that the source lacks are split off: `size` pairs each, by default 2,000 or a twentieth of a small corpus.
    Training pairs that share a sentence with a held-out pair are dropped. Held-out pairs of the source itself are all
    kept, in order. `most` limits the number of training pairs. Returns counts for the manifest.
    """
    whole = folder / "whole.tsv"  # on disk, because a corpus may be larger than memory and is read twice
    pairs = _tidy(progress(source.pairs("train"), "raw reading", unit=" pairs"))
    faultless = folder / "faultless.tsv"
    total = write_lines(faultless, ("\t".join(pair) for pair in cleaner.clean(pairs))) + cleaner.dropped.total()
    different = without_repeats(lambda: _rows(faultless, "raw comparing"), folder, cleaner.dropped)
    clean = write_lines(whole, ("\t".join(pair) for pair in different))
    faultless.unlink()

    held = {part: list(_tidy(source.pairs(part))) for part in ("valid", "test") if part in source.parts}
    if len(held) < 2:
        candidates = without_leakage(_rows(whole, "raw splitting"), sum(held.values(), []), Counter())
        valid, test = held_out(candidates, min(2000, clean // 20) if size is None else size)
        held = {"valid": valid, "test": test} | held

    train = without_leakage(_rows(whole, "raw writing"), held["valid"] + held["test"], cleaner.dropped)
    counts = write_parts(folder, source.columns, {"train": train} | held, most)
    whole.unlink()
    # Pairs that were split off share a sentence with themselves, and were counted.
    cleaner.dropped[LEAKAGE] -= sum(counts[part] for part in held if part not in source.parts)
    dropped = dict(+cleaner.dropped)
    split = "" if {"valid", "test"} <= {*source.parts} else ", or change --held-out"
    refuse_empty(counts, clean, dropped, f"give more text{split}")
    return {"in": total, "dropped": dropped, **counts}


def extract_as_published(source: Corpus, folder: Path, cleaner: Cleaner, most: int | None) -> dict:
    """Writes the parts of a corpus with a published split: every n-th pair is for validation, the others for training.

    Lengths are counted in tokens before the split. Duplicates stay, and so do training pairs that share a sentence with
    a held-out pair, because scores are compared with published ones.
    """
    whole = folder / "whole.tsv"
    pairs = _tidy(progress(source.pairs("train"), "raw reading", unit=" pairs"))
    tokenisers = [tokeniser(language, normalise=False) for language in source.languages]
    split = ((pair, tuple(tokenise(text) for tokenise, text in zip(tokenisers, pair))) for pair in pairs)
    clean = write_lines(whole, ("\t".join(pair) for pair, tokens in split if not cleaner.drops(tokens)))

    def rows(validate: bool) -> Iterator[Pair]:
        numbered = enumerate(_rows(whole, "raw writing"), 1)
        return (pair for number, pair in numbered if (number % source.valid_every == 0) == validate)

    parts = {"train": rows(validate=False), "valid": rows(validate=True), "test": _tidy(source.pairs("test"))}
    counts = write_parts(folder, source.columns, parts, most)
    whole.unlink()
    dropped = dict(cleaner.dropped)
    refuse_empty(counts, clean, dropped, "check the corpus's files")
    return {"in": clean + cleaner.dropped.total(), "dropped": dropped, **counts}


def refuse_empty(counts: dict, clean: int, dropped: dict, advice: str) -> None:
    """Raises PreparationError if a part has no pairs."""
    for part in PARTS:
        if not counts[part]:
            reason = f"no {part} pairs: only {clean:,} pairs are clean (dropped: {dropped or 'none'})"
            raise PreparationError(f"{reason}; {advice}{'; or ' + remedy(dropped) if dropped else ''}")


def write_parts(folder: Path, columns: Sequence[str], parts: dict[str, Iterable[Pair]], most: int | None) -> dict:
    """Writes PART.COLUMN of each part, of the training pairs at most `most`; returns the numbers of pairs."""
    if most is not None:
        parts = parts | {"train": sample(parts["train"], most)}
    return {
        part: write_columns([folder / f"{part}.{column}" for column in columns], pairs) for part, pairs in parts.items()
    }


def _tidy(pairs: Iterable[Pair]) -> Iterator[Pair]:
    for first, second, *contributors in pairs:
        yield tidy(first), tidy(second), *contributors


def _rows(table: Path, description: str) -> Iterator[Pair]:
    for line in progress(read_lines(table), description, unit=" pairs"):
        yield tuple(line.split("\t"))
