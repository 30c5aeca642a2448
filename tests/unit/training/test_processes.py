"""The end of a training's threads, and settings for several processes."""

import argparse
import signal
import time

import pytest
import torch
from fairseq.data.iterators import BufferedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils
from torch import distributed, multiprocessing

from user_dir.errors import InputError
from user_dir.training.processes import end_with_parent, refuse_processes, stop_loading

from support import OLD, training_options


def test_no_thread_loads_while_python_ends():
    batches = BufferedIterator(2, range(10**9))
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


@pytest.mark.parametrize(
    "given",
    [
        "--distributed-world-size 2 --distributed-init-method tcp://127.0.0.1:29500",
        "--distributed-world-size 2",
        "--distributed-world-size 2 --distributed-no-spawn",
    ],
)
def test_processes_that_fairseq_would_not_start(monkeypatch, given):
    """Without GPUs fairseq ends without a word at the first of these, and torchrun's divide by 0 at the others."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    began = []
    for words in (given, ""):
        options = training_options(str(OLD / "data-bin"), "--arch", "vaswani_transformer_tiny", *words.split())
        cfg = convert_namespace_to_omegaconf(options)
        if words:
            with pytest.raises(InputError, match="--distributed-world-size 2: there are no GPUs, .*: omit it, or run"):
                utils.call_main(cfg, began.append)
        else:
            utils.call_main(cfg, began.append)
    assert began == [cfg]


def test_saving_in_the_background_needs_iopath():
    """Without it fairseq logs that, and ends with status 0 although nothing was trained."""
    options = training_options(str(OLD / "data-bin"), "--arch", "vaswani_transformer_tiny", "--save-async")
    with pytest.raises(InputError, match="--save-async needs iopath, .*: omit it, or pip install"):
        utils.call_main(convert_namespace_to_omegaconf(options), print)
