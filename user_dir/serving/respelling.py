"""Respells text in characters and a case that the training text has: a model reads all others as <unk>."""

import functools
import re
import unicodedata
from collections.abc import Iterable

from ..preparation import PreparedText, joined, lowered, tidied

# Quotation marks, dashes, two letters of Arabic and Persian, and the digits of five scripts, each instead of the others
# of its row.
ALIKE = (
    "'’‘‚‛‹›`´ʼ′",
    '"“”„‟«»″',
    "-–—―‐‑‒−",
    "يی",
    "كک",
    *map("".join, zip("0123456789", "٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹", "०१२३४५६७८९", "০১২৩৪৫৬৭৮৯")),
)

SEVERAL = re.compile(r"(?<!\S)(?=\S*[^\W\d_])\S*+ [\W\d_]*+[^\W\d_]|[!?]")  # words, or an exclamation

# Small letters that stand in text in capitals, too: 2ª, 1º, STRAßE.
IN_CAPITALS = str.maketrans("", "", "ªºß")

# Combining classes of marks without which a word is another one: vowels, and the virama of क्या.
OF_THE_WORD = (0, 9)


def characters_of(subwords: Iterable[str]) -> str:
    """The characters in the words of a dictionary, without fairseq's own (<s>, madeupword0000)."""
    words = (word for word in subwords if not (word.startswith("madeupword") or word[:1] + word[-1:] == "<>"))
    return "".join(sorted(set("".join(words))))


class Respelling:
    """Respells text for a model that knows `characters`, as in tokens of `text`."""

    def __init__(self, text: PreparedText, characters: str):
        self.text = text
        self.characters = frozenset(characters + " ")
        self.nearest = functools.cache(self.nearest)

    def __call__(self, line: str) -> str:
        """`line` with the nearest known character for each unknown one.

        Several words, or an exclamation, all in capitals get ordinary case, unless they are fewer subwords as they are.
        Beside letters of a script without case capitals are an abbreviation.
        """
        line = tidied(line)
        cased = line.translate(IN_CAPITALS)
        if cased.isupper() and SEVERAL.search(cased) and "Lo" not in map(unicodedata.category, cased):
            first = re.match(r"[\W\d_]*", line).end() + 1  # letter, as in "- JE SUIS LÀ"
            ordinary = line[:first] + lowered(line, self.text.language)[first:]
            return min(self.respelled(ordinary), self.respelled(line), key=self.length)
        return self.respelled(line)

    def respelled(self, line: str) -> str:
        return "".join(map(self.nearest, line))

    def nearest(self, character: str) -> str:
        return next((one for one in [character, *candidates(character)] if self.known(one)), character)

    def known(self, text: str) -> bool:
        return self.characters.issuperset(joined(self.text.encode(text)))

    def length(self, text: str) -> int:
        return len(self.text.encode(text).split())


def candidates(character: str) -> Iterable[str]:
    """Other ways to write a character, the nearest first: its row, compatible form, other case, without accents."""
    yield from next((row for row in ALIKE if character in row), "")
    yield unicodedata.normalize("NFKC", character)  # ﬁ in the other case is FI
    yield from (character.casefold(), character.swapcase())  # ß in the other case is SS
    letters = "".join(x for x in unicodedata.normalize("NFKD", character) if not unicodedata.combining(x))
    yield from (letters, letters.swapcase()) if letters else ()
    # Joiners (क्‍या and क्या), the form of ❤️, and other marks: the dot of ज़, the vowels of السَّلام, the stress of за́мок.
    form = unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f"
    if form or unicodedata.combining(character) not in OF_THE_WORD:
        yield ""
