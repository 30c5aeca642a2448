"""Byte-pair encoding, learned and applied by subword-nmt."""

import functools
import io
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import subword_nmt.learn_bpe
from subword_nmt.apply_bpe import BPE

from .errors import PreparationError
from .parallel import progress
from .text import read_lines
from .tokenising import CACHE


def learn(texts: Iterable[Path], codes: Path, operations: int) -> int:
    """Learns at most `operations` merges from all the tokenised texts; returns the number of merges."""
    words: Counter[str] = Counter()
    for text in texts:
        for line in progress(read_lines(text), f"counting words of {text.name}", unit=" lines"):
            words.update(line.split(" "))
    words.pop("", None)
    if max(map(len, words), default=0) < 2:
        raise PreparationError("no training text has a word of two letters: there are no subwords to learn; add text")
    # subword-nmt's own progress bar would also appear in log files.
    subword_nmt.learn_bpe.tqdm = functools.partial(progress, description="learning subwords", unit=" merges")
    vocabulary = io.StringIO("".join(f"{word} {count}\n" for word, count in words.items()))
    with open(codes, "w", encoding="utf-8", newline="\n") as stream:
        subword_nmt.learn_bpe.learn_bpe(vocabulary, stream, operations, is_dict=True)
    return sum(1 for _ in read_lines(codes)) - 1  # the first line is the version of the format


@functools.cache  # once in each worker process
def _splitter(codes: Path) -> Callable[[str], str]:
    """A function from a word to its subwords, with a cache."""
    with open(codes, encoding="utf-8", newline="\n") as stream:
        encoder = BPE(stream)

    @functools.lru_cache(CACHE)
    def split(word: str) -> str:
        pieces = encoder.segment_tokens([word])
        encoder.cache.clear()  # its own cache grows without limit
        return " ".join(pieces)

    return split


def segment_lines(lines: list[str], codes: Path) -> list[str]:
    """Each tokenised line split into subwords; all but the last of each word end in @@."""
    split = _splitter(codes)
    return [" ".join([split(word) for word in line.split(" ") if word]) for line in lines]
