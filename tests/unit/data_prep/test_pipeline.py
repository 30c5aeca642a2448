"""A corpus that is always prepared in one way comes out as its published script leaves it."""

import io
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor

import prepare
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


def test_the_standard_split_of_iwslt14(tmp_path, capsys, monkeypatch):
    """An archive of that form, against the steps of fairseq's prepare-iwslt14.sh written out."""
    monkeypatch.setattr(parallel, "CHUNK", 1)  # more tasks than wait at a time
    generator = random.Random(6)
    # Normalised, the last word would be one token.
    words = 'der die das Haus, sagte „gut“ "gut" und l\'Homme (Applaus) z.B. 5,5 so–so'.split()
    texts = {"de": [], "en": []}
    for number in range(300):
        least, most = (0, 12) if number % 9 else (100, 200)
        for lines in texts.values():
            lines.append(" ".join(generator.choices(words, k=generator.randrange(least, most))))
    texts["de"][17] = texts["de"][16]
    texts["en"][17] = texts["en"][16]  # a duplicate
    sets = "TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012"
    with tarfile.open(tmp_path / "de-en.tgz", "w:gz") as archive:
        for language, lines in texts.items():
            contents = {f"train.tags.de-en.{language}": talk(lines)}
            for name in sets.split():
                contents[f"IWSLT14.{name}.de-en.{language}.xml"] = segments([f"{name} e\u0301 it’s {language}"] * 3)
            for name, text in contents.items():
                entry = tarfile.TarInfo(f"de-en/{name}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
    options = ["--source-lang", "de", "--target-lang", "en", "--lowercase", "--bpe-operations", "50", "--workers", "1"]
    assert prepare.main(["iwslt14", *options, "--mirror", str(tmp_path), "--output", str(tmp_path / "out")]) == 0

    assert capsys.readouterr().out.count("\n300 pairs: ") == 1  # however many were dropped
    tokenisers = {language: MosesTokenizer(lang=language) for language in texts}

    def tokenised(language):
        return [tokenisers[language].tokenize(line, return_str=True).lower() for line in texts[language]]

    pairs = [list(pair) for pair in zip(*map(tokenised, texts))]
    lengths = [sorted(len(side.split()) for side in pair) for pair in pairs]
    kept = [pair for pair, (a, b) in zip(pairs, lengths) if 1 <= a and b <= 175 and b <= 1.5 * a]
    assert 60 < len(kept) < 280
    expected = {
        "train": [pair for number, pair in enumerate(kept, 1) if number % 23],
        "valid": [pair for number, pair in enumerate(kept, 1) if number % 23 == 0],
        "test": [
            [f"{name} é it &apos; s de", f"{name} é it &apos;s en"] for name in sets.lower().split() for _ in "123"
        ],
    }
    for part, pairs in expected.items():
        folder = tmp_path / "out" / ("clean" if part == "train" else "tok")
        found = [(folder / f"{part}.{language}").read_text(encoding="utf-8").splitlines() for language in texts]
        assert [list(pair) for pair in zip(*found)] == pairs
    assert not (tmp_path / "out/bpe/vocabulary").exists()

    texts = [str(tmp_path / f"out/raw/train.{language}") for language in ("de", "en")]
    like = ["--train", *texts, "--like", str(tmp_path / "out"), "--output", str(tmp_path / "more"), "--workers", "1"]
    assert prepare.main(like) == 0 and "„" in (tmp_path / "more/tok/train.de").read_text(encoding="utf-8")

    few = [*options, "--max-pairs", "20", "--mirror", str(tmp_path), "--output", str(tmp_path / "few")]
    assert prepare.main(["iwslt14", *few]) == 0
    assert (tmp_path / "few/raw/train.de").read_text(encoding="utf-8").count("\n") == 20

    given = [*options, "--max-length", "1", "--mirror", str(tmp_path), "--output", str(tmp_path / "none")]
    assert prepare.main(["iwslt14", *given]) == 1
    assert "no train pairs: only " in capsys.readouterr().err


def test_a_text_is_read_no_further_than_its_workers_are():
    """WMT14's would fill the memory."""
    chunks = iter(range(1000))
    with ThreadPoolExecutor(1) as pool:
        assert next(parallel._in_order(pool, int, chunks, ())) == 0
    assert next(chunks) < 100


def test_no_bar_fills_a_log_file():
    assert parallel.progress([], "", file=io.StringIO()).disable
