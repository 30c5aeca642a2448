"""Keeps two processes from writing the same files: the second waits until the first has ended, however it ends.

    PYTHONPATH=data-prep python -m preparation.locking 9 FOLDER PROCESS

locks the shell's file 9, opened to read and write, until the shell and all that it started have closed it. For the
message of those who wait: FOLDER is guarded, and PROCESS, which is noted in the file, is the one to end.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import time
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
            stream = open(path, "a+")
        except FileNotFoundError:  # whoever held it took the empty folder away just now
            continue
        _lock(fcntl.lockf, stream.fileno(), what, os.getpid())
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


def _lock(lock: Callable, file: int, what: str, process: int) -> None:
    """Locks the open file, and notes `process` in it."""
    note = _described(process).encode()
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # systems differ in what they say when it is taken
        time.sleep(0.1)  # whoever took it just now is about to write the note
        holder = os.pread(file, 1000, 0).decode(errors="replace") or "another process"
        waiting = "writes there; waiting until it and all that it started have ended"
        print(f"{what}: {holder} {waiting}", file=sys.stderr, flush=True)
        lock(file, fcntl.LOCK_EX)
    except OSError:
        return  # this file system has no locks
    os.ftruncate(file, 0)
    os.pwrite(file, note, 0)


def _described(process: int) -> str:
    """Its number, its host (others may share the folder), and its command where that is readable."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        command = b""
        with contextlib.suppress(OSError):  # there is no /proc, and perhaps no ps
            command = subprocess.run(["ps", "-o", "command=", "-p", str(process)], capture_output=True).stdout
    words = "".join(c if c.isprintable() else "?" for c in " ".join(command.decode(errors="replace").split()))
    return f"process {process} on {os.uname().nodename}" + (f" ({words[:200]})" if words else "")


if __name__ == "__main__":
    _lock(fcntl.flock, int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
