"""Files made up by somebody else: none runs anything, and none reaches beyond its place."""

import argparse
import importlib
import io
import pickle
import re
import sys

import numpy as np
import pytest
import torch
from fairseq_cli import generate, interactive, train, validate

from user_dir.checkpoints.files import load
from user_dir.errors import InputError

from support import save_checkpoint, slow_beyond

ARCH = "weighted_relative_transformer_tiny"


class Bomb:
    """Loaded as pickle loads it, it writes the file `marker`."""

    def __init__(self, marker):
        self.code = f"open({str(marker)!r}, 'w')"

    def __reduce__(self):
        return exec, (self.code,)


@pytest.fixture
def marker(tmp_path):
    """A file that would be there if something had run."""
    path = tmp_path / "owned"
    yield path
    assert not path.exists()


@pytest.fixture
def good(build, copies, tmp_path):
    """A checkpoint's contents, of the data `copies`, to be made hostile."""
    options = argparse.Namespace(arch=ARCH, _name=ARCH, encoder_layers=1, decoder_layers=1)
    save_checkpoint(tmp_path / "good.pt", torch.nn.Linear(1, 1), options, copies, ("src", "tgt"))
    return torch.load(tmp_path / "good.pt")


# How a person would come by it: command (else the tool of this name), and its arguments with {bad} the checkpoint and
# {data} the data-bin.
COMMON = "{data} --lr 1e-3 --max-tokens 500 --max-update 1 --cpu --no-save --save-dir {runs}"
STOCK = f"--arch transformer_tiny --optimizer adam {COMMON}"
TRAIN = f"--arch {ARCH} --optimizer fused_adam --branch-frozen-updates 0 {COMMON}"
COMMANDS = {
    "train, resumed": (train.cli_main, f"{TRAIN}/resumed"),
    "train --restore-file": (train.cli_main, f"{TRAIN} --restore-file {{bad}}"),
    "train --finetune-from-model": (train.cli_main, f"{TRAIN} --finetune-from-model {{bad}}"),
    "stock train --restore-file": (train.cli_main, f"{STOCK} --restore-file {{bad}}"),
    "generate": (generate.cli_main, "{data} --path {bad} --cpu"),
    "interactive": (interactive.cli_main, "{data} --path {bad} --cpu"),
    "validate": (validate.cli_main, "{data} --path {bad} --cpu --task translation --max-tokens 500"),
    "convert_checkpoint": (None, "{bad} --to transformer --output {runs}/a.pt"),
    "extend_vocabulary": (None, "{bad} --data {data} --output {runs}/a.pt"),
    "export_ctranslate2": (None, "{bad} --data {data} --output {runs}/a"),
    "average_checkpoints": (None, "{bad} --output {runs}/average.pt"),
    "translate": (None, "{bad} --data {data} --pretokenised w1"),
    "ablate_branch_weights": (None, "{bad} --data {data}"),
    "describe_heads": (None, "{bad} --data {data}"),
    "plot_attention": (None, "{bad} --data {data} --pretokenised --sentence w1 --output {runs}/a.png"),
    "plot_relative_positions": (None, "{bad} --output {runs}/a.png"),
}


@pytest.fixture
def invoke(copies, tmp_path, monkeypatch):
    """invoke(name): ends the command of that name with what it raises, on tmp_path/bad.pt and checkpoints of it."""

    def invoke(name, more=""):
        main, words = COMMANDS[name]
        main = main or importlib.import_module(f"user_dir.tools.{name}").main
        resumed = tmp_path / "runs/resumed"
        resumed.mkdir(parents=True)
        (resumed / "checkpoint_last.pt").write_bytes((tmp_path / "bad.pt").read_bytes())
        words = f"{words} {more}".format(bad=tmp_path / "bad.pt", data=copies, runs=tmp_path / "runs").split()
        monkeypatch.setattr(sys, "argv", ["command", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO("w1\n"))
        with pytest.raises((SystemExit, InputError, pickle.UnpicklingError)) as stop:
            main()
        assert [path.name for path in tmp_path.glob("runs/**/*") if path.is_file()] == ["checkpoint_last.pt"]
        return str(stop.value)

    return invoke


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_what_a_checkpoint_pickles(invoke, good, marker, tmp_path, name):
    torch.save({**good, "extra_state": {"": Bomb(marker)}}, tmp_path / "bad.pt")
    line = invoke(name)
    assert re.search("Weights only load failed|not a readable fairseq checkpoint", line)


class Made:
    """Loaded as pickle loads it, it is what this call returns, with that state."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def test_no_array_is_of_addresses(good, tmp_path):
    """numpy would take numbers for addresses of objects, and call what is there."""
    objects = Made(np.dtype, ("O8", False, True))
    torch.save({**good, "extra_state": Made(np.ndarray, ((), objects, b"A" * 8))}, tmp_path / "bad.pt")
    with pytest.raises(InputError, match="not a readable fairseq checkpoint"):
        load(tmp_path / "bad.pt")
    flagged = Made(np.dtype, ("i8", False, True), (3, "<", None, None, None, 8, 1, 63))  # 63: those of objects
    torch.save({**good, "extra_state": Made(np.ndarray, (0,), (1, (), flagged, False, b"A" * 8))}, tmp_path / "bad.pt")
    assert load(tmp_path / "bad.pt")["extra_state"].tobytes() == b"A" * 8


def legacy(state, path):
    torch.save(state, path, _use_new_zipfile_serialization=False)


def pickled(state, path):
    path.write_bytes(pickle.dumps(state))


@pytest.mark.parametrize("place", ["model", "cfg", "args", "extra_state", "last_optimizer_state", "ema"])
@pytest.mark.parametrize("save", [torch.save, legacy, pickled])
def test_nowhere_in_a_checkpoint(good, marker, tmp_path, place, save):
    for bomb in (Bomb(marker), np.array([Bomb(marker)])):
        save({**good, place: argparse.Namespace(deep=[bomb])}, tmp_path / "bad.pt")
        with pytest.raises(InputError, match="not a readable fairseq checkpoint"):
            load(tmp_path / "bad.pt")
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "bad.pt")


def test_the_bomb_is_one(marker, tmp_path):
    """The files that these tests refuse do run code where they are let."""
    torch.save(Bomb(marker), tmp_path / "bad.pt")
    torch.load(tmp_path / "bad.pt", weights_only=False)
    assert marker.exists()
    marker.unlink()


# Options that fairseq evaluates: the group in a checkpoint, and what stands in it.
EVALUATED = [
    ("model", {"_name": "fconv", "encoder_layers": "{code}"}),
    ("model", {"_name": "fconv_self_att", "pretrained": "{code}"}),
    ("model", {"_name": "transformer", "adaptive_softmax_cutoff": "{code}"}),
    ("model", {"_name": "transformer", "encoder_xformers_att_config": "{code}"}),
    ("model", {"_name": "transformer", "xformers_att_config": "{code}"}),
    ("model", {"_name": "transformer", "encoder": {"xformers_att_config": "{code}"}}),
    ("model", {"_name": "transformer", "arch": "fconv", "encoder_layers": "{code}"}),
    ("model", {"_name": ARCH, "adaptive_softmax_cutoff": "{code}"}),
    ("model", {"_name": ARCH, "decoder_xformers_att_config": "{code}"}),
    ("model", {"_name": "wav2vec2", "conv_feature_layers": "{code}"}),
    ("task", {"_name": "multilingual_translation", "left_pad_source": "{code}", "data": "x"}),
    ("task", {"_name": "translation", "task": "multilingual_translation", "left_pad_source": "{code}", "data": "x"}),
    ("criterion", {"_name": "ctc", "wer_args": "{code}"}),
    ("criterion", {"_name": "cross_entropy", "criterion": "ctc", "wer_args": "{code}"}),
]


def armed(options, code):
    """The options with that code in them."""
    return {name: armed(x, code) if isinstance(x, dict) else x.format(code=code) for name, x in options.items()}


@pytest.mark.parametrize("kind", [argparse.Namespace, dict])
@pytest.mark.parametrize("group, options", EVALUATED, ids=[f"{group} {o}" for group, o in EVALUATED])
def test_options_of_a_checkpoint_are_not_evaluated(invoke, good, marker, tmp_path, group, options, kind):
    good["cfg"][group] = kind(**armed(options, Bomb(marker).code))
    torch.save(good, tmp_path / "bad.pt")
    line = invoke("translate")
    assert re.search("which may run code|which fairseq would run|gives no model.* is not supported", line), line


MODELS = [options for group, options in EVALUATED if group == "model"]


@pytest.mark.parametrize("name", ["generate", "interactive"])  # fairseq-validate takes the checkpoint's task
@pytest.mark.parametrize("options", slow_beyond([MODELS[0], MODELS[7]], MODELS), ids=str)
def test_nor_by_fairseqs_commands_with_our_task(invoke, good, marker, tmp_path, options, name):
    good["cfg"]["model"] = argparse.Namespace(**armed(options, Bomb(marker).code))
    torch.save(good, tmp_path / "bad.pt")
    line = invoke(name, "--task checked_translation")
    assert re.search("which may run code|which fairseq would run|is not supported", line), line


def test_old_options_beside_the_new_ones(invoke, good, marker, tmp_path):
    """fairseq would take them."""
    torch.save({**good, "args": argparse.Namespace(arch="fconv", encoder_layers="…")}, tmp_path / "bad.pt")
    assert "options of a fairseq before 1.0" in invoke("translate")


def test_a_configuration_is_not_evaluated(marker):
    """fairseq calls eval() on --adam-betas, also from a configuration of fairseq-hydra-train."""
    from user_dir.training.optimizer import refuse_betas

    for betas in (Bomb(marker).code, "(0.9,)", 0.9, "0.9, x"):
        with pytest.raises(InputError, match="give two numbers"):
            refuse_betas(betas)
    for betas in ("(0.9, 0.98)", [0.9, 0.98], "0.9,0.98"):
        refuse_betas(betas)
