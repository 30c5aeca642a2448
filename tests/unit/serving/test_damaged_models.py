"""Damaged or made-up models and what belongs to them: a Translator refuses them in one line."""

import json
import math
import re

import pytest
import torch

from user_dir.errors import InputError
from user_dir.serving.translator import Translator

from support import change, write_preparation


def spoilt(**values):
    return lambda folder: change(folder / "checkpoint.pt", **values)


def without_groups(*kept):
    def keep(folder):
        state = torch.load(folder / "checkpoint.pt")
        cfg = {group: state["cfg"][group] for group in kept} if kept else "nonsense"
        torch.save({**state, "cfg": cfg}, folder / "checkpoint.pt")

    return keep


def change_state(folder, **values):
    torch.save(torch.load(folder / "checkpoint.pt") | values, folder / "checkpoint.pt")


def of_other_words(folder):
    change(folder / "checkpoint.pt", task___name="checked_translation")
    change_state(folder, task_state={"dictionaries": ["of", "others"]})


def written(name, text):
    return lambda folder: (folder / name).write_bytes(text.encode("latin-1"))


def removed(name):
    return lambda folder: (folder / name).unlink()


def manifest(**values):
    def change(folder):
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def prepared(**preparation):
    return lambda folder: write_preparation(folder / "data-bin", **preparation)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (written("checkpoint.pt", "hello"), "checkpoint.pt is not a readable fairseq checkpoint"),
        (removed("manifest.json"), "no manifest.json .*data-bin.*: .*--pretokenised"),
        (written("manifest.json", "{"), "manifest.json .*: run data-prep/prepare.py again"),
        (written("manifest.json", "[" * 100_000), "manifest.json .*: run"),
        (manifest(stages={}), "manifest.json .*'tok' is missing.*: run"),
        (manifest(**{"source language": "../../etc"}), "manifest.json .*: run"),
        (prepared(lowercase="yes"), "manifest.json .*invalid value.*: run"),
        (prepared(languages=("fr", "en")), "src to tgt.*data-bin has fr and en: name"),
        (removed("bpe/codes"), "no subword codes .*bpe/codes: keep .* in subwords"),
        (prepared(codes=""), "bpe/codes .*: run"),
        (prepared(codes="#version: 0.2\na b c\n"), "bpe/codes .*invalid line 2.*: run"),
        (prepared(codes="#version: 9\na b\n"), "bpe/codes .*version 9.*: run"),
        (written("bpe/codes", "#version: 0.2\n\xff \xfe\n"), "bpe/codes .*decode.*: run"),
        (written("bpe/vocabulary", "\xff 1\n"), "bpe/vocabulary .*decode.*: run"),
        (written("data-bin/dict.src.txt", "nonsense\n"), "gives no model with .*Incorrect dictionary format"),
        (written("data-bin/dict.src.txt", "a 1\n"), "gives no model with the dictionaries of .*size mismatch"),
        (of_other_words, "checkpoint.pt: .*trained with other dictionaries than those of .*data-bin: name the data"),
        (lambda at: change_state(at, task_state=["other"]), "checkpoint.pt is not a readable fairseq checkpoint"),
        (removed("data-bin/dict.src.txt"), "gives no model with the dictionaries of .*dict.src.txt"),
        (lambda folder: [file.unlink() for file in (folder / "data-bin").iterdir()], "no dictionaries .*: name"),
        (without_groups(), "checkpoint.pt is not a readable fairseq checkpoint .AttributeError"),
        (without_groups("model"), "checkpoint.pt .*training data: name the data-bin"),
        (without_groups("model", "task"), "checkpoint.pt .*generation options .*: name another"),
        *[(spoilt(task__max_source_positions=number), f"max_source_positions {number} ") for number in (0, 1, -3)],
        (spoilt(model__encoder_layers=1_000_000), "encoder_layers 1000000, .*: do not use it"),
        (spoilt(model__decoder_layers=1_000_000), "decoder_layers 1000000, "),
        (spoilt(model__encoder={"layers": 1_000_000}), "encoder .*1000000.*: do not use it"),
        (spoilt(model__encoder={"embed_path": "/dev/zero"}), "encoder .*/dev/zero.*: do not use it"),
        (spoilt(model__encoder_embed_dim=10**9), "encoder_embed_dim 1000000000, "),
        (spoilt(model__max_source_positions=10**9), "max_source_positions 1000000000, "),
        (spoilt(model__max_target_positions=2**20 + 1), "max_target_positions 1048577, "),
        (spoilt(model__relative_distance=10**9), "relative_distance 1000000000, "),
        (spoilt(model__branches=10**9), "branches 1000000000, "),
    ],
)
def test_bad_input(files, spoil, words, capsys):
    path, _ = files()
    spoil(path.parent)
    with pytest.raises(InputError, match=re.compile(words, re.DOTALL)):
        Translator(path)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_training_that_diverged_is_one_line(files, number):
    path, _ = files()
    state = torch.load(path)
    for weight in state["model"].values():
        weight.fill_(number)
    torch.save(state, path)
    with pytest.raises(InputError, match="probabilities are not finite.*: use another"):
        Translator(path).translate(["w1 w2"])
