"""Reads fairseq's checkpoint files without running code from them."""

import argparse
import contextlib
import pathlib
import re
import zipfile

import torch

from ..errors import InputError
from .compatibility import allow_fairseq_checkpoints

# Options of the model with which the same parameters compute something else. All other ones change names or shapes of
# the parameters, the training, or the rounding (autocast).
OF_THE_FUNCTION = ["activation_fn", "no_scale_embedding", "no_token_positional_embeddings"]
OF_THE_FUNCTION += ["encoder_attention_heads", "decoder_attention_heads", "decoder_normalize_before"]
OF_THE_FUNCTION += ["cross_self_attention", "restricted_attention", "neighbourhood", "branch_weights", "top_branches"]


# The names under which fairseq saves: checkpoint7.pt after an epoch, checkpoint_3_1500.pt after update 1500 of epoch 3.
NUMBERED = {"epoch": re.compile(r"checkpoint(\d+)\.pt"), "update": re.compile(r"checkpoint_\d+_(\d+)\.pt")}


def numbered(folder: pathlib.Path, by: str) -> dict[int, pathlib.Path]:
    """The checkpoints of `folder` by the number of their "epoch" or "update"."""
    return {int(match[1]): path for path in folder.glob("*.pt") if (match := NUMBERED[by].fullmatch(path.name))}


def load(path: pathlib.Path) -> dict:
    """fairseq's checkpoint `path`, weights only; tensors are read when they are used (in torch ≥ 1.6's files).

    Raises:
        InputError: if it is missing, no checkpoint, of a fairseq before 1.0, or has options that no longer exist
    """
    with reading(path):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        groups = [] if state.get("args") else [state["cfg"].get(group, {}) for group in ("model", "task")]
        right = all(isinstance(group, (dict, argparse.Namespace)) for group in (state["model"], *groups))
        if not (right and all(map(torch.is_tensor, state["model"].values()))):
            raise TypeError
        state["task_state"] = {**(state.get("task_state") or {})}  # some files lack it
    if state.get("args") is not None:  # fairseq would use these instead of cfg
        raise InputError(f"{path} has the options of a fairseq before 1.0: convert it with nmt-convert-checkpoint")
    refuse_shared_ffn(saved_options(state, "model").get("branch_ffn"))
    return state


@contextlib.contextmanager
def reading(path: pathlib.Path):
    """Raises InputError if `path` is missing, or if reading fails: files that are not checkpoints fail in many ways."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a checkpoint in it")
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}")
    allow_fairseq_checkpoints()
    try:
        yield
    except Exception as error:
        raise InputError(f"{path} is not a readable fairseq checkpoint ({type(error).__name__})") from error


def save(state: dict, path: pathlib.Path) -> None:
    """torch.save; a full disk raises the original OSError instead of torch's RuntimeError about positions."""
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def saved_options(state: dict, group: str) -> dict:
    """The options in `group` ("model", "task", …) of checkpoint `state`; empty if it has no such group.

    fairseq-train saves them as a Namespace, fairseq-hydra-train as a dict.
    """
    saved = state["cfg"].get(group, {})
    return saved if isinstance(saved, dict) else vars(saved)


def history_of(state: dict) -> dict:
    """fairseq's last entry on optimizer, schedule and updates in checkpoint `state`; empty if it has none."""
    return (state.get("optimizer_history") or [{}])[-1]


def updates_of(state: dict) -> int:
    """The number of updates after which the optimizer's state in checkpoint `state` was saved; 0 if it has none."""
    return history_of(state).get("num_updates", 0)


def meaning(state: dict) -> dict:
    """The options of the function in checkpoint `state`, and the digests of its dictionaries, as far as it has them."""
    said = {**saved_options(state, "model"), **state["task_state"]}
    if said.get("absolute_positions") == "omit":  # as VariantConfig reads it
        said["no_token_positional_embeddings"] = True
    return {name: said[name] for name in [*OF_THE_FUNCTION, "dictionaries"] if name in said}


def refuse_not_finite(path: pathlib.Path, name: str, value: torch.Tensor, remedy: str) -> None:
    """Raises InputError, with `remedy`, if the parameter `name` of checkpoint `path` is not finite."""
    if not value.isfinite().all():
        raise InputError(f"{name} in {path} is not finite, because the training diverged: {remedy}")


def refuse_shared_ffn(branch_ffn: str | None) -> None:
    """Raises InputError for a checkpoint with this --branch-ffn, an option of version 0.1, unless it is per_branch."""
    if branch_ffn not in (None, "per_branch"):
        raise InputError(f"--branch-ffn {branch_ffn} no longer exists: train again without it, or use version 0.1")


def without_training_state(state: dict) -> dict:
    """`state` without the optimizer's state, which would not belong to changed parameters."""
    state["last_optimizer_state"] = None
    # Nor would the moving average; --finetune-from-model would count the time for --stop-time-hours.
    for name in ("ema", "ema_fp32_params", "previous_training_time"):
        state.get("extra_state", {}).pop(name, None)
    return state
