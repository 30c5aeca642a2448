"""Tells what each head does: where its weights lie, on average over a binarised set, as a Markdown table.

    python -m user_dir.tools.describe_heads RUN/average.pt --subset test

The reference is given to the model, nothing is searched. With a_ij the weight of query i, 1 to T, on key j, 1 to S,
a row has means over all queries of the set, the </s> at the end of a sentence included, of

    distance    Σ_j a_ij |i − j|; of encoder-decoder attention Σ_j a_ij |j − i S/T|, from the diagonal, in subwords
    entropy     −Σ_j a_ij log2 a_ij, in bits: 0 where one key has all, log2 S where all have as much
    diagonal    a_ii; of encoder-decoder attention Σ_j a_ij where |j − i S/T| ≤ 1
    previous    a_i,i−1, and
    next        a_i,i+1; of self-attention
    delimiters  Σ_j a_ij where key j is </s> or only of punctuation (Unicode's category P)

In the decoder position i has read subword i − 1 (the first one </s>) and is about to write subword i. As a key it is
what it has read; the keys after i are masked, so that "next" is 0.
"""

import argparse
import contextlib
import functools
import math
import pathlib
import unicodedata

import torch
from fairseq.data import Dictionary, LanguagePairDataset
from torch import Tensor

from ..errors import InputError
from ..files import write
from ..preparation import preparation_of
from ..serving.models import data_of
from ..serving.translator import Translator
from .shared.attentions import ATTENTIONS, attentions_of, observed, subwords
from .shared.command import add_checkpoint, add_data, exit_in_one_line, new_parser, positive, table

COLUMNS = ["distance", "entropy", "diagonal", "previous", "next", "delimiters"]


def delimiters(dictionary: Dictionary) -> Tensor:
    """[V]: whether a subword is </s> or punctuation."""
    words = subwords(torch.arange(len(dictionary)), dictionary)
    # the @ of "'@@", which continues a word, is punctuation, too
    found = torch.tensor([all(unicodedata.category(character)[0] == "P" for character in word) for word in words])
    found[dictionary.eos()] = True
    return found


def positions(real: Tensor) -> Tensor:
    """Of real [B, T], True where there is no padding: the position in the sentence, from 1."""
    return real.cumsum(1) * real


def factors(queries: Tensor, keys: Tensor, delimiter: Tensor, aligned: bool) -> Tensor:
    """What each weight is multiplied by for the columns but entropy: [5, B, T, S].

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


def sums(weights: Tensor, factors: Tensor, queries: Tensor) -> Tensor:
    """The columns [h, 6], summed over the queries: weights [B, h, T, S], `factors`, queries [B, T] 0 at padding."""
    weights = weights.double() * (queries > 0)[:, None, :, None]
    entropy = torch.special.entr(weights).sum((0, 2, 3)) / math.log(2)
    distance, *others = torch.einsum("bhts,cbts->ch", weights, factors)
    return torch.stack([distance, entropy, *others], dim=1)


@torch.no_grad()
def describe(translator: Translator, dataset: LanguagePairDataset, **batches) -> dict[str, list[Tensor]]:
    """For each attention, COLUMNS of the heads [h, 6] of each layer. `batches`: as of Translator.batches."""
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
        source, target = (positions(side != task.target_dictionary.pad()) for side in tokens)
        in_source, in_target = (mark[side] for mark, side in zip(marks, tokens))
        of = {
            "encoder": (source, source, in_source, True),
            "decoder": (target, target, in_target, True),
            "encoder-decoder": (target, source, in_source, False),
        }
        with contextlib.ExitStack() as stack:
            for name, layers in attentions.items():
                queries = of[name][0]
                count[name] += int((queries > 0).sum())
                summed = functools.partial(sums, factors=factors(*of[name]), queries=queries)
                for layer, total in zip(layers, totals[name]):
                    # the defaults keep what is of this turn of the loop
                    see = lambda weights, total=total, summed=summed: total.add_(summed(weights))  # noqa: E731
                    stack.enter_context(observed(layer, see))
            model(**batch["net_input"])
    return {name: [(total / count[name]).cpu() for total in totals[name]] for name in ATTENTIONS}


def load(translator: Translator, subset: str) -> LanguagePairDataset:
    """The sentences of `subset` with their references.

    Raises:
        InputError: if there are none, or one is too long for the model
    """
    translator.task.load_dataset(subset)
    dataset, name = translator.task.dataset(subset), f"{subset} of {translator.data}"
    if not len(dataset):
        raise InputError(f"{name} has no sentences: name another --subset")
    if dataset.tgt is None:
        raise InputError(f"{name} has no references: name a --subset that was binarised with both languages")
    longest = translator.models[0].max_positions()
    for number, sizes in enumerate(zip(dataset.src_sizes, dataset.tgt_sizes), 1):
        if any(size > limit for size, limit in zip(sizes, longest)):
            has, takes = ("{} and {}".format(*both) for both in (sizes, longest))
            reason = f"has {has} subwords, and the model takes at most {takes}"
            raise InputError(f"sentence {number} of {name} {reason}: leave it out of the set")
    return dataset


def rows(found: dict[str, list[Tensor]]) -> list[list[str]]:
    """Lines of the table."""
    return [
        [name, str(layer), str(head), *("" if value != value else f"{value:.2f}" for value in values.tolist())]
        for name, layers in found.items()
        for layer, heads in enumerate(layers, 1)
        for head, values in enumerate(heads, 1)
    ]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = new_parser("describe_heads", __doc__)
    add_checkpoint(parser)
    add_data(parser, "data", nargs="?")
    parser.add_argument("--subset", default="test", help="the set (default: %(default)s)")
    tokens = "subwords in a batch (default: %(default)s)"
    parser.add_argument("--max-tokens", type=positive, default=6000, metavar="N", help=tokens)
    output = "the file of the table (default: the standard output)"
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.md", help=output)
    return parser.parse_args(arguments)


@exit_in_one_line("describe_heads")
def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    data = args.data or data_of([args.checkpoint])
    translator = Translator(args.checkpoint, data=data, pretokenised=not preparation_of(data))
    found = describe(translator, load(translator, args.subset), max_tokens=args.max_tokens)
    text = table(["attention", "layer", "head", *COLUMNS], rows(found))
    if args.output:
        write(args.output, lambda path: path.write_text(f"{text}\n", encoding="utf-8"))
    print(args.output or text)


if __name__ == "__main__":
    main()
