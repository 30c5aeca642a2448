"""Unusual text through nmt-translate and fairseq-interactive: an answer or a clear refusal, and no line shifted.

The model is one of tests/old_checkpoints. Lines through a model that echoes them are tested in
unit/tools/test_translate.py.
"""

import signal
import subprocess
import sys

import pytest

from user_dir.serving.translator import Translator
from user_dir.tools import translate as tool

from support import OLD, PROJECT, hypotheses, wait_for

MODEL = [str(OLD / "weighted_relative_transformer.pt"), "--data", str(OLD / "data-bin")]
KNOWN = (OLD / "test.fr").read_text(encoding="utf-8").splitlines()
UNUSUAL = {
    "empty": "",
    "spaces": " \t\u00a0\u3000 ",
    "unknown characters": "漢字 ☃ ß",
    "emoji": "Le 😀 👩\u200d👩\u200d👧 🇫🇷 👍🏽.",
    "mixed scripts": "Le чат 猫 voit la κόρη.",
    "right to left": "الرجل يرى القط. שלום!",
    "marks of direction": "\u202ele chat\u202c \u200fvoit\u2066 la fille\u2069",
    "combining": "Le chat e\u0301trange voit z\u0351\u036b\u0343\u036a\u0302a\u0334\u0308.",
    "line separator": "Le chat\u2028voit la fille.\u2029",
    "next line": "Le chat\x85voit la fille.",
    "other ends of lines": "Le chat\x0b\x0c\x1c\x1d\x1evoit.",
    "NUL": "Le chat\x00voit \x00.",
    "control characters": "Le \x01\x07\x1b[31mchat\x1b[0m\x7f voit\x9f.",
    "byte order mark": "\ufeffLe chat voit la fille.",
    "zero width": "Le\u200bchat\u00advoit\u2060la fille.",
    "no characters": "\ufffe\uffff\U0010ffff\ue000\ufffd",
    "marks of subwords": "Le ch@@ at@@ @@ voit @-@ la fille @@",
    "words of the dictionary": "<s> <pad> </s> <unk> <Lua heritage>",
    "markup": "&amp; &lt;br&gt; &#10; &apos; <b>Le chat</b> [x] | \\n %s",
    "punctuation": "!?.,;:…«»“”\"'()[]{}",
    "a long word": "chat" * 700,
    "2,000 words": "le chat " * 1000,
    "numbers": "1 234 567,89 € ½ ² ٣ 五 １２",
}
# Between lines whose translations are known, so that a shift is seen.
LINES = [line for text, known in zip(UNUSUAL.values(), KNOWN * 2) for line in (known, text)]
GREEDY = ["--beam", "1"]
QUIET = ["--engine", "torch", "--no-split-sentences"]  # nothing is chosen, and nothing said of it


@pytest.fixture(scope="module")
def translator():
    return Translator(MODEL[0], data=MODEL[2])


@pytest.fixture(scope="module")
def known(translator):
    """By text, its translation."""
    found = dict(zip(KNOWN, translator.translate(KNOWN, beam=1)))
    assert len({*found.values()}) == len(KNOWN)
    return found


def test_translate(translator, known, tmp_path, capsys, monkeypatch):
    """As each text alone, also where a chunk of lines ends; what is too long is said."""
    monkeypatch.setattr(tool, "CHUNK", 7)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8", newline="")
    tool.main([*MODEL, *GREEDY, "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")])
    found = (tmp_path / "out").read_bytes().decode().removesuffix("\n").split("\n")
    assert found[::2] == [known[line] for line in LINES[::2]]
    alone = {name: translator.translate([text], beam=1)[0] for name, text in UNUSUAL.items()}
    assert dict(zip(UNUSUAL, found[1::2])) == alone
    assert all(bool(line) == bool(text.split()) for line, text in zip(found[1::2], UNUSUAL.values()))
    number = 2 * [*UNUSUAL].index("2,000 words") + 2
    assert f"line {number} has a sentence of 2000 subwords and the model takes 1023" in capsys.readouterr().err


def test_interactive(call, known, tmp_path):
    """fairseq-interactive, its text tokenised by fairseq: every line has its answer, as all of them in one batch."""
    lines = [line for line in LINES if len(line) < 2000]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    found = interactive(call, tmp_path / "in", "--buffer-size", "100", "--max-tokens", "6000")
    assert len(found) == len(lines)
    assert all(text == known.get(line, text) for line, text in zip(lines, found))


def interactive(call, path, *options):
    """The translations, by line."""
    model = ["--user-dir", PROJECT / "user_dir", "--path", MODEL[0], "-s", "fr", "-t", "en", "--num-workers", "0"]
    text = ["--tokenizer", "moses", "--moses-no-dash-splits", "--bpe", "subword_nmt"]
    text += ["--bpe-codes", OLD / "bpe/codes", "--input", path]
    search = [*GREEDY, "--lenpen", "1", "--max-len-a", "1", "--max-len-b", "50"]
    printed = call("fairseq-interactive", MODEL[2], *model, *text, *search, *options)
    return [text for _, text in hypotheses(printed, "D")]


def test_nothing_at_all(tmp_path):
    (tmp_path / "in").touch()
    tool.main([*MODEL, "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize(
    "stop, status, said",
    [
        (lambda process: process.send_signal(signal.SIGINT), 130, b""),
        pytest.param(lambda process: process.stdout.close(), 141, b"", marks=pytest.mark.slow),
    ],
    ids=["Ctrl-C", "a reader that goes away"],
)
def test_stopped_while_it_translates(stop, status, said):
    """After the first 2,000 lines have been written, and with more to come: whole lines, and no traceback."""
    command = [sys.executable, "-W", "ignore", "-m", "user_dir.tools.translate", *MODEL, *GREEDY, *QUIET]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=PROJECT, **pipes) as process:
        process.stdin.write(b"\n" * 2000 + f"{KNOWN[0]}\n".encode() * 2000)
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"
        stop(process)
        if not process.stdout.closed:
            assert process.stdout.read().endswith(b"\n")
        process.stdin.close()
        assert process.stderr.read() == said and process.wait() == status


@pytest.mark.slow
def test_terminated_while_it_writes_a_file(tmp_path):
    (tmp_path / "in").write_text(f"{KNOWN[0]}\n" * 100_000, encoding="utf-8")
    places = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    command = [sys.executable, "-W", "ignore", "-m", "user_dir.tools.translate", *MODEL, *GREEDY, *QUIET, *places]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE) as process:
        wait_for(lambda: [*tmp_path.glob("out.*/out")], process)
        process.terminate()
        assert process.stderr.read() == b"" and process.wait() == 143
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
