"""The parts of a corpus: no held-out sentence is trained on, and the split depends on the sentences only."""

import random
import unicodedata

from preparation import corpora
from preparation.cleaning import Cleaner
from preparation.extracting import extract
from unit.data_prep.support import sentences, write


def bare(sentence: str) -> tuple[str, ...]:
    """Its words without case and punctuation, written differently from the code under test."""
    letters = "".join(c if unicodedata.category(c)[0] in "LN" else " " for c in sentence.casefold())
    return tuple(letters.split())


def split(tmp_path, name, pairs, languages=("en", "fr"), most=None, size=40):
    """The three parts as `extract` writes them, each a list of (en, fr)."""
    columns = dict(zip(("en", "fr"), zip(*pairs)))
    files = tuple(write(tmp_path / name / f"all.{language}", columns[language]) for language in languages)
    folder = tmp_path / name / "raw"
    folder.mkdir()
    source = corpora.OwnFiles({"train": files}, languages)
    counts = extract(source, folder, Cleaner(60, 3), size, most)
    texts = {
        part: list(zip(*((folder / f"{part}.{code}").read_text("utf-8").splitlines() for code in ("en", "fr"))))
        for part in ("train", "valid", "test")
    }
    assert counts["in"] == len(pairs)
    assert {part: len(text) for part, text in texts.items()} == {part: counts[part] for part in texts}
    assert sum(counts["dropped"].values()) + sum(map(len, texts.values())) == len(pairs) or most
    return texts


def test_no_held_out_sentence_is_trained_on(tmp_path):
    texts = split(tmp_path, "a", sentences(900))
    assert len(texts["valid"]) == len(texts["test"]) == 40 and len(texts["train"]) > 600
    for side in (0, 1):
        trained = {bare(pair[side]) for pair in texts["train"]}
        held = [bare(pair[side]) for pair in texts["valid"] + texts["test"]]
        assert not trained.intersection(held)
        assert len(set(held)) == len(held)  # no sentence is held out twice


def test_no_more_than_two_thousand_pairs_are_held_out(tmp_path):
    texts = split(tmp_path, "a", [(f"one {n}", f"un {n}") for n in range(41_000)], size=None)
    assert len(texts["valid"]) == len(texts["test"]) == 2_000


def test_the_split_depends_on_the_sentences_only(tmp_path):
    pairs = sentences(900)
    texts = split(tmp_path, "a", pairs)
    assert split(tmp_path, "b", pairs, ("fr", "en")) == texts
    shuffled = split(tmp_path, "c", random.Random(2).sample(pairs, len(pairs)))
    assert shuffled["test"] == texts["test"] and shuffled["valid"] == texts["valid"]
    assert sorted(shuffled["train"]) == sorted(texts["train"])
    assert texts["train"] == [pair for pair in pairs if pair in {*texts["train"]}]


def test_a_sample_is_fixed_and_leaves_the_held_out_pairs_alone(tmp_path):
    pairs = sentences(900)
    texts, few = split(tmp_path, "a", pairs), split(tmp_path, "b", pairs, most=50)
    assert split(tmp_path, "c", pairs, most=50) == few
    assert few["test"] == texts["test"] and len(few["train"]) == 50
    assert [pair for pair in texts["train"] if pair in set(few["train"])] == few["train"] != texts["train"][:50]


def test_held_out_files_of_the_user_stay_as_they_are(tmp_path):
    shared = sentences(120)
    test = [("Hello there!", "Bonjour !"), ("", ""), ("Hello\u00a0 there!", "Bonjour !"), *shared]
    train = sentences(300) + [("hello there", "salut toi"), ("good day to you", "bonjour")]
    files = {
        part: tuple(write(tmp_path / f"{part}.{code}", side) for code, side in zip(("en", "fr"), zip(*pairs)))
        for part, pairs in (("train", train), ("test", test))
    }
    folder = tmp_path / "raw"
    folder.mkdir()
    source = corpora.OwnFiles(files, ("en", "fr"))
    counts = extract(source, folder, Cleaner(60, 9), None, None)
    lines = (folder / "test.en").read_text().split("\n")
    assert lines == ["Hello there!", "", "Hello there!", *(first for first, _ in shared), ""]
    assert "ello there" not in (folder / "train.en").read_text() and "bonjour" not in (folder / "train.fr").read_text()
    assert counts["valid"] == 15  # a twentieth
    assert counts["in"] == sum(counts["dropped"].values()) + counts["train"] + counts["valid"]  # the test set is apart
    for code in ("en", "fr"):  # none of them is one of the user's
        valid, given = ((folder / f"{part}.{code}").read_text("utf-8").splitlines() for part in ("valid", "test"))
        assert not {*map(bare, valid)} & {*map(bare, given)}
    before = source.identity()
    write(files["test"][1], ["corrected"])
    assert source.identity() != before  # so that it is prepared again
