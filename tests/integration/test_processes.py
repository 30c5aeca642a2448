"""Several processes on CPUs: they train one model, go on as more or fewer of them, and end together."""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from user_dir.serving.models import load_models
from user_dir.training.processes import refuse_processes
from user_dir.transformer.architectures import FAMILIES

from support import assert_same_training, change, free_port, processes_of, train, wait_for

# Three updates an epoch, each of 4 x 300 tokens, whoever takes them; a checkpoint after every update.
SETTINGS = {"STEPS": "prepare train", "UPDATES": 6, "AVERAGE": 4, "BATCH": 1200, "MAX_TOKENS": 300}
OPTIONS = ("--dropout", "0", "--autocast", "off", "--log-interval", "1")


def test_torchrun_alone_is_refused(command, copies, tmp_path, monkeypatch):
    """It would train a model in each process."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = train(command, copies, "vaswani_transformer", tmp_path, "--cpu", ok=False)
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    said = done.stderr.splitlines()[-1]
    assert "--no-python examples/shared/cpu_process.sh DATA … --cpu --distributed-world-size N " in said


def test_one_process_of_torchruns_is_not_refused(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    refuse_processes(argparse.Namespace(cpu=True))


def test_translating_under_torchrun_is_not_refused(saved, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    _, checkpoint, data = saved("vaswani_transformer_tiny")
    change(checkpoint, task___name="checked_translation")
    assert load_models([checkpoint], data)


def test_a_backend_that_needs_gpus_is_refused(command, copies, tmp_path):
    """--ddp-backend pytorch_ddp is fairseq's default; the other process here only meets the one that trains."""
    init = f"tcp://127.0.0.1:{free_port()}"
    meets = f"from torch import distributed as d; d.init_process_group('gloo', '{init}', rank=1, world_size=2)"
    with subprocess.Popen([sys.executable, "-c", meets]) as other:
        options = f"--cpu --distributed-world-size 2 --distributed-init-method {init} --distributed-backend gloo"
        options = [*options.split(), "--distributed-no-spawn"]
        done = train(command, copies, "vaswani_transformer", tmp_path, *options, ok=False)
    assert done.returncode == 1 and other.returncode == 0 and not list(tmp_path.iterdir())
    assert "--ddp-backend pytorch_ddp needs GPUs" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_processes_as_one_likes(recipe, tmp_path, family):
    """One, two and four processes, and runs that go on in the middle of an epoch with another number of them."""

    def train(name, processes):
        done = recipe(*OPTIONS, **SETTINGS, FAMILY=family, PROCESSES=processes, OUTPUT=tmp_path / name, ok=True)
        assert f"{processes} x {4 // processes} x 300 = 1200" in done.stdout

    for processes in (1, 2, 4):
        train(str(processes), processes)
        assert_same_training(tmp_path / str(processes), tmp_path / "1")
    for before, after in ((2, 1), (1, 2), (4, 2)):
        folder = tmp_path / f"{before} to {after}"
        folder.mkdir()
        (stopped,) = (tmp_path / str(before)).glob("checkpoint_2_4.pt")
        assert torch.load(stopped)["extra_state"]["train_iterator"]["iterations_in_epoch"] == 4 / before
        shutil.copy(stopped, folder / "checkpoint_last.pt")
        train(folder.name, after)
        assert f"now {after} continue" in (folder / "train.log").read_text()
        assert_same_training(folder, tmp_path / "1")


def workers(folder):
    """The processes that train in `folder`, by their rank."""
    found = {}
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_text().split("\0")
        except OSError:  # it has ended
            continue
        if f"{folder}" in words and "--distributed-rank" in words and "bash" not in words[0]:
            found[words[words.index("--distributed-rank") + 1]] = int(file.parent.name)
    return found


LONG = {"STEPS": "prepare train", "PROCESSES": 2, "UPDATES": 9000}


@pytest.fixture
def in_training(start, tmp_path):
    """A recipe of two processes that has begun to train."""
    recipe = start(*OPTIONS, **LONG)
    log = tmp_path / "run/train.log"
    wait_for(lambda: log.exists() and "train_inner" in log.read_text())
    assert sorted(workers(tmp_path / "run")) == ["0", "1"]
    return recipe


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_recipe_that_is_ended_leaves_no_process_and_goes_on(start, tmp_path, processes, number):
    """`kill PID`: nothing of it trains on, the folder is free, and the same command continues the training."""
    log = tmp_path / "run/train.log"
    for words in ("Saved checkpoint", "Loaded checkpoint"):
        recipe = start(*OPTIONS, **LONG | {"PROCESSES": processes})
        wait_for(lambda words=words: log.exists() and words in log.read_text())
        assert "Loaded checkpoint" not in log.read_text() or words == "Loaded checkpoint"
        os.kill(recipe.pid, number)
        said, _ = recipe.communicate(timeout=60)
        assert recipe.returncode == 128 + number and "waiting" not in said
        assert not processes_of(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("rank", "01")
def test_a_worker_that_is_killed_ends_the_recipe(in_training, tmp_path, rank):
    begun = time.monotonic()
    os.kill(workers(tmp_path / "run")[rank], signal.SIGKILL)
    said, _ = in_training.communicate(timeout=60)
    print(f"ended after {time.monotonic() - begun:.1f} s")
    assert in_training.returncode == 1 and re.search(r"SIGKILL.* received by PID \d+\n", said)
    assert said.endswith("could not train; fix the error above and run the same command again to continue\n")
    assert not workers(tmp_path / "run") and not (tmp_path / "run/trained").exists()


@pytest.mark.slow
def test_no_worker_outlives_a_recipe_that_is_killed(in_training, tmp_path):
    """They have sessions of their own."""
    os.killpg(in_training.pid, signal.SIGKILL)
    wait_for(lambda: not workers(tmp_path / "run"), seconds=10)


@pytest.fixture
def two_hosts():
    """[command to run something on a host, its address]: network namespaces, joined by a cable."""
    names = [f"nmt{os.getpid()}-{host}" for host in (0, 1)]
    ip = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: E731
    try:
        for name in names:
            ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine makes no network namespaces: {error}")
    try:
        ip("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "name", "cable0", "netns", names[1])
        for host, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.99.0.{host + 1}/24", "dev", "cable0")
            ip("-n", name, "link", "set", "cable0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            ip("netns", "delete", name)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_is_lost_ends_the_other(two_hosts, start, recipe, tmp_path, lost):
    recipe(**SETTINGS | {"STEPS": "prepare"}, ok=True)
    # gloo takes the interface that the host's name leads to, and both have one name.
    where = {"NODES": 2, "MASTER_ADDR": "10.99.0.1", "MASTER_PORT": 29500, "GLOO_SOCKET_IFNAME": "cable0"}
    variables = LONG | {"STEPS": "train", "PROCESSES": 1} | where
    hosts = [start(*OPTIONS, before=host, **variables, NODE_RANK=rank) for rank, host in enumerate(two_hosts)]
    log = tmp_path / "run/train.log"
    wait_for(lambda: log.exists() and "train_inner" in log.read_text())
    begun = time.monotonic()
    os.killpg(hosts[lost].pid, signal.SIGKILL)
    said, _ = hosts[1 - lost].communicate(timeout=60)
    print(f"ended after {time.monotonic() - begun:.1f} s")
    assert hosts[1 - lost].returncode == 1 and "could not train; fix the error above" in said
    assert not workers(tmp_path / "run")
