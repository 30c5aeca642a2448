"""Loads models from fairseq's checkpoints, and finds their training data."""

import logging
import pathlib

from fairseq import checkpoint_utils, utils
from fairseq.tasks import FairseqTask
from torch import nn

from .. import registration  # noqa: F401  (before anything is loaded)
from ..checkpoints.files import load, saved_options
from ..checkpoints.trusted import refuse_untrusted
from ..config import EMBEDDINGS
from ..errors import InputError
from ..preparation import preparation_of
from ..task import CheckedTranslationTask

# Options of training that read files, which a model with weights from a checkpoint does not need.
NOT_READ = {"eval_bleu": False, **dict.fromkeys(EMBEDDINGS)}


def data_of(paths: list[pathlib.Path], option: str = " (--data)") -> pathlib.Path:
    """The data-bin folder that the checkpoints say they were trained on.

    Args:
        option: for messages, the option that names another folder

    Raises:
        InputError: if it does not exist, or they do not name one, or different ones
    """
    first = None
    for path in paths:
        state = load(path)
        try:
            folder = pathlib.Path(utils.split_paths(saved_options(state, "task")["data"])[0])
        except (KeyError, TypeError, AttributeError):
            reason = "does not name its training data"
            raise InputError(f"{path} {reason}: name the data-bin folder{option}") from None
        if not folder.is_dir():
            reason = f"was trained on {folder}, which does not exist here"
            raise InputError(f"{path} {reason}: name the data-bin folder{option}, or put it there")
        first = first or folder
        if folder.resolve() != first.resolve():
            reason = f"was trained on {first} and {path} on {folder}"
            raise InputError(f"{paths[0]} {reason}: name the folder whose dictionaries all of them use{option}")
    return first


def refuse_no_dictionaries(data: pathlib.Path) -> None:
    """Raises InputError if `data` is no data-bin folder."""
    if not any(data.glob("dict.*.txt")):
        reason = "has no dictionaries (dict.LANGUAGE.txt)"
        raise InputError(f"{data} {reason}: name the data-bin folder that the model was trained on")


def load_models(paths: list[pathlib.Path], data: pathlib.Path, **overrides):
    """Models (in evaluation mode), task and configuration of checkpoints, by fairseq's own loading.

    The dictionaries are read from `data`; `overrides` replace options of the training.

    Raises:
        InputError: if a checkpoint or the dictionaries are missing or do not match
    """
    directions, told, named = set(), [], ", ".join(map(str, paths))
    for path in paths:
        state = load(path)  # reports a damaged file
        told.append(state["task_state"])
        direction = tuple(saved_options(state, "task").get(f"{side}_lang") for side in ("source", "target"))
        if all(direction):
            directions.add(direction)
        refuse_untrusted(path, state["cfg"], [tensor.numel() for tensor in state["model"].values()])
        if not isinstance(state["cfg"].get("generation"), dict):
            raise InputError(f"{path} lacks the generation options that fairseq saves: name another file")
    if len(directions) > 1:
        raise InputError(f"{named} translate in different directions: name models of one")
    refuse_no_dictionaries(data)
    if not directions and (prepared := preparation_of(data)):
        # fairseq would infer them from the names of binarised text, which a shared model does not have.
        overrides = dict(zip(("source_lang", "target_lang"), prepared.languages)) | overrides
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path) for path in paths], arg_overrides={"data": str(data), **NOT_READ, **overrides}
        )
        checked = CheckedTranslationTask(task.cfg, task.source_dictionary, task.target_dictionary)
        for task_state in told:  # fairseq asks the first one's task, which may be its own
            checked.load_state_dict(task_state)
    except InputError as error:
        raise InputError(f"{named}: {error}") from error
    except Exception as error:  # another vocabulary, an unknown architecture, …: fairseq's message says which
        reason = f"{named} gives no model with the dictionaries of {data}: {error}"
        raise InputError(f"{reason}: name the data of its training") from error
    return [model.eval() for model in models], task, cfg


def longest_source(task: FairseqTask, models: list[nn.Module]) -> int:
    """The number of subwords, without </s>, of the longest sentence that the models translate.

    Raises:
        InputError: if there is none
    """
    positions = utils.resolve_max_positions(*(part.max_positions() for part in (task, *models)))[0]
    if positions < 2:
        reason = f"the checkpoint's max_source_positions {positions} are too few for any sentence"
        raise InputError(f"{reason}: use another checkpoint")
    return positions - 1
