"""Drops unsuitable training pairs, and counts the reasons."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .splitting import LEAKAGE, digest

LONGEST_WORD = 1000  # as in Moses' clean-corpus-n.perl; subwords of longer ones take minutes
AT_A_TIME = 1 << 20  # digests compared at a time

# For each reason in `dropped`, how to keep the pairs if possible.
REMEDIES = {
    "empty": "check that both texts have a sentence on each line",
    "too long": "split the text into sentences, or raise --max-length",
    "length ratio": "put spaces between the words of a language that is written without them (data-prep/README.md, "
    "Other tokenisers), align the lines if they do not translate each other, or raise --max-ratio",
    "word too long": "put spaces between the words (data-prep/README.md, Other tokenisers)",
    "duplicate": "a repeated pair is used once",
    LEAKAGE: "give other sentences with --valid and --test",
}


@dataclass
class Cleaner:
    """Drops pairs with an empty side, a side of more than max_length words, a side more than max_ratio times as long as
    the other, or a word of more than LONGEST_WORD letters. `dropped` counts them by reason.

    A pair is a tuple whose first two entries are the sentences, with spaces between words.
    """

    max_length: int
    max_ratio: float
    dropped: Counter = field(default_factory=Counter)

    def fault(self, first: str, second: str) -> str | None:
        """The reason to drop the pair, or None."""
        shorter, longer = sorted(len(side.split()) for side in (first, second))  # Moses leaves a space after a final .'
        if not shorter:
            return "empty"
        if longer > self.max_length:
            return "too long"
        if longer / shorter > self.max_ratio:  # their product would be rounded: 1.15 * 100 is less than 115
            return "length ratio"
        if max(map(len, (first, second))) > LONGEST_WORD and max(map(len, f"{first} {second}".split())) > LONGEST_WORD:
            return "word too long"
        return None

    def clean(self, pairs: Iterable[tuple]) -> Iterator[tuple]:
        """The pairs without fault, in order."""
        return (pair for pair in pairs if not self.drops(pair))

    def drops(self, pair: tuple) -> bool:
        """Whether the pair has a fault; counts it."""
        reason = self.fault(pair[0], pair[1])
        if reason:
            self.dropped[reason] += 1
        return bool(reason)


def remedy(dropped: dict[str, int]) -> str:
    """The most frequent reason in `dropped`, and how to keep those pairs."""
    reason = max(dropped, key=dropped.__getitem__)
    return f"for {reason!r}: {REMEDIES[reason]}"


def without_repeats(pairs: Callable[[], Iterable[tuple]], folder: Path, dropped: Counter) -> Iterator[tuple]:
    """The pairs whose first two entries differ from all earlier ones. `pairs()` is called twice, with equal results.

    A Python set of the digests of 36 million pairs takes 3 GB. This uses a file of digests in `folder`, of which only
    a part is in memory at a time, and then one byte per pair.
    """
    with tempfile.TemporaryFile(dir=folder) as digests:
        for first, second, *_ in pairs():
            digests.write(digest(f"{first}\n{second}"))
        digests.flush()
        repeated = _repeated(np.memmap(digests, np.uint64, "r") if digests.tell() else np.empty(0, np.uint64))
    for pair, repeat in zip(pairs(), repeated.data):
        if repeat:
            dropped["duplicate"] += 1
        else:
            yield pair


def _repeated(values: np.ndarray) -> np.ndarray:
    """For each value whether it occurred before; bool, of the same length."""
    repeated = np.ones(len(values), bool)
    slices = range(0, len(values), AT_A_TIME)
    for part in range(len(slices)):  # equal values are in the same part
        members = [start + np.flatnonzero(values[start : start + AT_A_TIME] % len(slices) == part) for start in slices]
        places = np.concatenate(members)
        repeated[places[np.unique(values[places], return_index=True)[1]]] = False
    return repeated
