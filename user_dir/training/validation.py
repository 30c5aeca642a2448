"""A sample of the validation set."""

import numpy as np
from fairseq.data import BaseWrapperDataset, LanguagePairDataset


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
