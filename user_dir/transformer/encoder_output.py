"""The encoder's output while a search reorders it; only the parts that are read are copied.

fairseq's generator repeats the encoder's output for all beams and reorders all its parts at every step. Our decoder
reads it only at the first step, and keeps its own keys and values from then on.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor


class Reordered(Mapping):
    """`source`, the output of fairseq's encoder, with its sentences in `order`; each part is copied when it is read.

    Args:
        source: lists of tensors by name
        order [rows]: the sentence of each row
    """

    BATCH_SECOND = ("encoder_out", "encoder_states")  # [S, B, d]; the others are [B, …]

    def __init__(self, source: "dict | Reordered", order: Tensor):
        if isinstance(source, Reordered):
            source, order = source.source, source.order.index_select(0, order)
        self.source, self.order, self.read = source, order, {}

    def __getitem__(self, name: str) -> list[Tensor]:
        if name not in self.read:
            axis = 1 if name in self.BATCH_SECOND else 0
            self.read[name] = [part.index_select(axis, self.order) for part in self.source[name]]
        return self.read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)
