"""examples/quickstart.sh itself, on a few hundred pairs of the real corpus and a few updates."""

import re
import sys

import pytest

from support import PROJECT, run


def run_quickstart(output, *options):
    env = {"VIRTUAL_ENV": sys.prefix, "PAIRS": "400", "UPDATES": "30", "OUTPUT": str(output)}
    sizes = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16"]
    return run("bash", PROJECT / "examples/quickstart.sh", *sizes, *options, env=env, ok=False)


def test_number_of_updates():
    done = run("bash", PROJECT / "examples/quickstart.sh", env={"VIRTUAL_ENV": sys.prefix, "UPDATES": "many"}, ok=False)
    assert done.returncode == 1 and "UPDATES is many, and has to be a whole number of at least 1" in done.stderr


def test_quickstart(tmp_path):
    done = run_quickstart(tmp_path)
    if "network" in done.stderr and done.returncode:
        pytest.skip(f"the corpus cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(re.findall(r"^update \d+ of 30: loss", done.stdout, re.MULTILINE)) == 4
    assert len(re.findall(r"^translation  ", done.stdout, re.MULTILINE)) == 10
    assert re.search(r"^BLEU\|.*version:.* = [\d.]+", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^ +\d+ s  ", done.stdout, re.MULTILINE)) == 6
    assert "tatoeba.org" in done.stdout
    translations = (tmp_path / "translations.en").read_text().splitlines()
    assert len(translations) == 2000
    for picture in ("training.png", "attention.png"):
        assert str(tmp_path / picture) in done.stdout and (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    *_, title, command = done.stdout.splitlines()
    assert title.startswith("== translate a sentence of your own") and command.startswith("nmt-translate ")
    answer = run("bash", "-c", command).stdout  # as a reader pastes it
    assert answer.endswith("\n") and answer.count("\n") == 1

    again = run_quickstart(tmp_path)
    assert again.returncode == 0 and "average.pt is there" in again.stdout
    score = re.compile(r"^BLEU\|.*$", re.MULTILINE)
    assert score.search(again.stdout)[0] == score.search(done.stdout)[0]

    other = run_quickstart(tmp_path, "--seed", "7")
    assert other.returncode == 1
    assert "holds a run with other options" in other.stderr and "OUTPUT=" in other.stderr
