"""Helpers of the tests: families, small sizes, data, and commands as a user runs them.

Fixtures are in conftest.py, the equations in equations.py, and what is compared with them in comparing.py.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import commands
import pytest
import torch
from fairseq import models
from fairseq.dataclass.configs import GenerationConfig
from fairseq.options import get_training_parser, parse_args_and_arch

import user_dir
from user_dir.transformer.architectures import FAMILIES

PROJECT = pathlib.Path(user_dir.__file__).parents[1]
OLD = PROJECT / "tests/old_checkpoints"  # trained until their translations were right
PAD, EOS = 1, 2  # fairseq's Dictionary

SIDE = {"layers": 2, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 4}
SMALL = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIDE.items()}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}


def families_with(option):
    """The names of the families that set this option of user_dir/config.py, for tests of the option."""
    return [family for family in FAMILIES if option in FAMILIES[family].options]


TWO_FAMILIES = ("vaswani_transformer", "weighted_relative_transformer")  # the latter has what the others have


def slow_beyond(fast, values):
    """The values of a parameter, or tuples of several, for tests that train: those not among `fast` are slow tests."""
    each = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    return [value if value in fast else pytest.param(*words, marks=pytest.mark.slow) for value, words in each]


PYTHON = commands.Server()


def environment(**variables):
    """A user's: one thread, no GPU, the commands of this Python; `variables` may be paths and numbers."""
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"OMP_NUM_THREADS": 1, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", "PATH": path}
    return {name: str(value) for name, value in {**os.environ, **own, **variables}.items()}


def run(*command, ok=True, cwd=PROJECT, env=None):
    """Runs a command as a user would; returns the finished process. `ok`: it must succeed. env: further variables.

    Python commands without `env`, and those of bash, run in copies of one process (commands.py).
    """
    copied = env is None or command[0] == "bash"
    env = environment(**(env or {}))
    if copied:
        env["PATH"] = f"{PYTHON.stand_ins()}{os.pathsep}{env['PATH']}"
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=commands.SECONDS)
    if ok:
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def hypotheses(printed, kind="H"):
    """[(score, text)] of the lines H-, or `kind`-, of fairseq-generate, by the numbers of their sentences."""
    lines = re.findall(rf"^{kind}-(\d+)\t(\S+)\t(.*)$", printed, re.MULTILINE)
    return [(float(score), text) for _, score, text in sorted(lines, key=lambda line: int(line[0]))]


def said(*command, ok=True):
    """The standard output of a command or, with ok=False, which expects it to fail, its standard error."""
    done = run(*command, ok=False)
    assert (done.returncode == 0) == ok, done.stderr
    return done.stdout if ok else done.stderr


def wait_for(condition, process=None, seconds=120):
    """Returns when `condition()` holds; fails if `process` ends before, or after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)


def executable(path, script):
    """Makes `script`, of bash, the command `path`."""
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


def ended(process):
    """Whether the process of this number has ended; a zombie has."""
    with contextlib.suppress(FileNotFoundError):
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def descendants(process):
    """The numbers of all descendants of a process."""
    for file in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # this thread has just ended
            for child in file.read_text().split():
                yield int(child)
                yield from descendants(child)


def processes_of(folder):
    """The processes with an OUTPUT there: recipes and all that they have started, in any session."""
    found = []
    for file in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if b"\0OUTPUT=%b" % os.fsencode(folder) in b"\0" + file.read_bytes():
                found.append(int(file.parent.name))
    return found


def build_model(task, arch, **options):
    """A small model in evaluation mode, from the same seed each time; task: whatever has the dictionaries."""
    args = argparse.Namespace(arch=arch, **{**SMALL, **options})
    models.ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    return models.ARCH_MODEL_REGISTRY[arch].build_model(args, task).eval()


def save_checkpoint(path, model, options, data, languages, updates=100):
    """Saves `model` as fairseq does after so many updates; options: a Namespace with the model's options."""
    task = {"_name": "translation", "data": str(data), "source_lang": languages[0], "target_lang": languages[1]}
    # fairseq's trainer copies these from another group of options.
    task |= {"train_subset": "train", "dataset_impl": None, "required_seq_len_multiple": 1}
    criterion = {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1, "sentence_avg": False}
    cfg = {"model": options, "task": task, "criterion": criterion, "generation": vars(GenerationConfig())}
    history = [{"optimizer_name": "FusedAdam", "lr_scheduler_state": {}, "num_updates": updates}]
    state = {"model": model.state_dict(), "cfg": cfg, "args": None, "optimizer_history": history, "extra_state": {}}
    torch.save(state, path)


def change(path, **values):
    """Other options in a checkpoint: task__data="…" is the data of its task."""
    state = torch.load(path)
    for name, value in values.items():
        group, _, option = name.partition("__")
        found = state["cfg"][group]
        (vars(found) if isinstance(found, argparse.Namespace) else found)[option] = value
    torch.save(state, path)


CODES = "#version: 0.2\nw 1</w>\nw 2</w>\n"


def write_preparation(data, languages=("src", "tgt"), codes=CODES, lowercase=False, separate=False, **tokens):
    """Makes the folder `data`, and beside it data-prep's bpe/codes and the part of manifest.json that is used."""
    stages = {"tok": {"options": {"lowercase": lowercase, **tokens}}, "bpe": {"options": {"separate": separate}}}
    manifest = {"stages": stages, "source language": languages[0], "target language": languages[1]}
    (data.parent / "manifest.json").write_text(json.dumps(manifest))
    for folder in (data, data.parent / "bpe"):
        folder.mkdir(exist_ok=True)
    for name in [f"codes.{language}" for language in languages] if separate else ["codes"]:
        (data.parent / "bpe" / name).write_text(codes)
    return data.parent / "manifest.json"


def write_toy_data(folder, target=lambda words: words, train=2000, vocabulary=10, longest=8, command=run):
    """Makes a data-bin in `folder` whose target sentences are `target` of the source's words, e.g. reversed."""
    letters = random.Random(1)
    for split, size in (("train", train), ("valid", 50), ("test", 50)):
        lengths = (letters.randint(1, longest) for _ in range(size))
        sources = [[f"w{letters.randrange(vocabulary)}" for _ in range(length)] for length in lengths]
        for language, sentences in (("src", sources), ("tgt", map(target, sources))):
            (folder / f"{split}.{language}").write_text("".join(f"{' '.join(words)}\n" for words in sentences))
    prefixes = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    options = ["-s", "src", "-t", "tgt", "--joined-dictionary", "--destdir", folder / "data-bin"]
    command("fairseq-preprocess", *prefixes, *options)
    return folder / "data-bin"


# Options of small models that learn in a few hundred updates. Without a loader's worker: in pytest's own process the
# collection of garbage would wait five seconds for each.
TRAINING = """
    --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --share-all-embeddings
    --optimizer fused_adam --branch-frozen-updates 0 --adam-betas (0.9,0.98) --clip-norm 1.0
    --lr-scheduler inverse_sqrt --lr 5e-3 --warmup-updates 100 --max-tokens 500
    --criterion fused_label_smoothed_cross_entropy --label-smoothing 0.1
    --log-format simple --log-interval 10 --no-epoch-checkpoints --task checked_translation
    --num-workers 0
""".split()


def train(command, data, family, save_dir, *options, ok=True):
    """fairseq-train with small sizes; `options` come last and win."""
    places = ["--user-dir", PROJECT / "user_dir", "--save-dir", save_dir]
    return command("fairseq-train", data, *places, "--arch", f"{family}_tiny", *TRAINING, *options, ok=ok)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def assert_same_training(found, expected):
    """The same parameters, but for the keys' biases, whose gradient is nothing but rounding: attention ignores them."""
    ours, theirs = (torch.load(folder / "checkpoint_last.pt")["model"] for folder in (found, expected))
    for name in theirs:
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-5, msg=f"{found} {name}")


def assert_two_processes_equal_one(command, data, family, folder, *options):
    """An update has ten batches; `copies` has 25, so that the second process has one fewer in the third update."""
    options = [*"--max-update 6 --warmup-updates 1 --dropout 0 --disable-validation".split(), *options]
    train(command, data, family, folder / "one", "--update-freq", "10", *options)
    options += f"--distributed-world-size 2 --distributed-init-method tcp://127.0.0.1:{free_port()}".split()
    options += ["--update-freq", "5"]
    options += "--distributed-no-spawn --distributed-backend gloo --ddp-backend legacy_ddp --distributed-rank".split()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda rank: train(command, data, family, folder / "two", *options, rank), "01"))
    assert_same_training(folder / "two", folder / "one")


def training_options(*words):
    """fairseq-train's options as it reads them; folders need not exist."""
    return parse_args_and_arch(get_training_parser(), words)


def continued_from(path, **given):
    """The options of a training that is to continue from `path`, as far as the check of checkpoints reads them."""
    options = {"ddp_backend": "", "store_ema": False, "max_update": 0, "max_epoch": 0, "stop_time_hours": 0}
    options |= {"reset_optimizer": False, "reset_dataloader": False, "reset_lr_scheduler": False}
    return argparse.Namespace(**options | {"restore_file": str(path), "save_dir": "elsewhere"} | given)


def one_line(page):
    """The text of a page without its line breaks, which may stand anywhere in a sentence."""
    return " ".join(page.read_text(encoding="utf-8").split())


def blocks_of(page):
    """The blocks of commands of a Markdown page, without those in another language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for language, block in blocks if not language]
