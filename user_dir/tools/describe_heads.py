"""Describes each head by its mean attention weights on a binarised set, as a Markdown table.

    nmt-describe-heads RUN --subset test

The decoder is fed the reference; there is no search. With a_ij the weight of query i, 1 to T, on key j, 1 to S,
a row has these means over all queries of the set, including each sentence's </s>:

    distance    Σ_j a_ij |i − j|; in encoder-decoder attention Σ_j a_ij |j − i S/T|, from the diagonal, in subwords
    entropy     −Σ_j a_ij log2 a_ij, in bits: 0 if one key has all the weight, log2 S if all have equal weights
    diagonal    a_ii; in encoder-decoder attention Σ_j a_ij where |j − i S/T| ≤ 1
    previous    a_i,i−1 (self-attention only)
    next        a_i,i+1 (self-attention only)
    delimiters  Σ_j a_ij where key j is </s> or only punctuation (Unicode's category P)

In the decoder position i has read subword i − 1 (the first one </s>) and is about to write subword i. As a key it is
what it has read; the keys after i are masked, so that "next" is 0.
"""

import functools
import math
import unicodedata

import torch
from fairseq.data import Dictionary, LanguagePairDataset
from torch import Tensor

from ..serving.translator import Translator
from .shared.attentions import ATTENTIONS, attentions_of, observed, subwords
from .shared.command import add_checkpoint, add_data, exit_in_one_line, new_parser, table
from .shared.examined import add_sentences, load_sentences, open_model

COLUMNS = ["distance", "entropy", "diagonal", "previous", "next", "delimiters"]


def delimiters(dictionary: Dictionary) -> Tensor:
    """[V]: whether a subword is </s> or punctuation."""
    words = subwords(torch.arange(len(dictionary)), dictionary)
    # Marks of subwords do not count: the @ of "'@@" is punctuation, too, and SentencePiece's "▁," begins a word.
    bare = [word.lstrip("▁") or word for word in words]
    found = torch.tensor([all(unicodedata.category(character)[0] == "P" for character in word) for word in bare])
    found[dictionary.eos()] = True
    return found


def factors(queries: Tensor, keys: Tensor, delimiter: Tensor, aligned: bool) -> Tensor:
    """The factors of each weight in the columns but entropy: [5, B, T, S].

    Args:
        queries [B, T], keys [B, S]: their positions from 1, 0 at padding
        delimiter [B, S]: whether a key is one
        aligned: queries and keys are positions of one sentence
    """
    i, j, delimiter = queries[:, :, None], keys[:, None], delimiter[:, None].expand(-1, queries.size(1), -1)
    if aligned:
        columns = [(i - j).abs(), i == j, i - 1 == j, i + 1 == j, delimiter]
    else:
        T, S = (x.amax(1)[:, None, None] for x in (queries, keys))
        away = (j * T - i * S).abs()  # of whole numbers, T times the distance
        none = torch.full_like(away, math.nan, dtype=torch.double)
        columns = [away / T.double(), away <= T, none, none, delimiter]
    return torch.stack([column.double() for column in columns])


def add_sums(total: Tensor, factors: Tensor, queries: Tensor, weights: Tensor) -> None:
    """Adds the sums over queries [B, T], 0 at padding, to the columns `total` [h, 6]: weights [B, h, T, S]."""
    weights = weights.double() * (queries > 0)[:, None, :, None]
    entropy = torch.special.entr(weights).sum((0, 2, 3)) / math.log(2)
    distance, *others = torch.einsum("bhts,cbts->ch", weights, factors)
    total += torch.stack([distance, entropy, *others], dim=1)


@torch.no_grad()
def describe(translator: Translator, dataset: LanguagePairDataset, **batches) -> dict[str, list[Tensor]]:
    """For each attention, COLUMNS of the heads [h, 6] of each layer. `batches`: those of Translator.batches."""
    (model,), task, device = translator.models, translator.task, translator.device
    attentions = {name: attentions_of(model, name) for name in ATTENTIONS}
    totals = {
        name: [torch.zeros(layer.num_heads, len(COLUMNS), dtype=torch.double, device=device) for layer in layers]
        for name, layers in attentions.items()
    }
    count = dict.fromkeys(ATTENTIONS, 0)
    marks = [delimiters(dictionary).to(device) for dictionary in (task.source_dictionary, task.target_dictionary)]
    for batch in translator.batches(dataset, **batches):
        tokens = [batch["net_input"][name] for name in ("src_tokens", "prev_output_tokens")]
        real = [side != task.target_dictionary.pad() for side in tokens]
        source, target = (side.cumsum(1) * side for side in real)  # positions from 1, 0 at padding
        in_source, in_target = (mark[side] for mark, side in zip(marks, tokens))
        of = {
            "encoder": (source, source, in_source, True),
            "decoder": (target, target, in_target, True),
            "encoder-decoder": (target, source, in_source, False),
        }
        pairs = []
        for name, layers in attentions.items():
            queries, shared = of[name][0], factors(*of[name])
            count[name] += int((queries > 0).sum())
            for layer, total in zip(layers, totals[name]):
                pairs.append((layer, functools.partial(add_sums, total, shared, queries)))
        with observed(pairs):
            model(**batch["net_input"])
    return {name: [(total / count[name]).cpu() for total in totals[name]] for name in ATTENTIONS}


@exit_in_one_line("nmt-describe-heads")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-describe-heads", __doc__)
    add_checkpoint(parser)
    add_data(parser)
    add_sentences(parser)
    args = parser.parse_args(arguments)
    translator = open_model(args)
    found = describe(translator, load_sentences(translator, args.subset), max_tokens=args.max_tokens)
    rows = [
        [name, str(layer), str(head), *("" if value != value else f"{value:.2f}" for value in values.tolist())]
        for name, layers in found.items()
        for layer, heads in enumerate(layers, 1)
        for head, values in enumerate(heads, 1)
    ]
    print(table(["attention", "layer", "head", *COLUMNS], rows))


if __name__ == "__main__":
    main()
