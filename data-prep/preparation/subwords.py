"""Byte-pair encoding, learned and applied by subword-nmt."""

import contextlib
import functools
import io
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import subword_nmt.learn_bpe
from subword_nmt.apply_bpe import BPE

from .errors import PreparationError
from .parallel import progress
from .text import read_lines, write_lines
from .tokenising import CACHE

SPECIAL = 4  # symbols of fairseq's that its dictionaries do not list: <s>, <pad>, </s>, <unk>


def count_words(texts: Iterable[Path]) -> Counter[str]:
    """How often each word occurs in the tokenised texts."""
    words: Counter[str] = Counter()
    for text in texts:
        for line in progress(read_lines(text), f"counting words of {text.name}", unit=" lines"):
            words.update(line.split(" "))
    words.pop("", None)
    return words


def learn(texts: Iterable[Path], codes: Path, operations: int) -> int:
    """Learns at most `operations` merges from all the tokenised texts; returns the number of merges."""
    words, merges = count_words(texts), 0
    # subword-nmt's own progress bar would also appear in log files.
    shown = {"description": "learning subwords", "unit": " merges", "file": sys.stderr}
    if max(map(len, words), default=0) > 1:  # else subword-nmt fails
        vocabulary = io.StringIO("".join(f"{word} {count}\n" for word, count in words.items()))
        bar, subword_nmt.learn_bpe.tqdm = subword_nmt.learn_bpe.tqdm, functools.partial(progress, **shown)
        try:
            with open(codes, "w", encoding="utf-8", newline="\n") as stream, contextlib.redirect_stderr(io.StringIO()):
                subword_nmt.learn_bpe.learn_bpe(vocabulary, stream, operations, is_dict=True)
        finally:
            subword_nmt.learn_bpe.tqdm = bar
        merges = sum(1 for _ in read_lines(codes)) - 1  # the first line is the version of the format
    if not merges:
        reason = "no pair of letters occurs twice within words of the training text: no merges to learn"
        remedy = "if its words are letters, binarise them with fairseq-preprocess, and translate with --pretokenised"
        raise PreparationError(f"{reason}; add text, or, {remedy}")
    if merges < operations:
        print(f"learned {merges:,} of {operations:,} merges: no other subword pair occurs twice")
    return merges


def symbols(dictionary: Path) -> set[str]:
    """The subwords in fairseq's dictionary."""
    return {line.rpartition(" ")[0] for line in read_lines(dictionary)}


def unknown_pieces(texts: Iterable[Path], codes: Path, dictionary: Path) -> Counter[str]:
    """How often the tokenised texts have each subword that the dictionary lacks: characters, with or without @@."""
    split, known = _splitter(codes, dictionary), symbols(dictionary)
    pieces: Counter[str] = Counter()
    for word, count in count_words(texts).items():
        for piece in split(word).split(" "):
            if piece not in known:
                pieces[piece] += count
    return pieces


def extend(dictionary: Path, new: dict[str, int], path: Path) -> int:
    """Writes the dictionary with the `new` subwords after its own, as fairseq does; returns their number."""
    lines, known = [*read_lines(dictionary)], symbols(dictionary)
    lines += [f"{piece} {count}" for piece, count in sorted(new.items(), key=lambda item: (-item[1], item[0]))]
    unused = (name for number in itertools.count() if (name := f"madeupword{number:04d}") not in known)
    while new and (len(lines) + SPECIAL) % 8:
        lines.append(f"{next(unused)} 0")
    write_lines(path, lines)
    return len(new)


@functools.cache  # once in each worker process
def _splitter(codes: Path, vocabulary: Path | None = None) -> Callable[[str], str]:
    """A function from a word to its subwords, with a cache; subwords that the vocabulary lacks are split further."""
    with open(codes, encoding="utf-8", newline="\n") as stream:
        encoder = BPE(stream, vocab=vocabulary and symbols(vocabulary))

    @functools.lru_cache(CACHE)
    def split(word: str) -> str:
        pieces = encoder.segment_tokens([word])
        encoder.cache.clear()  # its own cache grows without limit
        return " ".join(pieces)

    return split


def segment_lines(lines: list[str], codes: Path, vocabulary: Path | None = None) -> list[str]:
    """Each tokenised line split into subwords; all but the last of each word end in @@."""
    split = _splitter(codes, vocabulary)
    return [" ".join([split(word) for word in line.split(" ") if word]) for line in lines]
