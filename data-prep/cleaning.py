"""Which training pairs to leave out, and why."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass
class Cleaner:
    """Drops pairs with an empty side, a side of more than max_length words, sides whose lengths differ by more than
    max_ratio times, and exact duplicates. `dropped` counts them by reason.

    A pair is a tuple whose first two entries are the sentences, their words separated by spaces.
    """

    max_length: int
    max_ratio: float
    dropped: Counter = field(default_factory=Counter)
    seen: set[bytes] = field(default_factory=set)

    def fault(self, first: str, second: str) -> str | None:
        """The reason to drop the pair, or None; remembers the pair."""
        shorter, longer = sorted((first.count(" ") + 1, second.count(" ") + 1))
        if not first or not second:
            return "empty"
        if longer > self.max_length:
            return "too long"
        if longer > self.max_ratio * shorter:
            return "length ratio"
        # A digest, not the text: 36 million pairs then take 3 GB of memory instead of 10.
        digest = hashlib.blake2b(f"{first}\n{second}".encode(), digest_size=8).digest()
        if digest in self.seen:
            return "duplicate"
        self.seen.add(digest)
        return None

    def clean(self, pairs: Iterable[tuple]) -> Iterator[tuple]:
        """The pairs without fault, in order."""
        for pair in pairs:
            if reason := self.fault(pair[0], pair[1]):
                self.dropped[reason] += 1
            else:
                yield pair
