"""examples/quickstart.sh itself, on a corpus of the form of Tatoeba and a few updates; README.md's commands."""

import hashlib
import importlib.util
import itertools
import random
import re
import shutil
import sys

import pytest
from unit.data_prep.support import packed

from support import PROJECT, run

ENGLISH = (["The cat", "My sister", "Nobody", "Tom's dog"], ["sees", "loves"], ["it", "her"], range(70))
FRENCH = (["Le chat", "Ma sœur", "Personne", "Le chien"], ["voit", "aime"], ["ça", "la"], range(70))
PAIRS = 1000  # of which a twentieth is the test set, another one for validation


@pytest.fixture(scope="module")
def mirror(checkout, tmp_path_factory):
    """A folder with the archive that `checkout` takes for Tatoeba's."""
    pairs = [*zip(itertools.product(*ENGLISH), itertools.product(*FRENCH))]
    random.Random(1).shuffle(pairs)
    lines = (f"{' '.join(map(str, en))}.\t{' '.join(map(str, fr))} !\tby tatoeba.org\n" for en, fr in pairs[:PAIRS])
    archive = packed("".join(lines).encode(), "nmt-0.0.6/data/fra-eng.zip", "fra.txt")
    folder = tmp_path_factory.mktemp("mirror")
    (folder / "nmt-0.0.6.tar.gz").write_bytes(archive)
    (checkout / "data-prep").unlink()
    shutil.copytree(PROJECT / "data-prep", checkout / "data-prep")
    registry = (checkout / "data-prep/corpora.toml").read_text()
    facts = f'package = "nmt"\nsha256 = "{hashlib.sha256(archive).hexdigest()}"\nbytes = {len(archive)}\n'
    registry = re.sub(r'package = "nmt"\nsha256 = .*\nbytes = .*\n', facts, registry)
    (checkout / "data-prep/corpora.toml").write_text(registry)
    return folder


def run_quickstart(checkout, mirror, output, *options, ok=True):
    env = {"VIRTUAL_ENV": sys.prefix, "MIRROR": mirror, "UPDATES": 30, "OUTPUT": output}
    small = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --lr 0.02 --warmup-updates 1".split()
    return run("bash", checkout / "examples/quickstart.sh", *small, *options, cwd=checkout, env=env, ok=ok)


@pytest.fixture(scope="module")
def finished(checkout, mirror, tmp_path_factory):
    """The folder of a run, and the process that made it."""
    folder = tmp_path_factory.mktemp("quickstart")
    return folder, run_quickstart(checkout, mirror, folder)


def test_quickstart(finished, checkout, mirror):
    folder, done = finished
    assert len(re.findall(r"^update \d+ of 30: loss", done.stdout, re.MULTILINE)) == 4
    assert re.search(r"^BLEU\|.*version:.* = [\d.]+", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^ +\d+ s  ", done.stdout, re.MULTILINE)) == 6
    assert "tatoeba.org" in done.stdout
    translations = (folder / "translations.en").read_text().splitlines()
    assert len(translations) == PAIRS / 20
    assert re.findall(r"^translation  (.*)", done.stdout, re.MULTILINE) == translations[:10]
    for picture in ("training.png", "attention.png"):
        assert str(folder / picture) in done.stdout and (folder / picture).read_bytes().startswith(b"\x89PNG")
    *_, title, command = done.stdout.splitlines()
    assert title.startswith("== translate a sentence of your own") and command.startswith("nmt-translate ")
    answer = run("bash", "-c", command, cwd=checkout)  # as a reader pastes it
    assert answer.stdout.endswith("\n") and answer.stdout.count("\n") == 1
    engine = "CTranslate2" if importlib.util.find_spec("ctranslate2") else "torch"
    assert f"nmt-translate: with {engine}" in answer.stderr

    again = run_quickstart(checkout, mirror, folder)
    assert again.stdout.count("translations.en is there") == 2
    score = re.compile(r"^BLEU\|.*$", re.MULTILINE)
    assert score.search(again.stdout)[0] == score.search(done.stdout)[0]

    other = run_quickstart(checkout, mirror, folder, "--seed", "7", ok=False)
    assert other.returncode == 1
    assert "a run with other options" in other.stderr and "OUTPUT=" in other.stderr


def test_the_front_pages_commands(finished, checkout, tmp_path):
    """README.md's commands that need no training, as they stand there but for the folders of this smaller run."""
    folder, _ = finished
    page = (PROJECT / "README.md").read_text(encoding="utf-8")
    page = page.replace("runs/vaswani_transformer_tiny.fr-en", str(folder)).replace("runs/*/", f"{folder}/")
    page = page.replace("--output ", f"--output {tmp_path}/")
    blocks = re.findall(r"^```(python)?\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    commands = [line for kind, text in blocks if not kind for line in text.splitlines()]
    commands = [line for line in commands if line.startswith("nmt-") or "--dry-run" in line]
    assert len(commands) == 6
    environment = {"VIRTUAL_ENV": sys.prefix}
    for command in commands:
        run("bash", "-c", command, cwd=checkout, env=environment)
    (python,) = (text for kind, text in blocks if kind)
    (checkout / "page.py").write_text(python, encoding="utf-8")
    assert run("python", checkout / "page.py", cwd=checkout).stdout.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"valid.en", "training.png", "attention.html"}
    assert (tmp_path / "valid.en").read_text().count("\n") == PAIRS / 20
