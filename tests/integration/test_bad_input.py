"""Options, data and checkpoints that cannot be trained with: fairseq-train ends in one line that says how to fix it.

Bad corpora are in unit/data_prep/, translations and pictures in unit/tools/.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import re
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import options, tasks
from fairseq.data import indexed_dataset
from fairseq.models import BaseFairseqModel
from fairseq_cli import train

from user_dir.errors import InputError
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask
from user_dir.training import first_checkpoint
from user_dir.training import input as training_input
from user_dir.training.data import batch_fault

from support import PROJECT, TRAINING

PLAIN, RELATIVE, WEIGHTED = "vaswani_transformer", "relative_transformer", "weighted_transformer"
BRANCHES = "--branch-frozen-updates 0"
TASK = "--task checked_translation"
TRAINED = " ".join(TRAINING).replace(BRANCHES, "").replace("--share-all-embeddings", "")


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


def check_input(data, words="", **given):
    """What fairseq-train checks of its input before it builds a model."""
    words = f"{data} --arch {PLAIN}_tiny {TRAINED} {words}".split()
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    vars(args).update(given)
    training_input.refuse_input(args, tasks.setup_task(args), args)


INPUT = [
    ("--bf16", "--bf16 .*: train with --autocast bf16"),
    ("--fp16", "--fp16 needs a GPU: train with --autocast bf16"),
    ("--fp16 --autocast bf16", "--autocast bf16 .*--fp16, .*: omit one"),
    ("--memory-efficient-fp16 --autocast bf16", "--autocast bf16 .*--fp16, .*: omit one"),
    ("--amp --autocast bf16", "--autocast bf16 .*--amp, .*: omit one"),
    ("--autocast bf16 --ddp-backend fully_sharded", "--autocast bf16 .* fully_sharded: use pytorch_ddp"),
    ("--num-batch-buckets 2", "--num-batch-buckets .*: omit it"),
    ("--save-interval 0 --update-freq 0", "--save-interval 0: give at least 1; --update-freq 0: give at least 1"),
    ("--best-checkpoint-metric bleu --maximize-best-checkpoint-metric", "bleu needs --eval-bleu: add it"),
    ("--best-checkpoint-metric bleu --eval-bleu", "bleu would keep the lowest: add --maximize-best-checkpoint-metric"),
    (
        "--best-checkpoint-metric accuracy",
        "accuracy needs --report-accuracy: add it; .*would keep the lowest: add --max",
    ),
    ("--best-checkpoint-metric sacrebleu --eval-bleu", "--best-checkpoint-metric sacrebleu: choose from loss, .*bleu"),
    ("--lr 0.25", "--lr is missing, or 0.25, .*: add one such as --lr 5e-4"),
    (
        "--lr-scheduler polynomial_decay --total-num-update 5 --max-update 9",
        "--total-num-update 5: .*max-update is 9: give",
    ),
    ("--maximize-best-checkpoint-metric", "metric loss would keep the highest: omit --maximize"),
    ("--eval-bleu --eval-bleu-detok mooses", "--eval-bleu-detok mooses: choose from .*moses"),
    ("--eval-bleu --eval-bleu-args {beam:4}", "--eval-bleu-args {beam:4}: give a JSON object"),
    ("--eval-bleu --eval-bleu-detok-args [4]", r"--eval-bleu-detok-args \[4\]: give a JSON object"),
    ('--eval-bleu --eval-bleu-args {"beem":4}', "--eval-bleu-args: .* no option beem: correct the name"),
    ("--max-tokens 1", "--max-tokens 1: .* has 2 subwords: give"),
    ("--max-target-positions 1", "--max-target-positions 1: the shortest .* has 2 subwords: give"),
    ("--max-tokens 7", "--max-tokens-valid 7 .default: --max-tokens.: "),
    ("--max-source-positions 7", "--max-source-positions 7: .*valid.* has 9 subwords: add --skip-invalid"),
]


@pytest.mark.parametrize("more, words", INPUT)
def test_input(copies, more, words):
    with pytest.raises(InputError, match=words):
        check_input(copies, more)


def test_fairseq_hydra_train_has_no_default_schedule(copies):
    with pytest.raises(InputError, match="lr_scheduler is missing: add lr_scheduler._name"):
        check_input(copies, lr_scheduler=None)


def test_sentences_that_just_fit(copies):
    """The shortest has 2 subwords, the longest 9."""
    check_input(copies, "--disable-validation --max-tokens 2 --max-source-positions 2")
    check_input(copies, "--max-tokens 9 --max-source-positions 9")


OPTIMIZERS = [
    ("transformer", "--max-tokens 1", "--max-tokens 1: .* has 2 subwords: give"),  # fairseq's own
    (PLAIN, "-s de -t en", "no dict.de.txt and no dict.en.txt: .* --source-lang"),
    (PLAIN, "--max-tokens-valid 7", "--max-tokens-valid 7 .*valid.* has 9 subwords: give"),
    (RELATIVE, "--relative-attention all --left-pad-target", "--left-pad-target cannot be combined with"),
    (PLAIN, "--branches 4 --neighbourhood 9", "--neighbourhood 9 has no effect without .*; --branches 4 .*: omit it"),
    (RELATIVE, "--relative-positions neither --relative-distance 4", "--relative-distance 4 has no effect .*: omit"),
    (PLAIN, "--adaptive-softmax-cutoff 10,20", "--adaptive-softmax-cutoff .*: use a subword vocabulary"),
    (PLAIN, "--decoder-embed-path no.txt", "--decoder-embed-path: there is no file no.txt: name another"),
    (PLAIN, "--share-all-embeddings --decoder-embed-dim 64", "-embed-dim 32 and .*-embed-dim 64: change one of them"),
    (PLAIN, "--store-ema --ema-seed-model no.pt", "--ema-seed-model: there is no file no.pt: name another"),
    (PLAIN, "--bf16 --max-tokens 1", "--bf16 .*: .*; --max-tokens 1: .* has 2 subwords: give"),
    (PLAIN, "--adam-betas 0.9", "--adam-betas 0.9: give two numbers"),
    (PLAIN, "--adam-betas (0.9,x)", "--adam-betas .*: give two numbers"),
    (PLAIN, "--adam-betas ('0.9','0.98')", "--adam-betas .*: give two numbers"),
    (PLAIN, "--adam-betas (0.9,1.5)", "1.5: change .*--adam-betas"),
    (PLAIN, "--amp --checkpoint-activations", "--amp .*--checkpoint-activations, .*: train with --autocast bf16"),
    (PLAIN, "--lr -1", "-1.0: change --lr"),
    (PLAIN, "--adam-eps -1", "-1.0: change .*--adam-eps"),
    (PLAIN, "--fp16-adam-stats", "--fp16-adam-stats .*--optimizer adam"),
    (WEIGHTED, f"{BRANCHES} --ddp-backend slowmo", "--ddp-backend pytorch_ddp"),
    (WEIGHTED, "--branch-frozen-updates 10", "--max-update 2 .*: set .*--branch-frozen-updates"),
]


@pytest.mark.parametrize("family, more, words", OPTIMIZERS, ids=lambda value: value[-40:])
def test_optimizers(refused, family, more, words):
    refused(words, family, more)


def test_held_out_sentences_that_are_cut_or_not_read(copies, tmp_path):
    """No sentence is too long for the model if --truncate-source cuts it, or if no --valid-subset names its set."""
    data = shutil.copytree(copies, tmp_path / "data")

    def check(words, **given):
        check_input(data, f"--max-source-positions 7 {words}", **given)

    check("--truncate-source")
    check("--truncate-source --max-tokens 4", max_tokens_valid=500)
    check("--truncate-source --train-subset valid --disable-validation", max_tokens_valid=3)
    with pytest.raises(InputError, match="--max-source-positions 7: the longest sentence of .*valid"):
        check("--valid-pairs 10000")
    check("--valid-pairs 1")
    for words in ("--valid-subset train", "--combine-valid-subsets"):  # of which no sample is taken, or another one
        with pytest.raises(InputError, match="--max-source-positions 7: the longest sentence of "):
            check(f"--valid-pairs 1 {words}")
    for path in data.glob("valid.*"):
        path.rename(path.with_name(path.name.replace("valid", "valid1")))
    for language in ("src", "tgt"):
        short = data / f"valid.src-tgt.{language}"
        builder = indexed_dataset.make_builder(f"{short}.bin", "mmap", 10)
        builder.add_item(torch.tensor([4, 2]))
        builder.finalize(f"{short}.idx")
    check("--ignore-unused-valid-subsets")


@pytest.mark.parametrize(
    "cut, positions, fault", [(True, 4, None), (True, 6, "--max-tokens"), (False, 9, "--max-tokens")]
)
def test_sources_are_cut_before_they_are_too_long_for_a_batch(cut, positions, fault):
    """One of nine subwords in batches of five."""
    data = SimpleNamespace(side="source", text="text", index=lambda: SimpleNamespace(sizes=np.array([9])))
    task_cfg = SimpleNamespace(truncate_source=cut, max_source_positions=positions)
    found = batch_fault(data, SimpleNamespace(max_tokens=5), task_cfg)
    assert found is None if fault is None else found.startswith(fault)


def test_no_optimizer(refused):
    refused("--optimizer .*: add --optimizer fused_adam", PLAIN, common=f"{TASK} --lr 0.1 --max-tokens 500")


def test_one_table_for_two_dictionaries(refused, copies, tmp_path):
    data = shutil.copytree(copies, tmp_path / "data")
    with open(data / "dict.tgt.txt", "a") as dictionary:
        dictionary.write("more 1\n")
    words = "--share-all-embeddings: the languages have dictionaries of their own: omit it"
    refused(words, PLAIN, "--share-all-embeddings", data=data)


def test_the_checkpoint_of_another_model_in_the_folder(refused, trained, tmp_path):
    shutil.copy(trained, tmp_path)
    expected = r"fc1.weight .*\[64, 32\] .*\[48, 32\].*: choose another --save-dir"
    refused(expected, PLAIN, "--decoder-ffn-embed-dim 48", save_dir=tmp_path)


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def removed(pattern):
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


FEW = b"w1 5\nw2 5\n"
AGAIN = "prepare the data again"


def both(*spoils):
    return lambda folder: [spoil(folder) for spoil in spoils]


DATA = [
    (cut("train.src-tgt.src.bin", 100), f"train.src-tgt.src.bin has 50 of [0-9,]+ subwords: {AGAIN}"),
    (removed("train.src-tgt.tgt.bin"), f"train.src-tgt.tgt.bin is missing: {AGAIN}"),
    (cut("valid.src-tgt.tgt.idx", 100), f"valid.src-tgt.tgt.idx .*is truncated .*: {AGAIN}"),
    (cut("train.src-tgt.src.idx", 20), f"train.src-tgt.src.idx .*is truncated .*: {AGAIN}"),
    (cut("train.src-tgt.src.idx", 3), f"train.src-tgt.src.idx is truncated: {AGAIN}"),
    (written("dict.src.txt", FEW), f"dict.src.txt has 6 words .*train.src-tgt.src.bin .* 1.: {AGAIN}"),
    (written("dict.tgt.txt", FEW), f"dict.tgt.txt has 6 words .*tgt.bin .* 1.: {AGAIN}"),
    (written("dict.src.txt", "ä 5\n".encode("latin-1")), f"dict.src.txt is not a dictionary .*: {AGAIN}"),
    (written("dict.src.txt", b"w1\n"), f"dict.src.txt is not a dictionary .*: {AGAIN}"),
    (removed("dict.tgt.txt"), rf"no dict.tgt.txt: {AGAIN}.* --target-lang"),
    (removed("valid*"), f"spoilt has no valid.src-tgt.src.idx: {AGAIN}"),
    (removed("train*"), f"spoilt has no train.src-tgt.src.idx: {AGAIN}"),
    (both(removed("valid*"), removed("train.src-tgt.tgt.bin")), "no valid.src-tgt.src.idx; .*tgt.bin is missing"),
    (removed("*"), "spoilt has no data .*: name the folder data-bin"),
    (shutil.rmtree, "no folder .*spoilt: name the folder data-bin"),
]


@pytest.mark.parametrize("spoil, words", DATA, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_data(refused, copies, tmp_path, spoil, words):
    data = tmp_path / "spoilt"
    spoil(shutil.copytree(copies, data))
    with pytest.raises(InputError, match=words):
        check_input(data)
    if spoil in (DATA[0][0], DATA[-1][0]):
        refused(words, PLAIN, data=data)


def test_a_dictionary_that_lacks_the_last_word(copies, tmp_path):
    """The data have the words 4 to 13: those before are fairseq's own."""
    data = shutil.copytree(copies, tmp_path / "data")
    words = [f"w{number} 5\n" for number in range(10)]
    (data / "dict.src.txt").write_text("".join(words))
    check_input(data)
    (data / "dict.src.txt").write_text("".join(words[:9]))
    with pytest.raises(InputError, match="dict.src.txt has 13 words .*src.bin has word number 13: "):
        check_input(data)


def test_data_in_two_folders(copies, tmp_path):
    """fairseq reads held-out sentences of the first one only."""
    data = shutil.copytree(copies, tmp_path / "second")
    cut("valid.src-tgt.src.bin", 10)(data)
    check_input(f"{copies}:{data}")
    with pytest.raises(InputError, match="nowhere has no train.src-tgt.src.idx"):
        check_input(f"{copies}:{tmp_path}/nowhere")


def test_held_out_sentences_in_two_files(copies, tmp_path):
    """fairseq reads the second one only to combine them."""
    data = shutil.copytree(copies, tmp_path / "data")
    for path in [*data.glob("valid.src-tgt.*")]:
        shutil.copy(path, path.with_name(path.name.replace("valid", "valid1")))
    combined, both = "--combine-valid-subsets", "--valid-subset valid1,valid"
    for words in (combined, both):
        with pytest.raises(
            InputError, match=r"longest sentence of .*valid1?\.src.* has 9 subwords: add --skip-invalid"
        ):
            check_input(data, f"--max-source-positions 7 {words}")
    cut("valid1.src-tgt.src.bin", 10)(data)
    check_input(data, "--ignore-unused-valid-subsets")
    for words in (combined, both):
        with pytest.raises(InputError, match="valid1.*: prepare the data again"):
            check_input(data, words)


@pytest.mark.parametrize("numbers, words", [(32, None), (16, "vectors of 16 numbers: give --encoder-embed-dim 16")])
def test_vectors_of_another_size(copies, tmp_path, numbers, words):
    (tmp_path / "vectors").write_text(f"1 {numbers}\nw1{' 0.5' * numbers}\n")
    with pytest.raises(InputError, match=words) if words else contextlib.nullcontext():
        check_input(copies, f"--encoder-embed-path {tmp_path}/vectors")


def test_files_that_fairseq_does_not_read(tmp_path):
    names = [f"{part}.src-tgt.src.idx" for part in ("train", "train12", "train_old", "train.old")]
    for name in names:
        (tmp_path / name).touch()
    for pair in (("src", "tgt"), ("tgt", "src")):  # data serve both directions
        assert [path.name for path in training_input.parts_of(tmp_path, "train", pair, "src")] == names[:2]


def test_a_training_set_in_two_files(copies, tmp_path):
    """fairseq's own default of --upsample-primary fails."""
    copies = shutil.copytree(copies, tmp_path / "data")
    given = {"data": str(copies), "train_subset": "train", "dataset_impl": "mmap"}
    task = CheckedTranslationTask.setup_task(CheckedTranslationConfig(**given))
    task.load_dataset("train", combine=True)
    pairs = len(task.dataset("train"))
    for path in [*copies.glob("train.src-tgt.*")]:
        shutil.copy(path, path.with_name(path.name.replace("train", "train1")))
    task.load_dataset("train", combine=True)
    assert len(task.dataset("train")) == 2 * pairs


def test_raw_data_have_no_index(copies, tmp_path):
    for part, language in itertools.product(("train", "valid"), ("src", "tgt")):
        (tmp_path / f"{part}.src-tgt.{language}").write_text("w1\n")
        shutil.copy(copies / f"dict.{language}.txt", tmp_path)
    check_input(tmp_path)
    for part in tmp_path.glob("valid*"):
        part.unlink()
    check_input(tmp_path, "--disable-validation")
    with pytest.raises(InputError, match="has no valid.src-tgt.src.idx"):
        check_input(tmp_path)


@pytest.fixture(scope="module")
def trained(command, copies, tmp_path_factory):
    """A checkpoint of two layers of vaswani_transformer."""
    folder = tmp_path_factory.mktemp("trained")
    more = f"--user-dir user_dir --save-dir {folder} --arch {PLAIN}_tiny --max-update 2 --disable-validation"
    command("fairseq-train", copies, *more.split(), *TRAINED.split())
    return folder / "checkpoint_last.pt"


CHECKPOINTS = [
    (PLAIN, "--restore-file {folder}/nowhere.pt", "--restore-file: there is no checkpoint .*nowhere.pt: name another"),
    (PLAIN, "--restore-file {folder}/half.pt", "half.pt is not a readable fairseq checkpoint .*name another"),
    (PLAIN, "--restore-file {folder}/junk.pt", "junk.pt is not a readable fairseq checkpoint .*name another"),
    (PLAIN, "--restore-file {folder}", "--restore-file: .* is a folder: name a checkpoint in it"),
    (PLAIN, "--continue-once {folder}/nowhere.pt", "--continue-once: there is no checkpoint .*nowhere.pt: name an"),
    (PLAIN, "--finetune-from-model {folder}/nowhere.pt", "--finetune-from-model: there is no checkpoint .*nowhere.pt"),
    (PLAIN, "--finetune-from-model {folder}/half.pt", "--finetune-from-model: .*half.pt is not a .*name another file"),
    (RELATIVE, "--restore-file {trained}", "model .vaswani_.*tiny .*-positions neither.*_keys .*missing.*: name an"),
    (PLAIN, "--restore-file {trained} --encoder-layers 3", "layers.2.*missing.*: name another .* omit --restore-file"),
    (
        PLAIN,
        "--finetune-from-model {trained} --share-all-embeddings",
        "encoder.embed_.* and decoder.embed_.* differ .*na",
    ),
    (PLAIN, "--restore-file {trained} --share-decoder-input-output-embed", "differ in the checkpoint and are shared"),
    (PLAIN, "--restore-file {trained} --encoder-attention-heads 2", "with --encoder-attention-heads 2 its .*: name an"),
    (PLAIN, "--finetune-from-model {trained} --absolute-positions omit", "--no-token-positional-embeddings True its"),
    (PLAIN, "--finetune-from-model {trained} --encoder-embed-dim 64", r"\[\d+, 32\] .*\[\d+, 64\].*: name"),
]


@pytest.mark.parametrize("family, more, words", CHECKPOINTS, ids=lambda value: value[-40:])
def test_checkpoints(refused, trained, tmp_path, family, more, words):
    (tmp_path / "junk.pt").write_text("hello")
    (tmp_path / "half.pt").write_bytes(trained.read_bytes()[: trained.stat().st_size // 2])
    refused(words, family, more.format(folder=tmp_path, trained=trained))


def test_branch_weights_of_another_form(saved, new_task):
    """The parameters have the same names and shapes, but κ and α would be read as logits, or logits as κ and α."""
    arch, form = "weighted_transformer_tiny", {"branch_weights": "softmax"}
    model, same, _ = saved(arch, **form)
    _, begun_elsewhere, _ = saved(arch, name="elsewhere.pt", branch_weights_init="random", **form)
    _, simplex, _ = saved(arch, name="simplex.pt")
    state, diverged = torch.load(same), same.with_name("nan.pt")
    for tensor in state["model"].values():
        tensor.fill_(float("nan"))  # which a diverged training saved: no two of them are equal
    torch.save(state, diverged)

    def check(path, store_ema=False):
        given = {"save_dir": "elsewhere", "ddp_backend": "legacy_ddp", "store_ema": store_ema, "reset_optimizer": True}
        training = argparse.Namespace(restore_file=str(path), **given)
        first_checkpoint.refuse_checkpoints(training, new_task(), model)

    for path in (same, begun_elsewhere, diverged):
        check(path)
    with pytest.raises(InputError, match="simplex.pt .*--branch-weights simplex.: with --branch-weights softmax its"):
        check(simplex)
    with pytest.raises(InputError, match="no moving average .*: omit --store-ema"):
        check(same, store_ema=True)


def test_a_model_without_our_options():
    """fairseq's own that are no Transformers have no `cfg`."""

    class Convolution(BaseFairseqModel):
        def __init__(self, width):
            super().__init__()
            self.layer = torch.nn.Conv1d(1, 1, width)

    def refuse(model):
        first_checkpoint.refuse_another_model(pathlib.Path("c.pt"), state, argparse.Namespace(ddp_backend=""), model)

    state = {"model": Convolution(2).state_dict(), "cfg": {"model": argparse.Namespace(arch="fconv")}}
    refuse(Convolution(2))
    with pytest.raises(InputError, match=r"c.pt holds another model \(fconv\): layer.weight is \[1, 1, 2\]"):
        refuse(Convolution(3))


def test_a_fine_tuning_continues_without_its_first_checkpoint(monkeypatch, trained):
    """As in fairseq, which reads that file once."""
    seen = []
    monkeypatch.setattr(first_checkpoint, "refuse_another_model", lambda path, *_: seen.append(path))
    given = {"restore_file": "checkpoint_last.pt", "finetune_from_model": "nowhere.pt", "save_dir": trained.parent}
    given |= {"store_ema": False, "reset_optimizer": False}
    same_words = argparse.Namespace(load_state_dict=lambda state: None)
    first_checkpoint.refuse_checkpoints(argparse.Namespace(**given), same_words, None)
    assert seen == [trained]


def test_a_foreign_file_to_continue_from(refused, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_text("hello")
    refused("_last.pt is not a readable fairseq checkpoint .*: choose another --save-dir", PLAIN, save_dir=tmp_path)


@pytest.mark.parametrize(
    "more, words",
    [
        (f"--save-dir runs --encoder-attention-heads 3 {TRAINED}", "^--encoder-embed-dim 32"),
        ("--save-dir runs --lr 0.1 --optimizer fused_adam", "--max-tokens or --batch-size: .*add --max-tokens"),
        (f"--save-dir file {TRAINED}", "--save-dir: Not a directory: '.*file.*': name another folder"),
        (f"--save-dir file/runs {TRAINED}", "--save-dir: Not a directory: '.*file/runs': name another folder"),
        pytest.param(
            f"--save-dir locked/runs {TRAINED}",
            "--save-dir: Permission denied: '.*locked/runs': name another folder",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write"),
        ),
    ],
    ids=["a model", "no batch size", "file", "file/runs", "locked/runs"],
)
def test_the_line_is_all_that_python_adds(command, copies, tmp_path, more, words):
    """As a person sees it: no traceback, and exit status 1."""
    (tmp_path / "file").write_text("precious")
    (tmp_path / "locked").mkdir(mode=0o500)
    more = f"--user-dir {PROJECT}/user_dir --arch {PLAIN}_tiny {more}"
    done = command("fairseq-train", copies, *more.split(), cwd=tmp_path, ok=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr and re.search(words, done.stderr.splitlines()[-1])
    assert (tmp_path / "file").read_text() == "precious"


HYDRA = [
    ("optimizer._name=adam ~optimizer.branch_frozen_updates", "train with --optimizer fused_adam"),
    ("+model.branch_weights=softmaxx", "--branch-weights softmaxx: choose from simplex, softmax, random"),
    ("+model.neighbourhood=9", "--neighbourhood 9 has no effect without --restricted-attention"),
    ("+model.droput=0.3", "model.droput is no option of weighted_transformer_tiny: correct the name"),
    ("model._name=weighted_transformer", "there is no model._name weighted_transformer: name a family with its size"),
    ("task.data=null", "task.data is not given: name the folder data-bin"),
]


@pytest.mark.parametrize("more, words", HYDRA)
def test_hydra(command, copies, tmp_path, more, words):
    """The error comes before the data loader's thread starts. The line below ours is hydra's."""
    config = ["--config-dir", PROJECT / "examples/hydra", "--config-name", "vaswani_transformer"]
    places = [f"common.user_dir={PROJECT / 'user_dir'}", f"task.data={copies}", f"checkpoint.save_dir={tmp_path}"]
    own = ["model._name=weighted_transformer_tiny", "optimization.max_update=2", *more.split()]
    done = command("fairseq-hydra-train", *config, *places, *own, cwd=tmp_path, ok=False)
    assert done.returncode == 1 and re.search(words, [line for line in done.stderr.splitlines() if line][-2])
    assert "begin training epoch" not in done.stderr + done.stdout and not [*tmp_path.glob("*.pt")]
