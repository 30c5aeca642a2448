"""Checkpoints that cannot be trained on from: fairseq-train ends in one line that says how to fix it."""

import argparse
import pathlib
import shutil

import pytest
import torch
from fairseq.models import BaseFairseqModel
from integration.refusals import PLAIN, RELATIVE, TRAINED

from user_dir.errors import InputError
from user_dir.training import first_checkpoint

from support import change, continued_from


@pytest.fixture(scope="module")
def trained(command, copies, tmp_path_factory):
    """A checkpoint of two layers of vaswani_transformer."""
    folder = tmp_path_factory.mktemp("trained")
    more = f"--user-dir user_dir --save-dir {folder} --arch {PLAIN}_tiny --max-update 2 --disable-validation"
    command("fairseq-train", copies, *more.split(), *TRAINED.split())
    return folder / "checkpoint_last.pt"


FINETUNED = "--finetune-from-model {trained}"
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
    (PLAIN, f"{FINETUNED} --share-all-embeddings", "encoder.embed_.* and decoder.embed_.* differ .*na"),
    (PLAIN, "--restore-file {trained} --share-decoder-input-output-embed", "differ in the checkpoint and are shared"),
    (PLAIN, "--restore-file {trained} --encoder-attention-heads 2", "with --encoder-attention-heads 2 its .*: name an"),
    (PLAIN, f"{FINETUNED} --stop-time-hours 1", r"0\.\d\d hours for --stop-time-hours: name an average"),
    (PLAIN, f"{FINETUNED} --absolute-positions omit", "with --absolute-positions omit its"),
    (PLAIN, "--store-ema --ema-seed-model {trained}", "--ema-seed-model: .* no moving average: name .* --store-ema"),
    (PLAIN, "--store-ema --ema-seed-model {folder}/junk.pt", "--ema-seed-model: .*junk.pt is not a .*: name .*"),
    (PLAIN, f"{FINETUNED} --encoder-embed-dim 64", r"\[\d+, 32\] .*\[\d+, 64\].*: name .* \(nmt-extend-vocabulary\)$"),
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

    def check(path, **given):
        training = continued_from(path, ddp_backend="legacy_ddp", reset_optimizer=True, **given)
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


def test_a_fine_tuning_continues_without_its_first_checkpoint(monkeypatch, trained, tmp_path):
    """As in fairseq, which reads that file once."""
    last = pathlib.Path(shutil.copy(trained, tmp_path))
    change(last, checkpoint__finetune_from_model="nowhere.pt")
    seen = []
    monkeypatch.setattr(first_checkpoint, "refuse_another_model", lambda path, *_: seen.append(path))
    training = continued_from("checkpoint_last.pt", finetune_from_model="nowhere.pt", save_dir=tmp_path)
    same_words = argparse.Namespace(load_state_dict=lambda state: None)
    first_checkpoint.refuse_checkpoints(training, same_words, None)
    assert seen == [last]


def test_a_foreign_file_to_continue_from(refused, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_text("hello")
    refused("_last.pt is not a readable fairseq checkpoint .*: choose another --save-dir", PLAIN, save_dir=tmp_path)


def test_the_checkpoint_of_another_model_in_the_folder(refused, trained, tmp_path):
    shutil.copy(trained, tmp_path)
    expected = r"fc1.weight .*\[64, 32\] .*\[48, 32\].*: choose another --save-dir"
    refused(expected, PLAIN, "--decoder-ffn-embed-dim 48", save_dir=tmp_path)
