"""Refuses foreign checkpoints whose options fairseq would run as Python.

torch reads weights only, and runs nothing. But a checkpoint also names its model, task and criterion, and some of
fairseq's (convolutional models, wav2vec, ctc, …) call eval() on their options. This module allows those that are known
not to, and those of a variant that --user-dir has imported.
"""

import argparse
import ast
import dataclasses
from collections.abc import Iterator

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask

from ..errors import InputError

KNOWN = (TransformerModel, TranslationTask, CrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion)
REGISTRIES = {
    "model": (ARCH_MODEL_REGISTRY, MODEL_REGISTRY),  # in fairseq's order
    "task": (TASK_REGISTRY,),
    "criterion": (CRITERION_REGISTRY,),
}
# The options that hold the name of the class; fairseq-train saves both.
NAMES = {"model": ("_name", "arch"), "task": ("_name", "task"), "criterion": ("_name", "criterion")}
# Options that fairseq's TransformerModel evaluates, with the prefix "encoder_", in a group "encoder", or without
# either. Our model does not support them (config.py).
EVALUATED = ("adaptive_softmax_cutoff", "xformers_att_config")


def refuse_evaluated(source: str, group: str, options) -> None:
    """Raises InputError if fairseq could run the `options` of a model, task or criterion (`group`) from `source`."""
    given = as_dict(options)
    for name in {given[key] for key in NAMES[group] if given.get(key)} or {None}:
        kind = next((registry[name] for registry in REGISTRIES[group] if name in registry), None)
        if kind is None:
            raise InputError(f"{source} has the unknown {group} {name}: import the module that registers it")
        if kind.__module__.startswith("fairseq.") and kind not in KNOWN:
            reason = "which may run code in its options: use fairseq's own commands if you trust it"
            raise InputError(f"{source} has fairseq's {group} {name}, {reason}")
    for option, value in all_options(given):
        if option.endswith(EVALUATED):
            try:
                ast.literal_eval(str(value))
            except (ValueError, SyntaxError):
                reason = "which fairseq would run: do not use it"
                raise InputError(f"{source} has {option} {value}, {reason}") from None


def as_dict(options) -> dict | None:
    """A dict, hydra's DictConfig, Namespace or configuration as a dict; None for anything else."""
    if hasattr(options, "keys"):
        return dict(options)
    has_options = isinstance(options, argparse.Namespace) or dataclasses.is_dataclass(options)
    return vars(options) if has_options else None


def all_options(options: dict) -> Iterator[tuple[str, object]]:
    """Every option and its value, including nested ones."""
    for name, value in options.items():
        if (nested := as_dict(value)) is None:
            yield name, value
        else:
            yield from all_options(nested)
