"""Killed at any moment (SIGKILL, with all that it has started) a command goes on as if nobody had killed it: training,
data-prep, and a recipe as a whole."""

import itertools
import os
import random
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from user_dir.families import FAMILIES

import support
from support import TWO_FAMILIES, change, descendants, run, train

# Three epochs of a few updates of two passes; a checkpoint and a validation every third update and after each epoch.
RUN = """
    --dropout 0.3 --attention-dropout 0.1 --autocast bf16 --update-freq 2 --store-ema --ema-fp32 --ema-decay 0.9
    --task checked_translation --update-epoch-batch-itr True --train-subset valid --max-tokens 32 --max-tokens-valid 500
    --max-update 15
    --branch-frozen-updates 6 --save-interval-updates 3 --validate-interval-updates 3 --keep-interval-updates 3
    --log-interval 1
""".split()

# fairseq-train, killed when it has written a part of a checkpoint (that fairseq will rename) or of the copy of one.
HALF_WRITTEN = """
import io, os, shutil, signal, sys, torch
from fairseq_cli.train import cli_main

what, part, _, *options = sys.argv[1:]
save = torch.save

def write_part(file, content):
    file.write(content[: int(len(content) * float(part))])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

def write(state, file):
    content = io.BytesIO()
    save(state, content)
    write_part(file, content.getvalue())

def copy(source, target):
    write_part(open(target, "wb"), open(source, "rb").read())

if what == "writing":
    torch.save = write
else:
    shutil.copyfile = copy
sys.argv[1:] = options
cli_main()
"""


def killed_when(said, times, seconds, data, family, folder):
    """RUN goes on in `folder`; it is killed so long after its log has said this so many times. Returns its process."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    log.write_text("")
    with ThreadPoolExecutor() as pool:
        training = pool.submit(train, run, data, family, folder, *RUN, "--log-file", log, ok=False)
        while not training.done():
            time.sleep(0.001)
            if log.read_text().count(said) >= times:
                time.sleep(seconds)
                for process in list(descendants(support.PYTHON.process.pid)):
                    os.kill(process, signal.SIGKILL)
                break
        return training.result()


def killed(kind, letters, *training):
    """RUN, killed in one of its next updates, in validation, or writing or copying a checkpoint."""
    if kind == "training":
        return killed_when(", num_updates=", letters.randint(1, 2), letters.uniform(0, 0.1), *training)
    if kind == "validation":
        return killed_when("begin validation on", letters.randint(1, 2), 0, *training)
    folder = training[-1].parent
    (folder / "half_written.py").write_text(HALF_WRITTEN)

    def command(*words, ok):
        return run("python", "half_written.py", kind, letters.random(), *words, cwd=folder, ok=ok)

    return train(command, *training, *RUN, ok=False)


def updates(what, done):
    """The last number of updates at which fairseq has said this of a checkpoint; 0 if it never has."""
    return int((["0"] + re.findall(rf"{what} checkpoint .*@ (\d+) updates", done.stdout + done.stderr))[-1])


def assert_equal(found, expected, name=""):
    """The same tensors, numbers and words, to the bit."""
    if isinstance(expected, (list, tuple)):
        found, expected = dict(enumerate(found)), dict(enumerate(expected))
    if isinstance(expected, dict):
        assert set(found) == set(expected), name
        for key in expected:
            assert_equal(found[key], expected[key], f"{name}.{key}")
    else:
        assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected, name


def state_of(folder):
    """The state that a training continues from, apart from the clock."""
    state = torch.load(folder / "checkpoint_last.pt")
    parts = {name: state[name] for name in ("model", "last_optimizer_state")}
    parts["updates"] = state["optimizer_history"][-1]["num_updates"]
    names = ("ema", "ema_fp32_params", "train_iterator", "val_loss", "best")
    return {**parts, **{name: state["extra_state"][name] for name in names}}


def survives(kinds, seed, data, family, folder):
    """A run that is killed in these ways, one after the other, ends as one that nobody killed."""
    letters = random.Random(seed)
    letters.shuffle(kinds)
    train(run, data, family, folder / "whole", *RUN)
    saved = 0
    for kind in kinds:
        done = killed(kind, letters, data, family, folder / "killed")
        assert done.returncode == -signal.SIGKILL, (kind, done.stderr[-3000:])
        assert updates("Loaded", done) >= saved
        saved = max(saved, updates("Saved", done))
    last = train(run, data, family, folder / "killed", *RUN)
    assert updates("Loaded", last) >= saved
    assert_equal(state_of(folder / "killed"), state_of(folder / "whole"))


def test_a_killed_training_goes_on(copies, tmp_path):
    survives(["training", "validation", "copying"], 1, copies, "weighted_relative_transformer", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_killed_five_times_goes_on(copies, tmp_path, family, seed):
    kinds = ["training", "training", "validation", "writing", "copying"]
    survives(kinds, seed, copies, family, tmp_path)


def test_another_number_of_processes_edits_no_checkpoint(copies, tmp_path):
    """One that continues after two, which have taken three batches each, takes the seventh."""
    options, last = ["--disable-validation", "--log-interval", "1"], tmp_path / "checkpoint_last.pt"
    train(run, copies, "vaswani_transformer", tmp_path, *options, "--max-update", "3")
    change(last, distributed_training__distributed_world_size=2)
    content = last.read_bytes()
    done = train(run, copies, "vaswani_transformer", tmp_path, *options, "--max-update", "4", "--no-save")
    assert re.findall(r"epoch 001: +(\d+) /", done.stdout + done.stderr)[0] == "7"
    assert last.read_bytes() == content


def files(folder, pattern="*"):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob(pattern) if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("family", TWO_FAMILIES)
def test_a_recipe_killed_in_each_step_goes_on(recipe, start, checkout, tmp_path, family):
    data, letters = checkout / "data/multi30k_published.en-de.smoke", random.Random(family)
    shutil.rmtree(data, ignore_errors=True)
    options, variables = ("--autocast", "off", "--dropout", "0.3", "--store-ema"), {"FAMILY": family, "UPDATES": 40}
    whole = start(*options, **variables, OUTPUT=tmp_path / "whole")
    began = {line: time.monotonic() for line in whole.stdout if re.fullmatch(r"# [a-z]+\n", line)}
    assert whole.wait() == 0 and len(began) == 6
    data.rename(tmp_path / "data")
    for (line, since), (_, until) in itertools.pairwise(began.items()):
        killed = start(*options, **variables)
        while killed.stdout.readline() != line:
            assert killed.poll() is None
        time.sleep(letters.uniform(0, 0.8) * (until - since))
        os.killpg(killed.pid, signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    recipe(*options, **variables, ok=True)
    assert files(data, "data-bin/*") == files(tmp_path / "data", "data-bin/*") != {}
    runs = tmp_path / "run", tmp_path / "whole"
    assert len({(run / "translations.de").read_text() for run in runs}) == 1
    scores = [re.findall(r"[\d.]+", (run / "score.txt").read_text()) for run in runs]
    assert scores[0] == scores[1] != []  # they begin with the folder's name
    assert_equal(*(torch.load(run / "average.pt")["model"] for run in runs))


def test_a_longer_training_in_another_folder(copies, tmp_path):
    """--continue-once: it ends as one that was as long from the beginning."""
    options = "--task checked_translation --disable-validation --update-epoch-batch-itr True --max-update".split()
    train(run, copies, "vaswani_transformer", tmp_path / "short", *options, 6)
    more = ["--continue-once", tmp_path / "short/checkpoint_last.pt"]
    train(run, copies, "vaswani_transformer", tmp_path / "longer", *options, 12, *more)
    train(run, copies, "vaswani_transformer", tmp_path / "whole", *options, 12)
    found, expected = (torch.load(tmp_path / name / "checkpoint_last.pt") for name in ("longer", "whole"))
    assert found["optimizer_history"][-1]["num_updates"] == 12
    for part in ("model", "last_optimizer_state"):
        assert_equal(found[part], expected[part], part)
