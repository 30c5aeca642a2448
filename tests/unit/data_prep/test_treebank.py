"""Treebanks: trees of bracketed files as words and brackets, there and back; the command, and the sample."""

import hashlib
import itertools
import random
import shutil
import subprocess
import sys

import pytest
import sample_treebank
import treebank
from preparation.errors import PreparationError
from preparation.trees import linearised
from unit.data_prep.support import DATA_PREP, FULL_DISK, write

from user_dir.preparation import PreparedText, preparation_of
from user_dir.tools.score_parses import bracketed

PENN = """\
( (S (NP-SBJ-1 (DT The) (NN cat) )
    (VP (VBZ sleeps)
      (NP (-NONE- *-1) ) )
    (. .) ))
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PENN, [("The cat sleeps .", "(S (NP DT NN )NP (VP VBZ )VP . )S")]),
        (PENN + "\n" + PENN, [("The cat sleeps .", "(S (NP DT NN )NP (VP VBZ )VP . )S")] * 2),
        ("(S(NN a))(TOP(NN b))", [("a", "(S NN )S"), ("b", "(TOP NN )TOP")]),
        ("(S\n\n(NP=2\n(NN\ta\n)))", [("a", "(S (NP NN )NP )S")]),
        ("(S (NP-LOC-PRD-3 (PRP$ a) (NN-X b)) (A|B=1-2 (# c)))", [("a b c", "(S (NP PRP$ NN-X )NP (A|B # )A|B )S")]),
        ("(PRN (-LRB- -LRB-) (NN a-1=b) (-RRB- -RRB-))", [("-LRB- a-1=b -RRB-", "(PRN -LRB- NN -RRB- )PRN")]),
        ("(S (NP (NP (-NONE- *T*) (-NONE- 0)) (PP (NP (-NONE- *)))) (NP ) (NN a))", [("a", "(S NN )S")]),
        ("(S (-A-1 (NN a)))", [("a", "(S (-A NN )-A )S")]),  # it begins with no function tag
        ("( (S (NP (-NONE- *))) )( (NN a))", [("a", "NN")]),
        ("( (S (NN a)) (X (-NONE- *)) (. b))", [("a b", "(TOP (S NN )S . )TOP")]),
        ("( (X (-NONE- *)) (S (NN é)) )", [("é", "(S NN )S")]),
        ("(S (NN e\u0301))\n(())\n(S (NN b))", [("é", "(S NN )S"), ("b", "(S NN )S")]),  # the second is no parse
        ("(S " * 2000 + "(NN a)" + ")" * 2000, [("a", " ".join(["(S"] * 2000 + ["NN"] + [")S"] * 2000))]),
        (" \n", []),
    ],
)
def test_trees(tmp_path, text, expected):
    assert list(linearised(write(tmp_path / "a.mrg", text.split("\n")))) == expected


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("(S (NN a))\n(S (NP the\ncat))", 3, "the word cat has no bracket with its part-of-speech tag"),
        ("(S (NP\n(DT the) cat))", 2, "the word cat has no bracket"),
        ("(S (NP the (NN cat)))", 1, "the word the has no bracket"),
        ("(S (NN a)))", 1, ") is outside all brackets"),
        ("\nThe cat sleeps.", 2, "The is outside all brackets"),
        ("(the) (cat)", 1, "a bracket is empty"),
        ("(S () (NN a))", 1, "a bracket is empty"),
        ("()", 1, "a bracket is empty"),
        ("(S ((NN a)))", 1, "a bracket within another has no label"),
        ("(S (NN a))\n(S\n(NN a)\n\n", 5, "the file ends within the tree that begins on line 2"),
    ],
)
def test_what_is_no_tree(tmp_path, text, line, fault):
    path = write(tmp_path / "a.mrg", text.split("\n"))
    with pytest.raises(PreparationError) as error:
        list(linearised(path))
    assert str(error.value).startswith(f"{path}, line {line}: {fault}") and "\n" not in str(error.value)


class Trees:
    """Random trees: as a treebank writes them, and the words and brackets that are expected."""

    def __init__(self, seed):
        self.choose = random.Random(seed)

    def space(self):
        return self.choose.choice([" ", "\n", "\n\t ", "  "])

    def trace(self):
        text = f"(-NONE- *T*-{self.choose.randint(1, 9)})"
        return f"(NP{self.choose.choice(['', '-SBJ'])} {text})" if self.choose.random() < 0.5 else text

    def tree(self, depth=0):
        if depth and self.choose.random() < 0.1 + 0.2 * depth:
            tag, word = map(self.choose.choice, ("NN , -LRB- `` PRP$".split(), "a -LRB- % é=1 *".split()))
            return f"({tag} {word})", [word], [tag]
        label = self.choose.choice(["S", "NP", "VP", "ADVP|PRT"])
        parts = [self.tree(depth + 1) for _ in range(self.choose.randint(1, 4))]
        texts = [text for text, _, _ in parts]
        if self.choose.random() < 0.3:
            texts.insert(self.choose.randint(0, len(texts)), self.trace())
        function = self.choose.choice(["", "-SBJ", "=2", "-TMP-3"])
        text = f"({label}{function}{''.join(self.space() + text for text in texts)})"
        words, brackets = (sum((part[side] for part in parts), []) for side in (1, 2))
        return text, words, [f"({label}", *brackets, f"){label}"]


def test_every_tree_comes_back(tmp_path):
    trees = Trees(1)
    made = [trees.tree() for _ in range(300)]
    text = "".join(trees.choose.choice(["( {} )", "{}", "({})"]).format(tree) + trees.space() for tree, _, _ in made)
    found = list(linearised(write(tmp_path / "a.mrg", text.split("\n"))))
    assert found == [(" ".join(words), " ".join(brackets)) for _, words, brackets in made]
    restored = [bracketed(brackets.split(), words.split()) for words, brackets in found]
    assert list(linearised(write(tmp_path / "b.mrg", restored))) == found


@pytest.fixture
def bank(tmp_path):
    """bank(*parts): options that name files of sample trees, of which `train` is a folder."""
    trees = sample_treebank.trees(60)
    write(tmp_path / "train/02/wsj_0200.MRG", trees[20:40])
    write(tmp_path / "train/01/wsj_0100.mrg", trees[:20])
    write(tmp_path / "train/01/readme", ["no tree"])
    write(tmp_path / "valid.mrg", trees[40:50])
    write(tmp_path / "test", trees[50:])
    paths = {"train": "train", "valid": "valid.mrg", "test": "test", "output": "out"}

    def bank(**changed):
        given = {**paths, **changed}
        words = [(f"--{name}", *(str(tmp_path / one) for one in path.split())) for name, path in given.items() if path]
        return [*itertools.chain(*words)]

    return bank


def lines(folder, name):
    return (folder / name).read_text(encoding="utf-8").splitlines()


def test_the_command(bank, tmp_path, capsys):
    attribution = write(tmp_path / "out/ATTRIBUTION", ["of another corpus, which was prepared there before"])
    write(tmp_path / "out/manifest.json", ['{"stages": {}, "licence": "of its authors"}'])
    assert treebank.main([*bank(), "--bpe-operations", "30", "--workers", "1"]) == 0
    assert not attribution.exists()
    out = tmp_path / "out"
    files = (tmp_path / "train/01/wsj_0100.mrg", tmp_path / "train/02/wsj_0200.MRG")
    pairs = [pair for file in files for pair in linearised(file)]
    assert len(pairs) == 40 and [*zip(lines(out, "raw/train.words"), lines(out, "raw/train.brackets"))] == pairs
    parts = {"train": "clean", "valid": "tok", "test": "tok"}
    for part, stage in parts.items():
        for side in treebank.SIDES:
            assert lines(out, f"{stage}/{part}.{side}") == lines(out, f"raw/{part}.{side}")
        assert lines(out, f"bpe/{part}.brackets") == lines(out, f"raw/{part}.brackets")
        split = lines(out, f"bpe/{part}.words")
        assert split != lines(out, f"raw/{part}.words") == [line.replace("@@ ", "") for line in split]
    words, brackets = ({line.split()[0] for line in lines(out, f"data-bin/dict.{side}.txt")} for side in treebank.SIDES)
    assert {"(S", ")S", "NN"} <= brackets and not [symbol for symbol in words if symbol[0] in "()"]
    assert not [symbol for symbol in brackets if "@@" in symbol]
    # what nmt-translate does to a sentence, and to brackets
    text = PreparedText(preparation_of(out / "data-bin"), *treebank.SIDES)
    assert [text.encode(line) for line in lines(out, "raw/test.words")] == lines(out, "bpe/test.words")
    assert text.encode("don't ,").replace("@@ ", "") == "don't ,"
    assert [text.decode(line) for line in lines(out, "raw/test.brackets")] == lines(out, "raw/test.brackets")

    capsys.readouterr()
    assert treebank.main([*bank(), "--bpe-operations", "30", "--workers", "1"]) == 0
    assert capsys.readouterr().out.count("nothing to do") == 5
    assert treebank.main([*bank(), "--bpe-operations", "30", "--workers", "1", "--max-pairs", "7"]) == 0
    assert len(set(lines(out, "bpe/train.words"))) == 7 and len(lines(out, "bpe/test.words")) == 10
    write(tmp_path / "test", ["( (S (-NONE- *)) )"])  # read again, and without words
    assert treebank.main([*bank(), "--bpe-operations", "30", "--workers", "1", "--max-pairs", "7"]) == 1


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"train": "nowhere"}, ["nowhere: no such file or folder"]),
        ({"valid": "empty"}, ["empty: no file of this folder ends in .mrg"]),
        ({"train": "train/01/readme"}, ["readme, line 1: no is outside all brackets; trees are such as"]),
        ({"test": "traces"}, ["traces: no trees with words", "--test"]),
        ({"test": "bytes"}, ["bytes, line 1: not valid UTF-8"]),
        ({"valid": "traces"}, ["traces: no trees with words", "--valid"]),
        ({"train": "train test"}, ["test: given with --train and with --test; choose one"]),
        ({"train": "train link"}, ["test: given with --train and with --test"]),
        ({"train": "train /dev/null"}, ["/dev/null: not an ordinary file, which can be read twice; write the trees"]),
        ({"valid": ""}, ["--valid", "--help"]),
    ],
)
def test_what_the_command_refuses(bank, tmp_path, capsys, changed, parts):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("test")
    write(tmp_path / "traces", ["( (S (-NONE- *)) )"])
    (tmp_path / "bytes").write_bytes(b"( (S (NN \xe9)))")
    assert treebank.main([*bank(**changed), "--workers", "1"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("treebank.py: ") and message.count("\n") == 1
    assert all(part in message for part in parts) and not (tmp_path / "out").exists()


def test_a_full_disk_is_noticed_before_the_work(bank, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: FULL_DISK)
    assert treebank.main([*bank(), "--workers", "1"]) == 1
    assert "bytes of disk space, 9 are free" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_the_sample(tmp_path, monkeypatch):
    trees = sample_treebank.trees(2000)
    assert trees[:50] == sample_treebank.trees(50)  # the same each time
    # And in each version: the records of examples/parsing.md are of these trees.
    assert hashlib.sha256("".join(trees).encode()).hexdigest().startswith("d15ce47804ca")
    page = DATA_PREP.joinpath("README.md").read_text(encoding="utf-8")
    assert f"writes {sum(sample_treebank.SIZES.values()):,} trees" in page
    pairs = list(linearised(write(tmp_path / "all.mrg", trees)))
    assert len({words for words, _ in pairs}) == len(pairs) == 2000 and len({brackets for _, brackets in pairs}) > 1500
    symbols = {symbol for _, brackets in pairs for symbol in brackets.split()}
    assert {"(S", "(SBAR", "(PP", "(PRN", "(PRT", "CC", "-LRB-", "``"} <= symbols
    assert not [symbol for symbol in symbols if "/" in symbol]
    assert all(text in "".join(trees) for text in ("(-NONE- *T*-1)", "NP-SBJ", "PP-LOC", "\n  "))
    assert max(len(words.split()) for words, _ in pairs) == sample_treebank.LONGEST
    monkeypatch.setattr(sample_treebank, "SIZES", {"train": 6, "valid": 2, "test": 4})
    sample_treebank.write_parts(tmp_path)
    parts = ["".join(trees[:6]), "".join(trees[6:8]), "".join(trees[8:12])]
    assert [(tmp_path / f"{part}.mrg").read_text() for part in ("train", "valid", "test")] == parts


def test_a_file_in_place_of_the_samples_folder(tmp_path):
    (tmp_path / "file").write_text("precious")
    command = [sys.executable, sample_treebank.__file__, tmp_path / "file"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = "a file of this name exists; name another folder"
    assert done.returncode == 1 and done.stderr == f"sample_treebank.py: {tmp_path}/file: {said}\n"
    assert (tmp_path / "file").read_text() == "precious"
