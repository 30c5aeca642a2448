"""Corpora of a registry: columns of a table, several texts."""

import gzip
import io
import re
import tarfile
import tomllib
from pathlib import Path

import prepare
import pytest
from preparation import corpora, markup
from preparation.cleaning import Cleaner
from preparation.extracting import extract
from unit.data_prep.support import TABLE, assert_error, packed, registry, sentences, write


def test_the_registry_is_as_its_head_and_the_pages_say():
    """Every key is explained, and WMT14's pairs have the usual limits: 175 words, three times the length."""
    file = Path(prepare.__file__).with_name("corpora.toml")
    text = file.read_text(encoding="utf-8")
    head, known = text.partition("\n[")[0], tomllib.loads(text)
    tables = [table for one in known.values() for table in (one, *one["files"].values(), *one["pairs"].values())]
    assert not [key for table in tables for key in table if not re.search(rf"\b{key}\b", head)]
    assert not {"max-length", "max-ratio"} & known["wmt14"].keys()
    assert (prepare.MAX_LENGTH, prepare.MAX_RATIO) == (175, 3)
    assert corpora.find("wmt14", ("fr", "en"), file).size() == known["wmt14"]["pairs"]["en-fr"]["bytes"] > 10**10


def test_segments_of_wmts_test_sets_stay_as_they_are(tmp_path):
    lines = ['<seg id="1"> it’s </seg>', "<doc>"]
    assert [*markup.sentences(lines, "newstest.sgm")] == ["it’s"]
    (tmp_path / "newstest.sgm.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert [*corpora.lines_within(tmp_path / "newstest.sgm.gz", [])] == ["it’s"]


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
    registry(tmp_path / "newer", packed(b""))
    newer = corpora.find("thing", ("fr", "en"), tmp_path / "newer/registry.toml")
    assert newer.identity() != corpus.identity()  # so that it is prepared again
    before = str(corpus.identity())
    corpus.entry["columns"].reverse()
    assert str(corpus.identity()) != before  # also where the registry names another column
    assert next(corpus.pairs("train")) == ("by 0", *reversed(by_line["by 0"]))


ONE = "['thing-1.tar.gz']"


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
        ("table = [", "texts = {train = {en = 1, fr = 1}, dev = {en = 1, fr = 1}}\ntable = [", "dev .* one of"),
        ("title =", 'max-length = "100"\ntitle =', "max-length is '100'; .*whole number"),
        ("title =", "max-length = true\ntitle =", "max-length is True"),
        ("title =", 'max-ratio = "x"\ntitle =', "max-ratio is 'x'; .*number"),
        ("title =", "max-ratio = nan\ntitle =", "max-ratio is nan"),
        ("title =", 'valid-every = "x"\ntitle =', "valid-every is 'x'"),
        ("title =", "valid-every = 1\ntitle =", "valid-every is 1; .*at least 2"),
        ("pairs.en-fr", "pairs.en-fr-en", "en-fr-en has to be two languages joined by a hyphen"),
        ("title =", "valid-every = 9\ntitle =", "en-fr has valid-every and so needs texts, those of train and test"),
        ("table = [", 'bytes = "much"\ntable = [', "bytes is 'much'"),
        ("table = [", "table = [5, ", r"\[5, .* of en-fr has to be a path"),
        ("table = [", "texts = {train = {en = [['thing-1.tar.gz', 5]], fr = 'a'}}\ntable = [", "5.* has to be a path"),
        ("table = [", "texts = {train = {en = 'thing-1.tar.gz', fr = 'a'}}\ntable = [", "'thing.*has to be a path"),
        ("table = [", f"texts.train = {{en = [{ONE}, {ONE}], fr = {ONE}}}\ntable = [", "train of en-fr has more texts"),
        ("title =", "max_length = 100\ntitle =", "has no max_length"),
        ("table = [", "max-length = 100\ntable = [", "has no max-length"),
        ('title = "A thing"', "title = 5", "title has to be a text"),
        ('package = "thing"', "url = 5", "url, package and sha256 of thing-1.tar.gz have to be texts"),
    ],
)
def test_a_wrong_registry_is_one_line(tmp_path, old, new, message):
    registry(tmp_path, packed(TABLE.encode()))
    file = tmp_path / "registry.toml"
    text = file.read_text()
    file.write_text(text, encoding="utf-8-sig")
    assert list(corpora.read_registry(file)) == ["thing"]
    file.write_text(text.replace(old, new))
    assert_error(f"^{file}, thing: .*{message}", corpora.read_registry, file)


DESCRIBED = "\n".join(f'{{0}}.{name} = "-"' for name in ("title", "licence", "attribution", "homepage"))


def test_texts_of_several_files_follow_each_other(tmp_path):
    """One of them is compressed, also within an archive; files that are not needed are not fetched."""
    texts = {"a.en": ["1", "2"], "b.en": ["3"], "a.fr": ["un", "deux"]}
    for name, lines in texts.items():
        write(tmp_path / name, lines)
    (tmp_path / "b.fr.gz").write_bytes(gzip.compress("trois\u2028\n".encode()))
    with tarfile.open(tmp_path / "c.tar", "w") as archive:
        archive.add(tmp_path / "b.fr.gz", "./b.fr.gz")  # as `tar c .` writes it
    files = ", ".join(f'"{name}" = {{ url = "-" }}' for name in (*texts, "b.fr.gz", "c.tar", "other"))
    (tmp_path / "registry.toml").write_text(f"""
        {DESCRIBED.format("thing")}
        thing.files = {{ {files} }}
        [thing.pairs.en-fr.texts]
        train = {{ en = [["a.en"], ["b.en"], ["b.en"]], fr = [["a.fr"], ["b.fr.gz"], ["c.tar", "b.fr.gz"]] }}
    """)
    corpus = corpora.find("thing", ("fr", "en"), tmp_path / "registry.toml")
    corpus.fetch(tmp_path, tmp_path)
    assert list(corpus.pairs("train")) == [("1", "un"), ("2", "deux")] + 2 * [("3", "trois\u2028")]
    text = (tmp_path / "registry.toml").read_text().replace('url = "-"', 'url = "elsewhere"')
    elsewhere = write(tmp_path / "elsewhere.toml", [text])
    assert corpora.find("thing", ("fr", "en"), elsewhere).identity() != corpus.identity()  # there is no checksum
    write(tmp_path / "a.fr", ["un"])
    assert_error("a.en and a.fr have different numbers", corpus.pairs, "train")


BIBLE = """\ufeff<?xml version="1.0" encoding="utf-8"?>
<XMLBIBLE>
  <BIBLEBOOK bname="{0}" bnumber="{1}" bsname="x">
{2}
  </BIBLEBOOK>
</XMLBIBLE>
"""


def bible(path, books):
    """A tar archive with books of chapters of verses: {name: [[verse, …], …]}."""
    with tarfile.open(path, "w:gz") as tar:
        for number, (name, chapters) in enumerate(books.items(), 1):
            lines = []
            for chapter, verses in enumerate(chapters, 1):
                lines.append(f'<CHAPTER cnumber="{chapter}">')
                lines += [f'<VERS vnumber="{n}">{verse}</VERS>' for n, verse in enumerate(verses, 1)] + ["</CHAPTER>"]
            text = BIBLE.format(name, number, "\n".join(lines)).encode()
            entry = tarfile.TarInfo(f"package/text/{name}.xml")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))


def test_verses_of_two_bibles(tmp_path):
    """By their numbers, without notes and marks; not of a chapter that the two divide otherwise."""
    note = "das <NOTE>ja</NOTE>Licht <DIV><NOTE>oder: hell</NOTE></DIV>war gut"
    german = [["Am Anfang", note], ["Ein Psalm", "Herr, höre"]]
    bible(tmp_path / "de.tgz", {"Mose": german, "Ruth": [["Und es geschah"]]})
    english = [["In the beginning", "it [was] good &lt;[written from Rome.]&gt; &amp; light"], ["LORD, hear"]]
    bible(tmp_path / "en.tgz", {"Mose": english, "Ruth": [["Now it came to pass"]]})
    (tmp_path / "registry.toml").write_text(f"""
        {DESCRIBED.format("bible")}
        bible.files = {{ "de.tgz" = {{ url = "-" }}, "en.tgz" = {{ url = "-" }} }}
        bible.pairs.de-en.verses = {{ de = ["de.tgz", "package/text"], en = ["en.tgz", "package/text"] }}
    """)
    corpus = corpora.find("bible", ("en", "de"), tmp_path / "registry.toml")
    corpus.fetch(tmp_path, tmp_path)
    expected = [("Am Anfang", "In the beginning"), ("das Licht war gut", "it was good  & light")]
    assert list(corpus.pairs("train")) == [*expected, ("Und es geschah", "Now it came to pass")]
    corpus.entry["verses"]["en"][1] = "package"
    assert_error("^en.tgz: holds no verses in package; .*registry", corpus.pairs, "train")
    registry = tmp_path / "registry.toml"
    registry.write_text(registry.read_text().replace('"package/text"], en', "], en"))
    words = "verses of de-en have to be an archive and a folder of each language"
    assert_error(words, corpora.read_registry, registry)
