"""What belongs to fairseq's checkpoints: the data of their training, and the models."""

import logging
import pathlib

from fairseq import checkpoint_utils, utils

from . import registration  # noqa: F401  (before anything is loaded)
from .checkpoint_files import load, options
from .errors import InputError
from .evaluated_options import refuse_evaluated


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
        state = load(path, mmap=True)  # says what is wrong with the file
        for group in {"model", "task", "criterion"} & {*state["cfg"]}:
            refuse_evaluated(path, group, options(state, group))
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
