"""Keeps two processes from writing the same files: the second waits until the first has ended, however it ends.

    PYTHONPATH=data-prep python -m preparation.locking 9 FOLDER

locks the shell's file 9, until the shell and what it started have closed that; FOLDER is for the message.
"""

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Holds the lock file `path`, which is there only meanwhile, as its folder is if it stays empty; `what` is guarded.

    lockf's locks belong to one process. Those of flock are inherited by forked workers, which outlive a killed parent.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            stream = open(path, "w")
        except FileNotFoundError:  # whoever held it took the empty folder away just now
            continue
        _lock(fcntl.lockf, stream.fileno(), what)
        if os.fstat(stream.fileno()).st_nlink:
            break
        stream.close()  # whoever held it took it away: a third process may hold a new one of that name
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        stream.close()
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # if there is nothing else in it


def _lock(lock: Callable, file: int, what: str) -> None:
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # systems differ in what they say when it is taken
        print(f"{what}: another process writes there; waiting until it has ended", file=sys.stderr, flush=True)
        lock(file, fcntl.LOCK_EX)
    except OSError:
        pass  # this file system has no locks


if __name__ == "__main__":
    _lock(fcntl.flock, int(sys.argv[1]), sys.argv[2])
