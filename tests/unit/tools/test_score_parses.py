"""python -m user_dir.tools.score_parses: EVALB's numbers, by hand; malformed parses; one line on bad input."""

import random

import pytest

from user_dir.tools import score_parses
from user_dir.tools.score_parses import bracketed, constituents, outermost, repaired, tags

GOLD = "(S (NP DT NN )NP (VP VBD (NP DT NN )NP (PP IN (NP NN )NP )PP )VP . )S"  # 6 constituents over 7 words


def scores(*pairs):
    parses, trees = ([pair[side].split() for pair in pairs] for side in (0, 1))
    return [float(score) for score in score_parses.scores(parses, trees)]


@pytest.mark.parametrize(
    ("parse", "gold", "right", "found", "wanted"),
    [
        (GOLD, GOLD, 6, 6, 6),
        # the prepositional phrase within the noun phrase: NP(2..4) is NP(2..6), and one more
        ("(S (NP DT NN )NP (VP VBD (NP (NP DT NN )NP (PP IN (NP NN )NP )PP )NP )VP . )S", GOLD, 6, 7, 6),
        ("(S (NP DT NN )NP (VP VBD DT NN IN NN )VP . )S", GOLD, 3, 3, 6),
        ("(S (X DT NN )X (VP VBD (NP DT NN IN NN )NP )VP . )S", GOLD, 2, 4, 6),
        ("(X DT NN VBD DT NN IN NN . )X", GOLD, 0, 1, 6),
        # part-of-speech tags are not counted
        ("(S (NP NN NN )NP )S", "(S (NP DT JJ )NP )S", 2, 2, 2),
        # what is there twice has to be found twice, and is found once only
        ("(S (NP NN )NP )S", "(S (NP (NP NN )NP )NP )S", 2, 2, 3),
        ("(S (NP (NP (NP NN )NP )NP )NP )S", "(S (NP NN )NP )S", 2, 4, 2),
        # punctuation is taken away by the gold tags: where a comma is attached does not matter
        ("(S (NP NN , )NP (VP VB )VP . )S", "(S (NP NN )NP , (VP VB )VP . )S", 3, 3, 3),
        ("(S (NP NN NN )NP (VP VB . )VP )S", "(S (NP NN )NP , (VP VB )VP . )S", 3, 3, 3),
        *[(f"(S (NP NN {tag} )NP VB )S", f"(S (NP NN )NP {tag} VB )S", 2, 2, 2) for tag in (",", ":", "``", "''", ".")],
        *[(f"(S (NP NN {tag} )NP VB )S", f"(S (NP NN )NP {tag} VB )S", 1, 2, 2) for tag in ("-LRB-", "$", "#", "NN")],
        ("(S `` (NP NN )NP '' : )S", "(S (X `` NN )X '' : )S", 1, 2, 2),
        ("(S (PRN , )PRN NN )S", "(S , (X NN )X )S", 1, 1, 2),  # nothing but punctuation: not a constituent
        ("(S (PRN -LRB- )PRN NN )S", "(S -LRB- NN )S", 1, 2, 1),  # brackets are words to EVALB
        # TOP is not counted; PRT is ADVP
        *[(f"({top} (S NN )S ){top}", "(S NN )S", 1, 1, 1) for top in ("TOP", "S1", "ROOT")],
        ("(S NN )S", "(ROOT (S NN )S )ROOT", 1, 1, 1),
        ("(S (ADVP RP )ADVP NN )S", "(S (PRT RP )PRT NN )S", 2, 2, 2),
        ("(S (ADVP RP )ADVP NN )S", "(S (ADVP (PRT RP )PRT )ADVP NN )S", 2, 2, 3),
        ("NN", "(S NN )S", 0, 0, 1),
        ("(S . )S", "(S . )S", 0, 0, 0),
    ],
)
def test_constituents(parse, gold, right, found, wanted):
    counted = [tag not in score_parses.PUNCTUATION for tag in tags(gold.split())]
    ours, theirs = (constituents(tree.split(), counted) for tree in (parse, gold))
    assert ((ours & theirs).total(), ours.total(), theirs.total()) == (right, found, wanted)
    expected = [100 * right / max(wanted, 1), 100 * right / max(found, 1), 200 * right / max(found + wanted, 1)]
    assert scores((parse, gold)) == pytest.approx([*expected, 100 * (right == found == wanted)], abs=0.005)


def test_a_test_set_is_scored_as_a_whole():
    """2 of 2 and 1 of 6 are 3 of 8, not the mean of 100 and 17 percent."""
    found = scores(("(S (NP NN )NP )S", "(S (NP NN )NP )S"), ("(S DT NN VBD DT NN IN NN . )S", GOLD))
    assert found == pytest.approx([37.5, 100, 100 * 6 / 11, 50], abs=0.005)


@pytest.mark.parametrize(
    ("symbols", "words", "tree"),
    [
        (GOLD, 8, GOLD),
        ("NN", 1, "NN"),
        ("", 1, "XX"),
        ("", 2, "(TOP XX XX )TOP"),
        ("(S (NP DT", 3, "(S (NP DT )NP XX XX )S"),
        ("(S (NP DT NN )NP (VP", 3, "(S (NP DT NN )NP XX )S"),
        ("(S (NP", 2, "(S XX XX )S"),
        ("(S (NP DT )NP )S", 3, "(S (NP DT )NP XX XX )S"),
        ("(S (NP DT )NP (VP VB )VP . )S", 2, "(S (NP DT )NP (VP VB )VP )S"),
        ("(S (NP DT NN NN )S", 2, "(S (NP DT NN )NP )S"),  # )S closes what is open within
        ("(S (NP (PP IN )NP NN )S", 2, "(S (NP (PP IN )PP )NP NN )S"),
        ("(S DT )NP NN )S", 2, "(S DT NN )S"),  # no NP is open
        (")S DT NN", 2, "(TOP DT NN )TOP"),
        ("(S DT )S NN", 2, "(TOP (S DT )S NN )TOP"),
        ("(S (NP )NP DT (VP (X )X )VP )S", 1, "(S DT )S"),
        ("(S (NP DT (NP NN )NP NN )NP )S )S", 3, "(S (NP DT (NP NN )NP NN )NP )S"),
        ("<unk> (S", 1, "<unk>"),
    ],
)
def test_repair(symbols, words, tree):
    assert " ".join(repaired(symbols.split(), words)) == tree


def test_repair_always_gives_a_tree_and_leaves_trees_alone():
    choose = random.Random(1)
    symbols = "(S )S (NP )NP (VP )VP NN , <unk>".split()
    for _ in range(3000):
        words = choose.randint(1, 6)
        tree = repaired(choose.choices(symbols, k=choose.randint(0, 15)), words)
        assert len(tags(tree)) == words and outermost(tree) == 1 and repaired(tree, words) == tree
        opened = []
        for before, symbol in zip([None, *tree], tree):
            if symbol[0] == "(":
                opened.append(symbol[1:])
            elif symbol[0] == ")":
                assert opened.pop() == symbol[1:] and before[0] != "("
        assert not opened
        assert bracketed(tree, ["w"] * words).count("(") == len(tree) - sum(symbol[0] == ")" for symbol in tree)


@pytest.fixture
def parsed(files):
    """parsed(name, parses): a file as fairseq-generate prints it, longest sentences first, with GOLD as T- lines."""

    def parsed(name, parses, kinds="STHD"):
        lines = []
        for number in reversed(range(len(parses))):
            parse = parses[number]
            joined = parse.replace(" )", ")") if "H" in kinds else parse  # as by --tokenizer
            texts = {"S": "a b", "T": GOLD, "H": f"-0.1\t{parse}", "D": f"-0.1\t{joined}"}
            lines += [f"{kind}-{number}\t{texts[kind]}".rstrip() for kind in kinds]
        return files.write(name, [*lines, "Generate test with beam=21: BLEU4 = 12.34"])

    return parsed


BROKEN = "(S (NP DT NN )NP (VP VBD"  # S and NP are right, and VP is over one word


def test_the_command(files, parsed, cells, printed):
    log, plain = parsed("generate.log", [GOLD, BROKEN, ""]), files.write("plain.txt", [BROKEN, GOLD[:-1] + "NP", GOLD])
    gold, words = files.write("gold", [GOLD] * 3), files.write("words", ["the cat saw a -LRB- in Rome ."] * 3)
    from_log = cells(printed(score_parses.main, log), log)
    assert cells(printed(score_parses.main, files.folder), log) == from_log  # of a run, that has generate.log
    # right: 6 + 2 + 0 of 18 that are wanted and 6 + 3 + 0 that are found
    assert from_log == ["44.44", "88.89", "59.26", "33.33", "2 of 3"]
    for kinds, more in (("D", ["--gold", gold]), ("TD", [])):  # grep ^D-, grep '^[TD]-'
        only = parsed(f"{kinds}-lines", [GOLD, BROKEN, ""], kinds=kinds)
        assert cells(printed(score_parses.main, only, *more), only) == from_log
    output = files.folder / "trees.mrg"
    text = printed(score_parses.main, log, plain, "--gold", gold, "--words", words, "--output", output)
    assert cells(text, log) == from_log and cells(text, plain) == ["77.78", "93.33", "84.85", "66.67", "2 of 3"]
    assert output.read_text().splitlines() == [
        "(S (NP (DT the) (NN cat)) (VP (VBD saw) (NP (DT a) (NN -LRB-)) (PP (IN in) (NP (NN Rome)))) (. .))",
        "(S (NP (DT the) (NN cat)) (VP (VBD saw)) (XX a) (XX -LRB-) (XX in) (XX Rome) (XX .))",
        "(TOP (XX the) (XX cat) (XX saw) (XX a) (XX -LRB-) (XX in) (XX Rome) (XX .))",
    ]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["plain"], ["plain has no T- lines", "--gold FILE"]),
        (["untold"], ["untold has no T- lines"]),
        (["nowhere"], ["nowhere cannot be read"]),
        (["plain", "--gold", "two"], ["plain has 3 parses and there are 2 gold trees", "same test set"]),
        (["cut", "--gold", "two"], ["1 of 2 segments were not translated"]),
        (["plain", "--gold", "trees"], ["--gold, gold tree 1: (S (NP (DT the)", "raw/test.brackets"]),
        (["plain", "--gold", "gap"], ["--gold, gold tree 2: an empty line"]),
        (["nbest", "--gold", "plain"], ["nbest is output of nmt-translate --nbest", "translate without"]),
        (["odd"], ["odd, gold tree 1: (S NN is not a tree"]),
        (["trees", "--gold", "plain"], ["trees, parse 1: (S (NP (DT the))) is a tree with words", "treebank.py"]),
        (["apart", "--gold", "plain"], ["apart, parse 1: ( S ( NP DT ) ) is a tree with words, or without labels"]),
        (["bare", "--gold", "plain"], ["bare, parse 1: (S (NP DT ) ) is a tree with words, or without labels"]),
        (["plain", "--gold", "apart"], ["--gold, gold tree 1: ( S ( NP DT ) ) is not a tree"]),
        (["log", "short"], ["short and ", "log have different gold trees", "same test set"]),
        (["log", "--output", "out"], ["--output and --words go together"]),
        (["log", "--output", "words", "--words", "words"], ["words is the input: name another file"]),
        (["log", "--output", "log", "--words", "words"], ["log is the input: name another file"]),
        (["log", "--gold", "two", "--output", "two", "--words", "words"], ["two is the input: name another file"]),
        (["log", "--output", "out", "--words", "words"], ["words does not match the gold trees", "--words FILE"]),
        (["log", "--output", "out", "--words", "one"], ["one does not match the gold trees"]),
    ],
)
def test_bad_input(files, parsed, refusal, capsys, options, parts):
    sentence = "a b c d e f g h"
    texts = {"plain": [GOLD] * 3, "two": [GOLD] * 2, "gap": [GOLD, "", GOLD], "trees": ["(S (NP (DT the)))"] * 3}
    texts |= {"apart": ["( S ( NP DT ) )"] * 3, "bare": ["(S (NP DT ) )"] * 3}
    texts["nbest"] = [f"{number}\t-0.1234\t{GOLD}" for number in (1, 2, 3)]
    for name, lines in {**texts, "words": [sentence, "a", sentence], "one": [sentence]}.items():
        files.write(name, lines)
    parsed("log", [GOLD] * 3)
    parsed("short", [GOLD] * 2)
    parsed("untold", [GOLD] * 3, kinds="SHD")
    files.write("odd", ["T-0\t(S NN", f"H-0\t-0.1\t{GOLD}"])
    files.write("cut", [f"H-1\t-0.1\t{GOLD}"])
    paths = [option if option.startswith("--") else files.folder / option for option in options]
    message = refusal(score_parses.main, *paths)
    assert all(part in message for part in parts)
    assert not capsys.readouterr().out and not (files.folder / "out").exists()
