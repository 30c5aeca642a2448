"""Checks fairseq-train's inputs before training starts.

If a checkpoint is missing, fairseq silently trains from the beginning. If data and dictionary do not match, or no
sentence fits into a batch, its error comes from the data loader's thread and names no file.
"""

import importlib.util
import pathlib
from collections.abc import Iterator

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from fairseq.utils import split_paths

from ..checkpoints.files import load
from ..errors import InputError
from .last_checkpoint import LAST


def parts_read(options) -> list[str]:
    """The data sets used in training and validation."""
    return [options.train_subset, *([] if options.disable_validation else options.valid_subset.split(","))]


def parts_of(folder: pathlib.Path, part: str, pair, language: str, ending: str = ".idx") -> Iterator[pathlib.Path]:
    """The files of the data set `part` in `language`, such as train and train1, in either direction of translation."""
    for names in ("-".join(pair), "-".join(reversed(pair))):
        yield from sorted(folder.glob(f"{part}*.{names}.{language}{ending}"))


def refuse_input(options, task) -> None:
    """Refuses `options` of fairseq-train that `task` cannot train with, and unusable data.

    Raises:
        InputError: lists all faults, and says what to change
    """
    faults = []
    if options.optimizer is None:
        faults.append("--optimizer is missing: add --optimizer fused_adam")
    if options.bf16 and not importlib.util.find_spec("torch_xla"):
        faults.append("--bf16 needs a TPU: train with --autocast bf16")
    folder, pair = pathlib.Path(split_paths(task.cfg.data)[0]), (task.cfg.source_lang, task.cfg.target_lang)
    data_faults = [
        f"{folder} has no {part}.{'-'.join(pair)}.{pair[0]}.idx"
        for part in parts_read(options)
        if not any(parts_of(folder, part, pair, pair[0], "*"))  # --dataset-impl raw has no index
    ]
    sets = [*data_sets(options, task)]
    data_faults += [fault for path, dictionary in sets if (fault := data_fault(path, dictionary))]
    if data_faults:
        faults.append(f"{'; '.join(data_faults)}: prepare the data again")
    elif options.max_tokens is not None:
        faults += [fault for path, _ in sets if (fault := batch_fault(path, options.max_tokens))][:1]
    if faults:
        raise InputError("; ".join(faults))


def refuse_checkpoints(options) -> None:
    """Refuses a checkpoint to continue from that cannot be read. (One of another model is refused by fairseq.)

    Raises:
        InputError: says what to change
    """
    last = pathlib.Path(options.save_dir) / LAST
    if options.restore_file == LAST and last.exists():  # a resumed fine-tuning does not read its first checkpoint again
        paths = {"--save-dir": last}
    else:
        named = {"--restore-file": options.restore_file, "--finetune-from-model": options.finetune_from_model}
        paths = {option: pathlib.Path(path) for option, path in named.items() if path and path != LAST}
    for option, path in paths.items():
        try:
            load(path, mmap=True)
        except InputError as error:
            raise InputError(f"{option}: {error}: choose another {option}") from error


def data_sets(options, task):
    """The files PART.SOURCE-TARGET.LANGUAGE.idx of `parts_read`, and their dictionaries."""
    pair = task.cfg.source_lang, task.cfg.target_lang
    for folder in map(pathlib.Path, split_paths(task.cfg.data)):
        for part in parts_read(options):
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
    except ValueError as error:
        return f"{path} or {text.name} is truncated ({error})"
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
