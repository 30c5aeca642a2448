"""BPE-dropout (Provilkov et al. 2020; https://arxiv.org/abs/1910.13267): another segmentation in each epoch.

Each merge of a word is skipped with probability p. The words are those that the binarised subwords spell, so nothing
has to be prepared anew. A sentence's segmentation depends on the seed, the epoch and the sentence only: it is the same
for any number of processes, and where a training is resumed. It is computed when a batch is made, in the data loader's
process.
"""

import pathlib
import random

import torch
from fairseq.data import BaseWrapperDataset, Dictionary, LanguagePairDataset
from fairseq.utils import split_paths
from subword_nmt.apply_bpe import BPE
from torch import Tensor

from ..errors import InputError
from ..preparation import CONTINUED, codes_of, preparation_of, read_codes


class Segmenter:
    """Segments the words of a language again.

    Args:
        codes: of subword-nmt; subwords that the dictionary lacks are split further, as subword-nmt does
        dictionary: of the binarised subwords
        dropout: p
        longest: the most subwords of a sentence that the model accepts
        cut: whether sentences that are longer are cut, as by --truncate-source
    """

    def __init__(self, codes: BPE, dictionary: Dictionary, dropout: float, longest: int, cut: bool = False):
        self.codes, self.dictionary, self.dropout, self.longest, self.cut = codes, dictionary, dropout, longest, cut
        self.codes.vocab = {*dictionary.symbols}

    def segment(self, tokens: Tensor) -> Tensor:
        """tokens [S] segmented anew, [S'] (if S' > longest cut or unchanged); draws from Python's `random`."""
        subwords = []
        word = []
        for subword in tokens.tolist():
            word.append(subword)
            if not self.dictionary[subword].endswith(CONTINUED):
                subwords += self.segment_word(word)
                word = []
        self.codes.cache.clear()  # with dropout subword-nmt fills it and does not read it
        subwords += word
        if self.cut and len(subwords) > self.longest:
            subwords[self.longest - 1 :] = subwords[-1:]
        return tokens.new_tensor(subwords) if len(subwords) <= self.longest else tokens

    def segment_word(self, subwords: list[int]) -> list[int]:
        """A word in other subwords; unchanged if it is </s>, or if an old or new subword is not in the dictionary."""
        if min(subwords) < self.dictionary.nspecial:
            return subwords
        pieces = [self.dictionary[subword] for subword in subwords]
        word = "".join(piece.removesuffix(CONTINUED) for piece in pieces)
        indices = [self.dictionary.index(piece) for piece in self.codes.segment_tokens([word], self.dropout)]
        return subwords if self.dictionary.unk() in indices else indices


class BPEDropout(BaseWrapperDataset):
    """`pairs`, with the sentences of `segmenters`' sides (source, target) segmented again in every epoch.

    Batches are made from the lengths of the binarised sentences, which are shorter (by a seventh with p = 0.1 and 4,000
    merges).
    """

    def __init__(self, pairs: LanguagePairDataset, segmenters: dict[str, Segmenter], seed: int):
        super().__init__(pairs)
        self.segmenters, self.seed = segmenters, seed
        self.epoch = torch.ones((), dtype=torch.long).share_memory_()  # fairseq's worker processes live on over epochs

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.epoch.fill_(epoch)

    def __getitem__(self, index: int) -> dict:
        pair = self.dataset[index]
        before = random.getstate()
        random.seed(f"{self.seed} {self.epoch.item()} {index}")  # subword-nmt draws from the module's generator
        try:
            return pair | {side: segmenter.segment(pair[side]) for side, segmenter in self.segmenters.items()}
        finally:
            random.setstate(before)


def with_bpe_dropout(pairs: LanguagePairDataset, task) -> BPEDropout:
    """The training set `pairs` of a translation task, with its options --bpe-dropout and --bpe-dropout-side.

    Raises:
        InputError: if the manifest or subword codes are missing, or options are invalid or contradictory
    """
    cfg = task.cfg
    if not cfg.bpe_dropout:
        side = f"--bpe-dropout-side {cfg.bpe_dropout_side}"
        raise InputError(f"{side} has no effect without --bpe-dropout: omit it, or add --bpe-dropout 0.1")
    if not 0 < cfg.bpe_dropout < 1:
        raise InputError(f"--bpe-dropout {cfg.bpe_dropout}: give a number from 0 to below 1")
    if cfg.load_alignments:
        raise InputError(
            "--load-alignments: the alignments do not match the subwords of --bpe-dropout; omit one of them"
        )
    data = pathlib.Path(split_paths(cfg.data)[0])
    prepared = preparation_of(data)
    if prepared is None:
        reason = f"there is no manifest.json beside {data}"
        raise InputError(f"--bpe-dropout: {reason}: prepare the data with data-prep/prepare.py, or omit this option")
    segmenters = {}
    for side, language in (("source", cfg.source_lang), ("target", cfg.target_lang)):
        if cfg.bpe_dropout_side in ("both", side):
            codes = codes_of(prepared, language)
            if not codes.exists():
                remedy = "choose the other --bpe-dropout-side, or omit --bpe-dropout"
                raise InputError(f"--bpe-dropout: there are no subword codes {codes} for the {side}: {remedy}")
            dictionary, longest = getattr(task, f"{side}_dictionary"), getattr(cfg, f"max_{side}_positions")
            cut = side == "source" and cfg.truncate_source
            segmenters[side] = Segmenter(read_codes(codes), dictionary, cfg.bpe_dropout, longest, cut)
    return BPEDropout(pairs, segmenters, cfg.seed)
