"""Bracketed trees of a treebank as two lines each: the words, and the brackets with part-of-speech tags as leaves.

    ( (S (NP-SBJ-1 (DT The) (NN cat))           The cat sleeps .
         (VP (VBZ sleeps) (NP (-NONE- *-1)))    (S (NP DT NN )NP (VP VBZ )VP . )S
         (. .)))

as in Vinyals et al. 2015, "Grammar as a Foreign Language", who then replace all tags by XX. As in EVALB's evaluation,
traces, constituents that contain only traces, function tags and indices (NP-SBJ-1, NP=2) are removed. An outermost
bracket without a label is removed, or becomes TOP if it contains several trees.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from .errors import PreparationError
from .text import read_lines, tidy

TRACE = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")
_FUNCTION = re.compile(r"(?<!^)[-=].*")


def linearised(path: Path) -> Iterator[tuple[str, str]]:
    """Words and brackets of each tree in the file; a tree may extend over several lines.

    Raises:
        PreparationError: names the line with anything other than trees
    """
    opened: list[list] = []  # the open brackets, the outermost first: a label, and a word or what brackets have become
    number = begun = 0
    for number, line in enumerate(read_lines(path), 1):
        for token in _TOKEN.findall(tidy(line)):
            if fault := _fault(token, opened):
                raise PreparationError(f"{path}, line {number}: {fault}; trees are such as ( (S (NP (DT The) …) …))")
            if token == "(":
                bracket: list = []
                if opened:
                    opened[-1] += [bracket] if opened[-1] else ["", bracket]
                else:
                    begun = number
                opened.append(bracket)
            elif token == ")":
                closed = opened.pop()
                closed[:] = _words_and_brackets(*closed)
                if not opened and closed[0]:  # trees of traces only are dropped
                    yield " ".join(closed[0]), " ".join(closed[1])
            else:
                opened[-1].append(token)
    if opened:
        raise PreparationError(f"{path}, line {number}: the file ends within the tree that begins on line {begun}")


def _fault(token: str, opened: list[list]) -> str | None:
    """Why the next token cannot stand there, if it cannot."""
    if not opened:
        return None if token == "(" else f"{token} is outside all brackets"
    inner = opened[-1]
    if token == ")":
        # The Berkeley parser writes (()) where it found no tree; it may stand beside trees.
        failed = not inner and len(opened) == 2 and opened[0][0] == ""
        empty = not inner or len(opened) == 1 == len(inner)
        return "a bracket is empty" if empty and not failed else None
    if token == "(" and not inner and len(opened) > 1:
        return "a bracket within another has no label"
    if len(inner) > 1 and (token != "(" or isinstance(inner[1], str)):
        return f"the word {inner[1] if token == '(' else token} has no bracket with its part-of-speech tag"
    return None


def _words_and_brackets(label: str = "", *inside) -> tuple[list[str], list[str]]:
    """Those of a closed bracket: a tag with its word, or a label with what the brackets in it have become."""
    if inside and isinstance(inside[0], str):
        return ([], []) if label == TRACE else ([inside[0]], [label])
    trees = [tree for tree in inside if tree[0]]
    words, brackets = ([*chain.from_iterable(tree[side] for tree in trees)] for side in (0, 1))
    label = _FUNCTION.sub("", label) or ("TOP" if len(trees) > 1 else "")
    return words, [f"({label}", *brackets, f"){label}"] if label and words else brackets
