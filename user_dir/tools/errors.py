"""What a tool says when it cannot go on: one line, and an exit status that is not zero."""

import contextlib
import sys


class ToolError(ValueError):
    """An input that a tool cannot work with; the message says what, where and how to mend it."""


@contextlib.contextmanager
def exit_in_one_line(tool: str):
    """Ends the command `tool` with one line if its input is unsuitable, a file cannot be used or a library is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(f"{tool}: {error.name} is not installed: pip install {error.name}")
    except (ToolError, OSError) as error:
        sys.exit(f"{tool}: {' '.join(str(error).split())}")
