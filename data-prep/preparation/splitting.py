"""Splits a corpus into training, validation and test pairs so that no held-out sentence is trained on.

Sentences are compared folded: without case and punctuation. Only a hash of the folded sentence decides whether it is
held out, so the split is the same for both directions, on every machine and in every run, and sentences added to a
corpus later do not change most of it.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator

import regex

Pair = tuple[str, ...]  # two sentences, of which the first one's hash decides; optionally more columns

LEAKAGE = "shared with held-out"
_NOT_WORDS = regex.compile(r"[^\p{L}\p{M}\p{N}]+")  # re has no class of marks, such as vowel signs


def folded(sentence: str) -> str:
    """The sentence without case (i, ı, I and İ are one) and punctuation; one of punctuation only does not change."""
    small = sentence.replace("İ", "i").casefold().replace("ı", "i")
    return _NOT_WORDS.sub(" ", small).strip() or sentence


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def held_out(pairs: Iterable[Pair], size: int) -> tuple[list[Pair], list[Pair]]:
    """Validation and test pairs, at most `size` each, without repeated sentences on either side.

    Only one translation of each sentence is used: 2,000 pairs are 2,000 different sentences on both sides.
    """
    by_second: dict[str, Pair] = {}
    for pair in _first_by_hash(pairs, 4 * size):
        by_second.setdefault(folded(pair[1]), pair)
    chosen = [*by_second.values()]
    return chosen[size : 2 * size], chosen[:size]


def _first_by_hash(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """One pair for each of the `count` first sentences with the smallest hashes, in that order.

    At most 2 · count pairs are in memory at a time.
    """
    chosen: dict[bytes, tuple[bytes, Pair]] = {}
    largest = b"\xff" * 8
    for pair in pairs:
        key = digest(folded(pair[0]))
        if key > largest:
            continue
        candidate = (digest(pair[0] + "\n" + pair[1]), pair)
        chosen[key] = min(chosen.get(key, candidate), candidate)
        if len(chosen) == 2 * count:
            chosen = {key: chosen[key] for key in heapq.nsmallest(count, chosen)}
            largest = max(chosen)
    return [chosen[key][1] for key in heapq.nsmallest(count, chosen)]


def without_leakage(pairs: Iterable[Pair], held: list[Pair], dropped: Counter) -> Iterator[Pair]:
    """The pairs that share no folded sentence with the same side of a held-out pair; counts the others."""
    firsts, seconds = ({folded(pair[side]) for pair in held} for side in (0, 1))
    for pair in pairs:
        if folded(pair[0]) in firsts or folded(pair[1]) in seconds:
            dropped[LEAKAGE] += 1
        else:
            yield pair


def sample(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """`count` pairs, always the same, in their order. The first ones would be the shortest in a sorted corpus."""
    chosen = heapq.nsmallest(count, ((digest("\n".join(pair[:2])), place, pair) for place, pair in enumerate(pairs)))
    return [pair for _, _, pair in sorted(chosen, key=lambda entry: entry[1])]
