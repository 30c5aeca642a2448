"""checkpoint_last.pt, where fairseq would not continue from it, or not with the data that come next.

A training that was killed while it saved: fairseq copies that file from the checkpoint written before, which is whole,
since it is written under another name and then renamed. And a training that continues with another number of processes:
the place in the epoch is counted in batches of one process, and fairseq takes the count as it stands.
"""

import logging
import pathlib
import re
import shutil
import zipfile

from torch import distributed

from ..checkpoints.files import load
from ..errors import InputError

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"  # fairseq's default of --restore-file: the one in --save-dir, if there is one

# All names under which fairseq saves, checkpoint_last.pt apart: by epoch, by update, the best, the best ones.
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.*)\.pt")


def prepare_last_checkpoint(options, task) -> None:
    """Has fairseq-train with these `options` and its `task` continue from checkpoint_last.pt where that stopped.

    A half-written file is replaced; one that is whole is only read.

    Raises:
        InputError: if it is half written and there is no other
    """
    if options.restore_file != LAST:
        return
    several = distributed.is_available() and distributed.is_initialized()
    rank, processes = (distributed.get_rank(), distributed.get_world_size()) if several else (0, 1)
    last = pathlib.Path(options.save_dir) / LAST
    before = [None]
    if rank == 0 and last.is_file():
        if is_half_written(last):
            repair(last)
        before = [processes_of(last)]
    if several:  # the others may not see the file, and look at it later if they do
        distributed.broadcast_object_list(before, src=0)
    if before[0] not in (None, processes):
        count_for(processes, before[0], task)


def is_half_written(path: pathlib.Path) -> bool:
    """Whether this is the beginning of a file of torch.save's, a zip archive: its table of contents comes last."""
    with path.open("rb") as file:
        begins = file.read(2) in (b"", b"P", b"PK")
    return begins and not zipfile.is_zipfile(path)


def repair(last: pathlib.Path) -> None:
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


def processes_of(last: pathlib.Path) -> int | None:
    """How many processes trained `last`; None if it does not say, or no place in an epoch."""
    state = load(last, mmap=True) if zipfile.is_zipfile(last) else None
    if not state or not state.get("cfg") or "train_iterator" not in state.get("extra_state", {}):
        return None
    return state["cfg"]["distributed_training"]["distributed_world_size"]


def count_for(processes: int, before: int, task) -> None:
    """Has iterators over the data of `task` take up, in batches of `processes`, a place counted in those of `before`.

    The processes take the batches of an epoch in turn. Where they cannot share those that are done alike, a few of them
    are seen again. The checkpoint stays as it is: it is converted when fairseq gives it to the iterator.
    """
    build = task.get_batch_iterator

    def get_batch_iterator(*args, **kwargs):
        iterator = build(*args, **kwargs)
        load_state = iterator.load_state_dict

        def load_state_dict(state):
            passed = state["iterations_in_epoch"] * before
            logger.warning(f"{before} processes trained up to batch {passed} of an epoch; now {processes} continue")
            task.get_batch_iterator = build  # once: an iterator may serve all epochs
            del iterator.load_state_dict
            load_state({**state, "iterations_in_epoch": passed // processes})

        iterator.load_state_dict = load_state_dict
        return iterator

    task.get_batch_iterator = get_batch_iterator
