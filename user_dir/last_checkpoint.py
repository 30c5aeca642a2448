"""A training killed while it saved: fairseq copies checkpoint_last.pt from the one written before, not atomically.

What was to be copied is whole, since fairseq writes that under another name and then renames it.
"""

import logging
import os
import pathlib
import re
import shutil
import zipfile

import torch
from torch import distributed

from .errors import InputError

logger = logging.getLogger(__name__)

# All names under which fairseq saves, checkpoint_last.pt apart: by epoch, by update, the best, the best ones.
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.*)\.pt")


def is_half_written(path: pathlib.Path) -> bool:
    """Whether this is the beginning of a file of torch.save's, a zip archive: its table of contents comes last."""
    with path.open("rb") as file:
        begins = file.read(2) in (b"", b"P", b"PK")
    return begins and not zipfile.is_zipfile(path)


def updates(path: pathlib.Path) -> int:
    """After how many the checkpoint was saved."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)["optimizer_history"][-1]["num_updates"]


def mend_last_checkpoint(options) -> None:
    """Puts the newest checkpoint in the place of a half-written checkpoint_last.pt that fairseq-train would go on from.

    Raises:
        InputError: if there is no other
    """
    if getattr(options, "restore_file", None) != "checkpoint_last.pt":
        return
    folder = pathlib.Path(options.save_dir)
    last = folder / "checkpoint_last.pt"
    first_process = not distributed.is_initialized() or distributed.get_rank() == 0
    if not first_process or not last.is_file() or not is_half_written(last):
        return
    whole = [path for path in folder.iterdir() if SAVED.fullmatch(path.name) and not is_half_written(path)]
    if not whole:
        reason = "is half written and no other checkpoint is there: remove it and train from the beginning"
        raise InputError(f"{last} {reason}")
    newest = max(whole, key=updates)
    partial = last.with_name(last.name + ".tmp")
    shutil.copyfile(newest, partial)
    os.replace(partial, last)
    logger.warning(f"{last} was half written, as by a training that was killed; it is now a copy of {newest.name}")
