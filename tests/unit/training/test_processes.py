"""The end of a training's threads, and settings for several processes."""

import argparse
import itertools
import signal
import time

import pytest
from fairseq.data.iterators import BufferedIterator
from torch import distributed, multiprocessing

from user_dir.errors import InputError
from user_dir.training.processes import end_with_parent, refuse_processes, stop_loading


class Batches:
    """As many as are asked for."""

    def __len__(self):
        return 10**9

    def __iter__(self):
        return itertools.count()


def test_no_thread_loads_while_python_ends():
    batches = BufferedIterator(2, Batches())
    assert next(batches) == 0
    began = time.monotonic()
    stop_loading()
    assert not batches._consumer.is_alive() and time.monotonic() - began < 5


@pytest.mark.parametrize(
    "launched, parent, asked",
    [(False, "fairseq-train", [signal.SIGKILL]), (True, None, [signal.SIGKILL]), (False, None, [])],
    ids=["spawned", "torchrun's", "alone"],
)
def test_a_process_ends_with_the_one_that_started_it(monkeypatch, launched, parent, asked):
    found = []
    monkeypatch.setattr(distributed, "is_torchelastic_launched", lambda: launched)
    monkeypatch.setattr(multiprocessing, "_prctl_pr_set_pdeathsig", found.append)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    end_with_parent()
    assert found == asked


@pytest.mark.parametrize("backend", ["c10d", "pytorch_ddp"])
@pytest.mark.parametrize("cpu", [True, False])
def test_processes_on_cpus_need_another_backend(monkeypatch, cpu, backend):
    """Also without --cpu where there is no GPU."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    with pytest.raises(InputError, match=f"--ddp-backend {backend} needs GPUs .*: on CPUs add --ddp-backend legacy"):
        refuse_processes(argparse.Namespace(cpu=cpu, ddp_backend=backend))
