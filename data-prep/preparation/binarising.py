"""Dictionaries and binary data sets as fairseq-preprocess writes them, several times faster.

fairseq-preprocess reads its files line by line, asking for the position of each, makes tensors element by element, and
processes one file after the other (tests/benchmarks/README.md has the times). fairseq's own classes write the files; a
test compares them all with those of the command, byte by byte.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from .corpora import PARTS
from .parallel import interruptible, progress
from .subwords import SPECIAL, count_words
from .text import read_lines, write_lines

UNKNOWN = "unknown subwords"


def write_dictionary(counts: Counter[str], path: Path) -> int:
    """Writes a dictionary of all symbols, most frequent first; returns its size with fairseq's special symbols.

    Rare symbols are kept: after byte-pair encoding they are single letters and a few intermediate pieces; 1 in 60 of
    Tatoeba's (4,000 merges) occurs fewer than five times.
    """
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for symbol, count in sorted(counts.items()):
        dictionary.add_symbol(symbol, count)
    dictionary.finalize()  # as in fairseq-preprocess: sorted by count, padded to a multiple of eight
    dictionary.save(str(path))
    return len(dictionary)


def binarise(text: Path, dictionary_path: Path, prefix: Path) -> dict[str, int]:
    """Writes PREFIX.bin and PREFIX.idx; returns the number of sentences, subwords and unknown subwords."""
    import torch
    from fairseq.data import Dictionary, indexed_dataset

    dictionary = Dictionary.load(str(dictionary_path))
    indices, unknown, end = dictionary.indices, dictionary.unk(), dictionary.eos()
    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
    totals = {"sentences": 0, "subwords": 0, UNKNOWN: 0}
    for line in progress(read_lines(text), f"data-bin {text.name}", unit=" lines"):
        sentence = [indices.get(symbol, unknown) for symbol in line.split()]
        builder.add_item(torch.tensor([*sentence, end], dtype=torch.int32))
        totals["sentences"] += 1
        totals["subwords"] += len(sentence)
        totals[UNKNOWN] += sentence.count(unknown)
    builder.finalize(f"{prefix}.idx")
    return totals


def make_data_bin(
    texts: Path, folder: Path, languages: Sequence[str], joined: bool, workers: Executor, given: Sequence[Path] | None
) -> dict:
    """The `given` dictionaries or those of the training texts in `texts`, then all its texts as binary data sets."""
    dictionaries = [folder / f"dict.{language}.txt" for language in languages]
    if given:
        sizes = [write_lines(path, read_lines(known)) + SPECIAL for known, path in zip(given, dictionaries)]
    else:
        counts = list(workers.map(count_words, [[texts / f"train.{language}"] for language in languages]))
        if joined:
            counts = [counts[0] + counts[1]] * 2
        sizes = workers.map(write_dictionary, counts, dictionaries)
    totals = {"dictionaries": dict(zip(languages, sizes))}
    jobs = {}
    for part in PARTS:
        for language, dictionary in zip(languages, dictionaries):
            prefix = folder / f"{part}.{'-'.join(languages)}.{language}"
            name = f"{part}.{language}"
            jobs[name] = workers.submit(interruptible, binarise, texts / name, dictionary, prefix)
    return totals | {name: job.result() for name, job in jobs.items()}
