"""What belongs to fairseq's checkpoints: the data of their training, and the models."""

import logging
import math
import pathlib

import torch
from fairseq import checkpoint_utils, utils
from fairseq.tasks import FairseqTask
from torch import nn

from .. import registration  # noqa: F401  (before anything is loaded)
from ..checkpoints.files import load, options
from ..checkpoints.trusted import every, refuse_evaluated
from ..errors import InputError

# Options that have files read for a training, and nothing for a model whose weights are in a checkpoint.
NOT_READ = {"eval_bleu": False, "encoder_embed_path": None, "decoder_embed_path": None}


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
        refuse_endless(path, state)
        if not isinstance(state["cfg"].get("generation"), dict):
            raise InputError(f"{path} has no options of its generation, as fairseq saves them: name another file")
    if not any(data.glob("dict.*.txt")):
        reason = "holds no dictionaries (dict.LANGUAGE.txt)"
        raise InputError(f"{data} {reason}: name the folder that the model was trained on")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path) for path in paths], arg_overrides={"data": str(data), **NOT_READ, **overrides}
        )
    except Exception as error:  # another vocabulary, an unknown architecture, …: fairseq's words say which
        named = ", ".join(map(str, paths))
        raise InputError(f"{named} gives no model with the dictionaries of {data}: {error}") from error
    return [model.eval() for model in models], task, cfg


def refuse_endless(path: pathlib.Path, state: dict) -> None:
    """Raises InputError if the options in `state` ask for more layers or a larger width than its tensors have room for.

    fairseq builds the model before it looks at them: of a million layers for hours. It would also read embeddings from
    a file, which may be a pipe, that options within options name; a training has no such options.
    """
    tensors = [tensor.numel() for tensor in state["model"].values() if torch.is_tensor(tensor)]
    room = {"layers": len(tensors), "dim": sum(tensors), "distance": sum(tensors), "branches": sum(tensors)}
    room["positions"] = max(sum(tensors), 2**20)  # sinusoids are not in the file
    for option, value in every(options(state, "model")):
        if option == "embed_path" and value:
            raise InputError(f"{path} has its embeddings read from {value}: do not use it")
        if str(value).isdigit() and int(value) > room.get(option.rpartition("_")[2], math.inf):
            reason = "and its parameters are of a smaller model: do not use it"
            raise InputError(f"{path} asks for {option} {value}, {reason}")


def longest_source(task: FairseqTask, models: list[nn.Module]) -> int:
    """Subwords of the longest sentence that they translate, without </s>.

    Raises:
        InputError: if there is none
    """
    positions = utils.resolve_max_positions(*(part.max_positions() for part in (task, *models)))[0]
    if positions < 2:
        raise InputError(f"the checkpoint's max_source_positions are {positions}, which no sentence has: use another")
    return positions - 1
