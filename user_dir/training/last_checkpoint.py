"""Makes checkpoint_last.pt resumable after a crash, and any checkpoint with other processes, batches or --update-freq.

fairseq renames a checkpoint when it is complete, but then copies it to checkpoint_last.pt. If a training is killed
meanwhile, or if the power fails, that file may be missing or half written; the newest complete checkpoint then replaces
it. If a training continues with another number of processes or batches of another size, the position in the epoch is
wrong: it counts the batches of one process, and fairseq does not convert the count. Nor does it expect a position in
the middle of an update, which another --update-freq can make of it.
"""

import logging
import pathlib
import re
import shutil
import time
import zipfile
from collections.abc import Sized
from typing import BinaryIO, NamedTuple

from torch import distributed

from ..checkpoints.files import load, save, saved_options, updates_of
from ..errors import InputError
from ..files import write

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"  # fairseq's default of --restore-file: this file in --save-dir, if it exists

# fairseq's other names of checkpoints: by epoch, by update, the best one, the best ones.
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.*)\.pt")


class Batches(NamedTuple):
    """The processes that take turns at the batches of an epoch; the most pairs and tokens of a batch, where limited.

    passes: --update-freq, the batches of a process in an update, for each epoch; the last number for all later ones
    """

    processes: int
    pairs: int | None
    tokens: int | None
    passes: tuple[int, ...]


def chosen(options) -> tuple[str, pathlib.Path]:
    """The option that names the checkpoint which fairseq-train will load, and its path; --save-dir's may be missing."""
    last = pathlib.Path(options.save_dir) / LAST
    if options.restore_file != LAST:
        return "restore_file", pathlib.Path(options.restore_file)
    for name in ("continue_once", "finetune_from_model"):  # read once: a resumed training continues from its own
        if getattr(options, name, None) is not None and not last.exists():  # an empty name, too, of a variable
            return name, pathlib.Path(getattr(options, name))
    return "save_dir", last


def prepare_last_checkpoint(options, task) -> None:
    """Makes fairseq-train with `options` and `task` continue where its checkpoint stopped.

    With --update-epoch-batch-itr True the training continues as if it had not stopped. Without it, fairseq makes other
    batches if the training stopped after its first epoch. A checkpoint_last.pt that is half written, or missing beside
    other checkpoints (without --no-last-checkpoints), is replaced; a complete file is only read.

    Raises:
        InputError: if no complete checkpoint can replace a half-written one, or the processes do not see the same file
    """
    several = distributed.is_initialized()
    rank, processes = (distributed.get_rank(), distributed.get_world_size()) if several else (0, 1)
    name, path = chosen(options)
    kept = name == "save_dir" and not options.no_last_checkpoints
    before, there = None, path.is_file() or bool(kept and complete_beside(path))
    if rank == 0 and there:
        if name == "save_dir" and (not path.is_file() or is_half_written(path)):
            repair(path)
        if name != "finetune_from_model" and not options.reset_dataloader:
            before = batches_of(path)
    seen = [(str(path) if there else "no file", before)] * processes
    if several:
        distributed.all_gather_object(seen, seen[0])
    # Hosts may name it differently; those that do not have it would train from the beginning.
    if len(files := sorted({file for file, _ in seen})) > 1 and "no file" in files:
        raise InputError(f"the processes would continue from {' and '.join(files)}: give all hosts the same --save-dir")
    before, now = seen[0][1], batches(processes, vars(options))
    if before not in (None, now):
        convert_position(now, before, task)


def is_half_written(path: pathlib.Path) -> bool:
    """Whether this is the beginning of a file of torch.save: a zip archive, whose table of contents comes last."""
    with path.open("rb") as file:
        begins = file.read(2) in (b"", b"P", b"PK", b"\0\0")  # some file systems leave zeros when the power fails
    try:
        with zipfile.ZipFile(path) as archive:  # when a full disk has cut it off, fairseq writes another one behind it
            return archive.infolist()[0].header_offset > 0
    except zipfile.BadZipFile:
        return begins


def complete_beside(last: pathlib.Path) -> list[pathlib.Path]:
    """The complete checkpoints in the folder of `last`."""
    return [path for path in last.parent.glob("*.pt") if SAVED.fullmatch(path.name) and not is_half_written(path)]


def newest_beside(last: pathlib.Path) -> pathlib.Path | None:
    """The one of `complete_beside` with most updates (a copied file may have another time); None without any."""
    return max(complete_beside(last), key=lambda path: updates_of(load(path)), default=None)


def repair(last: pathlib.Path) -> None:
    """Replaces `last` with a copy of the newest complete checkpoint; raises InputError if there is none."""
    if (newest := newest_beside(last)) is None:
        reason = "is half written, and there is no complete checkpoint: remove it and train from the beginning"
        raise InputError(f"{last} {reason}")
    extra = load(newest).get("extra_state", {})
    if "best" in extra and extra.get("val_loss") == extra["best"]:  # which fairseq may not have copied, either
        copy_whole(newest, last.with_name("checkpoint_best.pt"))
    copy_whole(newest, last)
    logger.warning(f"{last} was missing or half written, as after a crash; it is now a copy of {newest.name}")


def copy_whole(source: str | pathlib.Path, target: str | pathlib.Path, overwrite: bool = True) -> bool:
    """Replaces fairseq's PathManager.copy, which writes over checkpoint_last.pt and checkpoint_best.pt in place.

    If it is killed, they are half written, and commands that have mapped the earlier file into memory (files.load)
    crash.
    """
    write(pathlib.Path(target), lambda partial: shutil.copyfile(source, partial))
    return True


def save_anew(state: dict, file: BinaryIO) -> None:
    """Replaces fairseq's _torch_persistent_save, whose next try after an error writes behind what is there already.

    fairseq would report such a file as saved, and torch does not read it. On a full disk `file`, which keeps what it
    could not write, cannot even go back to its beginning; so each try opens it anew. After the last one it is removed.
    """
    path = pathlib.Path(file.name)
    for seconds in (2.5, 2.5, 0):
        try:
            return save(state, path)
        except Exception as error:
            if not seconds:
                path.unlink(missing_ok=True)
                if isinstance(error, OSError):  # of a full disk it names nothing
                    error.filename = str(path)
                raise
            time.sleep(seconds)


def batches(processes: int, options: dict) -> Batches:
    passes = tuple(options.get("update_freq") or [1])
    return Batches(processes, options.get("batch_size"), options.get("max_tokens"), passes)


def batches_of(path: pathlib.Path) -> Batches | None:
    """The batches on which `path` was trained; None if it lacks the number of processes or a position in an epoch."""
    try:
        state = load(path)
    except InputError:  # refuse_checkpoints says so
        return None
    if "train_iterator" not in state.get("extra_state", {}):
        return None
    processes = saved_options(state, "distributed_training").get("distributed_world_size")
    return processes and batches(processes, saved_options(state, "dataset") | saved_options(state, "optimization"))


def convert_position(now: Batches, before: Batches, task) -> None:
    """Converts a position in an epoch, counted in the batches `before`, when `task` loads it for those of `now`.

    The checkpoint does not change: the position is converted when fairseq passes it to the iterator.
    """
    build = task.get_batch_iterator

    def get_batch_iterator(*args, **kwargs):
        iterator = build(*args, **kwargs)
        load_state = iterator.load_state_dict

        def load_state_dict(state):
            task.get_batch_iterator = build  # once: an iterator may serve all epochs
            del iterator.load_state_dict
            load_state({**state, "iterations_in_epoch": position(state, now, before, iterator)})

        iterator.load_state_dict = load_state_dict
        return iterator

    task.get_batch_iterator = get_batch_iterator


def position(state: dict, now: Batches, before: Batches, epoch: Sized) -> int:
    """How many batches `now` each process has done of the `epoch`, by a checkpoint's `state`, which counts `before`'s.

    If the batches done are not whole updates of all processes, a few of them are used again. With batches of another
    size, about as many pairs count as done.
    """
    passed = state["iterations_in_epoch"] * before.processes
    done = f"{before.processes} processes trained up to batch {passed} of an epoch"
    resized = (now.pairs, now.tokens) != (before.pairs, before.tokens)
    size = "another size" if resized else "the same size"
    logger.warning(f"{done}; now {now.processes} continue, with batches of {size}")
    if resized:
        sizes = ((before.pairs, now.pairs), (before.tokens, now.tokens))
        was, is_now = next((both for both in sizes if all(both) and len({*both}) > 1), (1, 1))
        passed = min(passed * was // is_now, (len(epoch) - 1) * now.processes)
    # In the middle of an update fairseq may omit the epoch's last one, and then repeats the epoch.
    whole = now.passes[min(state["epoch"], len(now.passes)) - 1]
    return passed // now.processes // whole * whole
