"""A training continues only as the function that was trained: the options of the model, and the dictionaries."""

import argparse
import contextlib
import pathlib
from dataclasses import dataclass, fields

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig
from omegaconf import OmegaConf

from user_dir.config import VariantConfig, option
from user_dir.errors import InputError, flag
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask
from user_dir.training.first_checkpoint import refuse_another_model, refuse_checkpoints
from user_dir.training.last_checkpoint import LAST
from user_dir.transformer.layers import SELF_ATTENTIONS

from support import PRE_NORM, SMALL, continued_from

NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig}
OPTIONS = [option.name for option in fields(VariantConfig) if option.name not in {*NESTED, "quant_noise"}]
OPTIONS += [f"{side}_{option.name}" for side, config in NESTED.items() for option in fields(config)]
# Values to change to, for options that are neither switches nor a choice of words; for others of ours the next number.
# fairseq's numbers of layers, widths, positions and words are left out: they are shapes.
VALUES = {"activation_fn": "tanh", "branches": 4, "top_branches": 1, "neighbourhood": 8, "relative_distance": 8}
VALUES |= {"attention_key_dim": 8, "attention_value_dim": 8, "decoder_output_dim": 8, "relu_dropout": 0.5}
VALUES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
VALUES |= {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}
BASES = {
    "vaswani_transformer_tiny": {**PRE_NORM, "restricted_attention": "both", "neighbourhood": 4},
    "relative_transformer_tiny": {"relative_positions": "scalars", "relative_tables": "shared"},
    "weighted_transformer_tiny": {"branches": 2},
    "transformer": {"no_decoder_final_norm": True},  # with which --decoder-normalize-before adds no parameter
}


@pytest.fixture
def built(build):
    """built(arch, options): the model and its options, as fairseq-train saves them."""

    def built(arch, given):
        model = build(arch, **given)
        torch.manual_seed(2)
        for parameter in model.parameters():  # κ, α and scalars are equal at first
            parameter.data += 0.3 * torch.rand_like(parameter)
        return model, argparse.Namespace(**{"arch": arch, **SMALL, **given})

    return built


def check(parameters, options, model, ddp_backend=""):
    """Refuses to train `model` on from a checkpoint with these parameters and options, if it is another."""
    state = {"model": parameters, "cfg": {"model": options}}
    refuse_another_model(pathlib.Path("c.pt"), state, argparse.Namespace(ddp_backend=ddp_backend), model)


def other_values(name, model):
    """Values of an option that `model` does not have."""
    now = getattr(model.cfg, name, getattr(VariantConfig, name, None))
    kind = {option.name: option.type for option in fields(VariantConfig)}.get(name)
    if name in VALUES:
        choices = [VALUES[name]]
    elif hasattr(kind, "__members__"):
        choices = [member.value for member in kind]
    elif name in VariantConfig.__annotations__ and not isinstance(now, (bool, float)):
        choices = [(now or 0) + 1]
    else:
        choices = [not now] if isinstance(now, bool) else [0.5] if isinstance(now, float) else []
    return [value for value in choices if str(value) != str(now)]


@pytest.mark.parametrize("arch, given", BASES.items(), ids=BASES)
def test_every_option_is_refused_or_leaves_the_function(built, batch, arch, given):
    """With another value of any option the model cannot be built, refuses the checkpoint, or computes the same."""
    model, options = built(arch, given)
    expected, tried, refused = model(**batch)[0], set(), set()
    for name in OPTIONS:
        for value in other_values(name, model):
            try:
                other, _ = built(arch, {**given, name: value})
            except Exception:  # InputError, or an assertion of fairseq's
                continue
            tried.add(name)
            try:
                check(model.state_dict(), options, other)
            except InputError:
                refused.add(name)
                continue
            other.load_state_dict(model.state_dict())
            if name != "autocast":  # which rounds
                torch.testing.assert_close(other(**batch)[0], expected, msg=f"{flag(name)} {value} was not refused")
    assert {"encoder_attention_heads", "decoder_attention_heads", "activation_fn", "no_scale_embedding"} <= refused
    assert {"dropout", "attention_dropout", "encoder_layerdrop", "checkpoint_activations"} <= tried - refused
    if "relative" in arch:  # which can be built with another value of any of our options but other self-attentions'
        others = {option[2:].replace("-", "_") for option in SELF_ATTENTIONS} - {"relative_positions"}
        assert tried >= VariantConfig.__annotations__.keys() - others


def test_fairseqs_transformer_is_ours(built):
    stock, options = built("transformer", {})
    ours, _ = built("vaswani_transformer_tiny", {"dropout": 0.5})
    parameters = stock.state_dict()
    check(parameters, options, ours)
    parameters |= {f"{side}.embed_positions._float_tensor": torch.ones(1) for side in ("encoder", "decoder")}
    check(parameters, options, ours)  # of fairseq 0.12.2


def test_a_file_from_before_the_bias_count(built):
    """test_attention.py has what it computes."""
    model, options = built("weighted_transformer_tiny", {})
    check({name: x for name, x in model.state_dict().items() if not name.endswith("bias_count")}, options, model)


@pytest.mark.parametrize("ddp_backend", ["legacy_ddp", "fully_sharded"])
def test_an_option_that_fairseqs_transformer_lacks(built, ddp_backend):
    restricted, options = built("vaswani_transformer_tiny", {"restricted_attention": "encoder"})
    with pytest.raises(InputError, match="tiny --restricted-attention encoder.: with --restricted-attention none"):
        check(restricted.state_dict(), options, built("transformer", {})[0], ddp_backend)


def test_an_option_that_the_file_does_not_name_has_its_default(built):
    relative, options = built("relative_transformer_tiny", {})
    both, _ = built("relative_transformer_tiny", {"absolute_positions": "add"})
    with pytest.raises(InputError, match=": with --absolute-positions add its parameters would compute something else"):
        check(relative.state_dict(), options, both)


@dataclass
class WarmerConfig(VariantConfig):
    """Of a variant with an option that changes no shape."""

    warmth: float = option(1.0, "factor of the scores")


@pytest.mark.parametrize("warmth", [1.0, 2.0])
def test_a_file_from_before_a_variant_had_its_option(built, warmth):
    model, options = built("vaswani_transformer_tiny", {})
    model.cfg = WarmerConfig.from_namespace(argparse.Namespace(**SMALL, warmth=warmth))
    refused = pytest.raises(InputError, match="tiny.: with --warmth 2.0 its")
    with contextlib.nullcontext() if warmth == 1 else refused:
        check(model.state_dict(), options, model)


@pytest.mark.parametrize("warmth", [1.0, 2.0])
def test_a_file_of_a_variant_with_an_option_that_the_model_lacks(built, monkeypatch, warmth):
    model, options = built("vaswani_transformer_tiny", {})
    monkeypatch.setitem(ARCH_MODEL_REGISTRY, "warmer_tiny", type("Warmer", (), {"config": WarmerConfig}))
    options.arch, options.warmth = "warmer_tiny", warmth
    refused = pytest.raises(InputError, match="warmer_tiny --warmth 2.0.: with --warmth 1.0 its")
    with contextlib.nullcontext() if warmth == 1 else refused:
        check(model.state_dict(), options, model)


def test_an_average_is_not_continued(saved, new_task):
    """fairseq would count updates from 0, with a new warm-up."""
    model, path, _ = saved("vaswani_transformer_tiny")
    with pytest.raises(InputError, match="--restore-file: .* has no state of the optimizer.*--finetune-from-model"):
        refuse_checkpoints(continued_from(path), new_task(), model)
    refuse_checkpoints(continued_from(path, reset_optimizer=True), new_task(), model)


HERE, ONCE, TUNED = {"restore_file": LAST}, {"continue_once": "c.pt"}, {"finetune_from_model": "c.pt"}


@pytest.mark.parametrize(
    ("given", "file", "words"),
    [
        ({}, "checkpoint_last.pt", "--restore-file: run/checkpoint_last.pt is of another .*: omit it to continue that"),
        ({}, "checkpoint_9_101.pt", "--restore-file: run/checkpoint_9_101.pt is of .*--continue-once .*c.pt"),
        ({}, "checkpoint9.pt", "--restore-file: run/checkpoint9.pt"),
        ({"reset_optimizer": True}, "checkpoint_last.pt", "--restore-file: run/checkpoint_last.pt is of another"),
        ({}, "checkpoint_9_100.pt", None),
        ({}, "checkpoint8.pt", None),
        ({"restore_file": "run/c.pt"}, "checkpoint_last.pt", None),  # back to an earlier one
        ({"restore_file": "run/../run/c.pt"}, "checkpoint_last.pt", None),
        ({"restore_file": "run/c.pt"}, "checkpoint9.pt", "--restore-file: run/checkpoint9.pt"),
        (HERE, "checkpoint_9_101.pt", None),  # a kill may have come between the two
        (HERE | {"reset_optimizer": True}, "checkpoint_1_8.pt", "--reset-optimizer: run/checkpoint_1_8.pt"),
        (HERE | {"reset_optimizer": True}, "checkpoint8.pt", None),  # epochs are counted further
        (HERE | {"reset_dataloader": True}, "checkpoint8.pt", "--reset-dataloader: run/checkpoint8.pt"),
        (HERE | {"reset_dataloader": True}, "checkpoint_9_100.pt", None),
        (HERE | {"finetune_from_model": "a.pt"}, "a.pt", None),  # as this one began
        (HERE | {"finetune_from_model": "b.pt"}, "a.pt", "--finetune-from-model b.pt: .* began from a.pt"),
        (HERE | {"continue_once": "b.pt"}, "a.pt", "--continue-once b.pt: .*last.pt began without it: omit"),
        (HERE | TUNED, "checkpoint1.pt", "--finetune-from-model: run/checkpoint1.pt is of another"),
        ({"continue_once": "b.pt"}, "a.pt", "--continue-once has no effect with --restore-file: omit one"),
        (ONCE | TUNED, "a.pt", "--continue-once has no effect with --restore-file: omit one"),  # in every process
        (HERE | ONCE | TUNED, "a.pt", "--finetune-from-model has no effect with --continue-once: omit one"),
        (HERE | {"stop_time_hours": 9}, "a.pt", None),
        (
            HERE | TUNED | {"stop_time_hours": 9},
            "a.pt",
            "--finetune-from-model: c.pt: fairseq would count its 0.11 hours",
        ),
        ({"max_update": 101}, "a.pt", None),
        ({"max_update": 100}, "a.pt", "--max-update 100: .*c.pt has done 100 updates already: give a larger number"),
        ({"max_update": 100, "reset_optimizer": True}, "a.pt", None),
        ({"max_epoch": 9, "stop_time_hours": 0.2}, "a.pt", None),
        ({"max_epoch": 8}, "a.pt", "--max-epoch 8: .*c.pt has done 8 epochs already: give a larger number"),
        ({"max_epoch": 8, "reset_dataloader": True}, "a.pt", None),
        ({"reset_optimizer": True, "reset_dataloader": True}, "a.pt", None),  # its seconds begin anew, too
        ({"stop_time_hours": 0.1}, "a.pt", "--stop-time-hours 0.1: .*c.pt has done 0.11 hours already: give a larger"),
    ],
    ids=str,
)
def test_two_trainings_do_not_share_a_folder(saved, new_task, tmp_path, monkeypatch, given, file, words):
    """The checkpoint is of update 100, in epoch 9, of a training that began from a.pt."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("run").mkdir()
    begins = given.get("finetune_from_model") == "c.pt" or "restore_file" not in given
    name = "c.pt" if begins else f"run/{pathlib.Path(given['restore_file']).name}"
    model, path, _ = saved("vaswani_transformer_tiny", name=name)
    state = torch.load(path) | {"last_optimizer_state": {"state": {}}}
    state["extra_state"] |= {"train_iterator": {"epoch": 9}, "previous_training_time": 400.0}
    state["extra_state"]["CheckedTranslationTask"] = {"set": [100, 900]}
    state["cfg"]["checkpoint"] = {"finetune_from_model": "a.pt"}
    torch.save(state, path)
    pathlib.Path("run", file).touch()
    with pytest.raises(InputError, match=words) if words else contextlib.nullcontext():
        refuse_checkpoints(continued_from(path, save_dir="run", **given), task := new_task(), model)
    if not words:  # fairseq does not tell the task then
        kept = given.get("reset_dataloader") and not given.get("reset_optimizer")
        assert task.kept == ({"set": [100, 900]} if kept else None)


def test_a_training_without_a_last_checkpoint_does_not_begin_anew(saved, new_task, tmp_path):
    """--no-last-checkpoints: a restart would silently train from the beginning, among the earlier checkpoints."""
    options = continued_from(LAST, save_dir=tmp_path, no_last_checkpoints=True, no_save=False)
    refuse_checkpoints(options, new_task(), None)
    _, path, _ = saved("vaswani_transformer_tiny", name="checkpoint3.pt")
    earlier = torch.load(path)
    earlier["optimizer_history"][-1]["num_updates"] = 50
    torch.save(earlier, tmp_path / "checkpoint2.pt")  # copied later
    with pytest.raises(InputError, match=f"--no-last-checkpoints: .* saved {path} already: add --restore-file {path},"):
        refuse_checkpoints(options, new_task(), None)
    options.no_save = True  # leaves the folder as it is
    refuse_checkpoints(options, new_task(), None)


@pytest.mark.parametrize("name", ["continue_once", "finetune_from_model"])
def test_an_empty_name_begins_no_training(new_task, tmp_path, name):
    """A shell's variable may not be set: with --continue-once fairseq would train from the beginning."""
    options = continued_from(LAST, save_dir=tmp_path, no_last_checkpoints=False, **{name: ""})
    with pytest.raises(InputError, match=f"{flag(name)}: . is a folder: name a checkpoint in it"):
        refuse_checkpoints(options, new_task(), None)


@pytest.mark.parametrize(
    ("saved_schedule", "schedule", "given", "refused"),
    [
        ({"best": 3.5}, "inverse_sqrt", {}, True),
        ({"best": 3.5}, "inverse_sqrt", {"reset_optimizer": True}, False),
        ({"best": 3.5}, "reduce_lr_on_plateau", {}, False),
        ({"lr": 0.1}, "inverse_sqrt", {}, False),  # of --lr-scheduler fixed
        ({"best": 3.5}, "inverse_sqrt", {"restore_file": LAST}, False),  # the first start had such a one
    ],
)
def test_a_reset_that_changes_nothing(saved, new_task, tmp_path, saved_schedule, schedule, given, refused):
    model, path, _ = saved("vaswani_transformer_tiny", name=LAST if given.get("restore_file") else "other.pt")
    state = torch.load(path) | {"last_optimizer_state": {"state": {}}}
    torch.save(state | {"optimizer_history": [{"lr_scheduler_state": saved_schedule}]}, path)
    given = {"save_dir": tmp_path, "reset_lr_scheduler": True, "lr_scheduler": schedule} | given
    options = continued_from(path, **given)
    with pytest.raises(InputError, match="has no effect") if refused else contextlib.nullcontext():
        refuse_checkpoints(options, new_task(), model)


def test_a_model_of_the_other_direction_only_begins_a_training(saved, new_task):
    model, path, _ = saved("vaswani_transformer_tiny")
    state = torch.load(path) | {"last_optimizer_state": {"state": {}}}
    torch.save(state | {"task_state": new_task(source_lang="fr", target_lang="en").state_dict()}, path)
    task = new_task(source_lang="en", target_lang="fr")
    refuse_checkpoints(continued_from(LAST, finetune_from_model=path), task, model)
    with pytest.raises(InputError, match="translates fr to en: .*, or use --finetune-from-model"):
        refuse_checkpoints(continued_from(path), task, model)


def test_a_training_that_has_reached_its_end_does_no_update(saved, new_task, tmp_path):
    model, _, _ = saved("vaswani_transformer_tiny", name=LAST)
    state = torch.load(tmp_path / LAST) | {"last_optimizer_state": {"state": {}}}
    torch.save(state | {"extra_state": {"previous_training_time": 400.0}}, tmp_path / LAST)
    task = new_task()
    limits = [("max_update", 0, 0), ("max_update", 101, 0), ("max_update", 100, -1)]
    for limit, most, max_epoch in (*limits, ("stop_time_hours", 0.2, 0), ("stop_time_hours", 0.1, -1)):
        task.cfg = OmegaConf.create({"optimization": {"max_epoch": 0}, "source_lang": None, "target_lang": None})
        options = continued_from(LAST, save_dir=tmp_path, **{limit: most})
        refuse_checkpoints(options, task, model)
        assert task.cfg.optimization.max_epoch == max_epoch


@pytest.mark.parametrize("known", [True, False], ids=["with words", "of an older version"])
def test_dictionaries_of_other_words(saved, new_task, dictionary, known):
    """They have as many words, so that the matrices fit."""
    model, path, _ = saved("vaswani_transformer_tiny")
    state = torch.load(path)
    if known:
        state["task_state"] = new_task().state_dict()
    torch.save({**state, "last_optimizer_state": {"state": {}}}, path)
    training = continued_from(path)
    other = Dictionary()
    for word in reversed(dictionary.symbols[dictionary.nspecial :]):
        other.add_symbol(word)
    refuse_checkpoints(training, new_task(), model)
    config = CheckedTranslationConfig(data="other/data-bin")
    for dictionaries in ((dictionary, other), (other, dictionary)):
        task = CheckedTranslationTask(config, *dictionaries)
        other_words = "the model .* other dictionaries than those of other/data-bin: name the"
        refused = pytest.raises(InputError, match=f"--restore-file: .*checkpoint.pt: {other_words}")
        with refused if known else contextlib.nullcontext():
            refuse_checkpoints(training, task, model)
