"""checkpoint_last.pt, where fairseq would not go on from it, or not with the data that come next.

A training that was killed while it saved: fairseq copies that file from the checkpoint written before, which is whole,
since it is written under another name and then renamed. And a training that goes on with another number of processes:
the place in the epoch is counted in batches of one process, and fairseq takes the count as it stands.
"""

import logging
import pathlib
import re
import shutil
import zipfile

from fairseq.checkpoint_utils import torch_persistent_save
from torch import distributed

from .checkpoint_files import LAST, load
from .errors import InputError

logger = logging.getLogger(__name__)

# All names under which fairseq saves, checkpoint_last.pt apart: by epoch, by update, the best, the best ones.
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.*)\.pt")


def prepare_last_checkpoint(options) -> None:
    """Makes checkpoint_last.pt what fairseq-train with these `options` can go on from.

    Raises:
        InputError: if it is half written and there is no other
    """
    if getattr(options, "restore_file", None) != LAST:
        return
    several = distributed.is_available() and distributed.is_initialized()
    rank, processes = (distributed.get_rank(), distributed.get_world_size()) if several else (0, 1)
    last = pathlib.Path(options.save_dir) / LAST
    if rank == 0 and last.is_file():
        if is_half_written(last):
            mend(last)
        count_for(processes, last)
    if several:
        distributed.barrier()  # the others look at it, too


def is_half_written(path: pathlib.Path) -> bool:
    """Whether this is the beginning of a file of torch.save's, a zip archive: its table of contents comes last."""
    with path.open("rb") as file:
        begins = file.read(2) in (b"", b"P", b"PK")
    return begins and not zipfile.is_zipfile(path)


def mend(last: pathlib.Path) -> None:
    """Puts the newest other checkpoint in the place of `last`."""
    whole = [path for path in last.parent.iterdir() if SAVED.fullmatch(path.name) and not is_half_written(path)]
    if not whole:
        reason = "is half written and no other checkpoint is there: remove it and train from the beginning"
        raise InputError(f"{last} {reason}")
    newest = max(whole, key=lambda path: load(path, mmap=True)["optimizer_history"][-1]["num_updates"])
    partial = last.with_name(last.name + ".tmp")
    shutil.copyfile(newest, partial)
    partial.replace(last)
    logger.warning(f"{last} was half written, as by a training that was killed; it is now a copy of {newest.name}")


def count_for(processes: int, last: pathlib.Path) -> None:
    """Counts the place of `last` in its epoch in batches of so many processes, which take them in turn.

    Where they cannot share those that are done alike, a few of them are seen again.
    """
    state = load(last, mmap=True) if zipfile.is_zipfile(last) else None
    if not state or not state.get("cfg") or "train_iterator" not in state.get("extra_state", {}):
        return
    before = state["cfg"]["distributed_training"]["distributed_world_size"]
    passed = state["extra_state"]["train_iterator"]["iterations_in_epoch"] * before
    if before == processes:
        return
    state = load(last)
    state["extra_state"]["train_iterator"]["iterations_in_epoch"] = passed // processes
    state["cfg"]["distributed_training"]["distributed_world_size"] = processes
    torch_persistent_save(state, str(last))
    logger.warning(f"{last} was trained by {before} processes up to batch {passed} of an epoch; now {processes} go on")
