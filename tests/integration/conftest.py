"""Shared by tests of recipes: a checkout and a corpus of their own, the recipe on them, stand-ins for commands.

And by those of what fairseq-train refuses: `refused`.
"""

import gzip
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import pytest
from fairseq_cli import train
from integration.refusals import TRAINED

from support import PROJECT, environment, executable, run


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The project with data/ and runs/ of its own, so that tests do not meet those of other tests or of people."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PROJECT / "examples", folder / "examples")
    # The tests' own environment is complete.
    (folder / "examples/install/environment.sh").write_text('PATH="${STAND_INS:+$STAND_INS:}$PATH" own_environment=\n')
    for name in ("user_dir", "data-prep"):
        (folder / name).symlink_to(PROJECT / name)
    return folder


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """A few sentences in subwords, of the form of multi30k_published.sh; one file is packed."""
    folder = tmp_path_factory.mktemp("mirror")
    letters = random.Random(1)
    words = ["ein", "ma@@ nn", "hund", "."]
    for part, size in (("train", 400), ("valid", 10), ("test.2016", 11)):
        lines = [" ".join(letters.choices(words, k=letters.randint(1, 6))) for _ in range(size)]
        for language in ("en", "de"):
            (folder / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines))
    (folder / "valid.de.gz").write_bytes(gzip.compress((folder / "valid.de").read_bytes()))
    (folder / "valid.de").unlink()
    return folder


@pytest.fixture
def recipe(checkout, mirror, tmp_path):
    """recipe(*arguments, **variables): runs multi30k_published.sh on the mirror, on CPUs, into the folder `run`."""

    def recipe(*arguments, ok=False, **variables):
        env = {"SMOKE": 1, "GPUS": 0, "MIRROR": mirror, "OUTPUT": tmp_path / "run", **variables}
        options = ("--clip-norm", "1", "--num-workers", "0", *arguments)
        return run("bash", checkout / "examples/multi30k_published.sh", *options, cwd=checkout, env=env, ok=ok)

    return recipe


@pytest.fixture
def start(checkout, mirror, tmp_path):
    """start(*arguments, before=(), **variables): the same in the background, in a session of its own.

    `before`: the words of a command that starts others.
    """
    started = []

    def start(*arguments, before=(), **variables):
        env = environment(**{"SMOKE": 1, "GPUS": 0, "MIRROR": mirror, "OUTPUT": tmp_path / "run", **variables})
        words = [*before, "bash", checkout / "examples/multi30k_published.sh"]
        words += ["--clip-norm", "1", "--num-workers", "0", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(words, cwd=checkout, env=env, start_new_session=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in(name, script): the recipe finds this command before the real one."""
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    monkeypatch.setenv("STAND_INS", str(folder))

    return lambda name, script: executable(folder / name, script)


@pytest.fixture
def data(copies, tmp_path):
    """A copy of `copies`, which the test may spoil."""
    return shutil.copytree(copies, tmp_path / "data")


@pytest.fixture
def refused(capsys, monkeypatch, copies, tmp_path):
    """refused(expected, family, words): fairseq-train fails, `expected` is in its last line, and it writes nothing."""

    def files_in(folder):
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def refused(expected, family, words="", data=copies, save_dir=tmp_path / "runs", common=TRAINED):
        before = files_in(save_dir)
        words = f"{data} --save-dir {save_dir} --arch {family}_tiny --max-update 2 --cpu {common} {words}".split()
        monkeypatch.setattr(sys, "argv", ["fairseq-train", *words])
        with pytest.raises((SystemExit, Exception)) as stop:
            train.cli_main()
        if isinstance(stop.value, SystemExit):  # of fairseq's parser
            assert stop.value.code not in (0, None)
            printed = capsys.readouterr().err
        else:
            printed = str(stop.value)
        assert files_in(save_dir) == before
        assert re.search(expected, printed.strip().splitlines()[-1])

    return refused
