"""Shares work among processes: with small models two processes of one thread are faster than two threads
(tests/benchmarks/README.md)."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from ..errors import InputError

Argument, Result = TypeVar("Argument"), TypeVar("Result")


def start(work: Callable) -> None:
    """Makes a new process ready for `work`."""
    global inherited
    inherited = work
    torch.set_num_threads(1)  # the threads of torch's OpenMP are not forked: waiting for them would take for ever
    for number in (signal.SIGINT, signal.SIGTERM):  # they end it at once and without a traceback
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Ends this process when the one that forked it has been killed; it would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def call(argument):
    return inherited(argument)


def forked(work: Callable[[Argument], Result], arguments: Iterable[Argument], processes: int) -> Iterator[Result]:
    """work(argument) for each of `arguments`, in their order, by forked processes with one thread each.

    They share the memory of this process, so that a model is there once. Arguments and results are pickled.

    Raises:
        InputError: if one of them is killed
    """
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(processes, context, start, (work,)) as pool:
            futures = [pool.submit(call, argument) for argument in arguments]
            try:
                for future in futures:
                    yield future.result()
            except BaseException:  # an error, Ctrl-C: leaving `pool` would wait for all the others' work
                for process in pool._processes.values():  # kill_workers() from Python 3.14 on
                    process.kill()
                raise
    except BrokenProcessPool:
        reason = f"one of the {processes} processes was killed, which happens when memory is short"
        raise InputError(f"{reason}: set OMP_NUM_THREADS=1 for a single one, or a smaller --max-tokens") from None
