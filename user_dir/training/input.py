"""Checks the options of fairseq-train, and with them the data, before training starts."""

import argparse
import dataclasses
import importlib.util
import json
import pathlib
from collections.abc import Iterator

import torch
from fairseq.data.encoders import TOKENIZER_REGISTRY
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from fairseq.utils import split_paths
from omegaconf import DictConfig

from ..config import PARTS, VariantConfig
from ..errors import InputError, flag
from .data import batch_fault, data_fault, data_sets, parts_of, validation_fault

EMBEDDINGS = {f"{side}_embed_path": f"{side}_embed_dim" for side in ("encoder", "decoder")}
INTERVALS = ("save_interval", "validate_interval", "log_interval")  # fairseq divides by them
RISES = {"loss": False, "nll_loss": False, "ppl": False, "accuracy": True, "bleu": True}  # as a model improves


def refuse_input(options, task, model_options) -> None:
    """Refuses `options` of fairseq-train that `task` cannot train with, those of its model, and unusable data.

    Raises:
        InputError: lists the faults and says what to change; of sentences' lengths, only the first for training and
            the first for validation
    """
    faults = []
    if options.optimizer is None:
        faults.append("--optimizer is missing: add --optimizer fused_adam")
    elif "adam" in options.optimizer and [*options.lr] == [0.25]:  # fairseq's default, of SGD
        faults.append("--lr is missing, or 0.25, with which Adam does not learn: add one such as --lr 5e-4")
    schedule = options.lr_scheduler  # a configuration of one's own for fairseq-hydra-train may lack it, or its name
    if schedule is None or (isinstance(schedule, DictConfig) and not schedule.get("_name")):
        faults.append("lr_scheduler is missing: add lr_scheduler._name=inverse_sqrt and its options")
    elif getattr(schedule, "_name", schedule) == "inverse_sqrt" and getattr(options, "warmup_updates", 1) < 1:
        faults.append("--warmup-updates 0: --lr-scheduler inverse_sqrt divides by it: give at least 1")
    ended = float(getattr(options, "total_num_update", None) or 0)  # of --lr-scheduler polynomial_decay
    if 0 < ended < options.max_update and not options.end_learning_rate:
        rate = f"--total-num-update {ended:.0f}: the learning rate would be 0 from then on"
        faults.append(f"{rate}, and --max-update is {options.max_update}: give both the same number")
    if options.bf16 and not importlib.util.find_spec("torch_xla"):
        faults.append("--bf16 needs a TPU: train with --autocast bf16")
    flattened = options.fp16 and not (options.fp16_no_flatten_grads or options.memory_efficient_fp16)
    if flattened and (options.cpu or not torch.cuda.is_available()):
        faults.append("--fp16 needs a GPU: train with --autocast bf16")
    if options.checkpoint_suffix:
        faults.append("--checkpoint-suffix: a folder has the checkpoints of one training: use another --save-dir")
    if task.cfg.num_batch_buckets:
        faults.append("--num-batch-buckets is for TPUs, and fails with the installed numpy: omit it")
    if task.cfg.valid_pairs < 0:
        faults.append(f"--valid-pairs {task.cfg.valid_pairs}: give a number of pairs, or 0 for all")
    counts = [(name, getattr(options, name)) for name in INTERVALS] + [("update_freq", n) for n in options.update_freq]
    faults += [f"{flag(name)} {count}: give at least 1" for name, count in counts if count < 1]
    if not options.disable_validation:
        faults += evaluation_faults(options, task.cfg)
    faults += unknown_options(model_options)
    faults += without_effect(model_options)
    if getattr(model_options, "share_all_embeddings", False) and task.source_dictionary != task.target_dictionary:
        remedy = "omit it, or prepare the data with one dictionary for both languages"
        faults.append(f"--share-all-embeddings: the languages have dictionaries of their own: {remedy}")
    if getattr(model_options, "autocast", "off") != "off" and (options.fp16 or options.amp):
        given = "--fp16" if options.fp16 else "--amp"
        faults.append(f"--autocast bf16 cannot be combined with {given}, which computes in float16: omit one of them")
    if getattr(model_options, "autocast", "off") != "off" and options.ddp_backend == "fully_sharded":
        faults.append("--autocast bf16 cannot be combined with --ddp-backend fully_sharded: use pytorch_ddp")
    computed_again = ("checkpoint_activations", "offload_activations")  # hydra's do not imply each other
    if options.amp and any(getattr(model_options, name, False) for name in computed_again):
        reason = "which would compute layers again in float32"
        faults.append(f"--amp cannot be combined with --checkpoint-activations, {reason}: train with --autocast bf16")
    read = {name: getattr(model_options, name, None) for name in EMBEDDINGS}
    read["ema_seed_model"] = options.ema_seed_model if options.store_ema else None
    missing = {name: path for name, path in read.items() if path and not pathlib.Path(path).is_file()}
    faults += [f"{flag(name)}: there is no file {path}: name another, or omit it" for name, path in missing.items()]
    for name, width in EMBEDDINGS.items():
        path, wanted = read[name], getattr(model_options, width, None)  # hydra's have only what was given
        if path and name not in missing and (found := width_of(path)) != wanted is not None:
            faults.append(f"{flag(name)} {path} has vectors of {found} numbers: give {flag(width)} {found}")
    pair, folders = (task.cfg.source_lang, task.cfg.target_lang), [*map(pathlib.Path, split_paths(task.cfg.data))]
    validated = [] if options.disable_validation else options.valid_subset.split(",")
    of_training = [(folder, options.train_subset) for folder in folders]
    of_validation = [(folders[0], part) for part in validated]
    data_faults = [
        f"{folder} has no {part}.{'-'.join(pair)}.{pair[0]}.idx"
        for folder, part in of_training + of_validation
        if not any(parts_of(folder, part, pair, pair[0], "*"))  # --dataset-impl raw has no index
    ]
    trained, held_out = ([*data_sets(parts, task)] for parts in (of_training, of_validation))
    if not options.combine_valid_subsets:
        held_out = [data for data in held_out if data.part in validated]
    data_faults += [fault for data in trained + held_out if (fault := data_fault(data))]
    if data_faults:
        faults.append(f"{'; '.join(data_faults)}: prepare the data again")
    else:
        faults += [fault for data in trained if (fault := batch_fault(data, options, task.cfg))][:1]
        faults += [fault for data in held_out if (fault := validation_fault(data, options, task.cfg))][:1]
    if faults:
        raise InputError("; ".join(faults))


def width_of(path: str) -> int:
    """The length of the first vector in a file of embeddings: a line of two counts, then words with their vectors."""
    with open(path, encoding="utf-8", errors="replace") as file:
        file.readline()
        return len(file.readline().split()) - 1


def evaluation_faults(options, task_cfg) -> Iterator[str]:
    """Yields the faults in the choice of the best checkpoint and in --eval-bleu.

    fairseq would fail in the first validation, before it has saved anything, or keep the worst checkpoint.
    """
    metric, highest = options.best_checkpoint_metric, options.maximize_best_checkpoint_metric
    if metric == "bleu" and not task_cfg.eval_bleu:
        yield "--best-checkpoint-metric bleu needs --eval-bleu: add it"
    if metric == "accuracy" and not getattr(options, "report_accuracy", True):
        yield "--best-checkpoint-metric accuracy needs --report-accuracy: add it"
    if metric not in RISES and metric.lower() in (*RISES, "sacrebleu"):
        yield f"--best-checkpoint-metric {metric}: choose from {', '.join(RISES)}"
    if highest != RISES.get(metric, highest):
        remedy = "omit" if highest else "add"
        kept = "highest" if highest else "lowest"
        yield f"--best-checkpoint-metric {metric} would keep the {kept}: {remedy} --maximize-best-checkpoint-metric"
    if not task_cfg.eval_bleu:
        return
    if task_cfg.eval_bleu_detok not in TOKENIZER_REGISTRY:
        yield f"--eval-bleu-detok {task_cfg.eval_bleu_detok}: choose from {', '.join(TOKENIZER_REGISTRY)}"
    of_searches = {field.name for field in dataclasses.fields(GenerationConfig)}
    for name, known in (("eval_bleu_args", of_searches), ("eval_bleu_detok_args", None)):  # None: the detokeniser's
        try:
            given = json.loads(text := getattr(task_cfg, name))
        except ValueError:
            given = None
        if not isinstance(given, dict):
            yield f"{flag(name)} {text}: give a JSON object, such as '{{\"beam\": 4}}'"
        elif known and (unknown := given.keys() - known):
            yield f"{flag(name)}: fairseq-generate has no option {', '.join(sorted(unknown))}: correct the name"


def arch_of(model_options) -> str | None:
    """The architecture that fairseq builds: fairseq-train's Namespace has both names, hydra's group one or both."""
    return getattr(model_options, "_name", None) or getattr(model_options, "arch", None)


def unknown_options(model_options) -> Iterator[str]:
    """Yields that fairseq-hydra-train's architecture does not exist, or the options that a Transformer would ignore."""
    if not isinstance(model_options, DictConfig):  # fairseq-train's parser has refused them
        return
    arch = arch_of(model_options)
    if arch in MODEL_DATACLASS_REGISTRY:  # hydra has refused them
        return
    if arch not in ARCH_MODEL_REGISTRY:
        yield f"there is no model._name {arch}: name a family with its size, such as vaswani_transformer_base"
        return
    if not issubclass(ARCH_MODEL_REGISTRY[arch], TransformerModelBase):  # others read options of task and criterion
        return
    ARCH_MODEL_REGISTRY[arch].add_args(parser := argparse.ArgumentParser())
    for name in sorted(model_options.keys() - {"_name", "arch", *(action.dest for action in parser._actions)}):
        yield f"model.{name} is no option of {arch}: correct the name, which has _ for -"


def without_effect(model_options) -> Iterator[str]:
    """The options of a model that differ from those of its architecture and belong to a part that it does not have."""
    if isinstance(model_options, DictConfig):  # of fairseq-hydra-train
        model_options = argparse.Namespace(**model_options)
    arch = arch_of(model_options)
    if arch not in ARCH_CONFIG_REGISTRY:
        return
    ARCH_CONFIG_REGISTRY[arch](defaults := argparse.Namespace())

    def of(options, name: str):  # hydra's have only what was given
        return getattr(options, name, getattr(defaults, name, getattr(VariantConfig, name)))

    for part, names in PARTS.items():
        off = getattr(VariantConfig, part)
        if of(model_options, part) != off:
            continue
        for name in names:
            if (value := of(model_options, name)) != of(defaults, name):
                yield f"{flag(name)} {value} has no effect without {flag(part)}: omit it, or add {flag(part)}"
