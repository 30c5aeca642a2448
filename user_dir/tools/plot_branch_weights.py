"""Draws the branch weights κ and α of every layer over the checkpoints of a run (Ahmed et al. 2017, figure 3).

    python -m user_dir.tools.plot_branch_weights RUN --output branch-weights.png

A line is a branch, the same colour in every panel; the grey line is 1/M, equal weights. The checkpoints are what fairseq-train
keeps in its --save-dir (checkpoint*.pt): keep many (--save-interval-updates, without --keep-interval-updates) for a fine curve.
"""

import argparse
import pathlib
import re

from torch import Tensor

from .checkpoints import BadCheckpoints, load, model_options, number_of_updates
from .errors import ToolError, exit_in_one_line
from .pictures import line_style, new_figure, save

NAME = re.compile(r"(?P<side>encoder|decoder)\.layers\.(?P<layer>\d+)\.(?P<block>.+)\.(?P<weight>kappa|alpha)")
LETTERS = {"kappa": "κ", "alpha": "α"}
BLOCKS = {"self_attn": "self-attention", "encoder_attn": "encoder–decoder attention"}


def branch_weights(state: dict) -> dict[tuple[str, int, str], Tensor]:
    """(panel column, such as "encoder self-attention: κ", layer counted from 1): weights [M] that sum to 1."""
    softmax = model_options(state).get("branch_weights") == "softmax"
    found = {}
    for name, values in state["model"].items():
        if match := NAME.fullmatch(name):
            side = "" if match["block"] == "encoder_attn" else f"{match['side']} "
            column = f"{side}{BLOCKS.get(match['block'], match['block'])}: {LETTERS[match['weight']]}"
            found[column, int(match["layer"]) + 1] = values.float().softmax(0) if softmax else values.float()
    return found


def read_run(folder: pathlib.Path) -> dict[tuple[str, int], dict[int, Tensor]]:
    """{(column, layer): {number of updates: weights [M]}} of the run's checkpoints.

    Raises:
        ToolError: if there is no checkpoint, or no branch weights in one
    """
    paths = sorted(folder.glob("checkpoint*.pt"))
    if not paths:
        raise BadCheckpoints(f"{folder} holds no checkpoint*.pt: name the --save-dir of a training")
    found = {}
    for path in paths:
        state = load(path, mmap=True)
        weights = branch_weights(state)
        if not weights:
            raise ToolError(f"{path} has no branch weights (parameters named kappa and alpha): train a weighted_transformer")
        for panel, values in weights.items():
            found.setdefault(panel, {})[number_of_updates(state)] = values.clone()  # the file is not kept open
    return found


def draw(found: dict[tuple[str, int], dict[int, Tensor]], title: str):
    """The figure: layers below each other; κ and α of each kind of block side by side."""
    columns = list(dict.fromkeys(column for column, _ in found))
    layers = sorted({layer for _, layer in found})
    figure = new_figure(3.6 * len(columns) + 0.6, 1.9 * len(layers) + 1.6, title)
    axes = figure.subplots(len(layers), len(columns), squeeze=False, sharex=True, sharey=True)
    for line, layer in zip(axes, layers):
        for axis, column in zip(line, columns):
            if (column, layer) not in found:
                axis.remove()
                continue
            lines = draw_panel(axis, found[column, layer])
            if layer == layers[0]:
                axis.set_title(column, fontsize=10)
        line[0].set_ylabel(f"layer {layer}")
    figure.supxlabel("updates", fontsize=10)
    figure.legend(handles=lines, loc="outside lower center", ncols=min(8, len(lines)))
    return figure


def draw_panel(axis, points: dict[int, Tensor]) -> list:
    """One line for each branch; returns them."""
    updates = sorted(points)
    curves = list(zip(*(points[update].tolist() for update in updates)))  # M × updates
    axis.axhline(1 / len(curves), color="0.7", linewidth=0.8)
    axis.grid(alpha=0.3)
    mark = {"marker": "o", "markersize": 3} if len(updates) < 20 else {}
    return [
        axis.plot(updates, curve, linewidth=1.2, label=f"branch {i + 1}", **mark, **line_style(i))[0] for i, curve in enumerate(curves)
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="plot_branch_weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="the folder of the checkpoints")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the picture; its ending says the format (png, pdf, svg)")
    args = parser.parse_args(arguments)
    with exit_in_one_line("plot_branch_weights"):
        save(draw(read_run(args.run), f"branch weights of {args.run}"), args.output)
    print(args.output)


if __name__ == "__main__":
    main()
