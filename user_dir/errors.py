"""Refusals of what cannot be worked with, said so that a person can fix it."""

import pathlib
import re
import sys
import traceback


class InputError(ValueError):
    """An input that cannot be worked with; the message says in one line what is wrong, where, and how to fix it."""


def functions(trace) -> list[str]:
    """The names of the functions in which an exception was raised."""
    return [frame.name for frame in traceback.extract_tb(trace)]


def say_refusals_in_one_line() -> None:
    """In a command of fairseq's, ends it with an InputError's message alone, without a traceback of twenty lines.

    Who imports this package in a program of their own keeps their sys.excepthook. A process that fairseq starts for a
    GPU hands its traceback to the one that started it, which prints the last line of it here.
    """
    command = pathlib.Path(sys.argv[0] if sys.argv else "")
    if not command.name.startswith("fairseq-") and command.parent.name != "fairseq_cli":
        return
    usual = sys.excepthook

    def say(kind, error, trace):
        ours = rf"\n{re.escape(__package__)}\.[\w.]+: (.*)"  # how the traceback of an error of ours ends
        last = str(error).rpartition("Traceback (most recent call last)")[2]  # its cause's comes before
        if isinstance(error, InputError):
            said = str(error)
        elif kind.__name__ == "ProcessRaisedException" and (found := re.search(ours, last, re.DOTALL)):
            said = found[1]
        elif kind is AssertionError and "--max-tokens" in str(error):  # fairseq's own, before it asks for a task
            said = f"{error}: add --max-tokens 4096, say"
        elif isinstance(error, OSError) and "verify_checkpoint_directory" in functions(trace):
            said = f"--save-dir: {error.strerror}: '{error.filename}': name another folder"
        else:
            return usual(kind, error, trace)
        print(*said.split(), file=sys.stderr)

    sys.excepthook = say
