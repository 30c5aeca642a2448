"""The choice of held-out sentences, against sorting all of them."""

import hashlib

from preparation import splitting


def test_marks_belong_to_words():
    """Vowel signs and tone marks; case and punctuation do not count."""
    for one, other in (("वह आता है", "वह आती है"), ("ป่า", "ป้า"), ("கடல்", "கடலே")):
        assert splitting.folded(one) != splitting.folded(other)
    assert splitting.folded("Ça va, ÇA_VA?") == splitting.folded("ça VA ça va") and splitting.folded("…") == "…"
    assert splitting.folded("İyi IŞIK?") == splitting.folded("iyi ışık")


def test_large_corpora_are_split_without_sorting_all_of_them():
    pairs = [(f"sentence {number % 4000}", f"satz {number}") for number in range(12000)]  # three translations of each

    def rank(text):
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    of_pair = lambda pair: rank("\n".join(pair))  # noqa: E731
    chosen = {pairs[number][0]: min(pairs[number::4000], key=of_pair) for number in range(4000)}
    expected = [chosen[first] for first in sorted(chosen, key=rank)]
    for count in (1, 80):
        assert splitting._first_by_hash(iter(pairs), count) == expected[:count]
    valid, test = splitting.held_out(pairs, 20)
    assert test + valid == expected[:40]
