"""Text in, text out, whatever computes the model: its preparation before and after, and lines of any length.

Of torch and fairseq nothing is needed here: a model that CTranslate2 computes is used where they are not installed.
"""

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import InputError
from .preparation import CONTINUED
from .search_settings import search_settings


class Hypothesis(NamedTuple):
    """A translation and its score, log2 p(translation) / length penalty, as fairseq-generate prints it."""

    text: str
    score: float


class TextTranslator:
    """What translates text; a subclass says how the model is computed (`best`).

    Attributes:
        text: the text's preparation, a PreparedText or SplitText
        source_lang: the language of the text
        longest: subwords of the longest sentence that the model translates
        kept: the settings of beam search of the model's run, as far as it has some (see search_settings.py)
    """

    def __new__(cls, *arguments, **options):
        translator = super().__new__(cls)
        translator.opened = functools.partial(cls, *arguments, **options)
        return translator

    def __reduce__(self):
        return self.opened, ()

    def encode(self, text: str) -> str:
        """Subwords separated by spaces, as in the files that data-prep leaves in bpe/."""
        return self.text.encode(text)

    def decode(self, subwords: str) -> str:
        """Text, of subwords separated by spaces; tokens, where text is taken as it stands."""
        return self.text.decode(subwords)

    def translate(self, texts: Iterable[str], **search) -> list[str]:
        """The best translation of each text; nothing for one without words. `search`: as of `search`."""
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts: translate([text])")
        return [found[0].text for found in self.search([self.encode(text) for text in texts], **search)]

    def search(self, rows: list[str], nbest: int = 1, **beam_search) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each row of subwords (see `encode`), the best first.

        A row that is too long for the model is translated in pieces, whose translations are joined; the mean of their
        scores counts. `beam_search`: as of `best`.

        Raises:
            InputError: for a number that it cannot search with
        """
        beam = search_settings(self.kept, beam=beam_search.get("beam"))["beam"]
        refuse_search(nbest=nbest, **{**beam_search, "beam": beam})
        pieces = [(number, piece) for number, row in enumerate(rows) for piece in self.pieces(row)]
        found: list[list[list[Hypothesis]]] = [[] for _ in rows]
        for (number, _), hypotheses in zip(pieces, self.best([piece for _, piece in pieces], nbest, **beam_search)):
            found[number].append(hypotheses)
        return [[whole(pieces) for pieces in zip(*row)] or [Hypothesis("", 0.0)] for row in found]

    def best(self, rows: list[str], nbest: int, **beam_search) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each row of subwords, none of them empty or too long, the best first.

        Args:
            advance: called with a number of rows when these are done
            max_tokens, batch_size: subwords, or rows, that are translated together
            beam, lenpen: beam size, and fairseq's length penalty (default: as the run keeps them)
        """
        raise NotImplementedError

    def pieces(self, row: str) -> list[str]:
        """The row of subwords in pieces that the model takes.

        Cut after a sentence's end, else after a word's, else anywhere.
        """
        subwords, pieces = row.split(), []
        while len(subwords) > self.longest:
            ends = [end for end in range(1, self.longest + 1) if not subwords[end - 1].endswith(CONTINUED)]
            sentences = [end for end in ends if subwords[end - 1] in (".", "!", "?")]
            end = max(sentences or ends, default=self.longest)
            pieces.append(" ".join(subwords[:end]))
            subwords = subwords[end:]
        return [*pieces, " ".join(subwords)] if subwords else pieces


def refuse_search(**search) -> None:
    """Raises InputError, naming the argument, for a number of `search` that beam search cannot take."""
    for name in ("nbest", "beam", "max_tokens", "batch_size"):
        value = search.get(name)
        if value is not None and not (type(value) is int and value >= 1):
            raise InputError(f"{name} {value!r}: give a whole number from 1 on")
    if "nbest" in search and search["nbest"] > search["beam"]:
        reason = f"a beam of {search['beam']} finds no more than that"
        raise InputError(f"nbest {search['nbest']}: {reason}; give a larger beam")
    lenpen = search.get("lenpen")
    # A length to a higher power is infinite.
    if lenpen is not None and not (isinstance(lenpen, int | float) and -10 <= lenpen <= 10):
        raise InputError(f"lenpen {lenpen!r}: give a number from -10 to 10")


def log2(score: float) -> float:
    """A score of natural logarithms, to base 2 as fairseq prints it."""
    return score / math.log(2)


def whole(pieces: tuple[Hypothesis, ...]) -> Hypothesis:
    """The translation of a row, of those of its pieces."""
    return Hypothesis(" ".join(text for text, _ in pieces), sum(score for _, score in pieces) / len(pieces))
