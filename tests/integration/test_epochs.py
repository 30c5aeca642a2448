"""Trainings of many epochs: what they start and hold stays as it is after the first ones."""

import re
import time

import pytest

from support import descendants

EPOCHS = 12


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_loader_workers_do_not_accumulate(start, tmp_path, processes):
    options = ("--num-workers", "1", "--log-interval", "1", "--save-interval", "9999", "--disable-validation")
    training = start(*options, STEPS="prepare train", PROCESSES=processes, UPDATES=10_000, BATCH=1200)
    log, said, alive = tmp_path / "run/train.log", "", {}
    while len(alive) < EPOCHS:
        assert training.poll() is None
        time.sleep(0.01)
        said = log.read_text() if log.exists() else ""
        epoch = said.count("end of epoch")
        if epoch >= 2:
            alive.setdefault(epoch, len(set(descendants(training.pid))))
    assert max(alive.values()) <= min(alive.values()) + processes, alive  # one may have begun or ended just then
    memory = [float(number) for number in re.findall(r"train_inner .*memory_gb=([\d.]+)", said)]
    assert memory and memory[-1] < 1.2 * memory[len(memory) // EPOCHS], memory
