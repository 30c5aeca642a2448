"""Text in, text out, for any implementation of the model: preparation of the text, and lines of any length.

This module needs neither torch nor fairseq, so that CTranslate2's models work where they are not installed.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..errors import InputError
from ..preparation import CONTINUED, closed_up
from ..search.search_settings import refuse_search, search_settings

MAX_TOKENS = 6000  # subwords that are translated together
FEWEST = 500  # of a batch, because smaller ones are slow
UNPAIRED = re.compile("[\ud800-\udfff]")  # surrogates, which JSON can hold, and libraries in Rust and C++ refuse
ENDS = frozenset(".!?।॥۔؟።፧։。！？")  # of sentences


def tokens_of_each(max_tokens: int, workers: int) -> int:
    """The subwords in a batch of each of several workers, which share `max_tokens`."""
    return min(max_tokens, max(max_tokens // max(workers, 1), FEWEST))


class Hypothesis(NamedTuple):
    """A translation and its score: log2 p(translation) / length penalty, as in fairseq-generate's output."""

    text: str
    score: float


class TextTranslator:
    """A translator of text; a subclass computes the model (`best`).

    Attributes:
        text: the text's preparation, a PreparedText or SplitText
        source_lang: the language of the text
        longest: the number of subwords of the longest sentence that the model translates
        kept: the settings of beam search saved with the model's run (see search_settings.py)
        respell: see respelling.py; text in tokens stays as it is
    """

    respell: Callable[[str], str] = str

    def __new__(cls, *arguments, **options):
        translator = super().__new__(cls)
        translator.opened = functools.partial(cls, *arguments, **options)
        return translator

    def __reduce__(self):
        return self.opened, ()

    def encode(self, text: str) -> str:
        """Subwords separated by spaces, as in the files that data-prep writes to bpe/; see respelling.py, too."""
        return self.text.encode(self.respell(text))

    def decode(self, subwords: str) -> str:
        """Text from subwords separated by spaces; tokens if the text is pretokenised."""
        return self.text.decode(subwords)

    def rows(self, texts: Iterable[str], split_sentences: bool | None = None) -> list[str]:
        """The texts in subwords (see `encode`), for `search`: a row for each text, with a line for each split sentence.

        Args:
            split_sentences: whether sentences are translated one by one (default: if the text is not in tokens already)

        Raises:
            InputError: if text in tokens is to be split
            ModuleNotFoundError: if sentencex is not installed
        """
        if split_sentences and not self.text.natural:
            raise InputError("sentences are found in natural text only, and this is in tokens: do not split it")
        if split_sentences is None:
            split_sentences = self.text.natural
        texts = [UNPAIRED.sub("\ufffd", text) for text in texts]
        if not split_sentences:
            return [self.encode(text) for text in texts]
        return ["\n".join(map(self.encode, self.text.sentences(text))) for text in texts]

    def translate(self, texts: Iterable[str], split_sentences: bool | None = None, **search) -> list[str]:
        """The best translation of each text, empty for a text without words.

        `split_sentences`: as for `rows`; `search`: arguments of `search`

        Raises:
            TypeError: for a single text instead of a list
            InputError, ModuleNotFoundError: as `rows` and `search`
        """
        if isinstance(texts, str):
            raise TypeError("translate takes a list of texts: translate([text])")
        return [hypotheses[0].text for hypotheses in self.search(self.rows(texts, split_sentences), **search)]

    def search(self, rows: list[str], nbest: int = 1, **beam_search) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each row of subwords (see `rows`), best first.

        The sentences of a row, and pieces of a sentence that is too long for the model, are translated one by one;
        their translations are joined (the best ones, the second best ones, …) and their scores are averaged.
        `beam_search`: arguments of `best`.

        Raises:
            InputError: for an invalid number
        """
        beam = search_settings(self.kept, beam=beam_search.get("beam"))["beam"]
        refuse_search(nbest=nbest, **{**beam_search, "beam": beam})
        pieces = [self.pieces(row) for row in rows]
        found = iter(self.best([piece for row in pieces for piece in row], nbest, **beam_search))
        by_row = ([next(found) for _ in row] for row in pieces)
        close = closed_up if self.text.natural else str
        return [[whole(parts, close) for parts in zip(*row)] or [Hypothesis("", 0.0)] for row in by_row]

    def best(self, rows: list[str], nbest: int, **beam_search) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each row of subwords, best first. No row is empty or too long.

        Args:
            advance: called with a number of rows when these are done
            max_tokens, batch_size: the number of subwords, or rows, that are translated together
            beam, lenpen: beam size, and fairseq's length penalty (default: the run's settings)
        """
        raise NotImplementedError

    def pieces(self, row: str) -> list[str]:
        """Splits a row of subwords into its lines, and these into pieces short enough for the model.

        It splits after the end of a sentence if possible, else after a word, else anywhere.
        """
        pieces = []
        for line in row.split("\n"):
            subwords = line.split()
            while len(subwords) > self.longest:
                ends = [end for end in range(1, self.longest + 1) if not subwords[end - 1].endswith(CONTINUED)]
                sentences = [end for end in ends if subwords[end - 1] in ENDS]
                end = max(sentences or ends, default=self.longest)
                pieces.append(" ".join(subwords[:end]))
                subwords = subwords[end:]
            if subwords:
                pieces.append(" ".join(subwords))
        return pieces


def log2(score: float) -> float:
    """Converts a score from natural logarithms to base 2, as in fairseq's output."""
    return score / math.log(2)


def whole(pieces: tuple[Hypothesis, ...], close: Callable[[str], str]) -> Hypothesis:
    """The translation of a row from those of its pieces; close: removes spaces that its script does not have."""
    text = close(" ".join(text for text, _ in pieces if text))
    return Hypothesis(text, sum(score for _, score in pieces) / len(pieces))
