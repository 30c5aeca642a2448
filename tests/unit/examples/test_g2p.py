"""Letters to sounds: the words as fairseq-preprocess reads them, the word error rate, and the published output."""

import functools
import gzip

import pytest

from support import PROJECT, said

RIGHT = ["a b", "k a", "k a", "o", "ɛ fː"]


g2p = functools.partial(said, "python", PROJECT / "examples/g2p.py")


@pytest.fixture
def words(tmp_path):
    """A folder of words, and those prepared."""
    table = "".join(f"{word}\t{sounds}\n" for word, sounds in zip(["ab", "ca", "ka", "eau", "éff"], RIGHT))
    (tmp_path / "fre.train.tsv").write_text(table, encoding="utf-8-sig")  # of Windows
    (tmp_path / "data").mkdir()
    (tmp_path / "data/fre_dev.tsv").write_text(table, encoding="utf-8")
    with gzip.open(tmp_path / "fre.test.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(table)
    return tmp_path


def published(words, *theirs):
    lines = "".join(f"{right}\t{given}\n" for right, given in theirs)
    (words / "fre.test.published-output.tsv").write_text(lines, encoding="utf-8")
    g2p("prepare", words, "fre", words / "raw")


def scored(words, *ours, ok=True):
    (words / "ours").write_text("".join(f"{line}\n" for line in ours), encoding="utf-8")
    return g2p("score", words / "raw", words / "ours", ok=ok)


def test_preparation(words):
    g2p("prepare", words, "fre", 4, words / "raw")
    for part in ("train", "valid", "test"):
        lines = (words / f"raw/{part}.letters").read_text(encoding="utf-8").splitlines()
        assert lines == ["a b", "c a", "k a", "e a u"]
        assert (words / f"raw/{part}.sounds").read_text(encoding="utf-8").splitlines() == RIGHT[:4]
    assert not (words / "raw/published.tsv").exists()


def test_a_full_disk_and_a_file_in_place_of_a_folder(words):
    (words / "raw").mkdir()
    (words / "raw/train.letters").symlink_to("/dev/full")
    for raw, reason in (("raw", "No space left on device"), ("fre.train.tsv/raw", "Not a directory")):
        line = g2p("prepare", words, "fre", words / raw, ok=False)
        assert line == f"g2p.py: {words}/{raw}/train.letters cannot be written: {reason}\n"


def test_word_error_rate_alone(words):
    g2p("prepare", words, "fre", words / "raw")
    text = scored(words, "a b", "k a", "k", "o", "")
    assert "| word error rate |" in text.splitlines()[0] and " 40.00 |" in text and "sign test" not in text
    assert "has 1 lines and " in scored(words, "a b", ok=False)


def test_against_the_published_output(words):
    """Theirs come in another order; of the words that sound alike, one is right on each side."""
    theirs = ("o", "u"), ("k a", "k"), ("k a", "k a"), ("ɛ <<unk>>", "ɛ f"), ("a b", "a b")
    published(words, *theirs)
    text = scored(words, "a b", "k a", "k", "o", "ɛ fː")
    assert "| 20.00 | 60.00 | 2 better, 0 worse, p 0.5 |" in text
    assert "0 better, 1 worse, p 1 |" in scored(words, "a", "k", "k a", "u", "ɛ")
    assert "0 better, 0 worse, p 1 |" in scored(words, "a b", "k", "k a", "u", "ɛ")
    (words / "results/g2p/fre").mkdir(parents=True)
    (words / "fre.test.published-output.tsv").rename(words / "results/g2p/fre/test.tsv")  # as in their repository
    (words / "raw/published.tsv").unlink()
    g2p("prepare", words, "fre", 4, words / "raw")
    assert (words / "raw/published.tsv").exists() and "sign test" not in scored(words, *RIGHT[:4]), "of fewer words"


@pytest.mark.parametrize("theirs", [("i", "i"), ("o", "o")])
def test_output_of_other_words_is_refused(words, theirs):
    published(words, *[theirs] * len(RIGHT))
    assert "other words" in scored(words, *RIGHT, ok=False)


def test_what_is_missing_or_wrong_is_one_line(words):
    for text, place in (("ab a b\n", "line 1"), ("ab\ta b\nca\t\n", "line 2"), ("ab\ta b\nca\tk", "cut off")):
        (words / "fre.train.tsv").write_text(text)
        assert place in (said := g2p("prepare", words, "fre", words / "raw", ok=False)) and said.count("\n") == 1
    assert "hun.train.tsv" in (said := g2p("prepare", words, "hun", words / "raw", ok=False)) and said.count("\n") == 1
    (words / "fre.train.tsv").write_bytes(b"caf\xe9\tk a\n")
    said = g2p("prepare", words, "fre", words / "raw", ok=False)
    assert "fre.train.tsv cannot be read: 'utf-8' codec" in said and said.count("\n") == 1
