"""Reading fairseq's checkpoints: the file's contents, the options of its model, the model itself."""

import logging
import pathlib

import torch
from fairseq import checkpoint_utils

from .errors import ToolError


class BadCheckpoints(ToolError):
    """Checkpoints that are not there, cannot be read or do not belong together."""


def load(path: pathlib.Path, mmap: bool = False) -> dict:
    """fairseq's checkpoint `path`, weights only; with `mmap` only what is looked at is read (torch ≥ 1.6 wrote the file).

    Raises:
        BadCheckpoints: if it is missing or is not a checkpoint
    """
    if not path.is_file():
        raise BadCheckpoints(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        state["model"], state["cfg"]
    except Exception as error:  # a truncated or foreign file fails in many ways, all of which mean the same
        raise BadCheckpoints(f"{path} is not a fairseq checkpoint that can be read ({type(error).__name__})") from error
    return state


def model_options(state: dict) -> dict:
    """The options of the model in checkpoint `state`, which fairseq-train keeps as a Namespace, fairseq-hydra-train as a dict."""
    options = state["cfg"]["model"]
    return options if isinstance(options, dict) else vars(options)


def number_of_updates(state: dict) -> int:
    """How often the parameters in checkpoint `state` were updated."""
    return state["optimizer_history"][-1]["num_updates"]


def load_model(path: pathlib.Path, data: pathlib.Path):
    """Model (in evaluation mode), task and configuration of checkpoint `path`, by fairseq's own loading.

    The dictionaries are those of `data`, wherever they lay in training.

    Raises:
        BadCheckpoints: if the checkpoint or the dictionaries are missing or do not go together
    """
    load(path, mmap=True)  # says what is wrong with the file
    if not any(data.glob("dict.*.txt")):
        raise BadCheckpoints(f"{data} holds no dictionaries (dict.LANGUAGE.txt): name the folder that the model was trained on")
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path), {"data": str(data), "eval_bleu": False})
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    except Exception as error:  # another vocabulary, an unknown architecture, …: fairseq's words say which
        raise BadCheckpoints(f"{path} gives no model with the dictionaries of {data}: {error}") from error
    return model.eval(), task, cfg
