"""The binarised data of a training: which files they are, why fairseq could not train on them, and --valid-pairs.

If data and dictionary do not match, or no sentence fits into a batch, fairseq's error comes from the data loader's
thread and names no file. If a held-out sentence is too long, its error comes after the first epoch.
"""

import itertools
import pathlib
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from fairseq.data import BaseWrapperDataset, Dictionary, LanguagePairDataset
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl
from fairseq.utils import split_paths

from ..errors import InputError

NAME_DATA = "name the folder data-bin that data-prep/prepare.py or fairseq-preprocess wrote"


def sample(pairs: int, size: int) -> np.ndarray:
    """Draws `size` indices below `pairs`, always the same."""
    return np.random.RandomState(1).permutation(pairs)[:size]


class Sample(BaseWrapperDataset):
    """`pairs`, of which only `size` are visited: the same ones in each validation of every training."""

    def __init__(self, pairs: LanguagePairDataset, size: int):
        super().__init__(pairs)
        self.chosen = sample(len(pairs), size)

    def ordered_indices(self) -> np.ndarray:
        indices = super().ordered_indices()
        return indices[np.isin(indices, self.chosen)]


class DataSide(NamedTuple):
    """One side, source or target, of a data set."""

    path: pathlib.Path  # its index, PART.SOURCE-TARGET.LANGUAGE.idx
    part: str  # as in the file's name, such as train1: in validation fairseq does not read valid1
    side: str  # source or target
    dictionary: Dictionary

    @property
    def text(self) -> pathlib.Path:
        return self.path.with_suffix(".bin")

    def index(self) -> MMapIndexedDataset.Index:
        return MMapIndexedDataset.Index(self.path)


def refuse_folder(task_cfg) -> None:
    """Refuses a translation task's data unless they are folders, the first one with the dictionaries of two languages.

    Raises:
        InputError: says what to change
    """
    if task_cfg.data is None:  # fairseq-hydra-train asks for none
        raise InputError(f"task.data is not given: {NAME_DATA}")
    folder, *others = map(pathlib.Path, split_paths(task_cfg.data))
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: {NAME_DATA}")
    names = [f"dict.{language}.txt" for language in languages(folder, task_cfg)]
    if missing := [name for name in names if not (folder / name).is_file()]:
        remedy = "prepare the data again, or give the languages by --source-lang and --target-lang"
        raise InputError(f"{folder} has no {' and no '.join(missing)}: {remedy}")
    for other, name in itertools.product(others, names):  # fairseq reads no dictionary of the others
        mine, its = folder / name, other / name
        if its.is_file() and words(mine)[: len(theirs := words(its))] != theirs:  # the first one may have more
            remedy = f"prepare its data with --like {folder.parent} (or fairseq-preprocess --srcdict and --tgtdict)"
            raise InputError(f"{its} has other words than {mine}: {remedy}")


def languages(folder: pathlib.Path, task_cfg) -> tuple[str, str]:
    """Source and target as given, or else those of the data in `folder`; raises InputError unless it has one pair."""
    given = task_cfg.source_lang, task_cfg.target_lang
    if all(given):
        return given
    pairs = {pair for file in folder.glob("*.*-*.*.idx") if (pair := file.name.split(".")[1]).count("-") == 1}
    if len(pairs) > 1:  # fairseq would take the one that the file system lists first
        remedy = "give the languages by --source-lang and --target-lang"
        raise InputError(f"{folder} has data of {' and '.join(sorted(pairs))}: {remedy}")
    found = infer_language_pair(str(folder))
    if not all(found):
        raise InputError(f"{folder} has no data (PART.SOURCE-TARGET.LANGUAGE.idx): {NAME_DATA}")
    if any(mine not in (None, its) for mine, its in zip(given, found)):  # fairseq would not read it
        raise InputError(f"{folder} has data of {'-'.join(found)}: give both --source-lang and --target-lang")
    return tuple(found)


def words(dictionary: pathlib.Path) -> list[bytes]:
    return [line.rpartition(b" ")[0] for line in dictionary.read_bytes().splitlines()]


def parts_of(folder: pathlib.Path, part: str, pair, language: str, ending: str = ".idx") -> Iterator[pathlib.Path]:
    """The files of the data set `part` in `language`, such as train and train1, in either direction of translation."""
    for names in ("-".join(pair), "-".join(reversed(pair))):
        for path in sorted(folder.glob(f"{part}*.{names}.{language}{ending}")):
            if re.match(rf"\d*\.{names}\.", path.name.removeprefix(part)):
                yield path


def data_sets(parts: list[tuple[pathlib.Path, str]], task) -> Iterator[DataSide]:
    """Both sides of each data set in `parts`, which are pairs of a folder and a name."""
    pair = task.cfg.source_lang, task.cfg.target_lang
    for folder, part in parts:
        for side, language in zip(("source", "target"), pair):
            for path in parts_of(folder, part, pair, language):
                # Only of --dataset-impl mmap, fairseq-preprocess's default; None: it is damaged.
                if infer_dataset_impl(str(path.with_suffix(""))) in ("mmap", None):
                    yield DataSide(path, path.name.rsplit(".", 3)[0], side, getattr(task, f"{side}_dictionary"))


def data_fault(data: DataSide) -> str | None:
    """The reason why `data` is damaged or does not match its dictionary; None if it is usable."""
    path, text, dictionary = data.path, data.text, data.dictionary
    if infer_dataset_impl(str(path.with_suffix(""))) is None:
        return f"{path} is truncated" if text.is_file() else f"{text} is missing"
    if not text.stat().st_size:
        return f"{text} has no sentences"
    try:
        index = data.index()
        words = np.memmap(text, index.dtype, "r")
    except (ValueError, AssertionError, KeyError, struct.error) as error:
        return f"{path} or {text.name} is truncated or damaged ({error})"
    if len(words) != (expected := index.sizes.sum(dtype=np.int64)):
        return f"{text} has {len(words):,} of {expected:,} subwords"
    if (largest := words.max()) >= len(dictionary):
        listed = path.with_name(f"dict{path.with_suffix('').suffix}.txt")
        return f"{listed} has {len(dictionary):,} words and {text} has word number {largest:,}"
    if (np.diff(index._pointers) < 0).any():
        return f"{path} has wrong positions, as fairseq-preprocess writes above 2 GB with several --workers"
    return None


def batch_fault(data: DataSide, options, task_cfg) -> str | None:
    """The reason why no sentence of `data` can be trained on; None if one can."""
    index = data.index()  # `sizes` is a part of it, and is gone when it is deleted
    shortest, positions = index.sizes.min(), getattr(task_cfg, f"max_{data.side}_positions")
    if task_cfg.truncate_source and data.side == "source":
        shortest = min(shortest, positions)
    for option, most in {"--max-tokens": options.max_tokens, f"--max-{data.side}-positions": positions}.items():
        if most is not None and most < shortest:
            return f"{option} {most}: the shortest sentence of {data.text} has {shortest} subwords: give no fewer"
    return None


def validation_fault(data: DataSide, options, task_cfg) -> str | None:
    """The reason why fairseq's first validation on `data` would fail; None if it would not."""
    index, side = data.index(), data.side
    positions, sizes = getattr(task_cfg, f"max_{side}_positions"), index.sizes
    # The task samples combined sets together, and the training set never.
    if task_cfg.valid_pairs and not options.combine_valid_subsets and data.part != options.train_subset:
        sizes = sizes[sample(len(sizes), task_cfg.valid_pairs)]
    if task_cfg.truncate_source and side == "source":
        sizes = np.minimum(sizes, positions)
    if options.skip_invalid_size_inputs_valid_test:
        sizes = sizes[sizes <= positions]
    longest = sizes.max(initial=0)
    text = f"the longest sentence of {data.text} has {longest} subwords"
    if longest > positions:
        remedy = "add --skip-invalid-size-inputs-valid-test to leave longer ones out of validation"
        return f"--max-{side}-positions {positions}: {text}: {remedy}"
    if options.max_tokens_valid is not None and options.max_tokens_valid < longest:
        return f"--max-tokens-valid {options.max_tokens_valid} (default: --max-tokens): {text}: give at least as many"
    return None
