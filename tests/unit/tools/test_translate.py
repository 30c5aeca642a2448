"""python -m user_dir.tools.translate: one line out for one line in, from and to anywhere; bad input is one line."""

import gzip
import io
import os
import shutil
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tqdm import tqdm

from user_dir.serving.translator import Hypothesis, Translator
from user_dir.tools import translate as tool
from user_dir.tools.shared import engine

from support import write_preparation

# Line ends of other systems and scripts, which are none here; without a newline at the end.
LINES = ["w1 w2", "", "w3\u2028w4", "w5\x85w6 w7", "w8\r", "w9\rw10", "漢字 \x00 \x0c", "w11\x1e", " ", "w12"]


@pytest.fixture
def model(saved):
    """Checkpoint and data folder, with what data-prep leaves beside it, as options of the command."""
    _, path, data = saved("vaswani_transformer_base")
    write_preparation(data)
    return [str(path), "--data", str(data)]


@pytest.fixture
def echo(monkeypatch):
    """Translations of a text are T1(text), T2(text), …, to tell lines apart; prepared text is as it stands."""
    monkeypatch.setattr(Translator, "encode", lambda self, text: " ".join(text.split()))

    def best(row, nbest):
        return [Hypothesis(f"T{number}({row})" if row else "", -number / 2) for number in range(1, nbest + 1)]

    monkeypatch.setattr(Translator, "search", lambda self, rows, nbest=1, **options: [best(row, nbest) for row in rows])


def translations(lines):
    return "".join(f"T1({' '.join(line.split())})\n" if line.split() else "\n" for line in lines)


def test_sentences_of_a_line(model, monkeypatch, capsys):
    """One by one, or together where that is asked for."""
    best = lambda self, rows, nbest, **_: [[Hypothesis(f"[{row}]", 0)] for row in rows]  # noqa: E731
    monkeypatch.setattr(Translator, "best", best)

    def translated(*options):
        tool.main([*model, "w1 w2. W3 ?", "w2", *options])
        return capsys.readouterr().out.splitlines()[0].count("[")

    assert translated() == translated("--split-sentences") == 2
    assert translated("--no-split-sentences") == translated("--pretokenised") == 1
    with pytest.raises(SystemExit, match="do not split it"):
        translated("--split-sentences", "--pretokenised")
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(SystemExit, match="sentencex is not installed: pip install"):
        translated()
    assert translated("--no-split-sentences") == 1


def test_arguments(model, echo, capsysbinary):
    tool.main([*model, "w1  w2", "", "a\nb"])
    assert capsysbinary.readouterr().out.decode() == "T1(w1 w2)\n\nT1(a b)\n"


@pytest.mark.parametrize("chunk", [1, 3, 2000])
def test_lines_of_a_file_and_of_a_pipe(model, echo, tmp_path, monkeypatch, capsysbinary, chunk):
    monkeypatch.setattr(tool, "CHUNK", chunk)
    text = "\n".join(LINES).encode()
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + text)  # a byte order mark, as editors elsewhere write it
    tool.main([*model, "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out").read_bytes().decode() == translations(LINES)
    assert sorted(os.listdir(tmp_path)) == sorted(["in", "out", "checkpoint.pt", "data-bin", "bpe", "manifest.json"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    tool.main(model)
    assert capsysbinary.readouterr().out.decode() == translations(LINES)


def test_a_program_that_waits_for_each_answer(model, echo, monkeypatch, capsysbinary):
    answers = []

    def lines():
        for word in ("w1", "w2"):
            yield f"{word}\n".encode()
            answers.append(capsysbinary.readouterr().out.decode())

    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=lines(), isatty=lambda: False))
    tool.main([*model, "--buffer-size", "1"])
    assert answers == ["T1(w1)\n", "T1(w2)\n"]


def test_pipes_with_names(model, echo, tmp_path):
    """--input <(zcat text.gz) --output >(gzip): read once, and not replaced by a file."""
    for name in ("in", "out"):
        os.mkfifo(tmp_path / name)
    with ThreadPoolExecutor() as pool:
        pool.submit((tmp_path / "in").write_text, "w1\nw2\n")
        found = pool.submit((tmp_path / "out").read_text)
        tool.main([*model, "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")])
        assert found.result(10) == "T1(w1)\nT1(w2)\n"
    assert (tmp_path / "out").is_fifo()


def test_the_bar_counts_lines(model, echo, tmp_path, monkeypatch):
    """It is not shown among translations that are read on the same screen."""
    bars = []

    def noted(disable, **given):
        bars.append((tqdm(disable=False, file=io.StringIO(), **given), disable))
        return bars[-1][0]

    (tmp_path / "in").write_text("w1\n\nw2\n")
    monkeypatch.setattr(tool, "tqdm", noted)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for given in (["w1", "", "w2"], ["--input", str(tmp_path / "in")]):
        for output, hidden in ([], True), (["--output", str(tmp_path / "out")], None):
            tool.main([*model, *given, *output])
            bar, disable = bars.pop()
            assert (bar.total, bar.n, disable) == (3, 3, hidden)


def test_a_file_can_be_replaced_by_its_translation(model, echo, tmp_path):
    (tmp_path / "text").write_text("w1\nw2\n")
    tool.main([*model, "--input", str(tmp_path / "text"), "--output", str(tmp_path / "text")])
    assert (tmp_path / "text").read_text() == "T1(w1)\nT1(w2)\n"


def test_a_model_is_not_replaced_by_its_translations(model, echo, refusal):
    refusal(tool.main, *model, "w1", "--output", model[0], match="checkpoint.pt is the input: name another file")
    other = shutil.copy(model[0], f"{model[0]}.2")
    refusal(tool.main, *model, "w1", "--ensemble", other, "--output", other, match="checkpoint.pt.2 is the input")


def test_prompt(model, echo, monkeypatch, capsysbinary):
    """Each line is answered before the next one is asked for; the prompt does not mix with the translations."""
    asked, translated = [], tool.translated

    def noted(*arguments):
        for part in translated(*arguments):
            asked.append(capsysbinary.readouterr().err)
            yield part

    typed = types.SimpleNamespace(buffer=io.BytesIO(b"w1\n\nw2"), isatty=lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    monkeypatch.setattr(tool, "translated", noted)
    tool.main(model)
    done = capsysbinary.readouterr()
    assert b"src" in asked[0] and [text.count(b"> ") for text in asked] == [1, 1, 1]
    assert done.out == b"T1(w2)\n"  # the ones before were read with the prompts


def test_nbest(model, echo, capsysbinary, monkeypatch):
    monkeypatch.setattr(tool, "CHUNK", 2)
    tool.main([*model, "--nbest", "2", "a", "", "b"])
    assert capsysbinary.readouterr().out.decode().splitlines() == [
        *("1\t-0.5000\tT1(a)", "1\t-1.0000\tT2(a)"),
        *("2\t-0.5000\t", "2\t-1.0000\t"),
        *("3\t-0.5000\tT1(b)", "3\t-1.0000\tT2(b)"),
    ]


def test_options_reach_the_search(model, monkeypatch, capsysbinary):
    seen = {}

    def search(self, rows, nbest, **options):
        seen.update(options, nbest=nbest, processes=self.processes, autocast=self.models[0].decoder.cfg.autocast)
        return [[Hypothesis("", 0)]]

    monkeypatch.setattr(Translator, "search", search)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    options = "--beam 3 --lenpen 1.5 --lenpen-form vaswani --nbest 2 --max-tokens 7 --batch-size 5 --autocast bf16"
    tool.main([*model, *options.split(), "--device", "cpu", "w1"])
    del seen["advance"]
    form = {"lenpen": 1.5, "lenpen_form": "vaswani"}
    expected = {"beam": 3, **form, "nbest": 2, "max_tokens": 7, "batch_size": 5, "processes": 3, "autocast": "bf16"}
    assert seen == expected
    monkeypatch.setattr(engine, "precision", lambda *_: "bf16")
    for option, found in (["--autocast", "off"], "off"), ([], "bf16"):
        tool.main([*model, "--device", "cpu", *option, "w1"])
        assert seen["autocast"] == found


def test_ensemble(model, monkeypatch, capsysbinary, tmp_path):
    seen, nothing = [], [[Hypothesis("", 0)]]
    monkeypatch.setattr(Translator, "search", lambda self, *_, **__: seen.append(len(self.models)) or nothing)
    shutil.copy(model[0], tmp_path / "average.pt")  # the average in a run's folder
    tool.main([model[0], "w1", *model[1:], "--ensemble", model[0], "--ensemble", str(tmp_path)])
    assert seen == [3]


def test_lines_too_long(saved, tmp_path, capsysbinary):
    """Said by their number; translated in pieces, or refused with nothing written."""
    _, path, data = saved("vaswani_transformer_base", max_source_positions=41)
    write_preparation(data)
    (tmp_path / "in").write_text("w1\n" + "w1 " * 60 + "\n" + "w2 " * 40 + "\n")
    command = f"{path} --data {data} --input {tmp_path}/in --output {tmp_path}/out --beam 1 --buffer-size 1".split()
    long = "line 2 has a sentence of 60 subwords and the model takes 40"
    with pytest.raises(SystemExit, match=f"{long}: shorten it, or"):
        tool.main([*command, "--too-long", "refuse"])
    assert not [*tmp_path.glob("out*")]
    tool.main(command)
    said = capsysbinary.readouterr().err.decode()
    assert f"nmt-translate: {long}: translated in pieces\n" in said and said.count("in pieces") == 1
    assert (tmp_path / "out").read_text().count("\n") == 3
    (tmp_path / "in").write_text("w1 " * 30 + ". " + "W1 " * 30 + "\n" + "w1 . " + "W2 " * 60 + "\n")
    with pytest.raises(SystemExit, match=f"{long}: shorten it, or"):  # each sentence of a line counts alone
        tool.main([*command, "--too-long", "refuse", "--buffer-size", "2"])


@pytest.mark.parametrize(
    "more, words",
    [
        (["--input", "nowhere"], "nowhere"),
        (["w1", "--output", "nowhere/out"], "nowhere/out"),
        (["w1", "--device", "nowhere"], "there is no device nowhere .*: .*such as cpu"),
        (["--input", "latin1"], "latin1, line 2: not UTF-8 at byte 4; convert it first"),
        (["--input", "wide"], "wide, line 1: not UTF-8 at byte 1; convert it first, .* iconv -f utf-16 "),
        (["--input", "wider"], "wider, line 1: not UTF-8 at byte 1; convert it first, .* iconv -f utf-16 "),
        (["--input", "packed"], "packed, line 1: not UTF-8 at byte 2; decompress it first, with gunzip"),
        (["w1", os.fsdecode(b"w1 \xe9")], "the text, line 2: not UTF-8 at byte 4"),
        (["w1", "--ensemble", "nowhere.pt"], "there is no checkpoint nowhere.pt"),
        (["w1", "--lenpen", "nan"], "lenpen nan: give a number"),
    ],
)
def test_bad_input_is_one_line(model, tmp_path, monkeypatch, more, words, refusal):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin1").write_bytes("w1\nété\n".encode("latin-1").replace(b"\xe9t\xe9", b"w1 \xe9"))
    (tmp_path / "wide").write_bytes("w1\n".encode("utf-16"))
    (tmp_path / "wider").write_bytes("\ufeffw1\n".encode("utf-16-be"))
    (tmp_path / "packed").write_bytes(gzip.compress(b"w1\n"))
    refusal(tool.main, *model, *more, match=words)


def test_a_file_is_refused_before_a_line_is_translated(model, tmp_path, monkeypatch, capsysbinary):
    monkeypatch.setattr(tool, "CHUNK", 1)
    (tmp_path / "in").write_bytes(b"w1\nw1 \xe9\n")
    with pytest.raises(SystemExit, match="line 2: not UTF-8"):
        tool.main([*model, "--input", str(tmp_path / "in")])
    assert capsysbinary.readouterr().out == b""


@pytest.mark.parametrize("stream, remedy", [("stdin", "give a text or --input"), ("stdout", "give --output")])
def test_a_closed_stream(model, monkeypatch, stream, remedy, refusal):
    """… <&- or >&-"""
    monkeypatch.setattr(sys, stream, None)
    refusal(tool.main, *model, match=f"the standard {stream[3:]}put is closed: {remedy}")


def test_a_file_instead_of_a_closed_stream(model, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", None)
    tool.main([*model, "w1 w2", "--output", str(tmp_path / "translation")])
    assert (tmp_path / "translation").read_text().count("\n") == 1


def test_no_message_among_the_translations(model, monkeypatch, capsys):
    """… 2>&-; print and tqdm would write to the standard output, or fail."""
    monkeypatch.setattr(sys, "stderr", None)
    tool.main([*model, "w1 w2"])
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    "options, words",
    [
        (["--beam", "0"], "--beam: invalid whole number, at least 1, value: '0'"),
        (["w1", "--input", "file"], "either text or --input"),
    ],
)
def test_bad_options(model, options, words, capsys):
    with pytest.raises(SystemExit) as stop:
        tool.main([*model, *options])
    assert stop.value.code == 2 and words in capsys.readouterr().err
