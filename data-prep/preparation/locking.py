"""Keeps two processes from writing the same files: the second waits until the first has ended, in any way.

    PYTHONPATH=data-prep python -m preparation.locking 9 FOLDER PROCESS

locks the shell's file 9, opened for reading and writing, until the shell and all its child processes have closed it.
FOLDER and PROCESS, which is written to the file, appear in the message of a process that waits.
"""

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, guarded: str) -> Iterator[None]:
    """Holds the lock file `path`, and removes it and its folder, if empty, at the end; `guarded` is named in messages.

    lockf's locks belong to one process. Forked workers, which outlive a killed parent, would inherit those of flock.
    """
    tries = 100
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = open(path, "a+")
        except (FileNotFoundError, FileExistsError):  # its last holder has just removed the empty folder
            tries -= 1
            if tries == 0:  # something else is in its place, such as a file
                raise
            continue
        _lock(fcntl.lockf, stream.fileno(), guarded, os.getpid())
        with contextlib.suppress(OSError):  # its last holder has removed it
            if os.path.samefile(path, stream.fileno()):
                break
        # NFS renames a file that is removed while others wait for it; a third process may hold a new one of that name.
        stream.close()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        stream.close()
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # if it is empty


def _lock(lock: Callable, file: int, guarded: str, process: int) -> None:
    """Locks the open file, and writes `process` to it."""
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the error for a locked file depends on the system
        time.sleep(0.1)  # its holder may be about to write the note
        note = os.pread(file, 1000, 0).decode(errors="replace")  # perhaps another person's
        holder = "".join(c if c.isprintable() else "?" for c in note) or "another process"
        waiting = "writes there; waiting until it and its child processes have ended"
        print(f"{guarded}: {holder} {waiting}", file=sys.stderr, flush=True)
        lock(file, fcntl.LOCK_EX)
    except OSError:
        return  # this file system does not support locks
    if os.pread(file, 8, 0) in (b"", b"process "):  # and not a text to which another person's link leads
        os.ftruncate(file, 0)
        os.pwrite(file, _described(process).encode(), 0)


def _described(process: int) -> str:
    """The number of the process, its host (others may share the folder), and its command if that is readable."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        command = b""
    words = " ".join(command.decode(errors="replace").split())
    return f"process {process} on {os.uname().nodename}" + (f" ({words[:200]})" if words else "")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the waiting without a traceback
    _lock(fcntl.flock, int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
