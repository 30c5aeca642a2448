"""The model and the binarised sentences that a command examines."""

import argparse

import numpy as np
from fairseq.data import LanguagePairDataset

from ...errors import InputError
from ...preparation import preparation_of
from ...serving.models import data_of
from ...serving.text_translator import MAX_TOKENS
from ...serving.translator import Translator
from ...training.data import data_fault, data_sets
from .command import positive


def add_sentences(parser: argparse.ArgumentParser) -> None:
    subset = "a set of the data-bin, such as valid or test (default: %(default)s)"
    parser.add_argument("--subset", default="test", metavar="NAME", help=subset)
    tokens = "subwords in a batch (default: %(default)s)"
    parser.add_argument("--max-tokens", type=positive, default=MAX_TOKENS, metavar="N", help=tokens)


def open_model(args: argparse.Namespace) -> Translator:
    """The model of `args.checkpoint`; its text is in tokens if data-prep did not prepare its data."""
    data = args.data or data_of([args.checkpoint])
    return Translator(args.checkpoint, data=data, pretokenised=not preparation_of(data))


def load_sentences(translator: Translator, subset: str) -> LanguagePairDataset:
    """The sentences of `subset` with their references.

    Raises:
        InputError: if there are none, they are damaged or lack references, or one is too long for the model
    """
    task = translator.task
    for data in data_sets([(translator.data, subset)], task):
        if fault := data_fault(data):
            raise InputError(f"{fault}: prepare the data again")
    task.load_dataset(subset)
    dataset, name = task.dataset(subset), f"{subset} of {translator.data}"
    if not len(dataset):
        raise InputError(f"{name} has no sentences: name another --subset")
    if dataset.tgt is None:
        raise InputError(f"{name} has no references: name a --subset that was binarised with both languages")
    longest = translator.models[0].max_positions()
    _, too_long = dataset.filter_indices_by_size(np.arange(len(dataset)), longest)
    for number in too_long[:1]:
        has, takes = ("{} and {}".format(*both) for both in (dataset.size(number), longest))
        reason = f"has {has} subwords, and the model takes at most {takes}"
        raise InputError(f"sentence {number + 1} of {name} {reason}: leave it out of the set")
    return dataset
