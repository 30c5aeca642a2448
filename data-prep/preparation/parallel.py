"""Maps a function over the lines of a file on several cores, with flat memory and a progress bar."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from .text import read_lines, write_lines

CHUNK = 2000  # lines per task: enough to make their transfer cheap, few enough to keep all cores busy


def start_worker() -> None:
    """Lets only the parent report Ctrl-C, and ends with the parent: a worker would otherwise run for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def interruptible(function: Callable, *arguments):
    """function(*arguments), a long task that ends its worker on Ctrl-C: else the parent would wait for its end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return function(*arguments)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def progress(items: Iterable, description: str, **options) -> tqdm:
    """A progress bar that appears after two seconds, and only on terminals."""
    return tqdm(items, desc=description, delay=2, disable=None, leave=False, **options)


def map_file(workers: Executor, function: Callable, source: Path, target: Path, *arguments) -> int:
    """Writes function(lines, *arguments) for the source's lines, chunk by chunk; returns the number of lines."""
    stage = target.parent.name.strip(".").removesuffix(".partial")
    lines = iter(progress(read_lines(source), f"{stage} {target.name}", unit=" lines"))
    chunks = iter(lambda: list(islice(lines, CHUNK)), [])
    return write_lines(target, (line for chunk in _in_order(workers, function, chunks, arguments) for line in chunk))


def _in_order(workers: Executor, function: Callable, chunks: Iterable, arguments: tuple) -> Iterator[list[str]]:
    """Like Executor.map, which however reads its whole input before it returns the first result."""
    waiting: deque = deque()
    for chunk in chunks:
        waiting.append(workers.submit(function, chunk, *arguments))
        if len(waiting) > 64:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
