"""A corpus that is always prepared in one way comes out as its published script leaves it."""

import contextlib
import io
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor

import prepare
import pytest
from preparation import parallel
from sacremoses import MosesTokenizer


def segments(lines) -> str:
    marked = "".join(f'<seg id="{number}"> {line} </seg>\n' for number, line in enumerate(lines))
    return f'<?xml version="1.0"?>\n<doc>\n{marked}</doc>\n'


def talk(lines) -> str:
    """A talk of IWSLT's training text."""
    head = ["<url>http://ted.com</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>"]
    head += [f"<title>{lines[0]}</title>", f"<description>{lines[1]}</description>"]
    return "".join(f"{line}\n" for line in (*head, *lines[2:]))


SETS = "TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012".split()
# Normalised, the last word would be one token.
WORDS = 'der die das Haus, sagte „gut“ "gut" und l\'Homme (Applaus) z.B. 5,5 so–so'.split()


@pytest.fixture(scope="module")
def texts():
    """300 lines in two languages, some of them too short or long, and one pair twice."""
    generator = random.Random(6)
    texts = {"de": [], "en": []}
    for number in range(300):
        least, most = (0, 12) if number % 9 else (100, 200)
        for lines in texts.values():
            lines.append(" ".join(generator.choices(WORDS, k=generator.randrange(least, most))))
    for lines in texts.values():
        lines[17] = lines[16]
    return texts


@pytest.fixture(scope="module")
def mirror(texts, tmp_path_factory):
    """A folder with an archive of IWSLT14's form."""
    folder = tmp_path_factory.mktemp("mirror")
    with tarfile.open(folder / "de-en.tgz", "w:gz") as archive:
        for language, lines in texts.items():
            contents = {f"train.tags.de-en.{language}": talk(lines)}
            for name in SETS:
                contents[f"IWSLT14.{name}.de-en.{language}.xml"] = segments([f"{name} e\u0301 it’s {language}"] * 3)
            for name, text in contents.items():
                entry = tarfile.TarInfo(f"de-en/{name}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
    return folder


def iwslt14(mirror, output, *options):
    """Prepares the corpus in a folder; returns the status."""
    languages = ["--source-lang", "de", "--target-lang", "en", "--lowercase", "--bpe-operations", "50"]
    places = ["--mirror", str(mirror), "--output", str(output), "--workers", "1"]
    return prepare.main(["iwslt14", *languages, *places, *options])


@pytest.fixture(scope="module")
def prepared(mirror, tmp_path_factory):
    """The folder of a preparation, and the output."""
    output = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as shown:
        patch.setattr(parallel, "CHUNK", 1)  # more tasks than wait at a time
        assert iwslt14(mirror, output) == 0
    return output, shown.getvalue()


def test_the_standard_split_of_iwslt14(prepared, texts):
    """Against the steps of fairseq's prepare-iwslt14.sh written out."""
    output, shown = prepared
    assert shown.count("\n300 pairs: ") == 1  # however many were dropped

    def tokenised(language):
        tokeniser = MosesTokenizer(lang=language)
        return [tokeniser.tokenize(line, return_str=True).lower() for line in texts[language]]

    pairs = [list(pair) for pair in zip(*map(tokenised, texts))]
    lengths = [sorted(len(side.split()) for side in pair) for pair in pairs]
    kept = [pair for pair, (a, b) in zip(pairs, lengths) if 1 <= a and b <= 175 and b <= 1.5 * a]
    assert 60 < len(kept) < 280
    expected = {
        "train": [pair for number, pair in enumerate(kept, 1) if number % 23],
        "valid": [pair for number, pair in enumerate(kept, 1) if number % 23 == 0],
        "test": [
            [f"{name.lower()} é it &apos; s de", f"{name.lower()} é it &apos;s en"] for name in SETS for _ in "123"
        ],
    }
    for part, pairs in expected.items():
        folder = output / ("clean" if part == "train" else "tok")
        found = [(folder / f"{part}.{language}").read_text(encoding="utf-8").splitlines() for language in texts]
        assert [list(pair) for pair in zip(*found)] == pairs
    assert not (output / "bpe/vocabulary").exists()


def test_text_that_is_prepared_like_iwslt14_is_not_normalised(prepared, tmp_path):
    output, _ = prepared
    files = [str(output / f"raw/train.{language}") for language in ("de", "en")]
    places = ["--like", str(output), "--output", str(tmp_path), "--workers", "1"]
    assert prepare.main(["--train", *files, *places]) == 0
    assert "„" in (tmp_path / "tok/train.de").read_text(encoding="utf-8")


def test_fewer_pairs_of_iwslt14(mirror, tmp_path):
    assert iwslt14(mirror, tmp_path, "--max-pairs", "20") == 0
    assert (tmp_path / "raw/train.de").read_text(encoding="utf-8").count("\n") == 20


def test_a_published_split_of_which_no_pair_is_left(mirror, tmp_path, capsys):
    assert iwslt14(mirror, tmp_path, "--max-length", "1") == 1
    assert "no train pairs: only " in capsys.readouterr().err


def test_a_text_is_read_no_further_than_its_workers_are():
    """WMT14's would fill the memory."""
    chunks = iter(range(1000))
    with ThreadPoolExecutor(1) as pool:
        assert next(parallel._in_order(pool, int, chunks, ())) == 0
    assert next(chunks) < 100


def test_no_bar_fills_a_log_file():
    assert parallel.progress([], "", file=io.StringIO()).disable
