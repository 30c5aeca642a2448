"""Linearised trees, as data-prep/treebank.py writes them: `(S (NP DT NN )NP (VP VBZ )VP . )S`.

A symbol opens a constituent, closes one, or is the part-of-speech tag of a word. Trees are lists of such symbols.
"""

from collections import Counter

MISSING = "XX"  # the tag of a word that got none
TOP = "TOP"  # what holds several outermost constituents together

# COLLINS.prm of EVALB; S1 and ROOT are what others call TOP.
PUNCTUATION = {",", ":", "``", "''", "."}
NOT_COUNTED = {TOP, "S1", "ROOT"}
EQUAL = {"PRT": "ADVP"}


def is_tag(symbol: str) -> bool:
    return symbol[0] not in "()"


def tags(tree: list[str]) -> list[str]:
    """Those of the words."""
    return [symbol for symbol in tree if is_tag(symbol)]


def repaired(symbols: list[str], words: int) -> list[str]:
    """A tree over so many words; a tree over them stays as it is.

    Read from left to right, a closing symbol closes what was opened last under its label, and all within that; where
    there is no such constituent it is left out. So are tags beyond the number of words. In the end all that is open
    is closed, words without a tag go to the end of the last outermost constituent, constituents without a word are
    left out, and what is still not one tree is put under TOP.
    """
    tree: list[str] = []
    opened: list[str] = []
    seen = 0

    def close() -> str:
        label = opened.pop()
        if tree[-1] == f"({label}":
            tree.pop()
        else:
            tree.append(f"){label}")
        return label

    for symbol in symbols:
        label = symbol[1:]
        if symbol[0] == "(":
            tree.append(symbol)
            opened.append(label)
        elif symbol[0] == ")":
            while label in opened and close() != label:
                pass
        elif seen < words:
            tree.append(symbol)
            seen += 1
    while len(opened) > 1:
        close()
    if tree and not opened and tree[-1][0] == ")":
        opened.append(tree.pop()[1:])
    tree += [MISSING] * (words - seen)
    if opened:
        close()
    return tree if outermost(tree) == 1 else [f"({TOP}", *tree, f"){TOP}"]


def outermost(tree: list[str]) -> int:
    """How many constituents and words stand beside each other."""
    depth = count = 0
    for symbol in tree:
        count += depth == 0
        depth += {"(": 1, ")": -1}.get(symbol[0], 0)
    return count


def constituents(tree: list[str], counted: list[bool]) -> Counter:
    """How often each (label, first word, word after the last) occurs, in words that are `counted`, as EVALB has it."""
    found: Counter = Counter()
    opened: list[int] = []
    place = word = 0
    for symbol in tree:
        label = symbol[1:]
        if symbol[0] == "(":
            opened.append(place)
        elif is_tag(symbol):
            place += counted[word]
            word += 1
        elif (start := opened.pop()) < place and label not in NOT_COUNTED:
            found[EQUAL.get(label, label), start, place] += 1
    return found


def bracketed(tree: list[str], words: list[str]) -> str:
    """The tree as in a treebank, `(S (NP (DT The) …) …)`."""
    left = iter(words)
    parts = {"(": lambda symbol: f" {symbol}", ")": lambda symbol: ")"}
    return "".join(parts.get(symbol[0], lambda tag: f" ({tag} {next(left)})")(symbol) for symbol in tree).strip()
