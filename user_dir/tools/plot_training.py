"""Draws loss, perplexity, BLEU, learning rate and tokens/s of several trainings from fairseq's logs, in one picture.

    python -m user_dir.tools.plot_training runs/a/train.log runs/b/train.log --output training.png
    python -m user_dir.tools.plot_training runs/*/train.log --names base base relative relative --against wall --output training.png

A log is what fairseq-train printed, or its --log-file, with --log-format simple or json. Training is a line (the values of
--log-interval updates, or of an epoch if there are no others), validation a line with dots. Runs of one name have one colour.
BLEU is there if fairseq-train computed it (--eval-bleu). Any other value of the log can be asked for by its name there: --values gnorm.
"""

import argparse
import json
import pathlib
import re
from collections import defaultdict

import numpy as np

from .errors import ToolError, exit_in_one_line
from .pictures import line_style, new_figure, save

# value in fairseq's log: title of its panel
TITLES = {
    "loss": "loss (bits a token, label-smoothed if trained so)",
    "ppl": "perplexity",
    "bleu": "BLEU on the validation set",
    "lr": "learning rate",
    "wps": "target tokens per second",
}

# What fairseq writes with --log-format simple, behind time and logger where there are such:
INTERVAL = re.compile(r"epoch \d+:\s+\d+ / \d+ (?P<values>.+)")  # epoch 001:     50 / 1042 loss=10.7, ppl=1461.8, …
SUMMARY = re.compile(r"epoch \d+ \| (?:valid on '(?P<subset>[^']+)' subset \| )?(?P<values>.+)")  # epoch 001 | loss 7.6 | ppl 117.52 | …
# and with json, on one line: {"epoch": 1, "update": 0.05, "loss": "10.7", …} or {"epoch": 1, "valid_loss": "7.6", …}
JSON = re.compile(r"\{\"epoch\": .*\}")


def read_line(line: str) -> tuple[str, dict[str, float]] | None:
    """What the line is about ("train_inner" for an interval, "train" for an epoch, or the name of a validation set) and its values."""
    if match := JSON.search(line):
        try:
            values = {name: number(value) for name, value in json.loads(match[0]).items()}
        except ValueError:  # a line that was cut off
            return None
        if "num_updates" in values:
            return "train_inner", values
        prefix = next((name.removesuffix("num_updates") for name in values if name.endswith("_num_updates")), None)
        return prefix and (prefix[:-1], {name.removeprefix(prefix): value for name, value in values.items()})
    if match := INTERVAL.search(line):
        kind, words = "train_inner", [word.partition("=") for word in match["values"].split(", ")]
    elif match := SUMMARY.search(line):
        kind, words = match["subset"] or "train", [word.partition(" ") for word in match["values"].strip().split(" | ")]
    else:
        return None
    values = {name: number(value) for name, _, value in words}
    return (kind, values) if "num_updates" in values else None


def number(text: str | float | None) -> float:
    """The number, or NaN for what is none: such points are left out."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


def read_log(path: pathlib.Path) -> dict[str, dict[int, dict[str, float]]]:
    """{train_inner, train, valid, …: {number of updates: {name: value}}}. What a resumed training did again counts as done then.

    Raises:
        ToolError: if there is nothing of a training in it
    """
    found, clock = defaultdict(dict), {0: 0.0}
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if read := read_line(line):
                kind, values = read
                updates = int(values["num_updates"])
                found[kind][updates] = values
                if "wall" in values:
                    clock[updates] = values["wall"]
    if not found:
        raise ToolError(
            f"{path} holds no line of a training: name fairseq-train's output or its --log-file, "
            "written with --log-format simple or json"
        )
    updates = sorted(clock)
    for points in found.values():
        for update, values in points.items():  # a validation has no clock of its own
            values.setdefault("wall", float(np.interp(update, updates, [clock[u] for u in updates], right=float("nan"))))
    return found


def curve(points: dict[int, dict[str, float]], name: str, against: str) -> tuple[list[float], list[float]]:
    """The value `name` over "num_updates" or "wall" (in hours); points without a number are left out."""
    unit = 3600 if against == "wall" else 1
    pairs = [(values[against] / unit, values[name]) for _, values in sorted(points.items()) if name in values]
    pairs = [pair for pair in pairs if not np.isnan(pair).any()]
    return [x for x, _ in pairs], [y for _, y in pairs]


def draw(logs: list[dict], names: list[str], values: list[str], against: str):
    """The figure: a panel for each of `values` that any log has.

    Raises:
        ToolError: if no log has any
    """
    shown = [value for value in values if any(curve(points, value, against)[0] for log in logs for points in log.values())]
    if not shown:
        known = sorted({name for log in logs for points in log.values() for values in points.values() for name in values})
        raise ToolError(f"no log has {', '.join(values)} over {against}; there are {', '.join(known)}")
    columns = len(shown) if len(shown) < 4 else -(-len(shown) // 2)
    lines = -(-len(shown) // columns)
    figure = new_figure(5.5 * columns, 3.8 * lines + 0.8)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    order = list(dict.fromkeys(names))
    for axis, value in zip(axes, shown):
        for log, name in zip(logs, names):
            draw_run(axis, log, value, against, **line_style(order.index(name)))
        axis.set(title=TITLES.get(value, value), xlabel={"num_updates": "updates", "wall": "hours"}[against], yscale="log" if value == "ppl" else "linear")
        axis.grid(alpha=0.3)
    for axis in axes[len(shown) :]:
        axis.remove()
    entries = {name: axes[0].plot([], [], label=name, **line_style(i))[0] for i, name in enumerate(order)}
    if any(validations(log) for log in logs):
        entries["validation"] = axes[0].plot([], [], color="0.4", marker="o", markersize=3, linewidth=0.8)[0]
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=min(5, len(entries)))
    return figure


def draw_run(axis, log: dict, value: str, against: str, **style) -> None:
    training = curve(log.get("train_inner", {}), value, against)
    if not training[0]:
        training = curve(log.get("train", {}), value, against)
    validated = [] if value == "wps" else [curve(points, value, against) for points in validations(log)]  # another speed
    axis.plot(*training, linewidth=1.2, alpha=0.6 if any(x for x, _ in validated) else 1, **style)
    for points in validated:
        axis.plot(*points, marker="o", markersize=3, linewidth=0.8, **style)


def validations(log: dict) -> list[dict]:
    """The points of each validation set."""
    return [points for kind, points in log.items() if kind not in ("train_inner", "train")]


def names_of(paths: list[pathlib.Path]) -> list[str]:
    """A name for each log: its folder's if all logs are called the same, else that of the file."""
    same = len({path.name for path in paths}) == 1
    return [path.resolve().parent.name if same else path.stem for path in paths]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="plot_training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=pathlib.Path)
    parser.add_argument("--names", nargs="+", help="a name for each log (default: the log's, or its folder's if all logs are called the same)")
    parser.add_argument("--values", nargs="+", default=list(TITLES), help="what to draw, named as in the logs (default: loss ppl bleu lr wps)")
    parser.add_argument("--against", choices=("updates", "wall"), default="updates", help="updates, or hours of training (default: updates)")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the picture; its ending says the format (png, pdf, svg)")
    args = parser.parse_args(arguments)
    if args.names and len(args.names) != len(args.logs):
        parser.error(f"there are {len(args.logs)} logs and {len(args.names)} --names: give each log one")
    against = "num_updates" if args.against == "updates" else "wall"
    with exit_in_one_line("plot_training"):
        logs = [read_log(path) for path in args.logs]
        save(draw(logs, args.names or names_of(args.logs), args.values, against), args.output)
    print(args.output)


if __name__ == "__main__":
    main()
