"""The attentions of a model, and the weights that they find while the model runs."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from fairseq.data import Dictionary
from sacremoses import MosesDetokenizer
from torch import Tensor

from ...attention.multihead import MultiheadAttention
from ...errors import InputError


class Kind(NamedTuple):
    """One of the three attentions of a Transformer."""

    side: str  # of the model
    mark: str  # attribute of its modules that is true
    query: str  # what a query stands for
    key: str


ATTENTIONS = {
    "encoder": Kind("encoder", "self_attention", "source subword", "source subword"),
    "decoder": Kind("decoder", "self_attention", "target subword to be written", "target subword written before"),
    "encoder-decoder": Kind("decoder", "encoder_decoder_attention", "target subword to be written", "source subword"),
}


def attentions_of(model, name: str) -> list[MultiheadAttention]:
    """The attention `name` (of ATTENTIONS) of each layer.

    Raises:
        InputError: if one is not of this user directory
    """
    side, mark, *_ = ATTENTIONS[name]
    found = []
    for number, layer in enumerate(getattr(model, side).layers, 1):
        modules = [module for module in layer.modules() if isinstance(module, MultiheadAttention)]
        found += [module for module in modules if getattr(module, mark)]
        if len(found) < number:
            foreign = f"{name} layer {number} has no attention of this user directory"
            raise InputError(f"{foreign}: train with one of its architectures, or convert it (nmt-convert-checkpoint)")
    return found


@contextlib.contextmanager
def observed(pairs: list[tuple[MultiheadAttention, Callable[[Tensor], object]]]):
    """A context in which each function receives the weights [B, h, T, S] of each call of its attention."""
    for attention, see in pairs:
        attention.observers.append(see)
    try:
        yield
    finally:
        for attention, see in pairs:
            attention.observers.remove(see)


@torch.no_grad()
def attention_weights(model, attentions: list[MultiheadAttention], source: Tensor, target: Tensor) -> list[Tensor]:
    """The weights [h, T, S] of each attention while `model` reads source [S] and is fed target [T], ending in </s>."""
    weights = [[] for _ in attentions]
    with observed([(attention, found.append) for attention, found in zip(attentions, weights)]):
        model(source[None], torch.tensor([len(source)]), target.roll(1)[None])
    return [of_sentence[0].float() for (of_sentence,) in weights]


def subwords(tokens: Tensor, dictionary: Dictionary) -> list[str]:
    """As a person writes them: ' and not &apos;."""
    unescape = MosesDetokenizer().unescape_xml
    return [unescape(dictionary[token]) for token in tokens]
