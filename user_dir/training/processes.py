"""Processes: refuses settings with which several would not train one model, and ends them as they should end.

It also measures their memory.
"""

import contextlib
import importlib.util
import os
import pathlib
import queue
import signal
import threading
import time

import torch
from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed import utils
from torch import distributed, multiprocessing

from ..errors import InputError

ON_CPUS = (
    "run torchrun --nproc-per-node N --no-python examples/shared/cpu_process.sh DATA … --cpu "
    "--distributed-world-size N --distributed-init-method env:// --distributed-no-spawn "
    "--distributed-backend gloo --ddp-backend legacy_ddp"
)

call_main = utils.call_main


def start_processes(cfg, main, **kwargs) -> None:
    """Replaces fairseq's call_main, which starts a process for each GPU.

    Without GPUs it fails (under torchrun it divides by their number) or, with --distributed-init-method, starts none
    and ends as if it had trained.

    Raises:
        InputError: for several processes without GPUs, unless they are started and connected by other means, and for
            --save-async without iopath, with which fairseq would end as if it had trained
    """
    if cfg.checkpoint.write_checkpoints_asynchronously and not importlib.util.find_spec("iopath"):
        raise InputError("--save-async needs iopath, which is not installed: omit it, or pip install iopath")
    given = cfg.distributed_training
    several = given.distributed_world_size > 1 or given.distributed_init_method
    connected = given.distributed_no_spawn and given.distributed_init_method
    if several and not connected and not torch.cuda.device_count():
        size = f"--distributed-world-size {given.distributed_world_size}"
        raise InputError(f"{size}: there are no GPUs, and fairseq starts no processes on CPUs: omit it, or {ON_CPUS}")
    call_main(cfg, main, **kwargs)


def refuse_processes(options) -> None:
    """Refuses `options` of fairseq-train with which several processes would not train one model.

    Raises:
        InputError: if processes of torchrun are not connected (fairseq reads torchrun's variables only if it sees
            several GPUs), and for a --ddp-backend that needs GPUs
    """
    several = distributed.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", 1)) > 1
    if several and not distributed.is_initialized():
        raise InputError(
            "fairseq does not connect the processes that torchrun started: each would train its own model in the same "
            f"--save-dir. On GPUs add --distributed-world-size N. On CPUs {ON_CPUS}"
        )
    on_cpus = options.cpu or not torch.cuda.is_available()
    if distributed.is_initialized() and on_cpus and options.ddp_backend in ("c10d", "pytorch_ddp"):
        raise InputError(
            f"--ddp-backend {options.ddp_backend} needs GPUs (it is fairseq's default): "
            "on CPUs add --ddp-backend legacy_ddp"
        )


class WholeSize(float):
    """A batch's sample size in the sum of an update's, which fairseq's trainer cannot set to 0.

    A process with fewer batches than others ends an epoch with a dummy batch, whose gradient is 0. If it has done other
    batches in the same update, the trainer sets the size of all of them to 0 but keeps their gradients.
    """

    def __add__(self, size):
        return WholeSize(float(self) + size)

    __radd__ = __add__

    def __mul__(self, zero):
        return self


def end_with_parent() -> None:
    """Ends this process if torchrun, or fairseq-train itself, is killed: it would train beside the resumed training.

    torch asks for SIGINT, to which commands that a script starts in the background are deaf.
    """
    if distributed.is_torchelastic_launched() or distributed.is_initialized() and multiprocessing.parent_process():
        multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # does nothing outside Linux


def stop_loading() -> None:
    """Ends fairseq's threads that load batches ahead: one that computes while Python ends would abort the process."""
    last = time.monotonic() + 10
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundConsumer):
            thread._max_len = 0  # it ends after its current batch
            while thread.is_alive() and time.monotonic() < last:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get_nowait()  # it may be waiting for room
                thread.join(0.01)


def resident_memory() -> int:
    """Bytes of this process and of its multiprocessing children."""
    pages = 0
    for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        with contextlib.suppress(OSError):  # it has just ended
            pages += int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
