"""What fairseq-train is given to train with, looked at before it begins.

Where a checkpoint is missing fairseq begins anew without a word; where data do not go with their dictionary, or no
sentence fits into a batch, its error comes out of the loader's thread and says nothing of a file.
"""

import importlib.util
import pathlib
from collections.abc import Iterator

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from fairseq.utils import split_paths
from torch import nn

from ..checkpoints import files as checkpoint_files
from ..checkpoints.files import load
from ..errors import InputError
from .last_checkpoint import LAST

HEADER, ENTRY = 26, 12  # bytes of a data set's index: what comes first, and what a sentence has


def refuse_folder(task_cfg) -> None:
    """Refuses data of a translation task's options that are no folder with the dictionaries of two languages.

    Raises:
        InputError: says what to change
    """
    folder = pathlib.Path(split_paths(task_cfg.data)[0])
    name_it = "name the folder data-bin that data-prep/prepare.py or fairseq-preprocess wrote"
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: {name_it}")
    pair = task_cfg.source_lang, task_cfg.target_lang
    if not all(pair):
        pair = infer_language_pair(str(folder))
    if not all(pair):
        raise InputError(f"{folder} has no data (PART.SOURCE-TARGET.LANGUAGE.idx): {name_it}")
    for language in pair:
        if not (folder / f"dict.{language}.txt").is_file():
            found = ", ".join(sorted(path.name for path in folder.glob("dict.*.txt"))) or "none"
            raise InputError(
                f"{folder / f'dict.{language}.txt'} is missing (there: {found}): prepare the data again, or name their "
                "languages with --source-lang and --target-lang"
            )


def parts_read(options) -> list[str]:
    """The data sets that are trained on and validated with."""
    return [options.train_subset, *([] if options.disable_validation else options.valid_subset.split(","))]


def parts_of(folder: pathlib.Path, part: str, pair, language: str, ending: str = ".idx") -> Iterator[pathlib.Path]:
    """The files of the data set `part` in `language`, such as train and train1, whichever side was the source."""
    for names in ("-".join(pair), "-".join(reversed(pair))):
        yield from sorted(folder.glob(f"{part}*.{names}.{language}{ending}"))


def refuse_input(options, task) -> None:
    """Refuses `options` of fairseq-train that name no optimizer, or files that `task` cannot train with.

    Raises:
        InputError: says what to change
    """
    if options.optimizer is None:
        raise InputError("--optimizer is missing: add --optimizer fused_adam")
    if options.bf16 and not importlib.util.find_spec("torch_xla"):
        raise InputError("--bf16 is for TPUs, and there is none here: train with --autocast bf16")
    folder, pair = pathlib.Path(split_paths(task.cfg.data)[0]), (task.cfg.source_lang, task.cfg.target_lang)
    for part in parts_read(options):
        if not any(parts_of(folder, part, pair, pair[0], "*")):  # of --dataset-impl raw there is no index
            raise InputError(f"{folder} has no {part}.{'-'.join(pair)}.{pair[0]}.idx: prepare the data again")
    for path, dictionary in data_sets(options, task):
        refuse_data(path, dictionary, options.max_tokens)


def refuse_checkpoints(options, model: nn.Module) -> None:
    """Refuses a checkpoint that is to be gone on from and cannot be read, or does not fit into `model`.

    Raises:
        InputError: says what to change
    """
    last = pathlib.Path(options.save_dir) / LAST
    if options.restore_file == LAST and last.exists():  # a fine-tuning that goes on does not begin again
        given = {"--save-dir": last}
    else:
        named = {"--restore-file": options.restore_file, "--finetune-from-model": options.finetune_from_model}
        given = {option: pathlib.Path(path) for option, path in named.items() if path and path != LAST}
    for option, path in given.items():
        if option == "--save-dir":
            where, mend = "", "choose another --save-dir, or remove it to train from the beginning"
        else:
            where, mend = f"{option}: ", f"name another file, or leave {option} out"
        try:
            refuse_another_model(path, load(path, mmap=True), options, model)
        except InputError as error:
            raise InputError(f"{where}{error}: {mend}") from error


def refuse_another_model(path: pathlib.Path, state: dict, options, model: nn.Module) -> None:
    """Raises InputError if the parameters in `state` are not those of `model`, by name and shape."""
    if options.ddp_backend == "fully_sharded":  # names are others
        return
    model.upgrade_state_dict(state["model"])
    there, here = (
        {name: list(tensor.shape) for name, tensor in tensors.items()}
        for tensors in (state["model"], model.state_dict())
    )
    for name in [*there, *here]:
        if there.get(name) != here.get(name):
            arch = checkpoint_files.options(state, "model").get("arch")
            shapes = f"{there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
            raise InputError(f"{path} holds another model ({arch}) than is to be trained: {name} is {shapes}")


def data_sets(options, task):
    """The files PART.SOURCE-TARGET.LANGUAGE.idx of `parts_read`, and their dictionaries."""
    pair = task.cfg.source_lang, task.cfg.target_lang
    for folder in map(pathlib.Path, split_paths(task.cfg.data)):
        for part in parts_read(options):
            for language, dictionary in zip(pair, (task.source_dictionary, task.target_dictionary)):
                for path in parts_of(folder, part, pair, language):
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
