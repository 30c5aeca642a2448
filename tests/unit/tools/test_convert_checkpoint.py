"""python -m user_dir.tools.convert_checkpoint: the same translations, and a training that goes on."""

import argparse

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from user_dir.tools import convert_checkpoint as tool

from support import SMALL, change, hypotheses

OURS = "--user-dir user_dir --arch vaswani_transformer_tiny --optimizer fused_adam".split()
OURS += "--criterion fused_label_smoothed_cross_entropy --task checked_translation".split()
FAIRSEQS = "--arch transformer --optimizer adam --criterion label_smoothed_cross_entropy".split()
COMMON = """--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32
    --encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings
    --lr-scheduler inverse_sqrt --lr 5e-3 --warmup-updates 10 --label-smoothing 0.1
    --max-tokens 500 --log-format simple --log-interval 10 --disable-validation""".split()


def assert_goes_on(before, after):
    """The same parameters, and Adam's moments and number of updates with them."""
    states = [torch.load(path) for path in (before, after)]
    parameters, moments = zip(*((state["model"], state["last_optimizer_state"]["state"]) for state in states))
    torch.testing.assert_close(*parameters, rtol=0, atol=0)
    assert moments[0] and moments[0].keys() == moments[1].keys()
    for one, other in zip(*(of.values() for of in moments)):
        assert int(one["step"]) == int(other["step"]) > 0
        assert all(torch.equal(one[name], other[name]) for name in ("exp_avg", "exp_avg_sq"))


def test_there_and_back(command, copies, tmp_path):
    """Trained by ours, by fairseq without our user dir, and by ours again; each goes on where the other stopped."""

    def trained(folder, side, updates, *more):
        options = [*COMMON, *side, "--max-update", updates, *more]
        done = command("fairseq-train", copies, "--save-dir", tmp_path / folder, *options)
        return tmp_path / folder / "checkpoint_last.pt", done.stdout + done.stderr

    def converted(path, to):
        tool.main([str(path), "--to", to, "--output", str(tmp_path / f"{to}.pt")])
        return tmp_path / f"{to}.pt"

    def translated(path, *user_dir):
        options = ["--beam", "3", "--max-len-b", "10", "--path", path]
        found = hypotheses(command("fairseq-generate", copies, *options, *user_dir).stdout)
        return [(pytest.approx(score, abs=1e-4), text) for score, text in found]

    first, _ = trained("first", OURS, 30)
    fairseqs = converted(first, "transformer")
    found = translated(fairseqs)
    assert found == translated(first, *OURS[:2]) and len({text for _, text in found}) > 5
    assert_goes_on(first, fairseqs)
    state = torch.load(first)
    state["optimizer_history"][-1]["optimizer_name"] = "FP16Optimizer"  # with --fp16 it names the wrapper
    torch.save(state, tmp_path / "fp16.pt")
    change(tmp_path / "fp16.pt", task___name="fast_translation", model__autocast="bf16")  # of version 0.1; no effect
    plain = tool.convert(tmp_path / "fp16.pt", "transformer")
    adam = plain["last_optimizer_state"]
    assert plain["cfg"]["task"]["_name"] == "translation"
    assert not any(group["fused"] for group in adam["param_groups"])
    assert {type(moments["step"]) for moments in adam["state"].values()} == {int}
    state["cfg"]["optimizer"] = argparse.Namespace(_name="adafactor")  # as fairseq saves those without a dataclass
    state["extra_state"]["metrics"]["valid"] = [(0, "_bleu_counts", "AverageMeter", {"sum": np.ones(4)})]
    torch.save(state, tmp_path / "adafactor.pt")
    torch.save(tool.convert(tmp_path / "adafactor.pt", "transformer"), tmp_path / "plain.pt")
    assert torch.load(tmp_path / "plain.pt")["cfg"]["optimizer"]["_name"] == "adafactor"
    command("python", "-c", "import torch; torch.load('plain.pt')", cwd=tmp_path)  # as without our user dir
    second, log = trained("second", FAIRSEQS, 40, "--continue-once", fairseqs)
    assert "@ 30 updates" in log and "num_updates=40" in log
    ours = converted(second, "vaswani_transformer")
    assert translated(ours, *OURS[:2]) == translated(second, *OURS[:2]) == translated(converted(ours, "transformer"))
    assert_goes_on(second, ours)
    _, log = trained("third", OURS, 50, "--continue-once", ours)
    assert "@ 40 updates" in log and "num_updates=50" in log


def test_a_file_of_before_fairseq_1(build, tmp_path):
    """As fairseq's public ones: all options in one list, another optimizer's history and no state of it."""
    shared = {"share_all_embeddings": True}
    stock = build("transformer", **shared)
    args = argparse.Namespace(arch="transformer_wmt_en_de", task="translation", data="data", **SMALL, **shared)
    args.criterion, args.optimizer, args.lr, args.label_smoothing = "label_smoothed_cross_entropy", "nag", [0.1], 0.1
    args.source_lang, args.target_lang, args.left_pad_source, args.left_pad_target = "src", "tgt", "True", "False"
    history = [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "best_loss": 1.0}]
    state = {"args": args, "model": stock.state_dict(), "optimizer_history": history}
    state |= {"extra_state": {"epoch": 3, "batch_offset": 0, "val_loss": 1.0}}
    torch.save(state, tmp_path / "old.pt")
    tool.main([str(tmp_path / "old.pt"), "--to", "vaswani_transformer", "--output", str(tmp_path / "new.pt")])
    found = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "new.pt"))
    assert found["cfg"].model.arch == "vaswani_transformer_base" and found["args"] is None
    assert {name: found["cfg"].model[name] for name in SMALL} == SMALL
    overridden = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "new.pt"), {"autocast": "bf16"})
    assert (found["cfg"].model.autocast, overridden["cfg"].model.autocast) == ("off", "bf16")
    assert found["optimizer_history"][-1]["criterion_name"] == "FusedLabelSmoothedCrossEntropy"


EQUIVALENT = [
    ("translation", "checked_translation"),
    ("label_smoothed_cross_entropy", "fused_label_smoothed_cross_entropy"),
    ("LabelSmoothedCrossEntropyCriterion", "FusedLabelSmoothedCrossEntropy"),
    ("adam", "fused_adam"),
    ("FairseqAdam", "FusedAdam"),
]


@pytest.mark.parametrize("arch", ["transformer", "vaswani_transformer_base"])
def test_names_and_state_are_those_of_the_other_family(saved, arch):
    """Also where the model's options name the task; those of a part that the model lacks do not count."""
    ours = arch == "transformer"  # is to be made
    _, path, _ = saved(arch, **({} if ours else {"relative_distance": 9}))
    given, expected = zip(*(pair if ours else pair[::-1] for pair in EQUIVALENT))
    task, criterion, criterion_class, adam, adam_class = given
    change(path, model__task=task, task___name=task, criterion___name=criterion)
    state = torch.load(path)
    state["cfg"] |= {"optimizer": {"_name": adam}, "common": {"user_dir": "user_dir"}}
    state["optimizer_history"][-1] |= {"criterion_name": criterion_class, "optimizer_name": adam_class}
    state["last_optimizer_state"] = {"param_groups": [{"fused": not ours, "step": 7}]}
    state["last_optimizer_state"]["state"] = {0: {"step": torch.tensor(7.0)}, 1: {}}
    torch.save(state, path)
    found = tool.convert(path, "vaswani_transformer" if ours else "transformer")
    cfg, history = found["cfg"], found["optimizer_history"][-1]
    names = [cfg["model"]["task"], cfg["criterion"]["_name"], history["criterion_name"]]
    assert (*names, cfg["optimizer"]["_name"], history["optimizer_name"]) == expected
    assert cfg["task"]["_name"] == expected[0] and cfg["common"]["user_dir"] is None
    assert found["last_optimizer_state"]["param_groups"] == [{"fused": ours, "step": 7}]
    assert [moments["step"] for moments in found["last_optimizer_state"]["state"].values()] == [7, 7]


@pytest.mark.parametrize(
    "arch, options, to, words",
    [
        ("transformer", {"quant_noise_pq": 0.1}, "vaswani_transformer", "--quant-noise-pq 0.1 is not supported by"),
        ("relative_transformer_base", {}, "transformer", "of --arch relative_transformer_base and cannot become"),
        ("vaswani_transformer_base", {}, "vaswani_transformer", "cannot become one of .* it is one already"),
        ("vaswani_transformer_base", {"attention_key_dim": 3}, "transformer", "has --attention-key-dim 3, which"),
    ],
)
def test_what_cannot_be(saved, tmp_path, arch, options, to, words, refusal):
    _, path, _ = saved(arch, **options)
    refusal(tool.main, path, "--to", to, "--output", tmp_path / "out.pt", match=words)
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize("to", ["transformer", "vaswani_transformer"])
@pytest.mark.parametrize(
    "options, words",
    [
        ({"adaptive_softmax_cutoff": "__import__('os').abort()"}, "which fairseq would run, .*: do not use it"),
        ({"encoder_xformers_att_config": "__import__('os').abort()"}, "which fairseq would run, .*: do not use it"),
        ({"encoder_layers": torch.tensor([2, 2])}, "or build for hours: do not use it"),
    ],
)
def test_what_fairseq_would_run_is_not_passed_on(saved, tmp_path, options, words, to, refusal):
    arch = "vaswani_transformer_base" if to == "transformer" else "transformer"
    _, path, _ = saved("vaswani_transformer_base")
    given = {**options, "arch": arch, "_name": arch}
    change(path, **{f"model__{name}": value for name, value in given.items()})
    refusal(tool.main, path, "--to", to, "--output", tmp_path / "out.pt", match=words)
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(
    "value", ["${oc.env:TOKEN}", "/data/${oc.env:TOKEN}", ["${env:TOKEN}"], "${oc.${task.env}:TOKEN}"], ids=str
)
def test_nothing_of_this_machine_is_written(saved, tmp_path, monkeypatch, value, refusal):
    monkeypatch.setenv("TOKEN", "secret")
    _, path, _ = saved("vaswani_transformer_base")
    change(path, task__data=value, task__env="env")
    words = r"has the option .*TOKEN\}.*: do not use it"
    refusal(tool.main, path, "--to", "transformer", "--output", tmp_path / "out.pt", match=words)
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("model"),
        lambda state: state["cfg"].pop("model"),
        lambda state: vars(state["cfg"]["model"]).clear(),
        lambda state: state["model"].update(version=3),
    ],
    ids=["no parameters", "no options of the model", "no architecture", "a parameter that is not a tensor"],
)
def test_a_damaged_checkpoint(saved, tmp_path, damage, refusal):
    _, path, _ = saved("vaswani_transformer_base")
    state = torch.load(path)
    damage(state)
    torch.save(state, path)
    words = "not a readable fairseq checkpoint"
    refusal(tool.main, path, "--to", "transformer", "--output", tmp_path / "out.pt", match=words)


def test_no_checkpoint(tmp_path, refusal):
    (tmp_path / "text").write_text("hello")
    for name, words in (("text", "not a readable fairseq checkpoint"), ("nowhere", "there is no checkpoint")):
        refusal(tool.main, tmp_path / name, "--to", "transformer", "--output", tmp_path / "out.pt", match=words)
