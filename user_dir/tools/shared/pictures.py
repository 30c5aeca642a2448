"""Shared parts of the plots: a figure without a window system, colours, and how it is saved."""

import logging
import pathlib
import re
import sys
import warnings
from collections.abc import Sequence

from ...errors import InputError
from ...files import write

# Okabe and Ito's colours, which colour-blind readers tell apart too; yellow is left out, hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
STROKES, MARKS = ("-", "--", ":", "-."), "os^D"  # of lines and points, for a print in black and white


def without_debugging_lines() -> None:
    """Before matplotlib is imported: fairseq's import lets every debugging line through."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)


def new_figure(width: float, height: float, title: str = ""):
    """An empty matplotlib figure of that size in inches, which makes room for its labels."""
    without_debugging_lines()
    from matplotlib.figure import Figure  # needs no window system, and takes time

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title)
    return figure


def line_style(number: int) -> dict:
    """Colour and stroke of line `number`: 32 differ, and the first four without their colours, too."""
    return style("linestyle", STROKES, number)


def point_style(number: int) -> dict:
    """Colour and mark of points `number`: as many."""
    return style("marker", MARKS, number)


def style(name: str, kinds: Sequence[str], number: int) -> dict:
    """A colour, and as `name` one of four `kinds`, which take turns with the colours."""
    turn = number + number // len(COLOURS)
    return {"color": COLOURS[number % len(COLOURS)], name: kinds[turn % len(kinds)]}


def format_of(path: pathlib.Path) -> str:
    """The format that the ending of a picture's `path` names; raises InputError if matplotlib does not write it."""
    without_debugging_lines()
    from matplotlib.backend_bases import FigureCanvasBase  # takes time

    formats, kind = FigureCanvasBase.get_supported_filetypes(), path.suffix[1:].lower()
    if kind not in formats:
        wanted, known = kind or "a file without an ending", ", ".join(sorted(formats))
        raise InputError(f"{path}: matplotlib cannot write {wanted}; choose one of {known}")
    return kind


def save(figure, path: pathlib.Path) -> None:
    """Writes the picture in the format that the ending of `path` names; says in one line if its font lacks characters.

    Raises:
        InputError: as format_of
    """
    kind = format_of(path)
    for text in figure.findobj(lambda part: hasattr(part, "set_parse_math")):
        text.set_text(text.get_text().encode(errors="backslashreplace").decode())  # of a path that is not UTF-8
        if "$" in text.get_text():  # of a name or subword, which is no formula
            text.set_parse_math(False)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        write(path, lambda partial: figure.savefig(partial, format=kind, dpi=120, bbox_inches="tight"))
    lacking = set()
    for warning in given:
        if found := re.match(r"Glyph (\d+) .*missing", str(warning.message)):
            lacking.add(chr(int(found[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if lacking:  # matplotlib warns of each
        remedy = "set font.family in a matplotlibrc to an installed one that has them"
        said = f"boxes stand for {len(lacking)} characters that the font lacks ({''.join(sorted(lacking)[:10])})"
        print(f"{path}: {said}: {remedy}", file=sys.stderr)
