"""What fairseq-train is given to train with, looked at before it begins.

Where a checkpoint is missing fairseq begins anew without a word; where data do not go with their dictionary, or no
sentence fits into a batch, its error comes out of the loader's thread and says nothing of a file.
"""

import importlib.util
import pathlib

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl

from .checkpoint_files import LAST, load
from .errors import InputError

HEADER, ENTRY = 26, 12  # bytes of a data set's index: what comes first, and what a sentence has


def refuse_input(options, task) -> None:
    """Refuses `options` of fairseq-train that name no optimizer, or files that `task` cannot train with.

    Raises:
        InputError: says what to change
    """
    if not hasattr(options, "optimizer"):  # a model's options alone
        return
    if options.optimizer is None:
        raise InputError("--optimizer is missing: add --optimizer fused_adam")
    if options.bf16 and not importlib.util.find_spec("torch_xla"):
        raise InputError("--bf16 is for TPUs, and there is none here: train with --autocast bf16")
    refuse_checkpoints(options)
    for path, dictionary in data_sets(options, task):
        refuse_data(path, dictionary, options.max_tokens)


def refuse_checkpoints(options) -> None:
    """Raises InputError if a checkpoint that is to be gone on from cannot be read."""
    last = pathlib.Path(options.save_dir) / LAST
    given = {"--restore-file": options.restore_file, "--finetune-from-model": options.finetune_from_model}
    for option, path in given.items():
        if path and path != LAST:
            try:
                load(pathlib.Path(path), mmap=True)
            except InputError as error:
                raise InputError(f"{option}: {error}: name another file, or leave {option} out") from error
    if options.restore_file == LAST and last.is_file():
        try:
            load(last, mmap=True)
        except InputError as error:
            raise InputError(f"{error}: choose another --save-dir, or remove it to train from the beginning") from error


def data_sets(options, task):
    """The files PART.SOURCE-TARGET.LANGUAGE.idx that are trained on and validated with, and their dictionaries."""
    pair = getattr(task.cfg, "source_lang", None), getattr(task.cfg, "target_lang", None)
    if not all(pair):  # a task of others
        return
    for folder in map(pathlib.Path, task.cfg.data.split(":")):
        for part in [options.train_subset, *options.valid_subset.split(",")]:
            for language, dictionary in zip(pair, (task.source_dictionary, task.target_dictionary)):
                for names in ("-".join(pair), "-".join(reversed(pair))):
                    for path in sorted(folder.glob(f"{part}*.{names}.{language}.idx")):
                        yield path, dictionary


def refuse_data(path: pathlib.Path, dictionary: Dictionary, max_tokens: int | None) -> None:
    """Raises InputError if the data set with index `path` is damaged, not of `dictionary` or too long for a batch."""
    prepare = "prepare the data again"
    text = path.with_suffix(".bin")
    with path.open("rb") as file:
        sentences = int.from_bytes(file.read(HEADER)[18:], "little")
    if not text.is_file():
        raise InputError(f"{text} is missing: {prepare}")
    if path.stat().st_size < HEADER:
        raise InputError(f"{path} is cut off: {prepare}")
    if infer_dataset_impl(str(path.with_suffix(""))) != "mmap":  # fairseq-preprocess's default
        return
    if path.stat().st_size != HEADER + ENTRY * sentences:
        raise InputError(f"{path} is cut off: {prepare}")
    index = MMapIndexedDataset.Index(path)
    wanted = int(index.sizes.sum(dtype=np.int64)) * index.dtype().itemsize
    found = text.stat().st_size
    if found != wanted:
        raise InputError(f"{text} has {found:,} of {wanted:,} bytes: {prepare}")
    largest = int(np.memmap(text, index.dtype, "r").max()) if wanted else 0
    if largest >= len(dictionary):
        language = path.name.split(".")[2]
        raise InputError(
            f"{path.with_name(f'dict.{language}.txt')} has {len(dictionary):,} words and {text} has word number "
            f"{largest:,}: they are not of one preparation, {prepare}"
        )
    if wanted and max_tokens is not None and max_tokens < index.sizes.min():
        shortest = f"the shortest sentence of {text} has {index.sizes.min()}"
        raise InputError(f"--max-tokens {max_tokens}: {shortest}: give as many at least, such as 4096")
