"""Refuses foreign checkpoints whose options cannot be trusted.

torch reads weights only, and runs nothing. But a checkpoint also names its model, task and criterion, and some of
fairseq's (convolutional models, wav2vec, ctc, …) call eval() on their options. This module allows only the classes of
fairseq that do not, classes that --user-dir has imported, and sizes that the count of numbers in the file bounds.
"""

import argparse
import dataclasses
import pathlib
from collections import ChainMap
from collections.abc import Mapping

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import RdropLabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask

from ..errors import InputError

KNOWN = (
    TransformerModel,
    TranslationTask,
    CrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionWithAlignment,
    RdropLabelSmoothedCrossEntropyCriterion,
)
# For each group the option that names its class beside _name (fairseq-train saves both), and the classes.
GROUPS = {
    "model": ("arch", ChainMap(ARCH_MODEL_REGISTRY, MODEL_REGISTRY)),  # in fairseq's order
    "task": ("task", TASK_REGISTRY),
    "criterion": ("criterion", CRITERION_REGISTRY),
}
# Ends of the names of options that size a model: their values are numbers, which those in its file bound.
POSITIONS = ("source_positions", "target_positions")
BOUNDED = ("layers", "dim", "distance", "branches", *POSITIONS)


def refuse_untrusted(source: str | pathlib.Path, cfg: Mapping, sizes: list[int] | None = None) -> None:
    """Raises InputError if fairseq could run an option of `cfg`, or could not finish building the model.

    Args:
        source: where the options are from, such as their file, for the message
        cfg: the groups of options in a checkpoint
        sizes: how many numbers each of its parameters has, if known. They bound each size of the model: fairseq builds
            the model before it compares them with it, which takes hours for a million layers
    """
    for group in GROUPS.keys() & {*cfg}:
        (option, classes), given = GROUPS[group], as_dict(cfg[group]) or {}
        for name in [given[key] for key in ("_name", option) if given.get(key) is not None] or [None]:
            if not isinstance(name, str) or name not in classes:
                raise InputError(f"{source} has the unknown {group} {name}: import the module that registers it")
            if classes[name].__module__.startswith("fairseq.") and classes[name] not in KNOWN:
                reason = "which may run code in its options: use fairseq's own commands if you trust it"
                raise InputError(f"{source} has fairseq's {group} {name}, {reason}")
    refuse_values(source, as_dict(cfg.get("model")) or {}, sizes)


def refuse_values(source: str | pathlib.Path, options: dict, sizes: list[int] | None) -> None:
    """Raises InputError for options within `options`, those of a model, and for sizes that its file cannot have."""
    # The largest values of options, by the ends of their names. fairseq's TransformerModel evaluates the first two.
    largest = {"softmax_cutoff": 0, "att_config": 0}
    if sizes is not None:
        largest |= {**dict.fromkeys(BOUNDED, sum(sizes)), "layers": len(sizes)}
        largest |= dict.fromkeys(POSITIONS, max(sum(sizes), 2**20))  # also sinusoids
    for option, value in options.items():
        most = [number for ending, number in largest.items() if str(option).endswith(ending)]
        unset = value is None or isinstance(value, str) and not value
        too_large = most and not (unset or isinstance(value, int | float) and value <= most[0])
        # fairseq-train saves no options within an option; those of from_pretrained's search are not the model's.
        if too_large or as_dict(value) is not None and option != "generation_args":
            reason = "which fairseq would run, or build for hours: do not use it"
            raise InputError(f"{source} has {option} {value}, {reason}")


def as_dict(options) -> dict | None:
    """A dict, hydra's DictConfig, Namespace or configuration as a dict; None for anything else."""
    if hasattr(options, "keys"):
        return dict(options)
    has_options = isinstance(options, argparse.Namespace) or dataclasses.is_dataclass(options)
    return vars(options) if has_options else None
