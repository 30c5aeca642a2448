"""The tools as commands: their parsers, options of several tools, printed tables, and errors in one line."""

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import threading

from ...errors import InputError, one_line
from ...search.search_settings import DEFAULTS
from .records import AVERAGE


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, without all options."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {one_line(message)}; see --help\n")


def new_parser(tool: str, docstring: str) -> argparse.ArgumentParser:
    """A parser for `tool`, whose help shows its module's docstring as it stands."""
    return Parser(prog=tool, description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)


def positive(value: str) -> int:
    """A type of options: a whole number, at least 1."""
    if (number := int(value)) < 1:
        raise ValueError
    return number


positive.__name__ = "whole number, at least 1,"  # for argparse's message


def checkpoint(value: str) -> pathlib.Path:
    """A type of arguments: the folder of a run stands for its average.pt."""
    average = pathlib.Path(value, AVERAGE)
    return average if average.exists() else pathlib.Path(value)


def add_checkpoint(parser: argparse.ArgumentParser, more: str = "") -> None:
    help = "as fairseq or nmt-average-checkpoints wrote it, or a run's folder (its average.pt)"
    parser.add_argument("checkpoint", type=checkpoint, help=help + more)


def refuse_repeated(paths: list[pathlib.Path]) -> None:
    """Raises InputError if one of the files is given twice."""
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places):
        if places.count(place) > 1:
            raise InputError(f"{path} is given twice: name each file once")


def add_data(parser: argparse.ArgumentParser) -> None:
    help = "the data-bin folder (default: that of the training)"
    parser.add_argument("--data", type=pathlib.Path, metavar="FOLDER", help=help)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Options that are None where they are not given: `search_settings` says what holds then."""
    default = "(default: that of search.json beside the checkpoint, which a recipe writes, else {:g})"
    beam = "beam size " + default.format(DEFAULTS["beam"])
    parser.add_argument("--beam", type=positive, metavar="N", help=beam)
    lenpen = (
        "length penalty: scores are divided by length^A, as in fairseq, unless search.json says otherwise "
        + default.format(DEFAULTS["lenpen"])
    )
    parser.add_argument("--lenpen", type=float, metavar="A", help=lenpen)


def add_output(
    parser: argparse.ArgumentParser, written: str = "the checkpoint to write", metavar: str = "FILE"
) -> None:
    help = f"{written}, in place of an earlier one"
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar=metavar, help=help)


def add_picture(parser: argparse.ArgumentParser, *more: str) -> None:
    """more: other formats."""
    add_output(parser, f"the picture (its ending says the format: {', '.join(['png', 'pdf', 'svg', *more])})")


def flush_output() -> None:
    """Writes the rest of the standard output; if that fails, Python does not try it again when it ends."""
    try:
        if sys.stdout is not None:  # it may be closed (>&-)
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


@contextlib.contextmanager
def exit_in_one_line(tool: str):
    """Ends the command `tool` with one line if its input is unsuitable, a file cannot be used or a library is missing.

    Ctrl-C, SIGTERM, SIGHUP and a reader that goes away (`… | head`) end it without a word, with the status that a shell
    gives for them, and nothing half-written stays. It decorates a tool's main().
    """
    if sys.stderr is None:  # it is closed (2>&-): print would write messages to the standard output
        sys.stderr = open(os.devnull, "w")
    if getattr(sys.stdout, "errors", None) == "strict":  # a locale of ISO 8859 has neither – nor κ
        sys.stdout.reconfigure(errors="backslashreplace")
    own = threading.current_thread() is threading.main_thread()  # others cannot take signals
    if own and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as tools/__init__.py leaves it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP) if own}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        try:
            yield
        finally:
            flush_output()
    except ModuleNotFoundError as error:
        package = {"fairseq": "fairseq-fixed", "sklearn": "scikit-learn"}.get(error.name, error.name)
        sys.exit(f"{tool}: {error.name} is not installed: pip install {package}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except (InputError, OSError) as error:
        named = isinstance(error, OSError) and error.filename is not None and error.strerror
        message = f"{error.filename}: {error.strerror}" if named else str(error)
        sys.exit(f"{tool}: {one_line(message)}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def table(head: list[str], rows: list[list[str]], texts: int = 1) -> str:
    """A Markdown table; the first `texts` columns hold text, the others numbers. Cells may have line ends and |."""
    lines = [head, ["---"] * texts + ["---:"] * (len(head) - texts), *rows]
    cells = [[" ".join(text.splitlines()).replace("|", "\\|") for text in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
