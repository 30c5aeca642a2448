"""Draws the branch weights κ and α of every layer over the updates of a run (Ahmed et al. 2017, figure 3).

    python -m user_dir.tools.plot_branch_weights RUN --output branch-weights.png

A line is a branch, the same colour in every panel; the grey line is 1/M, equal weights. RUN is the folder of a
training: its train.log has the weights at every --log-interval (--log-format simple or json); without one, or with one
of before they were logged, there are those of the checkpoints in it (checkpoint*.pt). Or it is a log: fairseq-train's
output, or its --log-file.
"""

import pathlib
import re

from ..errors import InputError
from ..serving.models import load, options
from ..weighted.log import BLOCKS, log_name
from .shared.command import add_picture, exit_in_one_line, new_parser
from .shared.pictures import line_style, new_figure, save
from .shared.training_log import read_log

LETTERS = {"kappa": "κ", "alpha": "α"}
PARAMETER = re.compile(rf"(encoder|decoder)\.layers\.\d+\.\w+\.({'|'.join(LETTERS)})")
NAME = re.compile(rf"(?P<weights>{'|'.join(LETTERS)})_(?P<block>{'|'.join(BLOCKS.values())})(?P<layer>\d+)")
NO_WEIGHTS = "has no branch weights (kappa and alpha): name a training of a weighted_transformer"

# (column, such as "encoder self-attention: κ", layer counted from 1): {number of updates: weights [M] that sum to 1}
Curves = dict[tuple[str, int], dict[int, list[float]]]


def read_run(run: pathlib.Path) -> Curves:
    """The branch weights in a log, or in a folder's train.log or else its checkpoints.

    Raises:
        InputError: if there are none
    """
    if not run.is_dir():
        found = curves(from_log(run))
    else:
        try:
            found = curves(from_log(run / "train.log"))
        except (InputError, FileNotFoundError):  # a folder of checkpoints alone, or a log in another format
            found = {}
        found = found or curves(from_checkpoints(run))
    if not found:
        raise InputError(f"{run} {NO_WEIGHTS}")
    return found


def from_log(path: pathlib.Path) -> dict[int, dict[str, list[float]]]:
    """{number of updates: {name in the log: weights}}: of all intervals and ends of epochs."""
    log = read_log(path)
    return {**log.get("train", {}), **log.get("train_inner", {})}


def from_checkpoints(folder: pathlib.Path) -> dict[int, dict[str, list[float]]]:
    """As `from_log`, of all checkpoints."""
    paths = sorted(folder.glob("checkpoint*.pt"))
    if not paths:
        nothing = f"{folder} holds no checkpoint*.pt, and no train.log with branch weights"
        raise InputError(f"{nothing}: name the --save-dir of a training, or its log")
    found = {}
    for path in paths:
        state = load(path, mmap=True)
        softmax = options(state, "model").get("branch_weights") == "softmax"
        weights = {log_name(name): w.float() for name, w in state["model"].items() if PARAMETER.fullmatch(name)}
        if not weights:
            raise InputError(f"{path} {NO_WEIGHTS}")
        updates = state["optimizer_history"][-1]["num_updates"]
        found[updates] = {name: (w.softmax(0) if softmax else w).tolist() for name, w in weights.items()}
    return found


def titles() -> dict[str, str]:
    """Of each kind of block, by its name in the log."""
    attentions = {"self_attn": "{} self-attention", "encoder_attn": "encoder–decoder attention"}
    places = {name: place.split() for place, name in BLOCKS.items()}
    return {name: attentions[attention].format(side) for name, (side, attention) in places.items()}


def curves(points: dict[int, dict]) -> Curves:
    """Of each point what is a branch weight, by panel."""
    found, blocks = {}, titles()
    for updates, values in points.items():
        for name, weights in values.items():
            if match := NAME.fullmatch(name):
                panel = f"{blocks[match['block']]}: {LETTERS[match['weights']]}", int(match["layer"])
                branches = weights if isinstance(weights, list) else [weights]  # M = 1
                found.setdefault(panel, {})[updates] = branches
    return found


def draw(found: Curves, title: str):
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
            if (column, layer + 1) not in found:  # encoder and decoder may differ in depth
                axis.set_xlabel("updates")
                axis.tick_params(labelbottom=True)
        line[0].set_ylabel(f"layer {layer}")
    figure.legend(handles=lines, loc="outside lower center", ncols=min(8, len(lines)))
    return figure


def draw_panel(axis, points: dict[int, list[float]]) -> list:
    """One line for each branch; returns them."""
    updates = sorted(points)
    curves = list(zip(*(points[update] for update in updates)))  # M × updates
    axis.axhline(1 / len(curves), color="0.7", linewidth=0.8)
    axis.grid(alpha=0.3)
    mark = {"marker": "o", "markersize": 3} if len(updates) < 20 else {}
    lines = []
    for number, curve in enumerate(curves):
        style = {**mark, **line_style(number)}
        lines += axis.plot(updates, curve, linewidth=1.2, label=f"branch {number + 1}", **style)
    return lines


@exit_in_one_line("plot_branch_weights")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("plot_branch_weights", __doc__)
    parser.add_argument("run", type=pathlib.Path, help="the folder of a training, or its log")
    add_picture(parser)
    args = parser.parse_args(arguments)
    save(draw(read_run(args.run), f"branch weights of {args.run}"), args.output)
    print(args.output)


if __name__ == "__main__":
    main()
