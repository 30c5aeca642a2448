"""Text as it comes from elsewhere: what can be used stays beside its translation; what cannot is refused in a line."""

import bz2
import gzip
import json
import lzma
import os
import re

import prepare
import pytest
from preparation.cleaning import LONGEST_WORD
from unit.data_prep.support import sentences
from unit.data_prep.test_prepare import assert_refused, run

LONG = "x" * 10_000_000
# A source sentence, the tokens that are made of it (None: the pair is left out), and a mark that finds it.
ODD = {
    "CRLF": ("odd crlf\r", "odd crlf"),
    "NUL": ("odd \0nul", "odd nul"),
    "control characters": ("odd \x07bell \x1b[31m", "odd bell &#91; 31m"),
    "separators of files": ("odd \x1cfs\x1dgs", "odd fs gs"),
    "line separator": ("odd line\u2028separator", "odd line separator"),
    "next line": ("odd next\x85line", "odd next line"),
    "vertical tab": ("odd vertical\x0btab\x0cfeed", "odd vertical tab feed"),
    "spaces": ("  odd  many   spaces ", "odd many spaces"),
    "tab": ("odd tab\tulator", "odd tab ulator"),
    "no-break spaces": ("odd no\u00a0break\u202fspaces", "odd no break spaces"),
    "combining": ("odd e\u0301te\u0301", "odd \u00e9t\u00e9"),
    "combining alone": ("odd \u0301\u0302", "odd \u0301 \u0302"),
    "right to left": 2 * ("odd \u05e9\u05dc\u05d5\u05dd \u0639\u0627\u0644\u0645",),
    "emoji": ("odd 👩\u200d💻", "odd 👩 \u200d 💻"),
    "beyond the BMP": ("odd 𝔘𝔫", "odd 𝔘 𝔫"),
    "only punctuation": ("?! … ;", "? ! ... ;"),
    "subword marks": ("odd foo@@ bar@@", "odd foo @ @ bar @ @"),
    "special symbols": ("odd <s> </s>", "odd &lt; s &gt; &lt; / s &gt;"),
    "10 MB of words": ("odd " * 2_500_000, None),
    "10 MB of letters": (LONG, None),
    "one-sided": ("", None),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The output folder of ODD among ordinary sentences, with a byte order mark and without a newline at the end."""
    folder = tmp_path_factory.mktemp("odd")
    ordinary = sentences(300)
    sources = [source for source, _ in ODD.values()] + [first for first, _ in ordinary]
    targets = [source and f"target {number} of words" for number, (source, _) in enumerate(ODD.values())]
    targets = [target or "only here" for target in targets] + [second for _, second in ordinary]
    targets[[*ODD].index("10 MB of letters")] = LONG
    (folder / "a.fr").write_bytes(b"\xef\xbb\xbf" + "\n".join(sources).encode())
    (folder / "b.en").write_bytes("\n".join(targets).encode())
    for part in ("valid", "test"):
        for language in ("fr", "en"):
            (folder / f"{part}.{language}").write_text("un deux\ntrois\n")
    words = ["--train", "a.fr", "b.en", "--valid", "valid.fr", "valid.en", "--test", "test.fr", "test.en"]
    words = [str(folder / word) if "." in word else word for word in words] + ["--bpe-operations", "50"]
    languages = ["--source-lang", "fr", "--target-lang", "en", "--output", str(folder / "out"), "--workers", "1"]
    assert prepare.main(words + languages) == 0
    return folder / "out"


def rows(prepared, stage):
    """Both sides of the training text."""
    texts = [(prepared / stage / f"train.{language}").read_bytes().decode() for language in ("fr", "en")]
    assert all(text.endswith("\n") for text in texts)
    return [text.split("\n")[:-1] for text in texts]


@pytest.mark.parametrize("kind", ODD)
def test_odd_text(prepared, kind):
    """It is beside its own translation in every stage."""
    source, expected = ODD[kind]
    others = {"one-sided": "only here", "10 MB of letters": LONG}
    target = others.get(kind, f"target {[*ODD].index(kind)} of words")
    for stage in ("clean", "bpe"):
        found = {second.replace("@@ ", ""): first for first, second in zip(*rows(prepared, stage), strict=True)}
        first = found.get(target)
        assert (first and first.replace("@@ ", "")) == expected, stage


def test_all_stages_are_in_step(prepared):
    stages = json.loads((prepared / "manifest.json").read_text())["stages"]
    dropped = stages["raw"]["counts"]["dropped"]
    assert {"empty": 1, "too long": 1, "word too long": 1}.items() <= dropped.items()
    counts = stages["data-bin"]["counts"]
    assert counts["train.fr"]["sentences"] == counts["train.en"]["sentences"] == len(rows(prepared, "bpe")[0])
    assert all(text == " ".join(text.split()).lstrip("\ufeff") for text in rows(prepared, "raw")[0])
    assert LONGEST_WORD == 1000


PAIRS = "".join(f"{first}\n" for first, _ in sentences(60)).encode()
REFUSED = {
    "a surrogate": (b"un\n\xed\xa0\x80\n", b"one\ntwo\n", [], "a.fr, line 2: not valid UTF-8 at byte 1.*iconv"),
    "a picture": (b"\x89PNG\r\n\x1a\n\xff\n", b"one\n", [], "a.fr, line 1: not valid UTF-8"),
    "a compressed text": (gzip.compress(b"un\n"), b"one\n", [], "a.fr, line 1: .*; decompress the file first"),
    "bzip2": (bz2.compress(b"un\n"), b"one\n", [], "a.fr, line 1: .*; decompress the file first, with bunzip2"),
    "xz": (lzma.compress(b"un\n"), b"one\n", [], "a.fr, line 1: .*; decompress the file first, with unxz"),
    "zip": (b"PK\3\4\x14\0\0\0\x08\0\xff", b"one\n", [], "a.fr, line 1: .*; decompress the file first, with unzip"),
    "UTF-16": ("un\n".encode("utf-16"), b"one\n", [], "a.fr, line 1: not valid UTF-8 at byte 1; .*iconv -f utf-16"),
    "a cut letter": (b"un\nd\xc3", b"one\ntwo\n", [], "a.fr, line 2: not valid UTF-8"),
    "only line ends": (b"\r\n" * 9, b"\r\n" * 9, [], "only 0 pairs are clean .*'empty': 9.*give more text"),
    "an empty source": (b"", b"one\n", [], "a.fr: the file is empty"),
    "an empty target": (b"un\n", b"", [], "b.en: the file is empty"),
    "one line too long": (b"x" * 2**24 + b"x\n", b"y\n", [], "a.fr, line 1: longer than 16,777,216 bytes; give a text"),
    "too much held out": (PAIRS, PAIRS, ["--held-out", "60"], "no .* pairs: .*change --held-out"),
    "no short sentence": (PAIRS, PAIRS, ["--max-length", "1"], "pairs: only 0 pairs are clean .*too long"),
    "no pairs wanted": (PAIRS, PAIRS, ["--max-pairs", "0"], "--max-pairs.*at least 1"),
    "a ratio below 1": (PAIRS, PAIRS, ["--max-ratio", "0.5"], "--max-ratio.*at least 1"),
    "no workers": (PAIRS, PAIRS, ["--workers", "0"], "--workers.*at least 1"),
    "test of one side": (PAIRS, PAIRS, ["--test", "{folder}/a.fr", "{folder}/nowhere"], "nowhere: no such file; check"),
    "one file for valid and test": (
        *(PAIRS, PAIRS, [word for part in ("--valid", "--test") for word in (part, "{folder}/a.fr", "{folder}/b.en")]),
        "--valid and --test share a file",
    ),
    "one side for valid and test": (
        *(PAIRS, PAIRS, "--valid {folder}/a.fr {folder}/b.en --test {folder}/c.fr {folder}/b.en".split()),
        "--valid and --test share a file",
    ),
    "a folder for a text": (PAIRS, PAIRS, ["--test", "{folder}", "{folder}/a.fr"], "no such file; check the path"),
    "a pipe for a text": (PAIRS, PAIRS, ["--test", "{folder}/pipe", "{folder}/a.fr"], "pipe: not an ordinary file"),
    "uneven valid": (PAIRS, PAIRS, ["--valid", "{folder}/a.fr", "{folder}/one"], "60 lines but .*one has 1: .*align"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_in_one_line(capsys, tmp_path, kind):
    first, second, more, words = REFUSED[kind]
    for name, content in (("a.fr", first), ("b.en", second), ("c.fr", PAIRS), ("one", b"one\n")):
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    more = [word.format(folder=tmp_path) for word in more]
    outcome = run(capsys, tmp_path, "--train", tmp_path / "a.fr", tmp_path / "b.en", *more)
    assert_refused(outcome, tmp_path)
    assert re.search(words, outcome[1])


EXISTS = "a file of this name exists; name another folder"
PLACES = [("file", EXISTS), ("file/below", "Not a directory"), ("file_link", EXISTS), ("file_link/below", EXISTS)]


@pytest.mark.parametrize("place, words", PLACES)
def test_no_folder_to_write_to(capsys, tmp_path, place, words):
    for name in ("a.fr", "b.en", "file"):
        (tmp_path / name).write_bytes(PAIRS)
    (tmp_path / "file_link").symlink_to("nowhere")  # such as a disk that is not mounted
    text = ["--train", tmp_path / "a.fr", tmp_path / "b.en", "--source-lang", "fr", "--target-lang", "en"]
    status = prepare.main([*map(str, text), "--output", str(tmp_path / place)])
    line = capsys.readouterr().err
    assert status == 1 and re.fullmatch(f"prepare.py: .*/file.*: {words}\n", line)
    assert (tmp_path / "file").read_bytes() == PAIRS
