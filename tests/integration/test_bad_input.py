"""What nobody can train with: options, data and checkpoints. fairseq-train ends in one line that says how to mend it.

Bad corpora are in unit/data_prep/, translations and pictures in unit/tools/.
"""

import argparse
import itertools
import os
import re
import shutil
import sys

import pytest
from fairseq import options, tasks
from fairseq_cli import train

from user_dir.errors import InputError
from user_dir.task import FastTranslationConfig, FastTranslationTask
from user_dir.training import input as training_input

from support import PROJECT, TRAINING

PLAIN, RELATIVE, WEIGHTED = "vaswani_transformer", "relative_transformer", "weighted_transformer"
BRANCHES = "--branch-frozen-updates 0"
TASK = "--task fast_translation"
TRAINED = " ".join(TRAINING).replace(BRANCHES, "").replace("--share-all-embeddings", "")


def begin():
    """fairseq-train's first steps: the rest of them takes half a second, to turn its options into a configuration."""
    args = options.parse_args_and_arch(options.get_training_parser(), sys.argv[1:])
    tasks.setup_task(args).build_model(args)


def refused(capsys, monkeypatch, data, save_dir, family, words, common=TRAINED, main=train.cli_main) -> str:
    """The last line of fairseq-train, which fails and writes nothing."""
    before = {path: path.read_bytes() for path in save_dir.rglob("*") if path.is_file()} if save_dir.is_dir() else {}
    words = f"{data} --save-dir {save_dir} --arch {family}_tiny --max-update 2 --cpu {common} {words}".split()
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *words])
    with pytest.raises((SystemExit, Exception)) as stop:
        main()
    if isinstance(stop.value, SystemExit):  # of fairseq's parser
        assert stop.value.code not in (0, None)
        printed = capsys.readouterr().err
    else:
        printed = str(stop.value)
    after = {path: path.read_bytes() for path in save_dir.rglob("*") if path.is_file()} if save_dir.is_dir() else {}
    assert after == before
    return printed.strip().splitlines()[-1]


MODELS = [
    (PLAIN, "--encoder-attention-heads 3", "--encoder-embed-dim 32 cannot be dealt out .*-heads 3: choose a number"),
    (PLAIN, "--decoder-attention-heads 5", "--decoder-embed-dim 32 cannot be dealt out .*-heads 5: choose a number"),
    (PLAIN, "--decoder-attention-heads 0", "--decoder-attention-heads 0: give a number from 1 on"),
    (PLAIN, "--encoder-attention-heads -4", "--encoder-attention-heads -4: give a number from 1 on"),
    (PLAIN, "--encoder-layers 0", "--encoder-layers 0: give"),
    (PLAIN, "--decoder-layers -1", "--decoder-layers -1: give"),
    (PLAIN, "--encoder-embed-dim 0", "--encoder-embed-dim 0: give"),
    (PLAIN, "--decoder-ffn-embed-dim -4", "--decoder-ffn-embed-dim -4: give"),
    (PLAIN, "--attention-key-dim 0", "--attention-key-dim 0: give"),
    (PLAIN, "--attention-value-dim -3", "--attention-value-dim -3: give"),
    (PLAIN, "--max-source-positions 0", "--max-source-positions 0: give"),
    (PLAIN, "--dropout 1.5", "--dropout 1.5: give a number from 0 to below 1"),
    (PLAIN, "--attention-dropout -1", "--attention-dropout -1.0: give"),
    (PLAIN, "--encoder-layerdrop 2", "--encoder-layerdrop 2.0: give"),
    (PLAIN, "--lr abc", "argument --lr: invalid .* 'abc'"),
    (PLAIN, "--nonsense 3", "unrecognized arguments: --nonsense 3"),
    (PLAIN, "--autocast fp8", "argument --autocast: invalid choice: 'fp8' .*bf16"),
    (PLAIN, "--absolute-positions none", "argument --absolute-positions: invalid choice: 'none' .*'add', 'omit'"),
    (PLAIN, "--quant-noise-pq 0.1", "--quant-noise-pq 0.1 is not supported by this --arch: .*train without it"),
    (
        PLAIN,
        "--adaptive-softmax-cutoff 5",
        "--adaptive-softmax-cutoff .* is not supported .*: use a subword vocabulary",
    ),
    ("vaswani", "", "argument --arch/-a: invalid choice: 'vaswani_tiny'"),
    (RELATIVE, "--relative-distance -1", r"cannot be negative \(-1\): give --relative-distance 0 or more"),
    (RELATIVE, "--relative-distance many", "argument --relative-distance: invalid int value: 'many'"),
    (RELATIVE, "--relative-tables own", "argument --relative-tables: invalid choice: 'own' .*'per_head', 'shared'"),
    (RELATIVE, "--relative-positions all", "argument --relative-positions: invalid choice: 'all'"),
    (WEIGHTED, f"{BRANCHES} --branches 0", "--branches 0: give a number from 1 on"),
    (WEIGHTED, f"{BRANCHES} --branches -2", "--branches -2: give"),
    (WEIGHTED, f"{BRANCHES} --branches 3", "4 heads cannot be dealt out to 3 branches: .*Choose a number of branches"),
    (WEIGHTED, f"{BRANCHES} --encoder-ffn-embed-dim 30", "width 30 cannot be dealt out to 4 branches .*Choose a width"),
    (WEIGHTED, f"{BRANCHES} --branch-weights own", "argument --branch-weights: invalid choice: 'own'"),
    (
        WEIGHTED,
        f"{BRANCHES} --branch-residual shared --branched-attention self",
        "--branched-attention is encoder_decoder, not self: leave that option out",
    ),
    (
        WEIGHTED,
        f"{BRANCHES} --branch-residual shared --branch-ffn shared",
        "--branch-ffn is per_branch, not shared: leave that option out",
    ),
    (WEIGHTED, f"{BRANCHES} --fp16", "with --fp16 also --fp16-no-flatten-grads"),
    (WEIGHTED, f"{BRANCHES} --ddp-backend fully_sharded", "train with --ddp-backend pytorch_ddp"),
    (WEIGHTED, "--optimizer adam", "train with --optimizer fused_adam"),
    (WEIGHTED, "--optimizer adafactor", "train with --optimizer fused_adam"),
]
# These are looked at when the options have become a configuration, or when there is a model to optimize.
OPTIMIZERS = [
    (PLAIN, "--bf16", "--bf16 is for TPUs.*: train with --autocast bf16"),
    (PLAIN, "--max-tokens 1", "--max-tokens 1: the shortest sentence of .* has 2: give as many at least"),
    (PLAIN, "--adam-betas 0.9", r"--adam-betas 0.9: give two numbers, such as '\(0.9, 0.98\)'"),
    (PLAIN, "--adam-betas (0.9,x)", "--adam-betas .*: give two numbers"),
    (PLAIN, "--adam-betas (0.9,1.5)", "Invalid beta parameter at index 1: 1.5: change --lr, --adam-betas"),
    (PLAIN, "--lr -1", "Invalid learning rate: -1.0: change --lr"),
    (PLAIN, "--adam-eps -1", "Invalid epsilon value: -1.0: change .*--adam-eps"),
    (PLAIN, "--fp16-adam-stats", "--fp16-adam-stats needs --optimizer adam"),
    (WEIGHTED, f"{BRANCHES} --ddp-backend slowmo", "train with --ddp-backend pytorch_ddp"),
    (WEIGHTED, "--branch-frozen-updates 10", "frozen for the last 10 updates before --max-update 2 .*set a larger"),
]


@pytest.mark.parametrize("family, more, words", MODELS, ids=lambda value: value[-40:])
def test_models(capsys, monkeypatch, copies, tmp_path, family, more, words):
    # which do not know Adam's options
    common = f"{TASK} --lr 0.1 --max-tokens 500" if "--optimizer ada" in more else TRAINED
    assert re.search(words, refused(capsys, monkeypatch, copies, tmp_path / "runs", family, more, common, begin))


@pytest.mark.parametrize("family, more, words", OPTIMIZERS, ids=lambda value: value[-40:])
def test_optimizers(capsys, monkeypatch, copies, tmp_path, family, more, words):
    assert re.search(words, refused(capsys, monkeypatch, copies, tmp_path / "runs", family, more))


def test_no_optimizer(capsys, monkeypatch, copies, tmp_path):
    line = refused(capsys, monkeypatch, copies, tmp_path / "runs", PLAIN, "", f"{TASK} --lr 0.1 --max-tokens 500")
    assert line == "--optimizer is missing: add --optimizer fused_adam"


def test_no_batch_size(command, copies, tmp_path):
    """fairseq notices it before it asks for the task."""
    more = f"--user-dir user_dir --arch {PLAIN}_tiny --save-dir {tmp_path} --lr 0.1 --optimizer fused_adam"
    done = command("fairseq-train", copies, *more.split(), ok=False)
    assert "Traceback" not in done.stderr
    assert re.search("--max-tokens or --batch-size: add --max-tokens 4096", done.stderr.splitlines()[-1])


def test_the_checkpoint_of_another_model_in_the_folder(capsys, monkeypatch, copies, trained, tmp_path):
    shutil.copy(trained, tmp_path)
    line = refused(capsys, monkeypatch, copies, tmp_path, PLAIN, "--decoder-ffn-embed-dim 48")
    assert re.search(r"fc1.weight is \[64, 32\] there and \[48, 32\] here: choose another --save-dir, or remove", line)


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def removed(pattern):
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


FEW = b"w1 5\nw2 5\n"
DATA = [
    (cut("train.src-tgt.src.bin", 100), "train.src-tgt.src.bin has 100 of [0-9,]+ bytes: prepare the data again"),
    (removed("train.src-tgt.tgt.bin"), "train.src-tgt.tgt.bin is missing: prepare the data again"),
    (cut("valid.src-tgt.tgt.idx", 100), "valid.src-tgt.tgt.idx is cut off: prepare the data again"),
    (cut("train.src-tgt.src.idx", 3), "train.src-tgt.src.idx is cut off: prepare the data again"),
    (written("dict.src.txt", FEW), "dict.src.txt has 6 words and .*train.src-tgt.src.bin has word number 1.: they are"),
    (written("dict.tgt.txt", FEW), "dict.tgt.txt has 6 words and .*tgt.bin has word number 1.: .*prepare the data"),
    (removed("dict.tgt.txt"), r"dict.tgt.txt is missing \(there: dict.src.txt\): prepare the data again, or name"),
    (removed("valid*"), "spoilt has no valid.src-tgt.src.idx: prepare the data again"),
    (removed("train*"), "spoilt has no train.src-tgt.src.idx: prepare the data again"),
    (removed("*"), "spoilt has no data .*: name the folder data-bin"),
    (shutil.rmtree, "there is no folder .*spoilt: name the folder data-bin"),
]


@pytest.mark.parametrize("spoil, words", DATA, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_data(capsys, monkeypatch, copies, tmp_path, spoil, words):
    spoil(shutil.copytree(copies, tmp_path / "spoilt"))
    line = refused(capsys, monkeypatch, tmp_path / "spoilt", tmp_path / "runs", PLAIN, "")
    assert re.search(words, line)


def test_raw_data_have_no_index(copies, tmp_path):
    for part, language in itertools.product(("train", "valid"), ("src", "tgt")):
        (tmp_path / f"{part}.src-tgt.{language}").write_text("w1\n")
        shutil.copy(copies / f"dict.{language}.txt", tmp_path)
    task = FastTranslationTask.setup_task(FastTranslationConfig(data=str(tmp_path)))
    given = {"train_subset": "train", "valid_subset": "valid", "disable_validation": False}
    given |= {"max_tokens": 500, "optimizer": "fused_adam", "bf16": False}
    training_input.refuse_input(argparse.Namespace(**given), task)
    for part in tmp_path.glob("valid*"):
        part.unlink()
    training_input.refuse_input(argparse.Namespace(**{**given, "disable_validation": True}), task)
    with pytest.raises(InputError, match="has no valid.src-tgt.src.idx"):
        training_input.refuse_input(argparse.Namespace(**given), task)


def test_data_of_another_pair(capsys, monkeypatch, copies, tmp_path):
    line = refused(capsys, monkeypatch, copies, tmp_path / "runs", PLAIN, "-s de -t en")
    assert re.search(r"dict.de.txt is missing \(there: dict.src.txt, dict.tgt.txt\): .* with --source-lang", line)


@pytest.fixture(scope="module")
def trained(command, copies, tmp_path_factory):
    """A checkpoint of two layers of vaswani_transformer."""
    folder = tmp_path_factory.mktemp("trained")
    more = f"--user-dir user_dir --save-dir {folder} --arch {PLAIN}_tiny --max-update 2 --disable-validation"
    command("fairseq-train", copies, *more.split(), *TRAINED.split())
    return folder / "checkpoint_last.pt"


CHECKPOINTS = [
    (PLAIN, "--restore-file {folder}/nowhere.pt", "--restore-file: there is no checkpoint .*nowhere.pt: name another"),
    (PLAIN, "--restore-file {folder}/half.pt", "half.pt is not a fairseq checkpoint that can be read .*name another"),
    (PLAIN, "--restore-file {folder}/junk.pt", "junk.pt is not a fairseq checkpoint that can be read .*name another"),
    (PLAIN, "--restore-file {folder}", "--restore-file: there is no checkpoint"),
    (PLAIN, "--finetune-from-model {folder}/nowhere.pt", "--finetune-from-model: there is no checkpoint .*nowhere.pt"),
    (PLAIN, "--finetune-from-model {folder}/half.pt", "--finetune-from-model: .*half.pt is not a .*name another file"),
    (
        RELATIVE,
        "--restore-file {trained}",
        "another model .vaswani_transformer_tiny. than is to be trained: .*relative_keys is missing there and .* here",
    ),
    (
        PLAIN,
        "--restore-file {trained} --encoder-layers 3",
        "layers.2.*missing there and .*: name another file, or leave --restore-file out",
    ),
    (
        PLAIN,
        "--finetune-from-model {trained} --encoder-embed-dim 64",
        r"is \[\d+, 32\] there and \[\d+, 64\] here: name",
    ),
    # fairseq's own words
    (PLAIN, "--restore-file {trained} --finetune-from-model {trained}", "can not be specified together"),
]


@pytest.mark.parametrize("family, more, words", CHECKPOINTS, ids=lambda value: value[-40:])
def test_checkpoints(capsys, monkeypatch, copies, trained, tmp_path, family, more, words):
    (tmp_path / "junk.pt").write_text("hello")
    (tmp_path / "half.pt").write_bytes(trained.read_bytes()[: trained.stat().st_size // 2])
    more = more.format(folder=tmp_path, trained=trained)
    assert re.search(words, refused(capsys, monkeypatch, copies, tmp_path / "runs", family, more))


def test_a_fine_tuning_goes_on_without_its_beginning(monkeypatch, trained):
    """As in fairseq, which reads that file once."""
    seen = []
    monkeypatch.setattr(training_input, "refuse_another_model", lambda path, *_: seen.append(path))
    given = {"restore_file": "checkpoint_last.pt", "finetune_from_model": "nowhere.pt", "save_dir": trained.parent}
    training_input.refuse_checkpoints(argparse.Namespace(**given), None)
    assert seen == [trained]


def test_a_foreign_file_to_go_on_from(capsys, monkeypatch, copies, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_text("hello")
    line = refused(capsys, monkeypatch, copies, tmp_path, PLAIN, "")
    assert re.search("_last.pt is not a fairseq checkpoint .*: choose another --save-dir, or remove it to train", line)


@pytest.mark.parametrize(
    "place, words",
    [
        ("file", "--save-dir: Not a directory: '.*file.*': name another folder"),
        ("file/runs", "--save-dir: Not a directory: '.*file/runs': name another folder"),
        pytest.param(
            "locked/runs",
            "--save-dir: Permission denied: '.*locked/runs': name another folder",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write"),
        ),
    ],
)
def test_no_folder_to_save_in(command, copies, tmp_path, place, words):
    """fairseq makes the folder before it asks for the task."""
    (tmp_path / "file").write_text("precious")
    (tmp_path / "locked").mkdir(mode=0o500)
    more = f"--user-dir user_dir --arch {PLAIN}_tiny --save-dir {tmp_path / place} {TRAINED}"
    done = command("fairseq-train", copies, *more.split(), ok=False)
    assert "Traceback" not in done.stderr and re.search(words, done.stderr.splitlines()[-1])
    assert (tmp_path / "file").read_text() == "precious"


def test_the_line_is_all_that_python_adds(command, copies, tmp_path):
    """As a person sees it: no traceback, and exit status 1."""
    more = f"--user-dir user_dir --arch {PLAIN}_tiny --save-dir {tmp_path} --encoder-attention-heads 3 {TRAINED}"
    done = command("fairseq-train", copies, *more.split(), ok=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("--encoder-embed-dim 32 cannot be dealt out")


HYDRA = [
    ("optimizer._name=adam ~optimizer.branch_frozen_updates", "train with --optimizer fused_adam"),
    ("common.fp16=true", "with --fp16 also --fp16-no-flatten-grads"),
]


@pytest.mark.parametrize("more, words", HYDRA)
def test_hydra(command, copies, tmp_path, more, words):
    """Before the loader's thread lives, which would have the last word. The line below ours is hydra's."""
    config = ["--config-dir", PROJECT / "examples/hydra", "--config-name", "vaswani_transformer"]
    places = [f"common.user_dir={PROJECT / 'user_dir'}", f"task.data={copies}", f"checkpoint.save_dir={tmp_path}"]
    own = ["model._name=weighted_transformer_tiny", "optimization.max_update=2", *more.split()]
    done = command("fairseq-hydra-train", *config, *places, *own, cwd=tmp_path, ok=False)
    assert done.returncode == 1 and re.search(words, [line for line in done.stderr.splitlines() if line][-2])
    assert "begin training epoch" not in done.stderr + done.stdout and not [*tmp_path.glob("*.pt")]
