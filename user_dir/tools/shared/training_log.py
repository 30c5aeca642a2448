"""Reading a training: fairseq-train's log (its output or --log-file, with --log-format simple or json) or record."""

import json
import math
import pathlib
import re
from collections import defaultdict

import numpy as np

from ...errors import InputError
from .records import LOG, read_record

# The lines of --log-format simple, behind time and logger where there are such:
# epoch 001:     50 / 1042 loss=10.7, ppl=1461.8, …
INTERVAL = re.compile(r"epoch (?P<epoch>\d+):\s+\d+ / \d+ (?P<values>.+)")
# epoch 001 | loss 7.6 | ppl 117.52 | …
SUMMARY = re.compile(r"epoch (?P<epoch>\d+) \| (?:valid on '(?P<subset>[^']+)' subset \| )?(?P<values>.+)")
VALUE = re.compile(r"([^\s=|,]+)[= ]([^\s,]+)")  # of either
# and with json, on one line: {"epoch": 1, "update": 0.05, "loss": "10.7", …} or {"epoch": 1, "valid_loss": "7.6", …}
JSON = re.compile(r"\{\"epoch\": .*\}")
TRAINING = ("train_inner", "train")  # the kinds of lines that are not of a validation


def read_line(line: str) -> tuple[str, dict] | None:
    """The kind of a line, and its values; None if it is not of a training, or its "num_updates" is no whole number.

    Kinds are "train_inner" (the updates since the last such line), "train" (an epoch), and a validation set's name,
    "valid on train" for the training set.
    """
    if match := JSON.search(line):
        try:
            values = {name: number(value) for name, value in json.loads(match[0]).items()}
        except (ValueError, RecursionError):  # a line that was cut off, or made up
            return None
        prefix = min((name.removesuffix("num_updates") for name in values if name.endswith("num_updates")), default="")
        kind, values = prefix[:-1] or "train_inner", {name.removeprefix(prefix): values[name] for name in values}
    elif match := INTERVAL.search(line) or SUMMARY.search(line):
        subset = match.groupdict().get("subset")
        kind = subset or ("train_inner" if match.re is INTERVAL else "train")
        named = [("epoch", match["epoch"]), *VALUE.findall(match["values"])]
        values = {name: number(value) for name, value in named}
        if subset is None and "wall" not in values:  # a line that was cut off: this is its last value
            return None
    else:
        return None
    if kind == "train" and "wall" not in values:  # a validation on the training set
        kind = "valid on train"
    updates = values.get("num_updates")
    return (kind, values) if isinstance(updates, float) and updates.is_integer() else None


def number(text: str | float | None) -> float | list[float]:
    """The number, the numbers of a/b/… (as κ and α are written), or NaN for what is none: such points are left out."""
    try:
        numbers = [float(part) for part in str(text).split("/")]
    except ValueError:
        return float("nan")
    return numbers if len(numbers) > 1 else numbers[0]


def log_of(path: pathlib.Path) -> pathlib.Path:
    """The log in the folder of a run; a log stands for itself.

    Raises:
        InputError: if the folder has none, because fairseq-train was typed by hand
    """
    if not path.is_dir():
        return path
    if not (path / LOG).exists():
        raise InputError(f"{path} has no {LOG}: name the log, which is fairseq-train's output or its --log-file")
    return path / LOG


def read_log(path: pathlib.Path) -> dict[str, dict[int, dict]]:
    """{train_inner, train, valid, …: {number of updates: {name: value}}}.

    Where a training goes back to an earlier update, what it did after that update is forgotten. Validations also have
    the "wall" and the "training_loss" of their updates, interpolated between the lines of training. A record (*.json)
    has validations only.

    Raises:
        InputError: if there is nothing of a training in it
    """
    found, clock, last = defaultdict(dict), {0: 0.0}, {}
    with open(path, encoding="utf-8", errors="replace") as lines:
        for kind, values in filter(None, map(read_line, lines)):
            updates = int(values["num_updates"])
            if updates < last.get(kind, 0):
                for points in (*found.values(), clock):
                    for later in [update for update in points if update > updates]:
                        del points[later]
            last[kind], found[kind][updates] = updates, values
            if "wall" in values:
                clock[updates] = values["wall"]
    found = {kind: points for kind, points in found.items() if points}
    if not found and path.suffix == ".json":
        return of_record(path)
    if not found:
        remedy = "name fairseq-train's output or its --log-file, written with --log-format simple or json"
        raise InputError(f"{path} holds no line of a training: {remedy}")
    training = found.get("train_inner") or found.get("train", {})
    losses = [(update, values.get("loss")) for update, values in sorted(training.items())]
    trained = np.array([pair for pair in losses if isinstance(pair[1], float) and not math.isnan(pair[1])]).T
    updates, seconds = np.array(sorted(clock.items())).T
    for kind, points in found.items():
        for update, values in points.items():
            if "wall" not in values:  # a validation has no clock of its own
                values["wall"] = float(np.interp(update, updates, seconds, right=math.nan))
            if trained.size and kind not in TRAINING:
                values["training_loss"] = float(np.interp(update, *trained))
    return found


def of_record(path: pathlib.Path) -> dict[str, dict[int, dict]]:
    """The validations of a run.json, as read_log gives them; those of old records have no time.

    Raises:
        InputError: if `path` is not a record
    """
    points = {}
    for values in read_record(path).get("validation") or []:
        named = {"num_updates": values["update"], "wall": values.get("seconds"), **values}
        points[values["update"]] = {name: number(value) for name, value in named.items()}
    if not points:
        raise InputError(f"{path} holds no validation: name the log of the training")
    return {"valid": points}
