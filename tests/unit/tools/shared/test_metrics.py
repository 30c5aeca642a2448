"""Tokens of BLEU."""

import pytest

from user_dir.tools.shared.metrics import CompoundSplitBLEU


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("well-known-fact", "well ##AT##-##AT## known ##AT##-##AT## fact"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # as Perl reads bytes: a match takes both letters,
        ("ä-ö-ü", "ä ##AT##-##AT## ö ##AT##-##AT## ü"),  # of these only a half
        ("- yes - 10-", "- yes - 10-"),
        ("Mr. O'Neil-Smith's.", "Mr. O &apos;Neil ##AT##-##AT## Smith &apos;s ."),
    ],
)
def test_compounds(text, tokens):
    assert CompoundSplitBLEU("en").tokenizer(text) == tokens


def test_tokens_are_those_of_the_language():
    assert CompoundSplitBLEU("fr").tokenizer("l'eau") == "l&apos; eau"
