"""checkpoint_last.pt: half written, or of another number of processes; before fairseq-train goes on from it."""

import argparse

import pytest
import torch

from user_dir.errors import InputError
from user_dir.last_checkpoint import count_for, prepare_last_checkpoint


def state(updates, processes=1, batches=0):
    return {
        "model": {"weight": torch.arange(1000.0)},
        "cfg": {"distributed_training": {"distributed_world_size": processes}},
        "optimizer_history": [{"num_updates": updates}],
        "extra_state": {"train_iterator": {"epoch": 2, "iterations_in_epoch": batches}},
    }


@pytest.fixture
def prepare(tmp_path):
    """prepare(**options): prepares the last checkpoint of `tmp_path`; returns its path."""

    def prepare(restore_file="checkpoint_last.pt"):
        prepare_last_checkpoint(argparse.Namespace(save_dir=str(tmp_path), restore_file=restore_file))
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


@pytest.mark.parametrize("part", [0, 1, 2, 100, 0.5, -1])
def test_half_of_it_is_replaced_by_the_newest(saved, prepare, tmp_path, part):
    part = int(part * len(saved)) if isinstance(part, float) else part
    (tmp_path / "checkpoint_last.pt").write_bytes(saved[:part])
    before = set(tmp_path.iterdir())
    assert prepare().read_bytes() == saved
    assert set(tmp_path.iterdir()) == before


def test_without_another_it_says_what_to_do(prepare, tmp_path):
    (tmp_path / "checkpoint_last.pt").write_bytes(b"PK")
    with pytest.raises(InputError, match="checkpoint_last.pt is half written and no other .* remove it"):
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


@pytest.mark.parametrize(
    ("before", "batches", "processes", "place"),
    [(2, 6, 1, 12), (1, 6, 2, 3), (4, 1, 2, 2), (2, 5, 3, 3), (2, 6, 2, 6), (2, 0, 1, 0)],
)
def test_the_place_in_the_epoch_is_counted_for_the_processes_that_go_on(tmp_path, before, batches, processes, place):
    last = tmp_path / "checkpoint_last.pt"
    torch.save(state(3, before, batches), last)
    for _ in range(2):  # once is enough
        count_for(processes, last)
        found = torch.load(last)
        assert found["extra_state"]["train_iterator"] == {"epoch": 2, "iterations_in_epoch": place}
        assert torch.equal(found["model"]["weight"], torch.arange(1000.0))


def test_a_training_counts_for_its_own_processes(prepare, tmp_path):
    torch.save(state(3, 2, 6), tmp_path / "checkpoint_last.pt")
    assert torch.load(prepare())["extra_state"]["train_iterator"]["iterations_in_epoch"] == 12
