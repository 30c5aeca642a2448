"""What the plots share: a figure without a window system, colours, and a file that is whole or not there."""

import logging
import pathlib

from .errors import ToolError

# Okabe and Ito's colours, which colour-blind readers tell apart too; yellow is left out, hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
STROKES = ("-", "--", ":", "-.")  # when the colours are used up


def new_figure(width: float, height: float, title: str = ""):
    """An empty matplotlib figure of that size in inches, which makes room for its labels."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq's import lets every debugging line through
    from matplotlib.figure import Figure  # an optional dependency; needs no window system

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title)
    return figure


def line_style(number: int) -> dict:
    """Colour and stroke of line `number`: 32 differ."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STROKES[number // len(COLOURS) % len(STROKES)]}


def save(figure, path: pathlib.Path) -> None:
    """Writes the picture under a temporary name and renames it, so that `path` is never half a picture.

    Raises:
        ToolError: if the ending names no format that matplotlib writes
    """
    formats, kind = figure.canvas.get_supported_filetypes(), path.suffix[1:].lower()
    if kind not in formats:
        raise ToolError(f"{path}: no picture can be written as {kind or 'a file without an ending'}; known are {', '.join(sorted(formats))}")
    partial = path.with_name(path.name + ".partial")
    try:
        figure.savefig(partial, format=kind, dpi=120)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
