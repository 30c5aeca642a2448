"""Runs a command, and ends all processes that it has started: on SIGTERM or SIGHUP, and when the command has ended.

    python3 supervise.py bash examples/wmt14.sh

The command stays in this process group, so that a terminal's Ctrl-C and Ctrl-Z reach it and its child processes as
usual; this process waits until they have handled them. The exit status is the command's, or 128 plus the number of the
signal. The command finds this process's number in SUPERVISOR.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

SECONDS = 10  # between SIGTERM and SIGKILL
SET_CHILD_SUBREAPER = 36  # of Linux's prctl


def descendants(process: int) -> list[int]:
    """All descendants of `process`, parents first: a bash that is ended before its child does not report the child."""
    parent_of = {}  # of each process that has not ended
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                parent_of[int(number)] = int(parent)
    family = [process]
    for member in family:
        family += [child for child, parent in parent_of.items() if parent == member]
    return family[1:]


def end_descendants() -> None:
    """Ends all descendants of this process, including those started meanwhile."""
    asked, begun = set(), time.monotonic()
    while (alive := descendants(os.getpid())) and (seconds := time.monotonic() - begun) < 2 * SECONDS:
        for process in alive:
            if process not in asked or seconds > SECONDS:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGTERM if seconds < SECONDS else signal.SIGKILL)
        asked |= {*alive}
        time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def ended(number: int, frame) -> None:
    """The handler of SIGTERM and SIGHUP."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    end_descendants()
    os._exit(128 + number)


def main() -> None:
    with contextlib.suppress(OSError, AttributeError):  # on Linux, orphans become children of this process
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: ended, signal.SIGHUP: ended}
    for number, handler in handlers.items():
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, handler)
    command = subprocess.Popen(sys.argv[1:], env={**os.environ, "SUPERVISOR": str(os.getpid())})
    while (done := os.wait())[0] != command.pid:
        pass
    end_descendants()
    status = os.waitstatus_to_exitcode(done[1])
    if status == 128 + signal.SIGINT:  # of a step that has handled Ctrl-C itself
        status = -signal.SIGINT
    if status < 0:  # end like the command: a shell's loop ends on Ctrl-C only if that ended the script
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
