"""Checkpoints keep the count of --patience and the clock. Validation on a sample is tested here, too."""

import logging
import sys
import types

import numpy as np
import pytest
from fairseq import checkpoint_utils
from fairseq.data import FairseqDataset
from fairseq.logging import metrics, progress_bar
from omegaconf import OmegaConf

from user_dir.errors import InputError
from user_dir.training import restarts
from user_dir.training.data import Sample
from user_dir.training.restarts import continue_patience, forget_other_trainings, patience_so_far, seconds_so_far


class Pairs(FairseqDataset):
    """A hundred, which are visited from the last to the first."""

    sizes = np.full((100, 2), [4, 5])

    def __len__(self):
        return 100

    def ordered_indices(self):
        return np.arange(100)[::-1]


@pytest.mark.parametrize("size", [1, 20, 100, 200])
def test_a_sample_is_in_order_and_the_same_each_time(size):
    first, second = (Sample(Pairs(), size).ordered_indices() for _ in range(2))
    assert [*first] == [*second] == sorted(first, reverse=True) and len({*first}) == min(size, 100)
    if size == 20:
        assert 30 < first.mean() < 70 and len(Sample(Pairs(), size)) == 100
        assert [*first[-4:]] == [32, 31, 17, 10], "else losses of two versions could not be compared"


LOSS = {"metric": "loss", "smoothing": 0.1, "set": [100, 900]}
STOPPED = {**LOSS, "best": 4.5, "num_runs": 3}


@pytest.fixture
def counter(monkeypatch):
    """fairseq's function, as it is when the process begins."""
    counter = types.SimpleNamespace()
    monkeypatch.setattr(restarts, "counters", lambda: [counter])
    return counter


@pytest.fixture
def options(tmp_path):
    """options(**changed): the options of a training that continues in its own folder."""
    (tmp_path / "checkpoint_last.pt").touch()
    given = {"patience": 3, "best_checkpoint_metric": "loss", "reset_meters": False, "reset_optimizer": False}

    def options(**changed):
        checkpoint = given | {"save_dir": str(tmp_path)} | changed
        dataset = {"valid_subset": "valid,other", "combine_valid_subsets": False}
        return OmegaConf.create({"checkpoint": checkpoint, "optimization": {"max_epoch": 0}, "dataset": dataset})

    return options


@pytest.mark.parametrize("name", ["__main__", "__mp_main__", "fairseq_cli.train"])
def test_the_module_that_counts(monkeypatch, name):
    """That of python -m fairseq_cli.train, of a process that it starts, of fairseq-train."""
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(should_stop_early=len))
    assert len in restarts.counters()


def test_the_count_goes_on(counter, options):
    assert patience_so_far() == {}
    counter.best, counter.num_runs = 4.5, 2
    state = LOSS | patience_so_far()
    del counter.best, counter.num_runs
    cfg = options()
    continue_patience(state, cfg, LOSS)
    assert (counter.best, counter.num_runs, cfg.optimization.max_epoch) == (4.5, 2, 0)


@pytest.mark.parametrize(("patience", "stopped"), [(2, True), (3, True), (4, False), (0, False), (-1, False)])
def test_a_training_that_has_stopped_does_no_update(counter, options, patience, stopped):
    cfg = options(patience=patience)
    continue_patience(STOPPED, cfg, LOSS)
    assert (cfg.optimization.max_epoch == -1) == stopped
    assert bool(vars(counter)) == (patience > 0)  # else later checkpoints would keep an old count


def test_one_that_has_stopped_is_not_continued_elsewhere(counter, options, tmp_path):
    """--continue-once in another folder, where nothing would be saved."""
    (tmp_path / "checkpoint_last.pt").unlink()
    with pytest.raises(InputError, match="--patience 3 has stopped this training already: give a larger one"):
        continue_patience(STOPPED, options(), LOSS)


@pytest.mark.parametrize("option", ["reset_meters", "reset_optimizer"])
def test_the_count_begins_anew(counter, options, option):
    cfg = options(**{option: True})
    continue_patience(STOPPED, cfg, LOSS)
    assert not vars(counter) and cfg.optimization.max_epoch == 0


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (LOSS, True),
        ({}, True),  # of an older version
        ({"metric": "loss"}, True),  # of another one
        ({"metric": "nll_loss"}, False),  # which is lower, so that no loss would be the best
        ({**LOSS, "smoothing": 0.0}, False),
        ({**LOSS, "set": [100, 901]}, False),
    ],
    ids=str,
)
def test_the_best_value_is_one_of_the_same_measure(counter, options, before, kept):
    checkpoint_utils.save_checkpoint.best = 1.0
    cfg = options()
    continue_patience({**before, "best": 1.0, "num_runs": 3}, cfg, LOSS)
    assert hasattr(checkpoint_utils.save_checkpoint, "best") == kept
    assert bool(vars(counter)) == kept and (cfg.optimization.max_epoch == -1) == kept
    forget_other_trainings()


def test_the_best_value_of_other_data(new_task, options):
    """With --reset-dataloader fairseq keeps it: where new data are harder, no checkpoint would be the best."""
    for pairs, kept in ((100, True), (101, False)):
        checkpoint_utils.save_checkpoint.best = 1.0
        task = new_task()
        task.cfg, task.datasets, task.kept = options(), {"valid": Pairs()}, {"set": [pairs, 900]}
        task.begin_epoch(1, None)
        assert hasattr(checkpoint_utils.save_checkpoint, "best") == kept
    checkpoint_utils.save_checkpoint.best = 2.0  # of this training
    task.begin_epoch(2, None)
    assert checkpoint_utils.save_checkpoint.best == 2.0
    forget_other_trainings()


def test_a_checkpoint_says_how_its_best_value_was_measured(new_task, options):
    """Else a training that continues with other data could not tell."""
    task = new_task()
    assert task.get_checkpoint_dict() == {}  # of a program that trains
    task.cfg, task.datasets = options(), {"valid": Pairs()}
    assert {**LOSS, "smoothing": None}.items() <= task.get_checkpoint_dict()["CheckedTranslationTask"].items()


def test_the_best_value_is_measured_by_the_first_validation_set():
    """With --valid-pairs by those that are visited."""
    given = {"valid_subset": "one,two", "combine_valid_subsets": False, "label_smoothing": 0.1}
    given["best_checkpoint_metric"] = "loss"
    assert restarts.measured(given, {"one": Pairs()}) == LOSS
    assert restarts.measured(given | {"combine_valid_subsets": True}, {"valid": Pairs()}) == LOSS
    assert restarts.measured(given, {"one": Sample(Pairs(), 20)})["set"] == [20, 900]
    for metric in ("bleu", "nll_loss"):
        found = restarts.measured(given | {"best_checkpoint_metric": metric}, {})
        assert found == {"metric": metric, "smoothing": None}


def test_another_training_in_the_same_process(counter, monkeypatch):
    """Its best value would end this one, and keep checkpoint_best.pt from being written; its curves would go on."""
    counter.best = checkpoint_utils.save_checkpoint.best = 1.0
    closed, writer = [], types.SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(progress_bar, "_tensorboard_writers", {"train": writer})
    forget_other_trainings()
    assert closed and not progress_bar._tensorboard_writers
    assert not vars(counter) and not hasattr(checkpoint_utils.save_checkpoint, "best")


@pytest.mark.parametrize(("reset", "loss"), [(False, 5.0), (True, 2.0)])
def test_an_interval_of_the_log_goes_on(new_task, options, reset, loss):
    """fairseq does not load its own meters where an epoch begins."""
    metrics.reset()
    task = new_task()
    task.cfg = options(reset_meters=reset)
    assert task.get_checkpoint_dict()["CheckedTranslationTask"]["interval"] == []
    with metrics.aggregate("train_inner"):
        metrics.log_scalar("loss", 6.0, weight=3)
    state = task.get_checkpoint_dict()["CheckedTranslationTask"]
    metrics.reset()
    task.set_checkpoint_dict(state)
    with metrics.aggregate("train_inner") as interval:
        metrics.log_scalar("loss", 2.0, weight=1)
    assert interval.get_smoothed_value("loss") == loss
    task.set_checkpoint_dict(state)  # as fairseq loads them in the middle of an epoch
    assert metrics.get_meters("train_inner") is interval
    metrics.reset()


def test_the_clock_goes_on(new_task, options):
    """As fairseq's trainer does when it begins, and when it loads a checkpoint."""
    metrics.reset()
    assert seconds_so_far() == 0.0
    metrics.log_start_time("wall", priority=790, round=0)
    metrics.load_state_dict(metrics.state_dict())
    assert seconds_so_far() == 0.0
    task = new_task()
    task.cfg = options()
    task.set_checkpoint_dict({"seconds": 100.0})
    task.begin_epoch(1, None)
    assert 100 < seconds_so_far() < 200
    assert 100 < task.get_checkpoint_dict()["CheckedTranslationTask"]["seconds"] < 200
    metrics.load_state_dict(metrics.state_dict())
    task.begin_epoch(2, None)  # the checkpoint had no seconds
    assert 0 < seconds_so_far() < 100
    task.kept = {**LOSS, "seconds": 300.0}  # with --reset-dataloader
    task.begin_epoch(1, None)
    assert 300 < seconds_so_far() < 400
    metrics.reset()


def test_a_line_is_written_once_in_each_epoch(new_task, options, tmp_path, monkeypatch, caplog):
    """fairseq opens --log-file in each epoch."""
    task, log = new_task(), tmp_path / "log"
    task.cfg = options()
    monkeypatch.setattr(progress_bar.logger, "handlers", [])
    caplog.set_level(logging.INFO, progress_bar.logger.name)
    opened = []
    for epoch in (1, 2, 3):
        progress = progress_bar.progress_bar([], log_format="simple", log_file=str(log), epoch=epoch)
        task.begin_epoch(epoch, None)
        progress.print({"loss": 1}, tag="train")
        opened += progress_bar.logger.handlers
    assert [line.count("loss 1") for line in log.read_text().splitlines()] == [1, 1, 1]
    assert [file.stream is None for file in opened] == [True, True, False]  # closed, but for the last
