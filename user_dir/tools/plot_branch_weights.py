"""Draws the branch weights κ and α of every layer over the updates of a run (Ahmed et al. 2017, figure 3).

    nmt-plot-branch-weights RUN --output branch-weights.png

A line is a branch, the same colour in every panel; the dotted grey line is 1/M, equal weights. RUN is the folder of a
training with its log as train.log, or a log: fairseq-train's output, or its --log-file, with --log-format simple or
json. It has the weights at every --log-interval.
"""

import pathlib
import re

from ..errors import InputError
from .shared.command import add_picture, exit_in_one_line, new_parser
from .shared.pictures import line_style, new_figure, save
from .shared.training_log import log_of, read_log

LETTERS = {"kappa": "κ", "alpha": "α"}
# Kinds of blocks, by their names in the log (weighted/log.py).
TITLES = {"enc": "encoder self-attention", "dec": "decoder self-attention", "encdec": "encoder–decoder attention"}
NAME = re.compile(rf"(?P<weights>{'|'.join(LETTERS)})_(?P<block>{'|'.join(TITLES)})(?P<layer>\d+)")

# (column, such as "encoder self-attention: κ", layer counted from 1): {number of updates: weights [M] that sum to 1}
Curves = dict[tuple[str, int], dict[int, list[float]]]


def read_run(run: pathlib.Path) -> Curves:
    """The branch weights in a log, or in the train.log of a folder, at all intervals and ends of epochs.

    Raises:
        InputError: if there are none
    """
    log, found = read_log(log_of(run)), {}
    for updates, values in {**log.get("train", {}), **log.get("train_inner", {})}.items():
        for name, weights in values.items():
            if match := NAME.fullmatch(name):
                panel = f"{TITLES[match['block']]}: {LETTERS[match['weights']]}", int(match["layer"])
                branches = weights if isinstance(weights, list) else [weights]  # M = 1
                found.setdefault(panel, {})[updates] = branches
    if not found:
        reason = "has no branch weights (kappa and alpha)"
        raise InputError(f"{run} {reason}: name a training of a weighted_transformer")
    return found


def draw(found: Curves, title: str):
    """The figure: layers below each other; κ and α of each kind of block side by side."""
    columns = list(dict.fromkeys(column for column, _ in found))
    layers = sorted({layer for _, layer in found})
    figure = new_figure(3.6 * len(columns) + 0.6, 1.9 * len(layers) + 1.6, title)
    axes = figure.subplots(len(layers), len(columns), squeeze=False, sharex=True, sharey=True)
    legend = []  # of the panel with the most branches: encoder and decoder may have different numbers
    for line, layer in zip(axes, layers):
        for axis, column in zip(line, columns):
            if (column, layer) not in found:
                axis.remove()
                continue
            updates, points = zip(*sorted(found[column, layer].items()))
            mark = {"marker": "o", "markersize": 3} if len(updates) < 20 else {}
            axis.axhline(1 / len(points[0]), color="0.5", linewidth=0.8, linestyle=":")
            axis.grid(alpha=0.3)
            lines = []
            for number, curve in enumerate(zip(*points)):
                style = {"linewidth": 1.2, "label": f"branch {number + 1}", **mark, **line_style(number)}
                lines += axis.plot(updates, curve, **style)
            legend = max(legend, lines, key=len)
            if layer == layers[0]:
                axis.set_title(column, fontsize=10)
            if (column, layer + 1) not in found:  # encoder and decoder may differ in depth
                axis.set_xlabel("updates")
                axis.tick_params(labelbottom=True)
        first = next(axis for axis, column in zip(line, columns) if (column, layer) in found)
        first.set_ylabel(f"layer {layer}")
        first.tick_params(labelleft=True)
    figure.legend(handles=legend, loc="outside lower center", ncols=min(8, len(legend)))
    return figure


@exit_in_one_line("nmt-plot-branch-weights")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-plot-branch-weights", __doc__)
    parser.add_argument("run", type=pathlib.Path, help="the folder of a training, or its log")
    add_picture(parser)
    args = parser.parse_args(arguments)
    save(draw(read_run(args.run), f"branch weights of {args.run}"), args.output)
    print(args.output)


if __name__ == "__main__":
    main()
