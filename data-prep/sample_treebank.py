#!/usr/bin/env python3
"""Writes a sample treebank in the format of the Penn Treebank, which needs a licence: trees of a small English grammar.

  python data-prep/sample_treebank.py data/sample_trees

The files train.mrg, valid.mrg and test.mrg are always the same, without a repeated sentence.

Clauses are nested and coordinated. Prepositional phrases attach to nouns or verbs; their words often tell to which, but
not always. There are traces, function tags and punctuation. The text is for trials only.
"""

import random
import re
import sys
import tempfile
from itertools import islice
from pathlib import Path

from preparation.errors import exit_status

SIZES = {"train": 6000, "valid": 200, "test": 400}
LONGEST, DEEPEST = 25, 7  # words; levels of constituents, below which the first choice of each is used


def entries(table: str, separator: str) -> dict[str, list[str]]:
    """The choices of each entry, in which `separator` stands between them."""
    lines = table.replace("\n |", " |").strip().replace("\n", "; ").split("; ")
    return {name: choices.split(separator) for name, choices in (line.split(" = ") for line in lines)}


# Constituents and their choices. Text after / is not printed; a choice that is repeated is twice as frequent.
RULES = entries(
    """
S/top = NP-SBJ VP . | NP-SBJ VP . | PP-LOC/place , NP-SBJ VP . | S , CC S . | `` S-TPC-2 , '' NP-SBJ VP/said .
S = NP-SBJ VP; S/gap = NP-SBJ/gap VP; NP-SBJ/gap = -NONE-/gap; S/topic = -NONE-/topic
NP = DT NN | DT NN | DT JJ NN | NNP | PRP | NP/base PP/of | NP/base PP/of | NP/base PP/mark | NP/base PP/place
 | NP/base SBAR/who | NP/base CC NP/base | NP/base , NP/base CC NP/base | NP/base PRN
ADVP = RB; ADJP = RB JJ | JJ CC JJ; NP/base = DT NN | DT JJ NN | DT ADJP NN; NP/tool = DT NN/tool; NP/mark = DT NN/mark
NP/place = DT NN/place | DT NN/place | DT NN/place PP/of
VP = VBD/alone | VBD NP | VBD NP | VBD NP PP-MNR/tool | VBD NP PP-LOC/place | VBD/alone ADVP | VBD PRT NP
 | VBD/said SBAR/that | MD VP/bare | VP/base CC VP/base
VP/base = VBD/alone | VBD NP; VP/bare = VB NP | VB NP PP/tool | RB VB NP; VP/said = VBD/said S/topic
SBAR/who = WHNP-1 S/gap; SBAR/that = IN/that S; WHNP = WP; PRN = -LRB- NP/base -RRB-; PRT = RP
PP/of = IN/of NP; PP/mark = IN/with NP/mark; PP/tool = IN/with NP/tool; PP/place = IN/place NP/place
""",
    " | ",
)
# A tag that is not listed is itself the word.
WORDS = entries(
    """
DT = the a every no; JJ = old small green quiet famous happy; NNP = Ada Boris Clara Dmitri; PRP = she he it
NN = doctor pilot child neighbour painter horse letter bridge clock story; NN/tool = hammer telescope key brush
NN/mark = beard scar handle hat; NN/place = garden station village kitchen; VBD = saw found painted watched moved
VBD/alone = slept laughed waited; VBD/said = said thought; VB = see find paint watch move; MD = could would must
RB = very rarely quickly always; RP = up down away; CC = and or but; WP = who; IN/that = that because while
IN/of = of; IN/with = with; IN/place = in near behind; -NONE-/gap = *T*-1; -NONE-/topic = *T*-2
""",
    " ",
)


def grow(symbol: str, choose: random.Random, depth: int = 0) -> tuple[str, list[str]]:
    """A bracketed tree whose root is the constituent `symbol`, and its words."""
    label = symbol.partition("/")[0]
    rules = RULES.get(symbol) or RULES.get(re.sub(r"(?<=\w)-\w+", "", symbol))  # an NP-SBJ is an NP
    if rules is None:
        word = choose.choice(WORDS.get(symbol, [symbol]))
        return f"({label} {word})", [] if label == "-NONE-" else [word]
    right = (choose.choice(rules) if depth < DEEPEST else rules[0]).split()
    trees, words = zip(*(grow(part, choose, depth + 1) for part in right))
    separator = "\n" + 2 * (depth + 1) * " " if depth < 2 else " "
    return f"({label} {separator.join(trees)})", sum(words, [])


def trees(count: int) -> list[str]:
    """`count` trees, no two with the same words."""
    choose, by_words = random.Random(1), {}
    while len(by_words) < count:
        tree, words = grow("S/top", choose)
        if len(words) <= LONGEST:
            by_words.setdefault(tuple(words), f"( {tree} )\n")
    return list(by_words.values())


def write_parts(folder: Path) -> None:
    """Writes the parts, each whole or not at all."""
    grown = iter(trees(sum(SIZES.values())))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        for part, size in SIZES.items():
            partial = Path(beside, f"{part}.mrg")
            partial.write_text("".join(islice(grown, size)))
            partial.replace(folder / partial.name)


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        sys.exit()
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(exit_status("sample_treebank.py", lambda: write_parts(Path(sys.argv[1]))))
