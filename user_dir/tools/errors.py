"""What a tool says when it cannot go on: one line, and an exit status that is not zero."""

import contextlib
import os
import sys

from ..errors import InputError


class ToolError(InputError):
    """An input that a tool cannot work with."""


@contextlib.contextmanager
def exit_in_one_line(tool: str):
    """Ends the command `tool` with one line if its input is unsuitable, a file cannot be used or a library is missing.

    Ctrl-C and a reader that goes away (`… | head`) end it without a word, with the status that a shell gives for them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(f"{tool}: {error.name} is not installed: pip install {error.name}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still writes when it ends
        sys.exit(141)
    except (InputError, OSError) as error:
        sys.exit(f"{tool}: {' '.join(str(error).split())}")
