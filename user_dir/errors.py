"""Errors in a user's input; each message says how to fix it."""

import pathlib
import re
import sys
import traceback


class InputError(ValueError):
    """An invalid input. The message says in one line what is wrong, where, and how to fix it."""


def flag(name: str) -> str:
    """The option called `name` as it is typed: --relative-positions."""
    return f"--{name.replace('_', '-')}"


def report_input_errors_in_one_line() -> None:
    """Makes fairseq's commands end with an InputError's message alone, without a traceback of twenty lines.

    A program of your own that imports this package keeps its sys.excepthook. A process that fairseq starts for a GPU
    passes its traceback to its parent process, which prints only the traceback's last line.
    """
    command = pathlib.Path(sys.argv[0] if sys.argv else "")
    if not command.name.startswith("fairseq-") and command.parent.name != "fairseq_cli":
        return
    previous_hook = sys.excepthook

    def hook(kind, error, trace):
        ours = rf"\n{re.escape(__package__)}\.[\w.]+: (.*)"  # the end of the traceback of an error of ours
        last_trace = str(error).rpartition("Traceback (most recent call last)")[2]  # its cause's comes first
        if isinstance(error, InputError):
            message = str(error)
        elif kind.__name__ == "ProcessRaisedException" and (match := re.search(ours, last_trace, re.DOTALL)):
            message = match[1]
        elif kind is AssertionError and "--max-tokens" in str(error):  # fairseq's own, before it sets up the task
            message = f"{error}: for example, add --max-tokens 4096"
        elif kind is AssertionError and "please reset the optimizer" in str(error):  # --reset-optimizer
            message = str(error)
        elif kind is ValueError and str(error).startswith("--finetune-from-model"):
            message = str(error).partition(": {")[0]  # the whole configuration follows
        elif kind is OSError and str(error).startswith("Model file not found"):
            message = f"--path: {error}: name a checkpoint"
        elif isinstance(error, OSError) and "verify_checkpoint_directory" in "".join(traceback.format_tb(trace)):
            message = f"--save-dir: {error.strerror}: '{error.filename}': name another folder"
        else:
            return previous_hook(kind, error, trace)
        print(*message.split(), file=sys.stderr)

    sys.excepthook = hook
