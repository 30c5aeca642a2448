"""Tokens of remembered words are those that sacremoses gives to whole sentences."""

import random

import pytest
from preparation.tokenising import _TO_NORMALISE, tokeniser
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from unit.data_prep.support import TRICKY


@pytest.mark.parametrize("language", ["en", "fr", "de", "it", "cs"])
def test_remembering_words_changes_nothing(language):
    generator = random.Random(3)
    alphabet = "abcé19_-.,?!' " * 4 + "\"`´’‘“”„«»–—…;:()%º。\u00ad\u00a0<>&|[]$€"
    normalise, tokenise = MosesPunctNormalizer(lang=language).normalize, MosesTokenizer(lang=language).tokenize
    texts = ["".join(generator.choices(alphabet, k=generator.randrange(16))) for _ in range(1500)]
    texts += [" ".join(generator.choices(TRICKY.split(), k=generator.randrange(7))) for _ in range(1500)]
    skipped = [text for text in texts if not _TO_NORMALISE.search(text)]
    assert 300 < len(skipped) < 2700
    for text in texts:
        assert tokeniser(language)(text) == tokenise(normalise(text + "\n"), return_str=True)
        assert tokeniser(language, normalise=False)(text) == tokenise(text, return_str=True)
