"""A checkpoint's file and what is in it, as fairseq saves it; nothing of it is run."""

import argparse
import contextlib
import pathlib

import torch

from ..errors import InputError
from .compatibility import allow_fairseq_checkpoints


def load(path: pathlib.Path, mmap: bool = False) -> dict:
    """fairseq's checkpoint `path`, weights only; with `mmap` only what is looked at is read (of torch ≥ 1.6's files).

    Raises:
        InputError: if it is missing, or is not a checkpoint, or one of a fairseq before 1.0
    """
    with reading(path):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        groups = [] if state.get("args") else [state["cfg"].get(group, {}) for group in ("model", "task")]
        if not all(isinstance(found, (dict, argparse.Namespace)) for found in (state["model"], *groups)):
            raise TypeError
    if state.get("args") is not None:  # fairseq prefers them
        raise InputError(f"{path} has the options of a fairseq before 1.0: convert it with nmt-convert-checkpoint")
    return state


@contextlib.contextmanager
def reading(path: pathlib.Path):
    """Raises InputError if `path` is missing, or is no checkpoint, which makes what is done here fail in many ways."""
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}")
    allow_fairseq_checkpoints()
    try:
        yield
    except Exception as error:
        raise InputError(f"{path} is not a readable fairseq checkpoint ({type(error).__name__})") from error


def options(state: dict, group: str) -> dict:
    """The options `group` ("model", "task") in checkpoint `state`; none where it has no such group.

    fairseq-train keeps them as a Namespace, fairseq-hydra-train as a dict.
    """
    found = state["cfg"].get(group, {})
    return found if isinstance(found, dict) else vars(found)
