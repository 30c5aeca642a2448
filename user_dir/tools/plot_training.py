"""Draws loss, perplexity, BLEU, learning rate and tokens/s of several trainings from fairseq's logs, in one picture.

    nmt-plot-training runs/a/train.log runs/b/train.log --output training.png
    nmt-plot-training runs/*/train.log --names base base relative relative --against wall \\
        --output training.png
    nmt-plot-training runs/*/train.log --values loss --reach --cost --output training.png

A log is what fairseq-train printed, or its --log-file, with --log-format simple or json. The record of a run (run.json,
or a file of examples/results) stands for its validations. Training is a line (the values of --log-interval updates, or
of an epoch if there are no others), validation a line with dots. Runs of one name have one colour. BLEU is there if
fairseq-train computed it (--eval-bleu). Any other value of the log can be asked for by its name there: --values gnorm.

--against training-loss draws each validation over the training loss at its update (interpolated between lines; Ahmed et
al. 2017, figure 2): the lower of two curves belongs to the run that overfits less.

--reach prints how many updates and seconds each run took to a given validation loss, --cost the floating-point
operations of each training: those of the model's matrix products for the subwords that it was shown, forward and
backward. (Vaswani et al. 2017, Table 2, have hours x GPUs x what a GPU sustains: 12 x 3600 x 8 x 9.5e12 = 3.3e18.)
"""

import argparse
import pathlib

import numpy as np

from ..errors import InputError
from ..files import refuse_output
from .shared.command import add_picture, exit_in_one_line, new_parser, table
from .shared.pictures import line_style, new_figure, save
from .shared.records import LOG, RECORD
from .shared.training_log import TRAINING, log_of, read_log

# value in fairseq's log: title of its panel
TITLES = {
    "loss": "loss (bits a token, label-smoothed if trained so)",
    "ppl": "perplexity",
    "bleu": "BLEU on the validation set",
    "lr": "learning rate",
    "wps": "target tokens per second",
}
AXES = {  # --against: value in the log, unit, label
    "updates": ("num_updates", 1, "updates"),
    "wall": ("wall", 3600, "hours"),
    "seconds": ("wall", 1, "seconds"),
    "training-loss": ("training_loss", 1, "training loss"),
}


def curve(points: dict[int, dict[str, float]], name: str, against: str) -> tuple[list[float], list[float]]:
    """`name` over `against`, one of AXES; points without a number are omitted."""
    axis, unit, _ = AXES[against]
    numbers = [values for _, values in sorted(points.items()) if isinstance(values.get(name), float)]
    pairs = [(values.get(axis, np.nan) / unit, values[name]) for values in numbers]
    pairs = [pair for pair in pairs if not np.isnan(pair).any()]
    return [x for x, _ in pairs], [y for _, y in pairs]


def values_of(logs: list[dict], names: list[str], asked: list[str] | None, against: str) -> list[str]:
    """The values that are asked for, or those of TITLES that any log has.

    Raises:
        InputError: if no log has one that is asked for, or any, or a log has none of them
    """
    values = asked or (["loss"] if against == "training-loss" else list(TITLES))
    found = [{value for value in values for points in log.values() if curve(points, value, against)[0]} for log in logs]
    shown = [value for value in values if any(value in of_log for of_log in found)]
    missing = [value for value in values if value not in shown]
    if not shown or asked and missing:
        numbers = [pair for log in logs for points in log.values() for line in points.values() for pair in line.items()]
        known = sorted({name for name, value in numbers if isinstance(value, float)})
        raise InputError(f"no log has {', '.join(missing)} over {against}; there are {', '.join(known)}")
    if not all(found):  # an old record has no time
        lacking = ", ".join(dict.fromkeys(name for name, of_log in zip(names, found) if not of_log))
        raise InputError(f"{lacking}: no {', '.join(shown)} over {against}: omit them, or choose another --against")
    return shown


def draw(logs: list[dict], names: list[str], asked: list[str] | None, against: str):
    """The figure: a panel for each of `values_of`, which raises InputError."""
    shown = values_of(logs, names, asked, against)
    columns = len(shown) if len(shown) < 4 else -(-len(shown) // 2)
    lines = -(-len(shown) // columns)
    figure = new_figure(5.5 * columns, 3.8 * lines)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    order = list(dict.fromkeys(names))
    for axis, value in zip(axes, shown):
        for log, name in zip(logs, names):
            draw_run(axis, log, value, against, **line_style(order.index(name)))
        axis.set(title=TITLES.get(value, value), xlabel=AXES[against][2], yscale="log" if value == "ppl" else "linear")
        axis.grid(alpha=0.3)
    for axis in axes[len(shown) :]:
        axis.remove()
    entries = {name: axes[0].plot([], [], label=name, **line_style(i))[0] for i, name in enumerate(order)}
    if any(validations(log) for log in logs):
        entries["validation"] = axes[0].plot([], [], color="0.4", marker="o", markersize=3, linewidth=0.8)[0]
    entry = 0.8 + 0.09 * max(map(len, entries))  # inches, about
    beside = max(1, min(5, len(entries), int(5.5 * columns / entry)))
    figure.set_figheight(3.8 * lines + 0.6 + 0.22 * -(-len(entries) // beside))  # its lines leave the panels their room
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=beside)
    return figure


def draw_run(axis, log: dict, value: str, against: str, **style) -> None:
    training = curve(log.get("train_inner", {}), value, against)
    if not training[0]:
        training = curve(log.get("train", {}), value, against)
    # The speed of a validation is another one.
    validated = [] if value == "wps" else [curve(points, value, against) for points in validations(log).values()]
    alone = {"marker": "_"} if len(training[0]) == 1 else {}  # a line of one point would not be seen
    axis.plot(*training, linewidth=1.2, alpha=0.6 if any(x for x, _ in validated) else 1, **alone, **style)
    for points in validated:
        axis.plot(*points, marker="o", markersize=3, linewidth=0.8, **style)


def validations(log: dict) -> dict:
    """The points of each validation set, by its name."""
    return {kind: points for kind, points in log.items() if kind not in TRAINING}


def over_training_loss(log: dict, path: pathlib.Path) -> dict:
    """The validations in `log`, all of which have a "training_loss".

    Raises:
        InputError: if it has none, or no training loss
    """
    found = validations(log)
    if not any("training_loss" in values for points in found.values() for values in points.values()):
        missing = "training loss" if found else "validation"
        raise InputError(f"{path} has no {missing}, and --against training-loss draws one over the other: name another")
    return found


def reached(points: dict[int, dict[str, float]], loss: float, against: str) -> float | None:
    """Where, in "updates" or "seconds", a straight line between two validations comes down to `loss`."""
    x, y = (np.array(values) for values in curve(points, "loss", against))
    if not (y <= loss).any():
        return None
    first = np.argmax(y <= loss)
    before = max(0, first - 1)
    return float(np.interp(loss, [y[first], y[before]], [x[first], x[before]]))


def table_of(args: argparse.Namespace, logs: list[dict], names: list[str]) -> str:
    """The table that --reach and --cost ask for.

    Raises:
        InputError: if a log has no validation, and as training_cost.cost does
    """
    columns, rows = ["run"], [[name] for name in names]
    if args.reach is not None:
        validated = [next(iter(validations(log).values()), {}) for log in logs]
        losses = [curve(points, "loss", "updates")[1] for points in validated]
        if [] in losses:
            path = args.logs[losses.index([])]
            raise InputError(f"{path} has no validation with a finite loss, which could be reached: name another log")
        loss = args.reach or min(losses[0])
        columns += [f"updates to validation loss {loss:g}", "seconds"]
        for row, points in zip(rows, validated):
            found = [reached(points, loss, axis) for axis in ("updates", "seconds")]
            missing = "not reached" if found[0] is None else "–"  # a record may lack the time
            row += [missing if number is None else f"{number:.0f}" for number in found]
    if args.cost:
        from .shared.training_cost import cost  # which needs torch and fairseq, several seconds

        columns += ["target subwords", "FLOPs", "seconds of updates", "FLOP/s"]
        for path, log, row in zip(args.logs, logs, rows):
            subwords, operations, seconds = cost(path, log.get("train_inner", {}), log.get("train", {}))
            speed = f"{operations / seconds:.2g}" if seconds else "–"  # fairseq's log has whole seconds
            row += [f"{subwords:.3g}", f"{operations:.2g}", f"{seconds:.0f}", speed]
    return table(columns, rows)


def names_of(paths: list[pathlib.Path]) -> list[str]:
    """A name for each log: the file's, or its folder's if it is called as in a run, or if several have the same.

    Logs that would have one name have their paths, because runs of one name are drawn as one.
    """
    same = len(paths) > len({path.name for path in paths}) == 1
    names = [path.resolve().parent.name if same or path.name in (LOG, RECORD) else path.stem for path in paths]
    return [str(path) if names.count(name) > 1 else name for name, path in zip(names, paths)]


@exit_in_one_line("nmt-plot-training")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-plot-training", __doc__)
    parser.add_argument(
        "logs", nargs="+", type=pathlib.Path, help="logs or records of trainings, or the folders of runs"
    )
    given = "a name for each log (default: the log's; its folder's for train.log, run.json, and logs of one name)"
    parser.add_argument("--names", nargs="+", metavar="NAME", help=given)
    values = f"values to draw, named as in the logs (default: {' '.join(TITLES)}; loss --against training-loss)"
    parser.add_argument("--values", nargs="+", metavar="NAME", help=values)
    against = "updates, hours (wall) or seconds of training, or its loss (default: updates)"
    parser.add_argument("--against", choices=AXES, default="updates", help=against)
    reach = "print when each run reached this validation loss (without a number: the lowest one of the first log)"
    parser.add_argument("--reach", type=float, nargs="?", const=0.0, metavar="LOSS", help=reach)
    cost = "print the floating-point operations of each training; the model is that of the checkpoint beside the log"
    parser.add_argument("--cost", action="store_true", help=cost)
    add_picture(parser)
    args = parser.parse_args(arguments)
    refuse_output(args.output)
    args.logs = [*map(log_of, args.logs)]
    if args.names and len(args.names) != len(args.logs):
        parser.error(f"there are {len(args.logs)} logs and {len(args.names)} --names: give each log one")
    logs = [read_log(path) for path in args.logs]
    names = args.names or names_of(args.logs)
    drawn = [over_training_loss(*pair) for pair in zip(logs, args.logs)] if args.against == "training-loss" else logs
    figure = draw(drawn, names, args.values, args.against)
    if args.reach is not None or args.cost:
        print(table_of(args, logs, names))
    save(figure, args.output)
    print(args.output)


if __name__ == "__main__":
    main()
