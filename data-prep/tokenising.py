"""Moses punctuation normalisation and tokenisation, by sacremoses.

Moses' defaults are kept, so texts look as they do in fairseq's own recipes: special characters are escaped (&apos;),
hyphens inside words stay. sacremoses' MosesDetokenizer undoes both.
"""

import functools
import re
from collections.abc import Callable

from sacremoses import MosesPunctNormalizer, MosesTokenizer

# Without other characters than these, no rule of the normaliser applies: asking saves 80 µs of 180 µs a sentence.
_NOTHING_TO_NORMALISE = re.compile(r"(?:[\w ,.?!-]|'(?!'))*")


@functools.cache
def tokeniser(language: str, normalise: bool = True) -> Callable[[str], str]:
    """Sentence to tokens separated by spaces, its punctuation normalised before."""
    normaliser = MosesPunctNormalizer(lang=language)
    moses = MosesTokenizer(lang=language)

    @functools.lru_cache(maxsize=10_000)  # neighbours often are translations of the same sentence
    def tokenise(sentence: str) -> str:
        if normalise and not _NOTHING_TO_NORMALISE.fullmatch(sentence):
            sentence = normaliser.normalize(sentence)
        return moses.tokenize(sentence, return_str=True)

    return tokenise


def tokenise_lines(lines: list[str], language: str, lowercase: bool, normalise: bool = True) -> list[str]:
    """Each line tokenised, and lower-cased if asked."""
    tokenise = tokeniser(language, normalise)
    return [tokenise(line).lower() if lowercase else tokenise(line) for line in lines]
