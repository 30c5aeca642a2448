"""Scores parses, several runs side by side: labelled bracket recall, precision and F1, as EVALB with COLLINS.prm.

    nmt-score-parses runs/*/generate.log --gold data/wsj/raw/test.brackets
    nmt-score-parses parses.txt --gold data/wsj/raw/test.brackets \\
        --words data/wsj/raw/test.words --output trees.mrg

Files are fairseq-generate's output, or plain text with a parse a line, such as (S (NP DT NN )NP (VP VBZ )VP . )S, which
is how data-prep/treebank.py writes the gold trees. A constituent is right if the gold tree has one of the same label
over the same words. Words whose gold tag is , : `` '' or . are removed first, with constituents that this empties; TOP
(S1, ROOT) and part-of-speech tags are not counted; PRT counts as ADVP; a repeated constituent must be found as often.

Recall, precision, F1 and exact are percentages.

exact      parses with exactly the counted constituents of the gold tree
repaired   parses that are not a tree over the sentence's words. They are scored after a repair: open constituents are
           closed, symbols that fit nowhere are left out, words without a tag go to the end of the outermost
           constituent
"""

import pathlib
import re
from collections import Counter

from ..errors import InputError
from ..files import refuse_output, write_text
from .shared.command import exit_in_one_line, new_parser, table
from .shared.translations import in_order, read_lines, refuse_nbest, segments, translations_of

# Trees are lists of symbols, each of which opens a constituent, closes one, or is a word's part-of-speech tag.
MISSING = "XX"  # the tag of a word that got none
TOP = "TOP"  # what holds several outermost constituents together

# COLLINS.prm of EVALB; S1 and ROOT are what others call TOP.
PUNCTUATION = {",", ":", "``", "''", "."}
NOT_COUNTED = {TOP, "S1", "ROOT"}
EQUAL = {"PRT": "ADVP"}


def tags(tree: list[str]) -> list[str]:
    return [symbol for symbol in tree if symbol[0] not in "()"]


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
        elif symbol[0] != ")":
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


def read_parses(path: pathlib.Path, gold: list[str] | None) -> tuple[list[list[str]], list[list[str]]]:
    """The parses in `path` in the order of the test set, and the trees in the lines `gold`, or else in the T- lines.

    Raises:
        InputError: if there are no trees, one is malformed, or there are not as many as parses
    """
    parses = read_lines(path)
    found = segments(path, parses)
    if best := found["H"] or found["D"]:
        parses = in_order(path, best, None)
    refuse_nbest(path, parses)
    if gold:
        trees = gold
    elif best and found["T"]:
        trees = in_order(path, found["T"], len(parses))
    else:
        raise InputError(f"{path} has no T- lines of fairseq-generate: give --gold FILE")
    for number, line in enumerate(parses, 1):
        if re.search(r"\S[()]|[()](\s|$)", line):  # (NN cat), ( NN cat ), (NP NN )
            remedy = "write it as data-prep/treebank.py does, such as (S (NP NN )NP . )S"
            raise InputError(f"{path}, parse {number}: {line[:40]} is a tree with words, or without labels: {remedy}")
    parses, trees = ([line.split() for line in lines] for lines in (parses, trees))
    for number, tree in enumerate(trees, 1):
        if not {"(", ")"}.isdisjoint(tree) or repaired(tree, len(tags(tree))) != tree:
            shown, example = " ".join(tree)[:40] or "an empty line", "(S (NP NN )NP . )S"
            remedy = "give --gold FILE, raw/test.brackets of data-prep/treebank.py"
            raise InputError(
                f"{'--gold' if gold else path}, gold tree {number}: {shown} is not a tree such as {example}: {remedy}"
            )
    if len(trees) != len(parses):
        counts = f"{path} has {len(parses)} parses and there are {len(trees)} gold trees"
        raise InputError(f"{counts}: they must be of the same test set")
    return parses, trees


def scores(parses: list[list[str]], trees: list[list[str]]) -> list[str]:
    """Recall, precision, F1 and exact trees in percent."""
    counts: Counter[str] = Counter()
    for parse, tree in zip(parses, trees, strict=True):
        counted = [tag not in PUNCTUATION for tag in tags(tree)]
        found, gold = constituents(parse, counted), constituents(tree, counted)
        counts += {"right": (found & gold).total(), "found": found.total(), "gold": gold.total()}
        counts["exact"] += found == gold
    totals = counts["gold"], counts["found"], (counts["gold"] + counts["found"]) / 2
    recall, precision, f1 = (100 * counts["right"] / max(total, 1) for total in totals)
    return [f"{score:.2f}" for score in (recall, precision, f1, 100 * counts["exact"] / len(trees))]


@exit_in_one_line("nmt-score-parses")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-score-parses", __doc__)
    add = parser.add_argument
    help = "fairseq-generate's output, a run's folder that has it, or plain text"
    add("runs", nargs="+", type=pathlib.Path, metavar="FILE", help=help)
    add("--gold", type=pathlib.Path, metavar="FILE", help="a gold tree for each sentence (default: the T- lines)")
    add("--words", type=pathlib.Path, metavar="FILE", help="the sentences, for --output")
    help = "where the first run's trees go, bracketed, for other tools, in place of an earlier file"
    add("--output", type=pathlib.Path, metavar="FILE", help=help)
    args = parser.parse_args(arguments)
    if bool(args.words) != bool(args.output):
        raise InputError("--output and --words go together: trees are written with their words")
    runs = [*map(translations_of, args.runs)]
    if args.output:
        refuse_output(args.output, filter(None, [args.words, args.gold, *runs]))
    gold = read_lines(args.gold) if args.gold else None  # once, because it may be a pipe
    rows, written, first = [], None, None
    for path in runs:
        given, trees = read_parses(path, gold)
        first = first or trees
        if trees != first:
            both = f"{path} and {runs[0]}"
            raise InputError(f"{both} have different gold trees (T- lines): they must be of the same test set")
        parses = [repaired(parse, len(tags(tree))) for parse, tree in zip(given, trees)]
        changed = sum(before != parse for before, parse in zip(given, parses))
        rows.append([str(path), *scores(parses, trees), f"{changed} of {len(parses)}"])
        written = written or parses
    if args.output:
        sentences = [line.split() for line in read_lines(args.words)]
        if [*map(len, sentences)] != [len(tags(parse)) for parse in written]:
            reason = f"{args.words} does not match the gold trees"
            raise InputError(f"{reason}: give --words FILE of the same test set")
        lines = "".join(f"{bracketed(*pair)}\n" for pair in zip(written, sentences))
        write_text(args.output, lines)
    print(table(["run", "recall", "precision", "F1", "exact", "repaired"], rows))


if __name__ == "__main__":
    main()
