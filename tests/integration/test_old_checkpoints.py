"""Earlier checkpoints, in tests/old_checkpoints: they load, and translate as they did when they were trained."""

import argparse

import pytest
import torch
from fairseq import models

from user_dir.errors import InputError
from user_dir.serving.translator import Translator
from user_dir.transformer.architectures import FAMILIES

from support import OLD, PROJECT, hypotheses

NAMES = sorted(path.stem for path in OLD.glob("*.pt"))


def expected(name):
    """Translations and their scores."""
    lines = [line.split("\t") for line in (OLD / f"{name}.txt").read_text(encoding="utf-8").splitlines()]
    return [text for _, text in lines], pytest.approx([float(score) for score, _ in lines], abs=1e-4)


def test_every_family_has_one():
    assert {*FAMILIES} <= {*NAMES} and len(expected(NAMES[0])[0]) == 20
    assert sum(path.stat().st_size for path in OLD.rglob("*")) < 174_000 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_text(name):
    """By Translator, which has the generator of --task checked_translation."""
    translator = Translator(OLD / f"{name}.pt", data=OLD / "data-bin")
    texts = (OLD / "test.fr").read_text(encoding="utf-8").splitlines()
    found = [row[0] for row in translator.search([translator.encode(text) for text in texts], lenpen=0.6)]
    assert ([text for text, _ in found], [score for _, score in found]) == expected(name)


def test_one_ffn_for_all_branches_is_refused(tmp_path):
    """An option that no longer exists; by our reading of a checkpoint, and by fairseq's building of its model."""
    state = torch.load(OLD / "weighted_transformer.pt")
    for given in ("per_branch", "shared"):
        state["cfg"]["model"].branch_ffn = given
        torch.save(state, tmp_path / f"{given}.pt")
    Translator(tmp_path / "per_branch.pt", data=OLD / "data-bin")
    with pytest.raises(InputError, match="--branch-ffn shared .*: train again without it"):
        Translator(tmp_path / "shared.pt", data=OLD / "data-bin")
    with pytest.raises(InputError, match="--branch-ffn shared .*: train again without it"):
        models.build_model(argparse.Namespace(**vars(state["cfg"]["model"])), None)


@pytest.mark.parametrize("name", NAMES)
def test_fairseq_generate(call, name):
    options = "--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --remove-bpe --tokenizer moses -s fr -t en".split()
    options += ["--required-batch-size-multiple", "1", "--num-workers", "0", "--task", "translation"]
    model = ["--user-dir", PROJECT / "user_dir", "--path", OLD / f"{name}.pt"]
    printed = call("fairseq-generate", OLD / "data-bin", *model, *options)
    scores, texts = zip(*hypotheses(printed, "D"))
    assert ([*texts], [*scores]) == expected(name)
