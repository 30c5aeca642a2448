"""Killed at any moment (SIGKILL, with all that it has started) a command goes on as if nobody had killed it: training,
data-prep, and a recipe as a whole."""

import os
import pathlib
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import support
from support import run, train

FAMILIES = ("vaswani_transformer", "weighted_relative_transformer")  # nothing of our own to save, and everything

# Three epochs of six updates of two passes; a checkpoint and a validation every third update and after each epoch.
RUN = """
    --dropout 0.3 --attention-dropout 0.1 --update-freq 2 --store-ema --ema-fp32 --ema-decay 0.9
    --update-epoch-batch-itr True --train-subset valid --max-tokens 32 --max-tokens-valid 500 --max-update 18
    --branch-frozen-updates 6 --save-interval-updates 3 --validate-interval-updates 3 --keep-interval-updates 3
""".split()
LARGE = "--encoder-embed-dim 128 --encoder-ffn-embed-dim 512".split()  # so that its checkpoints take a while to write


def descendants(process):
    for file in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        for child in file.read_text().split():
            yield int(child)
            yield from descendants(child)


def killed(moment, data, family, folder, *options):
    """RUN goes on in `folder`, and is killed once moment(folder, log) is true; returns the ended process."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    log.write_text("")
    with ThreadPoolExecutor() as pool:
        training = pool.submit(train, run, data, family, folder, *RUN, *options, "--log-file", log, ok=False)
        while not training.done():
            time.sleep(1e-3)
            if moment(folder, log):
                for process in list(descendants(support.PYTHON.process.pid)):
                    os.kill(process, signal.SIGKILL)
                break
        return training.result()


def in_training(random):
    """At a random time after the first batch."""
    until = []

    def moment(folder, log):
        if not until and "Start iterating over samples" in log.read_text():
            until.append(time.monotonic() + random.uniform(0, 1))
        return until and time.monotonic() >= until[0]

    return moment


def in_validation(random):
    after = random.randint(1, 2)

    def moment(folder, log):
        return log.read_text().count("begin validation on") == after

    return moment


def in_writing(random):
    """When a checkpoint is being written that is to be renamed."""
    return lambda folder, log: any(folder.glob("*.pt.tmp"))


def in_copying(random):
    """When checkpoint_last.pt is being copied."""

    def size(path):
        return path.stat().st_size if path.exists() else 0

    def moment(folder, log):
        last = folder / "checkpoint_last.pt"
        return last.exists() and size(last) < max(map(size, folder.glob("checkpoint_*_*.pt")), default=0)

    return moment


def never(random):
    return lambda folder, log: None


def updates(what, done):
    """The last number of updates at which fairseq has said this of a checkpoint; 0 if it never has."""
    return int((["0"] + re.findall(rf"{what} checkpoint .*@ (\d+) updates", done.stdout + done.stderr))[-1])


def assert_equal(found, expected, name=""):
    """The same tensors, numbers and words, to the bit."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), name
        for key in expected:
            assert_equal(found[key], expected[key], f"{name}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert_equal(dict(enumerate(found)), dict(enumerate(expected)), name)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), name
    else:
        assert found == expected, name


def state_of(folder):
    """What a training goes on from, apart from the clock."""
    state = torch.load(folder / "checkpoint_last.pt")
    extra = state["extra_state"]
    assert {"model", "last_optimizer_state"} <= set(state) and {"ema", "train_iterator", "val_loss"} <= set(extra)
    parts = {name: state[name] for name in ("model", "last_optimizer_state", "optimizer_history")}
    return {**parts, **{name: extra[name] for name in ("ema", "ema_fp32_params", "train_iterator", "val_loss", "best")}}


def survives(kinds, random, data, family, folder, *options):
    """The run ends as one that nobody killed."""
    assert killed(never(random), data, family, folder / "whole", *options).returncode == 0
    saved = 0
    for kind in [*kinds, never]:
        done = killed(kind(random), data, family, folder / "killed", *options)
        assert done.returncode == (0 if kind is never else -signal.SIGKILL), (kind, done.stderr[-3000:])
        assert updates("Loaded", done) >= saved
        saved = max(saved, updates("Saved", done))
    assert_equal(state_of(folder / "killed"), state_of(folder / "whole"))


def test_a_killed_training_goes_on(copies, tmp_path):
    kinds = [in_training, in_validation, in_writing]
    survives(kinds, random.Random(1), copies, "weighted_relative_transformer", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_killed_five_times_goes_on(copies, tmp_path, family, seed):
    kinds = [in_training, in_validation, in_writing, in_copying, in_training]
    letters = random.Random(seed)
    letters.shuffle(kinds)
    survives(kinds, letters, copies, family, tmp_path, *LARGE)
