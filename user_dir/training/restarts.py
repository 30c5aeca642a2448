"""Continues counts after restarts: the validations of --patience, the seconds in the log, and the means of its lines.

fairseq counts the validations without improvement in attributes of its command's function, which end with the process:
a training that is interrupted often would never stop (https://github.com/facebookresearch/fairseq/issues/3531).
"""

import logging
import pathlib
import sys
import time

from fairseq import checkpoint_utils
from fairseq.logging import metrics, progress_bar
from omegaconf import DictConfig

from ..errors import InputError
from .last_checkpoint import LAST

logger = logging.getLogger(__name__)

COMMANDS = ("__main__", "__mp_main__", "fairseq_cli.train")  # python -m, a process that it starts, fairseq-train


def counters() -> list:
    """fairseq-train's functions that count in their attributes `best` and `num_runs`; none in other programs."""
    found = (getattr(sys.modules.get(name), "should_stop_early", None) for name in COMMANDS)
    return [counter for counter in found if counter is not None]


def measured(options: dict, datasets: dict) -> dict:
    """The measure of the best value of a training with `options`: metric, size of the validation set, smoothing.

    The first of several sets counts.
    """
    metric = options["best_checkpoint_metric"]
    found = {"metric": metric, "smoothing": options.get("label_smoothing") if metric == "loss" else None}
    first = "valid" if options["combine_valid_subsets"] else options["valid_subset"].split(",")[0]
    if first in datasets:  # without --disable-validation
        pairs = datasets[first]
        # Not their ordered_indices, which are drawn with numpy's generator at each checkpoint.
        found["set"] = [len(getattr(pairs, "chosen", pairs)), int(pairs.sizes.sum())]
    return found


def patience_so_far() -> dict:
    """The best value and the validations since then, for a checkpoint; empty without --patience."""
    for counter in counters():
        if getattr(counter, "best", None) is not None:
            return {"best": float(counter.best), "num_runs": counter.num_runs}
    return {}


def forget_other_trainings() -> None:
    """Before a training: fairseq-hydra-train --multirun trains several in one process, and fairseq compares them.

    Without this, it would also write to the --tensorboard-logdir of the first one.
    """
    progress_bar._close_writers()
    progress_bar._tensorboard_writers.clear()
    for function in (*counters(), checkpoint_utils.save_checkpoint):
        vars(function).pop("best", None)


def forget_another_best(state: dict, by: dict) -> bool:
    """Forgets the best value of `state` if it was not measured `by` this training's measure; returns whether."""
    if any(state.get(name, value) != value for name, value in by.items()):  # an older version's state says less
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        return True
    return False


def continue_patience(state: dict, cfg: DictConfig, by: dict) -> None:
    """Continues the count of `state` with the options `cfg` of a training, whose best value is measured `by`.

    A training that has stopped already does no further update. If something else was measured before, there is no best
    value yet.

    Raises:
        InputError: if it has stopped already, and is to continue in another folder
    """
    options = cfg["checkpoint"]
    if forget_another_best(state, by):
        return
    if options["patience"] <= 0 or "best" not in state or options["reset_meters"] or options["reset_optimizer"]:
        return
    for counter in counters():
        counter.best, counter.num_runs = state["best"], state["num_runs"]
    if options["patience"] <= state["num_runs"]:
        stopped = f"--patience {options['patience']} has stopped this training already"
        if not pathlib.Path(options["save_dir"], LAST).exists():  # --continue-once in another folder
            raise InputError(f"{stopped}: give a larger one to continue it")
        logger.info(f"{stopped}; raise it to continue")
        cfg["optimization"]["max_epoch"] = -1


def interval_so_far() -> list:
    """fairseq's meters of the updates since the last line of its log, for a checkpoint."""
    return (metrics.get_meters("train_inner") or metrics.MetersDict()).state_dict()


def continue_interval(state: list) -> None:
    """Continues these meters: after a checkpoint that ends an epoch fairseq would log only a part of an interval."""
    if metrics.get_meters("train_inner") is None:
        metrics.load_state_dict({"train_inner": state})


def clock():
    """fairseq's meter of the training's seconds, `wall` in its log; None in other programs."""
    return metrics.get_meter("default", "wall")


def seconds_so_far() -> float:
    return 0.0 if clock() is None else clock().elapsed_time


def continue_clock(seconds: float) -> None:
    """Continues from `seconds`; fairseq stops the meter when it loads a checkpoint, and logs 0 from then on."""
    if clock() is not None:
        clock().start_time = time.perf_counter() - seconds


def start_clock() -> None:
    """Starts the clock from 0 if a checkpoint has stopped it and has no seconds."""
    if clock() is not None and clock().start_time is None:
        continue_clock(0.0)


def close_other_logs() -> None:
    """Closes --log-file where it was opened before: fairseq opens it in each epoch, and would repeat each line."""
    logs = [handler for handler in progress_bar.logger.handlers if isinstance(handler, logging.FileHandler)]
    for log in logs[:-1]:
        progress_bar.logger.removeHandler(log)
        log.close()
