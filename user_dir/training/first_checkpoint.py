"""Checks the checkpoint that fairseq-train is to continue from: if it is missing, fairseq starts from the beginning."""

import argparse
import logging
import pathlib

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from torch import nn

from ..checkpoints.files import NUMBERED, OF_THE_FUNCTION, history_of, load, numbered, saved_options, updates_of
from ..config import VariantConfig, own_options, whole
from ..errors import InputError, flag
from .last_checkpoint import LAST, chosen, newest_beside
from .model_options import arch_of

logger = logging.getLogger(__name__)

# Sinusoids in files up to fairseq 0.12.2, which fairseq no longer reads.
UNREAD = [f"{side}.embed_positions.{name}" for side in ("encoder", "decoder") for name in ("weights", "_float_tensor")]


def refuse_checkpoints(options, task: FairseqTask, model: nn.Module) -> None:
    """Refuses a checkpoint to continue from that cannot be read, or does not fit `model` or the dictionaries of `task`.

    A training that has reached --max-update, --max-epoch or --stop-time-hours does no further update.

    Raises:
        InputError: says what to change
    """
    name, path = chosen(options)
    if name == "save_dir":
        if not path.exists():
            return refuse_beginning_among_checkpoints(options, path)
        place, remedy = "", "choose another --save-dir, or remove its checkpoints to train from the beginning"
    else:
        place, remedy = f"{flag(name)}: ", f"name another file, or omit {flag(name)}"
        for other in ("continue_once", "finetune_from_model"):
            if other != name and getattr(options, other, None):
                raise InputError(f"{flag(other)} has no effect with {flag(name)}: omit one of them")
    try:
        refuse_another_model(path, state := load(path), options, model)
    except InputError as error:
        if place and ".embed_tokens.weight is [" in str(error):
            remedy += ", or give it the words that the data have (nmt-extend-vocabulary)"
        raise InputError(f"{place}{error}: {remedy}") from error
    extra, finetunes = state.get("extra_state", {}), name == "finetune_from_model"
    hours = extra.get("previous_training_time", 0) / 3600  # no reset forgets them
    anew = finetunes or options.reset_optimizer  # updates count from 0
    if not anew and not state.get("last_optimizer_state"):
        reason = "has no state of the optimizer, so that updates would count from 0"  # an average, for example
        raise InputError(f"{place}{path} {reason}: {remedy}{place and ', or use --finetune-from-model'}")
    if options.reset_lr_scheduler and not anew and name != "save_dir":  # there its first start may have needed it
        refuse_useless_reset(options.lr_scheduler, state)
    if finetunes and options.stop_time_hours > 0 and hours:
        reason = f"fairseq would count its {hours:.2f} hours for --stop-time-hours"
        raise InputError(f"{place}{path}: {reason}: name an average of it (nmt-average-checkpoints)")
    if options.store_ema and "ema" not in extra:  # fairseq fails where it would begin one
        raise InputError(f"{place}{path} has no moving average for --store-ema to continue: omit --store-ema")
    said = state["task_state"]
    if finetunes:  # which may begin with a model of the other direction
        said = {entry: value for entry, value in said.items() if entry != "languages"}
    try:
        task.load_state_dict(said)  # fairseq does so only where it serves a model
    except InputError as error:
        if place and "the model translates" in str(error):
            remedy += ", or use --finetune-from-model"
        raise InputError(f"{place}{path}: {error}, or {remedy}") from error
    if name == "save_dir":
        refuse_another_beginning(options, path, state)
    epochs = 0 if finetunes or options.reset_dataloader else extra.get("train_iterator", {}).get("epoch", 1) - 1
    done = {"update": 0 if anew else updates_of(state), "epoch": epochs, "hour": hours}
    refuse_later_checkpoints(options, name, path, done)
    if options.reset_dataloader and not anew:  # fairseq keeps the best value, but not what the task said of it
        task.kept = extra.get(type(task).__name__, {})
    stop_at_limits(options, name, path, done, task)


def refuse_beginning_among_checkpoints(options, last: pathlib.Path) -> None:
    """Raises InputError if --no-last-checkpoints has left others beside the missing `last`: fairseq begins anew."""
    if options.no_last_checkpoints and not options.no_save and (newest := newest_beside(last)):
        remedy = f"add --restore-file {newest}, remove the checkpoints, or choose another --save-dir"
        raise InputError(f"--no-last-checkpoints: a training has saved {newest} already: {remedy}")


def stop_at_limits(options, name: str, path: pathlib.Path, done: dict[str, float], task: FairseqTask) -> None:
    """Makes a training that continues from its own checkpoint, `path`, end if it has `done` all that `options` allow.

    With --max-update or --stop-time-hours fairseq would do one more update.

    Raises:
        InputError: if the option `name` says to continue from another checkpoint, and that has done as much
    """
    for limit, (unit, number) in zip(("max_update", "max_epoch", "stop_time_hours"), done.items()):
        if 0 < (most := getattr(options, limit)) <= number:
            reason = f"{flag(limit)} {most}: {path} has done {round(number, 2)} {unit}s already"
            if name != "save_dir":
                raise InputError(f"{reason}: give a larger number to continue it")
            logger.info(f"{reason}; raise it to continue")
            whole(task.cfg)["optimization"]["max_epoch"] = -1


def refuse_useless_reset(schedule: str, state: dict) -> None:
    """Raises InputError if --reset-lr-scheduler would change nothing: schedules that count updates have no other state.

    The others cannot read the state of --lr-scheduler fixed, fairseq's default.
    """
    saved = history_of(state).get("lr_scheduler_state") or {}
    if schedule != "reduce_lr_on_plateau" and "best" in saved:
        reason = f"--reset-lr-scheduler has no effect on --lr-scheduler {schedule}, which counts updates"
        raise InputError(f"{reason}: omit it, add --reset-optimizer, or use --finetune-from-model")


def refuse_another_beginning(options, last: pathlib.Path, state: dict) -> None:
    """Raises InputError if the training of `last`, the checkpoint `state`, began elsewhere than `options` say.

    fairseq reads --continue-once and --finetune-from-model only where there is no checkpoint_last.pt.
    """
    for name in ("continue_once", "finetune_from_model"):
        given, before = getattr(options, name, None), saved_options(state, "checkpoint").get(name)
        if given not in (None, before):
            reason = f"{flag(name)} {given}: {last} began {f'from {before}' if before else 'without it'}"
            raise InputError(f"{reason}: omit it to continue, or choose another --save-dir")


def refuse_later_checkpoints(options, name: str, path: pathlib.Path, done: dict[str, float]) -> None:
    """Raises InputError if training from `path`, the option `name`, would leave later checkpoints in --save-dir.

    Those with the highest numbers are kept and averaged, and --restore-file is read at each start. `done` has the
    numbers of the last "update" and "epoch".
    """
    resets = [reset for reset in ("reset_optimizer", "reset_dataloader") if getattr(options, reset)]
    if name == "save_dir" and not resets:
        return
    folder, last = pathlib.Path(options.save_dir), pathlib.Path(options.save_dir, LAST)
    later = [file for by in NUMBERED for number, file in sorted(numbered(folder, by).items()) if number > done[by]]
    if name == "restore_file" and last.exists() and path.resolve().parent != folder.resolve():
        later.append(last)
    if later:
        option = resets[0] if name == "save_dir" else name
        remedy = "omit it to continue that, remove its checkpoints, or choose another --save-dir"
        reason = f"{flag(option)}: {later[-1]} is of another or a later training"
        raise InputError(f"{reason}: {remedy} (with --continue-once {path})")


def refuse_another_model(path: pathlib.Path, state: dict, options, model: nn.Module) -> None:
    """Raises InputError if `model` cannot have the parameters in `state`, or would compute something else with them.

    They have to have the same names and shapes, those that `model` shares have to be equal, and the options that give
    them their meaning have to be the same.
    """
    saved = argparse.Namespace(**saved_options(state, "model"))
    known = {*VariantConfig.__annotations__, *vars(saved)}  # an LSTM has no heads
    arch, differ = arch_of(saved), other_options(saved, model)
    others = [f" {flag(name)} {there}" for name, (there, _) in differ.items() if there is not None and name in known]
    another = f"{path} holds another model ({arch}{''.join(others)})"
    if options.ddp_backend != "fully_sharded":  # with which parameters have other names
        refuse_other_parameters(another, state["model"], model)
    changed = differ.keys() - VariantConfig.__annotations__.keys() | differ.keys() & {*OF_THE_FUNCTION}
    if "no_token_positional_embeddings" in changed and "absolute_positions" in differ:  # which sets it
        changed = changed - {"no_token_positional_embeddings"} | {"absolute_positions"}
    if changed:
        given = " ".join(f"{flag(name)} {differ[name][1]}" for name in sorted(changed))
        raise InputError(f"{another}: with {given} its parameters would compute something else")


def refuse_other_parameters(another: str, saved: dict, model: nn.Module) -> None:
    """Raises InputError if the parameters `saved` are not those of `model`, by name, shape and sharing."""
    model.upgrade_state_dict(saved)
    there, here = ({name: list(x.shape) for name, x in of.items()} for of in (saved, model.state_dict()))
    for name in [*there, *here]:
        if there.get(name) != here.get(name) and name not in UNREAD:
            shapes = f"{there.get(name, 'missing')} in the checkpoint and {here.get(name, 'missing')} in this model"
            raise InputError(f"{another}: {name} is {shapes}")
    firsts = {}
    for name, x in model.state_dict().items():
        first = firsts.setdefault((x.data_ptr(), x.shape), name)
        # One would silently replace the other. A tensor is not compared with itself: NaN would differ, and take time.
        if first != name and not torch.equal(saved[first], saved[name]):
            raise InputError(f"{another}: {first} and {name} differ in the checkpoint and are shared in this model")


def other_options(saved: argparse.Namespace, model: nn.Module) -> dict[str, tuple]:
    """Those of our options and of OF_THE_FUNCTION that differ, by name: their values in `saved` and in `model`."""
    cfg = getattr(model, "cfg", None)
    if not isinstance(cfg, TransformerConfig):  # another model of fairseq's
        return {}
    ARCH_CONFIG_REGISTRY.get(arch_of(saved), lambda options: None)(saved)  # as fairseq does when it loads it
    kind = type(cfg) if isinstance(cfg, VariantConfig) else VariantConfig  # a variant has more options
    theirs = getattr(ARCH_MODEL_REGISTRY.get(arch_of(saved)), "config", kind)
    there = theirs.from_namespace(saved)
    names = dict.fromkeys([*own_options(kind), *own_options(theirs), *OF_THE_FUNCTION])
    default = {name: getattr(kind, name, getattr(theirs, name, None)) for name in names}
    pairs = {name: (getattr(there, name, default[name]), getattr(cfg, name, default[name])) for name in names}
    return {name: pair for name, pair in pairs.items() if str(pair[0]) != str(pair[1])}
