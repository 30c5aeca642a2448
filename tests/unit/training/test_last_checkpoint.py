"""checkpoint_last.pt: half written, or of another number of processes; before fairseq-train continues from it."""

import argparse
import errno
import importlib
import itertools
import math
import types

import pytest
import torch
from fairseq import checkpoint_utils, file_io
from fairseq.data import ListDataset
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator
from fairseq.file_io import PathManager
from torch import distributed

from user_dir import registration
from user_dir.errors import InputError
from user_dir.training.last_checkpoint import batches, prepare_last_checkpoint

DEFAULTS = {"reset_dataloader": False, "no_last_checkpoints": False}


def state(updates, processes=1, place=None, **dataset):
    return {
        "model": {"weight": torch.arange(1000.0)},
        "cfg": {"distributed_training": {"distributed_world_size": processes}, "dataset": dataset},
        "optimizer_history": [{"num_updates": 50 - updates}, {"num_updates": updates}],  # with another optimizer before
        "extra_state": {"train_iterator": place or {"epoch": 2, "iterations_in_epoch": 0}},
    }


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """prepare(**options): prepares a training from the last checkpoint of `tmp_path`; returns its path.

    Its processes find what this one finds, and others, which are the first ones where `rank` is not 0, what `elsewhere`
    says.
    """

    def prepare(restore_file="checkpoint_last.pt", task=None, processes=1, elsewhere=(), rank=0, **given):
        def gather(objects, own):
            objects[:] = [*elsewhere, *objects] if rank else [*objects, *elsewhere]

        monkeypatch.setattr(distributed, "is_initialized", lambda: processes > 1)
        monkeypatch.setattr(distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(distributed, "get_world_size", lambda: processes)
        monkeypatch.setattr(distributed, "all_gather_object", gather)
        options = {"save_dir": str(tmp_path), "restore_file": restore_file, **DEFAULTS, **given}
        prepare_last_checkpoint(argparse.Namespace(**options), task)
        return tmp_path / "checkpoint_last.pt"

    return prepare


@pytest.fixture
def saved(tmp_path):
    """Checkpoints of updates 30 (the newest), 7 and 20, one half written, and an average made later."""
    for name, updates in (("checkpoint_2_30", 30), ("checkpoint1", 20), ("checkpoint_best", 7), ("average", 99)):
        torch.save(state(updates), tmp_path / f"{name}.pt")
    content = (tmp_path / "checkpoint_2_30.pt").read_bytes()
    (tmp_path / "checkpoint_2_40.pt").write_bytes(content[:-1])
    return content


@pytest.mark.parametrize("part", [0, 1, 2, 100, 0.5, -1, "zeros", "a hole", "tried again"])
def test_half_of_it_is_replaced_by_the_newest(saved, prepare, tmp_path, part, caplog):
    part = int(part * len(saved)) if isinstance(part, float) else part
    hole = saved[:-200] + bytes(100) + saved[-100:]  # in the table of contents
    damaged = {"zeros": bytes(len(saved)), "a hole": hole, "tried again": saved[:100] + saved}.get(part) or saved[:part]
    (tmp_path / "checkpoint_last.pt").write_bytes(damaged)
    before = set(tmp_path.iterdir())
    assert prepare().read_bytes() == saved
    assert set(tmp_path.iterdir()) == before
    assert "checkpoint_last.pt was missing or half written, as after a crash; it is now a copy of " in caplog.text


@pytest.mark.parametrize("name", ["checkpoint3", "checkpoint_3_30", "checkpoint_best", "checkpoint.best_loss_4.500"])
def test_the_only_complete_one_has_any_of_fairseqs_names(prepare, tmp_path, name):
    torch.save(state(30), tmp_path / f"{name}.pt")
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    assert prepare().read_bytes() == (tmp_path / f"{name}.pt").read_bytes()


def test_a_missing_one_is_replaced_by_the_newest(saved, prepare):
    """As after a kill between the first checkpoint and its copy; two processes on one host."""
    task = types.SimpleNamespace(get_batch_iterator=len)
    last = prepare(task=task, processes=2)
    assert last.read_bytes() == saved
    last.unlink()
    with pytest.raises(InputError, match="no file"):
        prepare(task=task, processes=2, elsewhere=[("no file", None)])


def test_a_missing_one_that_nobody_wants(saved, prepare):
    """With --no-last-checkpoints fairseq would never write it again, and a restart would go back to the copy."""
    assert not prepare(no_last_checkpoints=True).exists()


@pytest.mark.parametrize("loss, copied", [(4.5, True), (4.6, False), (None, False)])
def test_the_best_one_is_copied_as_such(prepare, tmp_path, loss, copied):
    """As after a kill between the first checkpoint and its copies: no later one may be better."""
    best = state(30)
    best["extra_state"] |= {"val_loss": loss, "best": 4.5}
    torch.save(best, tmp_path / "checkpoint1.pt")
    prepare()
    assert (tmp_path / "checkpoint_best.pt").exists() == copied


def test_without_another_it_says_what_to_do(prepare, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    with pytest.raises(InputError, match="checkpoint_last.pt is half written.*: remove it"):
        prepare()


@pytest.mark.parametrize("restore_file", ["checkpoint_last.pt", "elsewhere.pt"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_one_and_others_are_left_alone(saved, prepare, tmp_path, restore_file, zipped):
    """torch wrote no zip archives before 1.6."""
    last = tmp_path / "checkpoint_last.pt"
    torch.save(state(3), last, _use_new_zipfile_serialization=zipped)
    content = last.read_bytes()[: None if restore_file == last.name else 9]
    last.write_bytes(content)
    assert prepare(restore_file).read_bytes() == content


def test_nothing_to_go_on_from(prepare):
    assert not prepare().exists()


def test_a_host_without_the_file(prepare, tmp_path):
    """fairseq would continue on the others, and begin there."""
    torch.save(state(3, 2), tmp_path / "checkpoint_last.pt")
    with pytest.raises(InputError, match="would continue from .*_last.pt and no file: give all hosts the same --save-"):
        prepare(processes=2, elsewhere=[("no file", None)])
    prepare(processes=2, elsewhere=[("/the/other/name/of/checkpoint_last.pt", None)])


def test_the_first_process_repairs_and_reads_for_all(prepare, tmp_path):
    """Each of the others would write the same file again; and those that converted nothing would see other data."""
    torch.save(state(3), tmp_path / "checkpoint1.pt")
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    task = types.SimpleNamespace(get_batch_iterator=len)
    found = str(tmp_path / "checkpoint_last.pt"), batches(3, {})
    last = prepare(task=task, processes=2, rank=1, elsewhere=[found])
    assert last.read_bytes() == b"PK" and task.get_batch_iterator is not len


def iterator(pairs, processes=1, size=1, rank=0):
    """A process's batches of this size, of so many pairs in their own order."""
    sampler = [[*range(first, first + size)] for first in range(0, pairs, size)]
    return EpochBatchIterator(ListDataset(range(pairs)), list, sampler, num_shards=processes, shard_id=rank)


def seen(iterators, rounds=None):
    return [number for one in iterators for batch in itertools.islice(one.next_epoch_itr(), rounds) for number in batch]


def resumed(prepare, place, *batches, **options):
    """iterator(*batches) of a training that goes on at this place."""
    task = types.SimpleNamespace(get_batch_iterator=iterator)
    prepare(task=task, **options)
    later = task.get_batch_iterator(*batches)
    later.load_state_dict(dict(place))
    assert task.get_batch_iterator is iterator and "load_state_dict" not in vars(later)  # once
    return later


@pytest.mark.parametrize(
    ("before", "batches", "processes", "again"),
    [(2, 6, 1, 0), (1, 6, 2, 0), (4, 1, 2, 0), (2, 5, 3, 1), (2, 6, 2, 0), (2, 0, 1, 0), (1, 0, 2, 0)],
)
def test_other_processes_continue_with_the_data_that_come_next(
    prepare, tmp_path, caplog, before, batches, processes, again
):
    """The checkpoint of an epoch of 24 batches in their own order; `again` are seen twice. The file is only read."""
    first = [iterator(24, before, 1, rank) for rank in range(before)]
    passed, place = seen(first, batches), first[0].state_dict()
    torch.save(state(3, before, place), tmp_path / "checkpoint_last.pt")
    content = (tmp_path / "checkpoint_last.pt").read_bytes()
    rest = seen([resumed(prepare, place, 24, processes, 1, rank, processes=processes) for rank in range(processes)])
    assert sorted(set(passed) | set(rest)) == list(range(24)) and len(passed) + len(rest) == 24 + again
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == content
    said = f"{before} processes trained up to batch {batches * before} of an epoch; now {processes} continue, with "
    assert (f"{said}batches of the same size" in caplog.text) == (before != processes)


@pytest.mark.parametrize("before, now", [((1, 10), (2, 5)), ((2, 5), (1, 10)), ((1, 10), (1, 20)), ((1, 20), (1, 5))])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("limit", ["max_tokens", "batch_size"])
def test_batches_of_another_size_continue_after_as_many_pairs(prepare, tmp_path, caplog, before, now, share, limit):
    """An epoch has 240 pairs of one token; up to a round of the larger batches. (They are in another order, too.)"""
    first = [iterator(240, *before, rank) for rank in range(before[0])]
    passed, place = seen(first, int(share * 240 / before[0] / before[1])), first[0].state_dict()
    torch.save(state(3, before[0], place, **{limit: before[1]}), tmp_path / "checkpoint_last.pt")
    options = {"processes": now[0], limit: now[1]}
    rest = seen([resumed(prepare, place, 240, *now, rank, **options) for rank in range(now[0])])
    assert rest and 240 <= len(passed) + len(rest) <= 240 + max(math.prod(before), math.prod(now))
    assert "continue, with batches of another size" in caplog.text


@pytest.mark.parametrize(("done", "passes"), [(0, 4), (1, 4), (3, 2), (7, 4), (6, 3), (9, 5)])
def test_other_passes_begin_with_a_whole_update(prepare, tmp_path, done, passes):
    """The second epoch has ten batches; in the middle of an update fairseq may omit the last one, and not end it."""
    place = {"epoch": 2, "iterations_in_epoch": done}
    torch.save(state(3, 1, place), tmp_path / "checkpoint_last.pt")
    later = resumed(prepare, place, 10, update_freq=[1, passes, 1])
    updates = [*GroupedIterator(later.next_epoch_itr(), passes)]
    assert sum(map(len, updates)) == 10 - done // passes * passes and later.end_of_epoch()


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {"max_tokens": 1000, "batch_size": 80}, 60),
        ({}, {"max_tokens": 100}, 499),
        ({"batch_size": 80}, {"max_tokens": 500, "batch_size": 80}, 120),
        ({"batch_size": 80}, {"max_tokens": 1000, "batch_size": 40}, 120),
    ],
)
def test_the_position_where_batches_are_not_in_proportion(prepare, tmp_path, before, now, expected):
    """A limit of pairs instead of tokens: the number of batches done counts. Fewer batches than that: one is left.

    If one of two limits has changed, it counts.
    """
    place = {"epoch": 1, "iterations_in_epoch": 60}
    torch.save(state(3, 1, place, max_tokens=1000, **before), tmp_path / "checkpoint_last.pt")
    done = []

    class Epoch:
        def __len__(self):
            return 500

        def load_state_dict(self, state):
            done.append(state)

    task = types.SimpleNamespace(get_batch_iterator=Epoch)
    prepare(task=task, **now)
    task.get_batch_iterator().load_state_dict(place)
    assert done == [place | {"iterations_in_epoch": expected}]


@pytest.mark.parametrize("option", ["restore_file", "continue_once", "finetune_from_model"])
def test_another_file_of_other_processes(prepare, tmp_path, option):
    torch.save(state(3, 2), tmp_path / "two.pt")
    for more, converted in (({}, option != "finetune_from_model"), ({"reset_dataloader": True}, False)):
        task = types.SimpleNamespace(get_batch_iterator=len)
        prepare(task=task, **{option: str(tmp_path / "two.pt")}, **more)
        assert (task.get_batch_iterator is not len) == converted
    torch.save(state(4, 1), tmp_path / "checkpoint_last.pt")  # --continue-once has no effect any more
    prepare(task=task, continue_once=str(tmp_path / "two.pt"))
    assert task.get_batch_iterator is len
    same = {"update_freq": [2]}  # nothing is converted, or said, where an update has as many batches
    torch.save(state(4) | {"cfg": state(4)["cfg"] | {"optimization": same}}, tmp_path / "checkpoint_last.pt")
    prepare(task=task, **same)
    assert task.get_batch_iterator is len
    torch.save(state(3) | {"cfg": {}}, tmp_path / "unknown.pt")  # another program's, perhaps
    prepare(str(tmp_path / "unknown.pt"), task)
    assert task.get_batch_iterator is len


def test_fairseqs_copy_is_whole_at_any_time(tmp_path):
    """A command that reads the earlier file, perhaps as mapped memory, goes on reading that one."""
    new, last, disk = (tmp_path / name for name in ("checkpoint1.pt", "checkpoint_last.pt", "disk.pt"))
    new.write_bytes(b"new")
    last.symlink_to(disk)  # which stays, as with fairseq's copy
    last.write_bytes(b"before")
    with open(last, "rb", buffering=0) as read:
        assert PathManager.copy(str(new), str(last), overwrite=True)
        assert (read.read(), last.read_bytes()) == (b"before", b"new")
    assert last.is_symlink() and {*tmp_path.iterdir()} == {new, last, disk}


def test_fairseqs_copy_remains_where_a_path_may_be_remote(monkeypatch):
    """With iopath."""
    monkeypatch.setattr(file_io, "IOPathManager", object())
    monkeypatch.setattr(PathManager, "copy", None)
    importlib.reload(registration)
    assert PathManager.copy is None


def test_another_try_to_save_begins_anew(tmp_path, monkeypatch):
    """After an error of the file system that passes."""
    save, places = torch.save, []

    def full_at_first(content, file):
        places.append(file.tell())
        save(content, file)
        if len(places) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full_at_first)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    checkpoint_utils.torch_persistent_save(state(30), str(tmp_path / "a.pt"))
    assert places == [0, 0] and torch.load(tmp_path / "a.pt")["optimizer_history"] == state(30)["optimizer_history"]


@pytest.fixture
def full(tmp_path):
    """The file a.pt.tmp, on a full disk."""
    (tmp_path / "a.pt.tmp").symlink_to("/dev/full")
    return tmp_path / "a.pt.tmp"


def test_a_file_that_cannot_be_saved_is_not_taken_for_saved(full, tmp_path, monkeypatch):
    """After three tries the training ends, with the last checkpoint that is whole, and names the file, which goes."""
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    with pytest.raises(OSError, match="No space left on device: '.*a.pt.tmp'"):
        checkpoint_utils.torch_persistent_save(state(30), str(tmp_path / "a.pt"))
    assert len(slept) == 2 and not [*tmp_path.iterdir()]


def test_a_disk_that_is_full_no_longer(full, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: full.unlink())
    checkpoint_utils.torch_persistent_save(state(30), str(tmp_path / "a.pt"))
    assert torch.load(tmp_path / "a.pt")["optimizer_history"] == state(30)["optimizer_history"]
