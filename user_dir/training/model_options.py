"""Checks the options of a model that is to be trained."""

import argparse
from collections.abc import Iterator

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from omegaconf import DictConfig

from ..checkpoints.trusted import as_dict
from ..config import PARTS, VariantConfig
from ..errors import flag

TYPES = {bool: ("true or false", bool), int: ("a whole number", int), float: ("a number", float, int)}


def arch_of(model_options) -> str | None:
    """The architecture that fairseq builds: fairseq-train's Namespace has both names, hydra's group one or both."""
    return getattr(model_options, "_name", None) or getattr(model_options, "arch", None)


def unknown_options(model_options, task_cfg) -> Iterator[str]:
    """Yields the faults of fairseq-hydra-train's model that fairseq-train's parser finds.

    The architecture does not exist, or is given twice; an option is unknown, or its value is of another type; the task
    has another number of positions.
    """
    arch = arch_of(model_options)
    if not isinstance(model_options, DictConfig) or arch in MODEL_DATACLASS_REGISTRY:
        return  # fairseq-train's parser has refused them, or hydra
    if arch not in ARCH_MODEL_REGISTRY:
        yield f"there is no model._name {arch}: name a family with its size, such as vaswani_transformer_base"
        return
    if not issubclass(ARCH_MODEL_REGISTRY[arch], TransformerModelBase):  # others read options of task and criterion
        return
    ARCH_MODEL_REGISTRY[arch].add_args(parser := argparse.ArgumentParser())
    if (other := model_options.get("arch") or arch) != arch:
        yield f"model.arch {other} has no effect beside model._name {arch}: omit one of them"
    for name in sorted(model_options.keys() - {"_name", "arch", *(action.dest for action in parser._actions)}):
        yield f"model.{name} is no option of {arch}: correct the name, which has _ for -"
    for action in parser._actions:
        value, wanted = model_options.get(action.dest), bool if action.nargs == 0 else action.type
        if value is not None and wanted in TYPES and type(value) not in TYPES[wanted][1:]:
            yield f"model.{action.dest} {value!r}: give {TYPES[wanted][0]}, without quotation marks"
    for name in ("max_source_positions", "max_target_positions"):  # one option of fairseq-train
        if (mine := task_cfg[name]) != (its := model_options.get(name) or getattr(VariantConfig, name)):
            yield f"task.{name} {mine} and model.{name} {its}: give both the same number"


def without_effect(model_options) -> Iterator[str]:
    """The options of a model that differ from those of its architecture and belong to a part that it does not have."""
    arch = arch_of(model_options)
    if arch not in ARCH_CONFIG_REGISTRY:
        return
    ARCH_CONFIG_REGISTRY[arch](of_arch := argparse.Namespace())
    defaults = vars(VariantConfig) | vars(of_arch)
    given = {name: value for name, value in as_dict(model_options).items() if value is not None}
    options = defaults | given  # hydra's have only what was given, perhaps as null
    for part, names in PARTS.items():
        for name in names:
            if options[part] == getattr(VariantConfig, part) and options[name] != defaults[name]:
                yield f"{flag(name)} {options[name]} has no effect without {flag(part)}: omit it, or add {flag(part)}"
