"""Checkpoints from elsewhere whose options fairseq would run as Python.

torch reads weights only, and runs nothing. But a checkpoint also says what model, task and criterion are to be built of
it, and fairseq has some (convolutional models, wav2vec, ctc, …) that call eval() on what stands in their options. Here
those are built that are known not to, or that do not come from fairseq: of a variant that --user-dir has imported.
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
    "model": (ARCH_MODEL_REGISTRY, MODEL_REGISTRY),  # fairseq asks them in this order
    "task": (TASK_REGISTRY,),
    "criterion": (CRITERION_REGISTRY,),
}
# Where the name of what is to be built stands: options that fairseq-train has left have it twice.
NAMES = {"model": ("_name", "arch"), "task": ("_name", "task"), "criterion": ("_name", "criterion")}
# What fairseq's TransformerModel evaluates, with "encoder_" before it, in a part called "encoder", or without. Ours
# refuses these options (config.py).
EVALUATED = ("adaptive_softmax_cutoff", "xformers_att_config")


def refuse_evaluated(what: str, group: str, options) -> None:
    """Raises InputError, naming `what`, if `options` of a checkpoint's model, task or criterion (`group`) could run."""
    given = parts(options)
    for name in {given[key] for key in NAMES[group] if given.get(key)} or {None}:
        kind = next((registry[name] for registry in REGISTRIES[group] if name in registry), None)
        if kind is None:
            raise InputError(f"{what} asks for the {group} {name}, which nothing here registers: import what does")
        if kind.__module__.startswith("fairseq.") and kind not in KNOWN:
            reason = "which may run what stands in its options: use fairseq's own commands if you trust it"
            raise InputError(f"{what} asks for the {group} {name} of fairseq, {reason}")
    for option, value in every(given):
        if option.endswith(EVALUATED):
            try:
                ast.literal_eval(str(value))
            except (ValueError, SyntaxError):
                reason = "which fairseq would run: do not use it"
                raise InputError(f"{what} has {option} {value}, {reason}") from None


def parts(options) -> dict | None:
    """The options of what holds some: a dict, hydra's DictConfig, a Namespace, a configuration. None of all else."""
    if hasattr(options, "keys"):
        return dict(options)
    holds = isinstance(options, argparse.Namespace) or dataclasses.is_dataclass(options)
    return vars(options) if holds else None


def every(options: dict) -> Iterator[tuple[str, object]]:
    """Every option and its value, those within others, too."""
    for name, value in options.items():
        if (inside := parts(value)) is None:
            yield name, value
        else:
            yield from every(inside)
