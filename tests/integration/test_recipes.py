"""A recipe for real, on a tiny mirror: every step, going on where it stopped, and what is said if files are missing."""

import random
import sys

import pytest
from support import PROJECT, run


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """A few sentences in subwords, of the form of multi30k_published.sh."""
    folder = tmp_path_factory.mktemp("mirror")
    letters = random.Random(1)
    for part, size in (("train", 120), ("valid", 10), ("test.2016", 11)):
        lines = [" ".join(letters.choices(["ein", "ma@@ nn", "hund", "."], k=letters.randint(1, 6))) for _ in range(size)]
        for language in ("en", "de"):
            (folder / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines))
    return folder


def recipe(mirror, output, **variables):
    """multi30k_published.sh on the mirror."""
    env = {"VIRTUAL_ENV": sys.prefix, "SMOKE": "1", "GPUS": "0", "MIRROR": str(mirror), "OUTPUT": str(output), **variables}
    return run("bash", PROJECT / "examples/multi30k_published.sh", "--clip-norm", "1", env=env, ok=False)


def test_every_step_and_again(mirror, tmp_path):
    data = PROJECT / "data/multi30k_published.en-de.smoke"
    if data.exists():
        pytest.skip(f"{data} holds somebody's data")
    try:
        prepared = recipe(mirror, tmp_path / "run", STEPS="prepare", SEED="2")
        assert prepared.returncode == 0 and not (tmp_path / "run").exists()

        first = recipe(mirror, tmp_path / "run", STEPS="prepare train")
        assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
        assert "num_updates=30," in first.stdout and not (tmp_path / "run/average.pt").exists()

        rest = recipe(mirror, tmp_path / "run")
        assert rest.returncode == 0, rest.stdout[-3000:] + rest.stderr[-3000:]
        assert "run/trained is there" in rest.stdout and "num_updates=30," not in rest.stdout
        assert len((tmp_path / "run/translations.de").read_text().splitlines()) == 11
        assert "BLEU of tokens" in (tmp_path / "run/score.txt").read_text()
        assert "Generate test with beam=1: BLEU4" in rest.stdout and rest.stdout.rstrip().endswith("prints it)")

        other = recipe(mirror, tmp_path / "run", SEED="2")
        assert other.returncode == 1
        assert "holds a run with other options" in other.stderr and "OUTPUT=" in other.stderr
    finally:
        run("rm", "-rf", data)


def test_missing_files_are_named(tmp_path):
    missing = recipe(tmp_path, tmp_path / "run")
    assert missing.returncode == 1
    assert f"{tmp_path}/train.en" in missing.stderr and "MIRROR=FOLDER" in missing.stderr
    assert not (tmp_path / "run").exists() and not list((PROJECT / "data").glob("multi30k_published.en-de.smoke*"))
    multi30k = run("bash", PROJECT / "examples/multi30k.sh", env={"VIRTUAL_ENV": sys.prefix, "GPUS": "0", "MIRROR": str(tmp_path), "OUTPUT": str(tmp_path / "run")}, ok=False)
    assert multi30k.returncode == 1 and not (tmp_path / "run").exists()
    assert "has no file train.en.gz; put it there (https://raw.githubusercontent.com/multi30k/" in multi30k.stderr
