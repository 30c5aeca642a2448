"""Checks fairseq-train's inputs before training starts.

If a checkpoint is missing, fairseq silently trains from the beginning. If data and dictionary do not match, or no
sentence fits into a batch, its error comes from the data loader's thread and names no file. If a held-out sentence is
too long, its error comes after the first epoch.
"""

import argparse
import importlib.util
import pathlib
import re
import struct
from collections.abc import Iterator

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.utils import split_paths
from omegaconf import DictConfig
from torch import nn

from ..checkpoints import files as checkpoint_files
from ..checkpoints.files import load
from ..config import VariantConfig
from ..errors import InputError
from .last_checkpoint import LAST
from .validation import sample

# Options that select a part of a model, and those that have no effect without it.
PARTS = {
    "relative_positions": ("relative_distance", "relative_tables"),
    "restricted_attention": ("neighbourhood",),
    "branched_attention": ("branch_residual", "branches", "branch_weights", "top_branches", "branch_weights_init"),
}


def refuse_folder(task_cfg) -> None:
    """Refuses the data of a translation task's options unless they are a folder with the dictionaries of two languages.

    Raises:
        InputError: says what to change
    """
    remedy = "name the folder data-bin that data-prep/prepare.py or fairseq-preprocess wrote"
    if task_cfg.data is None:  # fairseq-hydra-train asks for none
        raise InputError(f"task.data is not given: {remedy}")
    folder = pathlib.Path(split_paths(task_cfg.data)[0])
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: {remedy}")
    pair = task_cfg.source_lang, task_cfg.target_lang
    if not all(pair):
        pair = infer_language_pair(str(folder))
    if not all(pair):
        raise InputError(f"{folder} has no data (PART.SOURCE-TARGET.LANGUAGE.idx): {remedy}")
    if missing := [name for language in pair if not (folder / (name := f"dict.{language}.txt")).is_file()]:
        remedy = "prepare the data again, or give the languages by --source-lang and --target-lang"
        raise InputError(f"{folder} has no {' and no '.join(missing)}: {remedy}")


def held_out_parts(options) -> list[str]:
    """The names of the data sets used in validation."""
    return [] if options.disable_validation else options.valid_subset.split(",")


def parts_read(options, task_cfg) -> list[tuple[pathlib.Path, str]]:
    """The data sets used in training and validation, each a folder and a name; the first folder has held-out ones."""
    folders = [*map(pathlib.Path, split_paths(task_cfg.data))]
    held_out = ((folders[0], part) for part in held_out_parts(options))
    return [*((folder, options.train_subset) for folder in folders), *held_out]


def parts_of(folder: pathlib.Path, part: str, pair, language: str, ending: str = ".idx") -> Iterator[pathlib.Path]:
    """The files of the data set `part` in `language`, such as train and train1, in either direction of translation."""
    for names in ("-".join(pair), "-".join(reversed(pair))):
        for path in sorted(folder.glob(f"{part}*.{names}.{language}{ending}")):
            if re.match(rf"\d*\.{names}\.", path.name.removeprefix(part)):
                yield path


def refuse_input(options, task, model_options=None) -> None:
    """Refuses `options` of fairseq-train that `task` cannot train with, those of its model, and unusable data.

    Raises:
        InputError: lists all faults, and says what to change
    """
    faults = []
    if options.optimizer is None:
        faults.append("--optimizer is missing: add --optimizer fused_adam")
    if options.bf16 and not importlib.util.find_spec("torch_xla"):
        faults.append("--bf16 needs a TPU: train with --autocast bf16")
    if task.cfg.num_batch_buckets:
        faults.append("--num-batch-buckets is for TPUs, and fails with numpy's present version: omit it")
    faults += without_effect(model_options)
    if getattr(model_options, "share_all_embeddings", False) and task.source_dictionary != task.target_dictionary:
        remedy = "omit it, or prepare the data with one dictionary for both languages"
        faults.append(f"--share-all-embeddings: the languages have dictionaries of their own: {remedy}")
    if getattr(model_options, "relative_attention", None) == "all" and task.cfg.left_pad_target:
        reason = "distances would count the padding, which decoding does not have"
        faults.append(f"--left-pad-target does not go with --relative-attention all: {reason}: omit it")
    if getattr(model_options, "autocast", "off") != "off" and (options.fp16 or options.amp):
        given = "--fp16" if options.fp16 else "--amp"
        faults.append(f"--autocast bf16 does not go with {given}, which computes in float16: omit one of them")
    pair, parts = (task.cfg.source_lang, task.cfg.target_lang), parts_read(options, task.cfg)
    data_faults = [
        f"{folder} has no {part}.{'-'.join(pair)}.{pair[0]}.idx"
        for folder, part in parts
        if not any(parts_of(folder, part, pair, pair[0], "*"))  # --dataset-impl raw has no index
    ]
    sets = [*data_sets(parts, task)]
    data_faults += [fault for path, dictionary in sets if (fault := data_fault(path, dictionary))]
    if data_faults:
        faults.append(f"{'; '.join(data_faults)}: prepare the data again")
    else:
        held_out = [path for path, _ in sets if path.name.split(".")[0] in held_out_parts(options)]
        if options.max_tokens is not None:
            trained = [path for path, _ in sets if path not in held_out]
            faults += [fault for path in trained if (fault := batch_fault(path, options.max_tokens))][:1]
        faults += [fault for path in held_out if (fault := validation_fault(path, options, task.cfg))][:1]
    if faults:
        raise InputError("; ".join(faults))


def without_effect(model_options) -> Iterator[str]:
    """The options of a model that differ from those of its architecture and belong to a part that it does not have."""
    if isinstance(model_options, DictConfig):  # of fairseq-hydra-train
        model_options = argparse.Namespace(**model_options)
    arch = getattr(model_options, "arch", None) or getattr(model_options, "_name", None)
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
                option, needed = (x.replace("_", "-") for x in (name, part))
                yield f"--{option} {value} has no effect without --{needed}: omit it, or add --{needed}"


def refuse_checkpoints(options, model: nn.Module) -> None:
    """Refuses a checkpoint to continue from that cannot be read, or does not fit `model`.

    Raises:
        InputError: says what to change
    """
    last = pathlib.Path(options.save_dir) / LAST
    if options.restore_file == LAST and last.exists():  # a resumed fine-tuning does not read its first checkpoint again
        paths = {"--save-dir": last}
    else:
        names = ("restore_file", "continue_once", "finetune_from_model")
        named = {f"--{name.replace('_', '-')}": getattr(options, name, None) for name in names}
        paths = {option: pathlib.Path(path) for option, path in named.items() if path and path != LAST}
    for option, path in paths.items():
        if option == "--save-dir":
            place, remedy = "", "choose another --save-dir, or remove the file to train from the beginning"
        else:
            place, remedy = f"{option}: ", f"name another file, or omit {option}"
        try:
            refuse_another_model(path, load(path, mmap=True), options, model)
        except InputError as error:
            if place and ".embed_tokens.weight is [" in str(error):
                remedy += ", or give it the words that the data have (nmt-extend-vocabulary)"
            raise InputError(f"{place}{error}: {remedy}") from error


def refuse_another_model(path: pathlib.Path, state: dict, options, model: nn.Module) -> None:
    """Raises InputError if the parameters in `state` are not those of `model`, by name, shape and form of κ and α."""
    if options.ddp_backend == "fully_sharded":  # parameters have other names
        return
    model.upgrade_state_dict(state["model"])
    there, here = (
        {name: list(tensor.shape) for name, tensor in tensors.items()}
        for tensors in (state["model"], model.state_dict())
    )
    differ = other_options(state, model)
    others = "".join(f" --{name.replace('_', '-')} {value}" for name, value in differ.items())
    arch = checkpoint_files.options(state, "model").get("arch")
    if "branch_weights" in differ and getattr(model.cfg, "branched_attention", "none") != "none":
        form = f"--branch-weights {model.cfg.branch_weights}"
        raise InputError(f"{path} holds another model ({arch}{others}): it lacks the κ and α of {form}")
    for name in [*there, *here]:
        if there.get(name) != here.get(name):
            shapes = f"{there.get(name, 'missing')} in the checkpoint and {here.get(name, 'missing')} in this model"
            raise InputError(f"{path} holds another model ({arch}{others}): {name} is {shapes}")


def other_options(state: dict, model: nn.Module) -> dict:
    """Our options of the model in `state`, by name, where `model` has other values."""
    saved = checkpoint_files.options(state, "model")  # without those that have their defaults
    there = {name: saved.get(name, getattr(VariantConfig, name)) for name in VariantConfig.__annotations__}
    cfg = getattr(model, "cfg", None)  # only Transformers have one
    return {name: value for name, value in there.items() if value not in (None, getattr(cfg, name, value))}


def data_sets(parts: list[tuple[pathlib.Path, str]], task) -> Iterator[tuple[pathlib.Path, Dictionary]]:
    """The files PART.SOURCE-TARGET.LANGUAGE.idx of `parts`, each a folder and a name, and their dictionaries."""
    pair = task.cfg.source_lang, task.cfg.target_lang
    for folder, part in parts:
        for language, dictionary in zip(pair, (task.source_dictionary, task.target_dictionary)):
            for path in parts_of(folder, part, pair, language):
                yield path, dictionary


def index_of(path: pathlib.Path) -> MMapIndexedDataset.Index | None:
    """The index `path` of a data set; None if it is not of --dataset-impl mmap, fairseq-preprocess's default."""
    mapped = infer_dataset_impl(str(path.with_suffix(""))) == "mmap"
    return MMapIndexedDataset.Index(path) if mapped else None


def data_fault(path: pathlib.Path, dictionary: Dictionary) -> str | None:
    """The reason why the data set with index `path` is damaged or does not match `dictionary`; None if it is usable."""
    text = path.with_suffix(".bin")
    if infer_dataset_impl(str(path.with_suffix(""))) is None:
        return f"{path} is truncated" if text.is_file() else f"{text} is missing"
    try:
        if (index := index_of(path)) is None:
            return None
        words = np.memmap(text, index.dtype, "r")
    except (ValueError, AssertionError, KeyError, struct.error) as error:
        return f"{path} or {text.name} is truncated or damaged ({error})"
    if len(words) != (expected := index.sizes.sum(dtype=np.int64)):
        return f"{text} has {len(words):,} of {expected:,} subwords"
    if (largest := words.max()) >= len(dictionary):
        listed = path.with_name(f"dict.{path.name.split('.')[2]}.txt")
        return f"{listed} has {len(dictionary):,} words and {text} has word number {largest:,}"
    return None


def batch_fault(path: pathlib.Path, max_tokens: int) -> str | None:
    """The reason why no sentence of the data set with index `path` fits into a batch; None if one does."""
    index = index_of(path)  # `sizes` is a part of it, and is gone when it is deleted
    if index is None or max_tokens >= index.sizes.min():
        return None
    shortest = f"the shortest sentence of {path.with_suffix('.bin')} has {index.sizes.min()}"
    return f"--max-tokens {max_tokens}: {shortest}: give at least as many, such as 4096"


def validation_fault(path: pathlib.Path, options, task_cfg) -> str | None:
    """The reason why fairseq's first validation on the data set with index `path` would fail; None if it would not."""
    index = index_of(path)
    if index is None:
        return None
    side = "target" if path.name.split(".")[2] == task_cfg.target_lang else "source"
    positions, sizes = getattr(task_cfg, f"max_{side}_positions"), index.sizes
    if task_cfg.valid_pairs:
        sizes = sizes[sample(len(sizes), task_cfg.valid_pairs)]
    if task_cfg.truncate_source and side == "source":
        sizes = np.minimum(sizes, positions)
    if options.skip_invalid_size_inputs_valid_test:
        sizes = sizes[sizes <= positions]
    longest = sizes.max(initial=0)
    text = f"the longest sentence of {path.with_suffix('.bin')} has {longest}"
    if longest > positions:
        remedy = "add --skip-invalid-size-inputs-valid-test to leave longer ones out of validation"
        return f"--max-{side}-positions {positions}: {text}: {remedy}"
    if options.max_tokens_valid is not None and options.max_tokens_valid < longest:
        return f"--max-tokens-valid {options.max_tokens_valid} (default: --max-tokens): {text}: give at least as many"
    return None
