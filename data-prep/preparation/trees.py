"""Bracketed trees of a treebank as two lines each: the words, and the brackets with part-of-speech tags as leaves.

    ( (S (NP-SBJ-1 (DT The) (NN cat))           The cat sleeps .
         (VP (VBZ sleeps) (NP (-NONE- *-1)))    (S (NP DT NN )NP (VP VBZ )VP . )S
         (. .)))

as in Vinyals et al. 2015, "Grammar as a Foreign Language". As in EVALB's evaluation, traces and what is empty without
them are left out, and so are function tags and indices (NP-SBJ-1, NP=2). An outermost bracket without a label is none,
or TOP where it holds several trees.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import PreparationError
from .text import read_lines

TRACE = "-NONE-"
_TOKEN = re.compile(r"[()]|[^\s()]+")
_FUNCTION = re.compile(r"(?<!^)[-=].*")


def linearised(path: Path) -> Iterator[tuple[str, str]]:
    """Words and brackets of each tree in the file: several trees, each over any number of lines.

    Raises:
        PreparationError: names the line with anything else
    """
    tree, number = None, 0
    for number, line in enumerate(read_lines(path), 1):
        for token in _TOKEN.findall(line):
            tree = tree or _Tree(number)
            if fault := tree.add(token):
                raise PreparationError(f"{path}, line {number}: {fault}; trees are such as ( (S (NP (DT The) …) …))")
            if not tree.open:
                if tree.words:  # not of a tree of traces only
                    yield " ".join(tree.words), " ".join(tree.brackets)
                tree = None
    if tree:
        raise PreparationError(f"{path}, line {number}: the file ends within the tree that begins on line {tree.line}")


@dataclass
class _Bracket:
    """One that is open: a constituent, or a tag with its word."""

    label: str | None = None
    word: str | None = None
    start: int | None = None  # of a constituent that holds something, its place in the tree's brackets


class _Tree:
    """A tree as far as it was read."""

    def __init__(self, line: int) -> None:
        self.line = line  # of its file, where it begins
        self.words: list[str] = []
        self.brackets: list[str] = []
        self.open: list[_Bracket] = []
        self.trees = self.size = 0  # within the outermost bracket, and how many brackets they have

    def add(self, token: str) -> str | None:
        """Reads on; returns what is wrong with this token here, if anything is."""
        inner = self.open[-1] if self.open else None
        if token == "(":
            return self._open(inner)
        if inner is None:
            return f"{token} stands outside of all brackets"
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
        if closed.label is None or not (self.open or closed.word or closed.start is not None):
            return "a bracket holds nothing"
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
