"""Corpora of a registry: columns of a table, several texts."""

import pytest
from preparation import corpora
from preparation.cleaning import Cleaner
from preparation.errors import PreparationError
from preparation.extracting import extract
from unit.data_prep.support import TABLE, packed, registry, sentences, write


def test_a_corpus_out_of_archives_keeps_its_contributors(tmp_path):
    registry(tmp_path, packed(TABLE.encode()))
    corpus = corpora.find("thing", ("fr", "en"), tmp_path / "registry.toml")
    corpus.fetch(tmp_path / "cache", tmp_path / "mirror")
    (tmp_path / "raw").mkdir()
    extract(corpus, tmp_path / "raw", Cleaner(60, 3), None, None)
    by_line = {f"by {number}": pair for number, pair in enumerate(sentences(300))}
    for part in ("train", "valid", "test"):
        columns = [(tmp_path / f"raw/{part}.{name}").read_text().splitlines() for name in ("en", "fr", "attribution")]
        assert columns[0] and all(by_line[by] == (first, second) for first, second, by in zip(*columns))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('licence = "CC0"', "", "licence is missing"),
        ('package = "thing"', "", "thing-1.tar.gz has to have a url or package"),
        ('package = "thing"', 'package = "thing"\nsize = 1', "and nothing else"),
        ('"en", "fr", "attribution"', '"en", "de"', "the columns of en-fr are not its languages"),
        ("table = [", 'table = ["else", ', "else of en-fr is not among the files"),
        ("table = [", "texts.train.en = [", "train of en-fr has to be .* a text of each language"),
        ("table = [", "tables = [", "not of the form of a corpus"),
        ("table = [", "texts.test.en = [", "en-fr has no train"),
        ("table = [", "texts = {train = {en = [[]], fr = [[]]}}\ntable = [", "not of the form of a corpus"),
    ],
)
def test_a_wrong_registry_is_one_line(tmp_path, old, new, message):
    registry(tmp_path, packed(TABLE.encode()))
    file = tmp_path / "registry.toml"
    assert list(corpora.read_registry(file)) == ["thing"]
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(PreparationError, match=f"^{file}, thing: .*{message}") as refused:
        corpora.read_registry(file)
    assert "\n" not in str(refused.value)


def test_texts_of_several_files_follow_each_other(tmp_path):
    (tmp_path / "registry.toml").write_text("""
        [thing]
        title = "A thing"
        licence = "-"
        attribution = "-"
        homepage = "-"
        [thing.files]
        "a.en" = { url = "-" }
        "b.en" = { url = "-" }
        "a.fr" = { url = "-" }
        "b.fr" = { url = "-" }
        "other" = { url = "-" }
        [thing.pairs.en-fr.texts]
        train = { en = [["a.en"], ["b.en"]], fr = [["a.fr"], ["b.fr"]] }
    """)
    for name, lines in {"a.en": ["1", "2"], "b.en": ["3"], "a.fr": ["un", "deux"], "b.fr": ["trois"]}.items():
        write(tmp_path / name, lines)
    corpus = corpora.find("thing", ("fr", "en"), tmp_path / "registry.toml")
    corpus.fetch(tmp_path, tmp_path)
    assert list(corpus.pairs("train")) == [("1", "un"), ("2", "deux"), ("3", "trois")]
    write(tmp_path / "a.fr", ["un"])
    with pytest.raises(Exception, match="a.en and a.fr have different numbers"):
        list(corpus.pairs("train"))
