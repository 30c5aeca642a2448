"""Tokens and subwords can be undone, and are those of the libraries' commands."""

import pathlib
import random
import subprocess
import sys

import pytest
from preparation import subwords
from preparation.errors import PreparationError
from preparation.tokenising import tokenise_lines
from sacremoses import MosesDetokenizer
from unit.data_prep.support import ORDINARY, TRICKY, sentences, write


@pytest.mark.parametrize("language", ["en", "fr"])
def test_tokens_and_subwords_can_be_undone(tmp_path, capsys, language):
    tokens = tokenise_lines(ORDINARY[language], language, lowercase=False)
    assert all(" &apos;" in line or "&apos; " in line for line in tokens[:1])  # as Moses escapes them
    codes = tmp_path / "codes"
    spaces = ["a .  b "]  # as sacremoses leaves them
    assert subwords.learn([write(tmp_path / "text", tokens * 3 + spaces)], codes, 40) == 40
    assert capsys.readouterr().out == ""
    pieces = subwords.segment_lines(tokens, codes)
    assert all("@@ " in line for line in pieces)
    assert [line.replace("@@ ", "") for line in pieces] == tokens
    assert [MosesDetokenizer(lang=language).detokenize(line.split()) for line in tokens] == ORDINARY[language]
    assert tokenise_lines(["Oh Là I"], language, lowercase=True) == ["oh là i"]
    assert tokenise_lines(["He left. She came."], language, lowercase=True) == ["he left . she came ."]
    for turkic in ("tr", "az"):
        assert tokenise_lines(["Işık İL"], turkic, lowercase=True) == ["ışık il"]


def test_files_are_those_of_the_libraries_commands(tmp_path):
    """sacremoses and subword-nmt on the command line, one after the other, byte by byte."""
    generator = random.Random(5)
    words = [word for lines in ORDINARY.values() for line in lines for word in line.split()] + TRICKY.split()
    lines = [" ".join(generator.choices(words, k=generator.randrange(1, 12))) for _ in range(300)]

    def command(name, *arguments, text):
        entry = pathlib.Path(sys.executable).with_name(name)
        done = subprocess.run([entry, *arguments], input=text.encode(), capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    text = "".join(f"{line}\n" for line in lines)
    normalised = command("sacremoses", "-q", "-l", "fr", "normalize", text=text)
    tokens = command("sacremoses", "-q", "-l", "fr", "tokenize", text=normalised)
    assert "".join(f"{line}\n" for line in tokenise_lines(lines, "fr", False)) == tokens
    expected = command("subword-nmt", "learn-bpe", "-s", "200", text=tokens)
    subwords.learn([write(tmp_path / "tokens", tokens.splitlines())], tmp_path / "codes", 200)
    assert (tmp_path / "codes").read_text(encoding="utf-8") == expected
    pieces = command("subword-nmt", "apply-bpe", "-c", str(tmp_path / "codes"), text=tokens)
    assert "".join(f"{line}\n" for line in subwords.segment_lines(tokens.splitlines(), tmp_path / "codes")) == pieces


@pytest.mark.parametrize("text", ["a b", "ab cd"])
def test_no_subwords_to_learn(tmp_path, text):
    with pytest.raises(PreparationError, match="no merges to learn; .*--pretokenised"):
        subwords.learn([write(tmp_path / "text", [text])], tmp_path / "codes", 9)


def test_joint_codes_do_not_depend_on_the_direction(tmp_path):
    texts = [write(tmp_path / str(side), [pair[side] for pair in sentences(200)]) for side in (0, 1)]
    subwords.learn(texts, tmp_path / "codes", 50)
    subwords.learn(texts[::-1], tmp_path / "codes reversed", 50)
    assert (tmp_path / "codes").read_text() == (tmp_path / "codes reversed").read_text()
