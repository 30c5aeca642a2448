"""Tokens of BLEU."""

import pytest

from user_dir.tools.shared.metrics import CompoundSplitBLEU, token_bleu


@pytest.mark.parametrize(
    "language, text, tokens",
    [
        ("en", "rich-text format", "rich ##AT##-##AT## text format"),
        ("en", "well-known-fact", "well ##AT##-##AT## known ##AT##-##AT## fact"),
        ("en", "a-b-c", "a ##AT##-##AT## b-c"),  # as Perl reads bytes: a match takes both letters,
        ("en", "ä-ö-ü", "ä ##AT##-##AT## ö ##AT##-##AT## ü"),  # of these only a half
        ("en", "- yes - 10-", "- yes - 10-"),
        ("en", "Mr. O'Neil-Smith's.", "Mr. O &apos;Neil ##AT##-##AT## Smith &apos;s ."),
        ("fr", "l'eau", "l&apos; eau"),
        ("fr", "peut-être", "peut ##AT##-##AT## être"),  # unlike in the papers' French scores (examples/wmt14.md)
    ],
)
def test_tokens_are_those_of_the_language(language, text, tokens):
    """With compounds split."""
    assert CompoundSplitBLEU(language).tokenizer(text) == tokens


def test_bleu_of_tokens_is_not_smoothed():
    """As fairseq-generate prints it: 0 without four words in a row that are right."""
    assert token_bleu().corpus_score(["a b c x e"], [["a b c d e"]]).score == 0
