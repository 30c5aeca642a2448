"""Moses punctuation normalisation and tokenisation, by sacremoses.

Moses' defaults are kept, so texts look as they do in fairseq's own recipes: special characters are escaped (&apos;),
hyphens inside words stay. sacremoses' MosesDetokenizer undoes both. Results are those of sacremoses' command line, byte
by byte, in less time, most of which is saved by looking a word's tokens up when it comes again: its fifty or so regular
expressions are slow, and a word's tokens hardly ever depend on the next word (tests/benchmarks/data_prep.py).
"""

import functools
import re
from collections.abc import Callable

from sacremoses import MosesPunctNormalizer, MosesTokenizer

CACHE = 300_000  # words remembered by each process, at most: about 100 MB

# Without any of these no rule of the normaliser applies.
_TO_NORMALISE = re.compile(r"""[^\w ,.?!'":;%/&$\[\]*#@+=-]|''| [:;%]|"[,.]|[,.]\"""")

# Rules of the tokeniser look beyond a word only at commas and apostrophes that begin it or apostrophes that end it, at
# its last period, and at what takes part in replacing dots by DOTMULTI.
_BY_ITSELF = re.compile(r"""(?![,'])[^\s\0-\037]+(?<!')""")
_DOTS = re.compile(r"\.\.|MULTI|,,")


@functools.cache
def tokeniser(language: str, normalise: bool = True) -> Callable[[str], str]:
    """Sentence to tokens separated by spaces, its punctuation normalised before."""
    normaliser = MosesPunctNormalizer(lang=language)
    moses = functools.partial(MosesTokenizer(lang=language).tokenize, return_str=True)

    @functools.lru_cache(maxsize=CACHE)
    def word(text: str, following: str) -> str | None:
        """Tokens of a word, if they depend on nothing else but the letter after its final period."""
        if _DOTS.search(text) or not _BY_ITSELF.fullmatch(text):
            return None
        return moses(f"{text} {following}").rpartition(" ")[0] if following else moses(text)

    def tokenise(sentence: str) -> str:
        if normalise and _TO_NORMALISE.search(sentence):
            sentence = normaliser.normalize(sentence + "\n")  # which its command does not take off
        words = sentence.split(" ")
        nexts = [*words[1:], ""]
        tokens = [word(text, after[:1] if text[-1:] == "." else "") for text, after in zip(words, nexts)]
        return moses(sentence) if None in tokens else " ".join(tokens)

    return tokenise


def tokenise_lines(
    lines: list[str], language: str, lowercase: bool, normalise: bool = True, tokenise: bool = True
) -> list[str]:
    """Each line tokenised and lower-cased if asked."""
    tokenise = tokeniser(language, normalise) if tokenise else str
    return [tokenise(line).lower() if lowercase else tokenise(line) for line in lines]
