"""Moses punctuation normalisation and tokenisation, by sacremoses.

Moses' defaults are kept, so texts look as in fairseq's own recipes: special characters are escaped (&apos;), and
hyphens inside words stay. sacremoses' MosesDetokenizer undoes the escapes. Results equal those of sacremoses' command
line, byte by byte, but take less time, mainly because the tokens of repeated words are cached: its fifty or so regular
expressions are slow, and a word's tokens rarely depend on the next word (tests/benchmarks/data_prep.py).
"""

import functools
import re
from collections.abc import Callable

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from .errors import PreparationError

LANGUAGES = sorted({*NonbreakingPrefixes().available_langs.values(), "ja", "ko"})  # for which sacremoses has rules
# No word in the reader's own tokens ends so: Moses escapes < and >, and BPE might make the end a subword of its own.
RESERVED = ("<s>", "<pad>", "</s>", "@@")
CACHE = 300_000  # the most words that a process caches: about 100 MB

# If none of these occurs, no rule of the normaliser applies.
_TO_NORMALISE = re.compile(r"""[^\w ,.?!'":;%/&$\[\]*#@+=-]|''| [:;%]|"[,.]|[,.]\"""")

# The tokeniser's rules look beyond a word only at commas and apostrophes at its beginning, apostrophes at its end, its
# last period, and the characters involved in replacing dots by DOTMULTI.
_BY_ITSELF = re.compile(r"""(?![,'])[^\s\0-\037]+(?<!')""")
_DOTS = re.compile(r"\.\.|MULTI|,,")


@functools.cache
def tokeniser(language: str, normalise: bool = True) -> Callable[[str], str]:
    """A function from a sentence to tokens separated by spaces; by default it normalises the punctuation first."""
    normaliser = MosesPunctNormalizer(lang=language)
    moses = functools.partial(MosesTokenizer(lang=language).tokenize, return_str=True)

    @functools.lru_cache(maxsize=CACHE)
    def word(text: str, following: str) -> str | None:
        """The tokens of a word, if they depend only on it and on the letter after its final period; else None."""
        if _DOTS.search(text) or not _BY_ITSELF.fullmatch(text):
            return None
        return moses(f"{text} {following}").rpartition(" ")[0] if following else moses(text)

    def tokenise(sentence: str) -> str:
        if normalise and _TO_NORMALISE.search(sentence):
            sentence = normaliser.normalize(sentence + "\n")  # its command does not strip the newline either
        words = sentence.split(" ")
        following = [*words[1:], ""]
        tokens = [word(text, after[:1] if text[-1:] == "." else "") for text, after in zip(words, following)]
        return moses(sentence) if None in tokens else " ".join(tokens)

    return tokenise


def lowered(text: str, language: str) -> str:
    """`text` in lower case; in Turkish and Azerbaijani I is the capital of ı, and İ that of i."""
    dotless = language.partition("_")[0] in ("az", "tr")
    return (text.replace("I", "ı").replace("İ", "i") if dotless else text).lower()


def tokenise_lines(
    lines: list[str], language: str, lowercase: bool, normalise: bool = True, tokenise: bool = True
) -> list[str]:
    """Each line, optionally tokenised and lower-cased.

    Raises:
        PreparationError: if a word of text that is not tokenised ends in one of RESERVED, or continues after </w>
    """
    split = tokeniser(language, normalise) if tokenise else str
    made = [lowered(split(line), language) if lowercase else split(line) for line in lines]
    if not tokenise:
        for word in (word for line in made for word in line.split()):
            if word.endswith(RESERVED) or "</w>" in word[:-1]:  # subword-nmt takes x</w> for the end of a word
                reason = f"the text in {language} has the word {word}, and no word may end in {', '.join(RESERVED)}"
                reason += " or continue after </w>"
                raise PreparationError(f"{reason}, which fairseq and subword-nmt use themselves; replace it")
    return made
