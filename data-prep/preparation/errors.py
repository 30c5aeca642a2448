"""The error for faults that a user can fix, and how a command reports it."""

import errno
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool


class PreparationError(Exception):
    """A message that says what is wrong, where, and how to fix it; shown as one line, without a traceback."""


def exit_status(command: str, do: Callable[[], None]) -> int:
    """Runs a command, which reports an error in one line; returns its exit status."""
    status = 1
    if getattr(sys.stdout, "errors", None) == "strict":  # a locale need not have the letters of a path
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        do()
        print(end="", flush=True)  # so that it fails here, not when Python ends
        return 0
    except BrokenPipeError:  # nobody reads the output (… | head), nor the rest that Python writes when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except PreparationError as error:
        message = str(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = "no disk space left; free some and run the command again to continue"
        elif error.errno == errno.EEXIST:
            message = f"{error.filename}: a file of this name exists; name another folder"
        else:
            message = f"{error.filename or 'input or output'}: {error.strerror or error}"
    except BrokenProcessPool:
        message = "a worker process was killed, most likely because memory ran out; use fewer --workers"
    except KeyboardInterrupt:
        message, status = "interrupted; run the command again to continue", 130
    message = re.sub("[\0-\x1f\x7f-\x9f]", "?", message)  # words of a text may hold a terminal's commands
    print(f"{command}: {message}", file=sys.stderr)
    return status
