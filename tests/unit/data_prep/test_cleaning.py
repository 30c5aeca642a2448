"""The pairs that are dropped, and why."""

import random
from fractions import Fraction

import pytest
from preparation import cleaning
from preparation.cleaning import Cleaner


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("a b", ""), "empty"),
        (("", "a b"), "empty"),
        (("a b c d e", "a b c d e f"), "too long"),
        (("a b c d", "a"), "length ratio"),
        (("a", "a b c d"), "length ratio"),
        (("a b c", "a"), None),
        (("a b c d e", "a b"), None),
        (("a b c  . &apos; ", "a b"), None),  # sacremoses' tokens of: a b c .'
        ((" ", "a"), "empty"),
        (("y", "x"), None),
        (("x" * 1000 + " y", "z z"), None),  # the longest word that is kept
        (("x" * 1001, "z"), "word too long"),
        (("z", "x" * 1001), "word too long"),
    ],
)
def test_cleaning(pair, reason):
    cleaner = Cleaner(max_length=5, max_ratio=3)
    kept = list(cleaner.clean([("x", "y"), pair]))
    assert kept == [("x", "y")] + ([] if reason else [pair])
    assert cleaner.dropped == ({reason: 1} if reason else {})


@pytest.mark.parametrize("reason", ["too long", "length ratio", "word too long", "duplicate", cleaning.LEAKAGE])
def test_every_reason_has_a_remedy(reason):
    assert cleaning.remedy({"empty": 1, reason: 9}).startswith(f"for {reason!r}: ")


@pytest.mark.parametrize("ratio", ["1.01", "1.15", "1.2", "1.5", "2.3", "9"])
def test_a_side_exactly_as_many_times_as_long_is_kept(ratio):
    """As in Moses' clean-corpus-n.perl, which divides."""
    cleaner, exact = Cleaner(max_length=10_000, max_ratio=float(ratio)), Fraction(ratio)
    for times in range(1, 9):
        shorter, longer = "x " * exact.denominator * times, "x " * exact.numerator * times
        assert cleaner.fault(shorter.strip(), longer.strip()) is None
        assert cleaner.fault(f"{longer}x", shorter.strip()) == "length ratio"


@pytest.mark.parametrize("size", [0, 1, 5, 3000])
def test_duplicates_are_dropped_piece_by_piece(tmp_path, monkeypatch, size):
    monkeypatch.setattr(cleaning, "AT_A_TIME", 100)
    generator = random.Random(1)
    pairs = [(str(generator.randrange(500)), generator.choice("bc"), f"by {number}") for number in range(size)]
    first = {pair[:2]: pair for pair in reversed(pairs)}
    dropped = cleaning.Counter()
    kept = list(cleaning.without_repeats(lambda: iter(pairs), tmp_path, dropped))
    assert kept == sorted(first.values(), key=pairs.index)
    assert len([*cleaning.without_repeats(lambda: [("a b", "c"), ("a", "b c")], tmp_path, dropped)]) == 2
    assert dropped["duplicate"] == size - len(first) and not list(tmp_path.iterdir())
