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
from dataclasses import dataclass
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
    tree, number = None, 0
    for number, line in enumerate(read_lines(path), 1):
        for token in _TOKEN.findall(tidy(line)):
            tree = tree or _Tree(number)
            if fault := tree.add(token):
                raise PreparationError(f"{path}, line {number}: {fault}; trees are such as ( (S (NP (DT The) …) …))")
            if not tree.open:
                if tree.words:  # trees of traces only are dropped
                    yield " ".join(tree.words), " ".join(tree.brackets)
                tree = None
    if tree:
        raise PreparationError(f"{path}, line {number}: the file ends within the tree that begins on line {tree.line}")


@dataclass
class _Bracket:
    """An open bracket: a constituent, or a tag with its word."""

    label: str | None = None
    word: str | None = None
    start: int | None = None  # the index in the tree's brackets of a constituent that is not empty


class _Tree:
    """The part of a tree that has been read."""

    def __init__(self, line: int) -> None:
        self.line = line  # where it begins in its file
        self.words: list[str] = []
        self.brackets: list[str] = []
        self.open: list[_Bracket] = []
        self.trees = self.size = 0  # the trees within the outermost bracket, and the number of their brackets

    def add(self, token: str) -> str | None:
        """Adds the next token; returns its fault, if it has one."""
        inner = self.open[-1] if self.open else None
        if token == "(":
            return self._open(inner)
        if inner is None:
            return f"{token} is outside all brackets"
        if token == ")":
            return self._close(self.open.pop())
        if inner.label is None:
            inner.label = token
        elif inner.start is None and inner.word is None:
            inner.word = token
        else:
            return f"the word {token} has no bracket with its part-of-speech tag"
        return None

    def _open(self, outer: _Bracket | None) -> str | None:
        if outer and outer.label is None:
            if len(self.open) > 1:
                return "a bracket within another has no label"
            outer.label = ""
        if outer and outer.word is not None:
            return f"the word {outer.word} has no bracket with its part-of-speech tag"
        if outer and outer.start is None:
            outer.start = len(self.brackets)
            outer.label = _FUNCTION.sub("", outer.label)
            self.brackets += [f"({outer.label}"] if outer.label else []
        self.open.append(_Bracket())
        return None

    def _close(self, closed: _Bracket) -> str | None:
        # The Berkeley parser writes (()) where it found no tree; it may stand beside trees.
        failed = [outer.label for outer in self.open] == [""]
        if (closed.label is None and not failed) or not (self.open or closed.word or closed.start is not None):
            return "a bracket is empty"
        if closed.word is not None and closed.label != TRACE:
            self.words.append(closed.word)
            self.brackets.append(closed.label)
        elif closed.label and closed.start is not None:
            if len(self.brackets) == closed.start + 1:
                self.brackets.pop()
            else:
                self.brackets.append(f"){closed.label}")
        elif closed.label == "" and self.trees > 1:
            self.brackets = ["(TOP", *self.brackets, ")TOP"]
        if len(self.open) == 1 and len(self.brackets) > self.size:
            self.trees, self.size = self.trees + 1, len(self.brackets)
        return None
