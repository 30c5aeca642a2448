"""Checks the checkpoint that fairseq-train is to continue from: if it is missing, fairseq starts from the beginning."""

import pathlib

import torch
from torch import nn

from ..checkpoints.files import load, saved_options
from ..config import VariantConfig
from ..errors import InputError, flag
from .last_checkpoint import chosen


def refuse_checkpoints(options, model: nn.Module) -> None:
    """Refuses a checkpoint to continue from that cannot be read, or does not fit `model`.

    Raises:
        InputError: says what to change
    """
    name, path = chosen(options)
    if name == "save_dir":
        if not path.exists():
            return
        place, remedy = "", "choose another --save-dir, or remove the file to train from the beginning"
    else:
        place, remedy = f"{flag(name)}: ", f"name another file, or omit {flag(name)}"
    try:
        refuse_another_model(path, state := load(path), options, model)
    except InputError as error:
        if place and ".embed_tokens.weight is [" in str(error):
            remedy += ", or give it the words that the data have (nmt-extend-vocabulary)"
        raise InputError(f"{place}{error}: {remedy}") from error
    if options.store_ema and "ema" not in state.get("extra_state", {}):  # fairseq fails where it would begin one
        raise InputError(f"{place}{path} has no moving average for --store-ema to continue: omit --store-ema")


def refuse_another_model(path: pathlib.Path, state: dict, options, model: nn.Module) -> None:
    """Raises InputError if the parameters in `state` are not those of `model`.

    They have to have the same names, shapes and form of κ and α, and those that `model` shares have to be equal.
    """
    if options.ddp_backend == "fully_sharded":  # parameters have other names
        return
    model.upgrade_state_dict(state["model"])
    there, here = ({name: list(x.shape) for name, x in of.items()} for of in (state["model"], model.state_dict()))
    differ = other_options(state, model)
    others = "".join(f" {flag(name)} {value}" for name, value in differ.items())
    another = f"{path} holds another model ({saved_options(state, 'model').get('arch')}{others})"
    if "branch_weights" in differ and getattr(model.cfg, "branched_attention", "none") != "none":
        form = f"--branch-weights {model.cfg.branch_weights}"
        raise InputError(f"{another}: it lacks the κ and α of {form}")
    for name in [*there, *here]:
        if there.get(name) != here.get(name):
            shapes = f"{there.get(name, 'missing')} in the checkpoint and {here.get(name, 'missing')} in this model"
            raise InputError(f"{another}: {name} is {shapes}")
    firsts = {}
    for name, x in model.state_dict().items():
        first = firsts.setdefault((x.data_ptr(), x.shape), name)
        # One would silently replace the other. A tensor is not compared with itself: NaN would differ, and take time.
        if first != name and not torch.equal(state["model"][first], state["model"][name]):
            raise InputError(f"{another}: {first} and {name} differ in the checkpoint and are shared in this model")


def other_options(state: dict, model: nn.Module) -> dict:
    """Our options of the model in `state`, by name, where `model` has other values."""
    saved = saved_options(state, "model")  # without those that have their defaults
    there = {name: saved.get(name, getattr(VariantConfig, name)) for name in VariantConfig.__annotations__}
    cfg = getattr(model, "cfg", None)  # only Transformers have one
    return {name: value for name, value in there.items() if value not in (None, getattr(cfg, name, value))}
