"""Reading fairseq's checkpoints: the file's contents, the options and the data of its training, the models."""

import logging
import pathlib

import torch
from fairseq import checkpoint_utils, utils

from . import registration  # noqa: F401  (before anything is loaded)
from .errors import InputError


def load(path: pathlib.Path, mmap: bool = False) -> dict:
    """fairseq's checkpoint `path`, weights only; with `mmap` only what is looked at is read (of torch ≥ 1.6's files).

    Raises:
        InputError: if it is missing or is not a checkpoint
    """
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        state["model"], state["cfg"]
    except Exception as error:  # a truncated or foreign file fails in many ways, all of which mean the same
        raise InputError(f"{path} is not a fairseq checkpoint that can be read ({type(error).__name__})") from error
    return state


def options(state: dict, group: str) -> dict:
    """The options `group` ("model", "task") in checkpoint `state`.

    fairseq-train keeps them as a Namespace, fairseq-hydra-train as a dict.
    """
    found = state["cfg"][group]
    return found if isinstance(found, dict) else vars(found)


def data_of(paths: list[pathlib.Path]) -> pathlib.Path:
    """The data-bin folder that the checkpoints were trained on, as it was called then.

    Raises:
        InputError: if it is not there, or they were trained on different ones
    """
    first = None
    for path in paths:
        state = load(path, mmap=True)
        try:
            folder = pathlib.Path(utils.split_paths(options(state, "task")["data"])[0])
        except (KeyError, TypeError, AttributeError):
            reason = "does not say what data it was trained on"
            raise InputError(f"{path} {reason}: name the data-bin folder (--data)") from None
        if not folder.is_dir():
            reason = f"was trained on {folder}, which is not a folder here"
            raise InputError(f"{path} {reason}: name the data-bin folder (--data)")
        first = first or folder
        if folder.resolve() != first.resolve():
            reason = f"was trained on {first} and {path} on {folder}"
            raise InputError(f"{paths[0]} {reason}: name the one whose dictionaries all have (--data)")
    return first


def load_models(paths: list[pathlib.Path], data: pathlib.Path, **overrides):
    """Models (in evaluation mode), task and configuration of checkpoints, by fairseq's own loading.

    The dictionaries are those of `data`, wherever they lay in training; `overrides` replace options of the training.

    Raises:
        InputError: if a checkpoint or the dictionaries are missing or do not go together
    """
    for path in paths:
        load(path, mmap=True)  # says what is wrong with the file
    if not any(data.glob("dict.*.txt")):
        reason = "holds no dictionaries (dict.LANGUAGE.txt)"
        raise InputError(f"{data} {reason}: name the folder that the model was trained on")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path) for path in paths], arg_overrides={"data": str(data), "eval_bleu": False, **overrides}
        )
    except Exception as error:  # another vocabulary, an unknown architecture, …: fairseq's words say which
        named = ", ".join(map(str, paths))
        raise InputError(f"{named} gives no model with the dictionaries of {data}: {error}") from error
    return [model.eval() for model in models], task, cfg
