"""Recipes that end before their work is done: by a signal, a closed terminal, Ctrl-C or a reader that goes away."""

import contextlib
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import time

import pytest

from support import environment, processes_of, wait_for

SLEEPS = "setsid sleep 500 & touch {folder}/begun; sleep 500"  # one of the two in a session of its own


@pytest.mark.parametrize(
    "step, processes, number",
    [
        ("prepare", 1, signal.SIGTERM),
        ("train", 1, signal.SIGTERM),
        ("train", 1, signal.SIGHUP),
        ("train", 2, signal.SIGTERM),
        pytest.param("train", 2, signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_recipe_that_is_ended_ends_what_it_started(checkout, stand_in, start, tmp_path, step, processes, number):
    """Its lock is free then: the same command is not kept waiting."""
    shutil.rmtree(checkout / "data/multi30k_published.en-de.smoke", ignore_errors=True)
    name = {"prepare": "fairseq-preprocess", "train": "fairseq-train"}[step]
    stand_in("fairseq-train", "")  # which checks the options before a preparation
    stand_in(name, SLEEPS.format(folder=tmp_path))
    variables = {"STEPS": step, "PROCESSES": processes}
    recipe = start("--autocast", "off", **variables)
    wait_for((tmp_path / "begun").exists, recipe)
    assert len(processes_of(tmp_path / "run")) > 4
    os.kill(recipe.pid, number)
    said, _ = recipe.communicate(timeout=60)
    assert recipe.returncode == 128 + number and "could not" not in said
    assert not processes_of(tmp_path / "run") and not (tmp_path / "run/trained").exists()

    if processes == 1:
        stand_in(name, f"touch {tmp_path}/called")
        said, _ = start("--autocast", "off", **variables).communicate(timeout=60)
        assert "waiting" not in said and (tmp_path / "called").exists()


def test_a_recipe_that_ends_by_sigkill_takes_the_rest_along(stand_in, start, tmp_path):
    """kill -9 of the shell that takes the steps, as when memory is short."""
    stand_in("fairseq-train", SLEEPS.format(folder=tmp_path))
    recipe = start("--autocast", "off", STEPS="train")
    wait_for((tmp_path / "begun").exists, recipe)
    (shell,) = pathlib.Path(f"/proc/{recipe.pid}/task/{recipe.pid}/children").read_text().split()
    os.kill(int(shell), signal.SIGKILL)
    assert recipe.wait(timeout=60) == -signal.SIGKILL and not processes_of(tmp_path / "run")


def test_a_training_whose_output_nobody_reads_is_logged(stand_in, start, tmp_path):
    """To its end, as when a connection breaks: the record is made of the log."""
    line = "| INFO | train_inner | epoch 001: 2 / 9 loss=5, ppl=32, wps=9, num_updates=$n, wall=3"
    stand_in("fairseq-train", f'for n in {{1..3000}}; do echo "{line}"; done')
    recipe = start("--autocast", "off", STEPS="train")
    while "update 1: loss 5" not in recipe.stdout.readline():
        assert recipe.poll() is None
    recipe.stdout.close()
    assert recipe.wait(timeout=60) in (141, -signal.SIGPIPE)
    assert "num_updates=3000," in (tmp_path / "run/train.log").read_text().splitlines()[-1]


def test_nohup(stand_in, start, tmp_path):
    stand_in("fairseq-train", f"touch {tmp_path}/begun; until [ -e {tmp_path}/heard ]; do sleep 0.1; done")
    recipe = start("--autocast", "off", before=["nohup"], STEPS="train")
    wait_for((tmp_path / "begun").exists, recipe)
    os.killpg(recipe.pid, signal.SIGHUP)
    (tmp_path / "heard").touch()
    recipe.communicate(timeout=60)
    assert recipe.returncode == 0 and (tmp_path / "run/trained").exists()


@pytest.mark.parametrize("script", ["compare.sh", "ablations.sh"])
def test_scripts_that_start_recipes_end_them(checkout, tmp_path, script):
    """Several levels of them: the quickstart is a recipe as the others are."""
    examples = shutil.copytree(checkout / "examples", tmp_path / "examples")
    for name in ("user_dir", "data-prep"):
        (tmp_path / name).symlink_to(checkout / name)
    quickstart = (examples / "quickstart.sh").read_text().partition("\ndata=")[0]
    (examples / "quickstart.sh").write_text(f"{quickstart}\n{SLEEPS.format(folder=tmp_path)}\n")
    env = environment(OUTPUT=tmp_path / "run")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    (examples / "install/environment.sh").write_text(f"project={tmp_path}\nfail() {{ exit 1; }}\n")
    words = ["bash", examples / script, "shaw-terms"]
    with subprocess.Popen(words, cwd=tmp_path, env=env, start_new_session=True, **pipes) as started:
        wait_for((tmp_path / "begun").exists, started)
        os.kill(started.pid, signal.SIGTERM)
        started.communicate(timeout=60)
    assert started.returncode == 128 + signal.SIGTERM and not processes_of(tmp_path / "run")


LAST_WORDS = """
    trap 'echo last words; trap - INT; kill -INT $$' INT
    until [ -e {folder}/run/train.log ]; do sleep 0.1; done
    touch {folder}/begun
    for i in {{1..600}}; do sleep 0.1; done
"""


@pytest.fixture
def typed(checkout, tmp_path):
    """The words and the environment of a recipe that trains in the folder `run`."""
    env = environment(GPUS=0, OUTPUT=tmp_path / "run", STEPS="train")
    return ["bash", checkout / "examples/multi30k_published.sh", "--autocast", "off"], env


def test_ctrl_c(checkout, stand_in, typed, tmp_path):
    """It is for the training, whose last words are kept; the recipe itself says nothing."""
    stand_in("fairseq-train", LAST_WORDS.format(folder=tmp_path))
    command, env = typed
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  (not so where pytest is in the background)
    with subprocess.Popen(command, cwd=checkout, env=env, start_new_session=True, preexec_fn=heard, **pipes) as started:
        wait_for((tmp_path / "begun").exists, started)
        os.killpg(started.pid, signal.SIGINT)
        _, said = started.communicate(timeout=300)
    assert started.returncode in (130, -signal.SIGINT) and said == ""
    assert (tmp_path / "run/train.log").read_text() == "last words\n" and not (tmp_path / "run/trained").exists()


def test_a_terminal(checkout, stand_in, typed, tmp_path):
    """The training reads what is typed, and hears Ctrl-C."""
    stand_in("fairseq-train", f"read -r word; echo read $word; {LAST_WORDS.format(folder=tmp_path)}")
    command, env = typed
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(checkout)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvpe(command[0], command, env)
    os.write(terminal, b"something\n")
    while not (tmp_path / "begun").exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), os.read(terminal, 10000)
        time.sleep(0.1)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # at the end
        while os.read(terminal, 10000):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (130, -signal.SIGINT)
    assert (tmp_path / "run/train.log").read_text() == "read something\nlast words\n"
