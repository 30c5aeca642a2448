"""Scores a Weighted Transformer with its learned branch weights, and with others (Ahmed et al. 2017, table 3).

    python -m user_dir.tools.ablate_branch_weights RUN/average.pt

κ and α are replaced in the trained model, which is not trained again: learned, 1/M each, and drawn at random, where
each point of the simplex is equally likely (Dirichlet(1, …, 1); the paper does not say how it drew), anew in every
block, a row for each seed. A row has BLEU of the translations (beam search with fairseq's generator) and the model's
loss and perplexity on the same sentences, which need no search. BLEU is sacreBLEU of detokenised text against raw/
beside the data folder, or --reference; BLEU of tokens, as tools.score and fairseq-generate compute it, where the
training data are lower-cased or were not prepared by data-prep, so that no text as published belongs to them.
"""

import argparse
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from fairseq.logging import metrics
from sacrebleu.metrics import BLEU
from torch import Tensor, nn

from ..errors import InputError
from ..preparation import joined, preparation_of
from ..serving.models import data_of
from ..serving.search_settings import search_settings
from ..serving.translator import Translator
from ..weighted.heads import branched_blocks
from .shared.command import add_checkpoint, add_data, add_search, exit_in_one_line, new_parser, positive
from .shared.metrics import TOKENS, token_bleu
from .shared.translations import read_lines

Draw = Callable[[int], Tensor]  # M → a point [M] of the simplex


@torch.no_grad()
def replace(block: nn.Module, draw: Draw) -> None:
    """Draws κ and α of `block` anew."""
    for parameter in (block.kappa, block.alpha):
        weights = draw(len(parameter))
        parameter.copy_(weights.log() if block.softmax else weights)


def uniform(branches: int) -> Tensor:
    """[1/M, …, 1/M]"""
    return torch.full((branches,), 1 / branches)


def random(seed: int) -> Draw:
    """Draws from Dirichlet(1, …, 1): exponential variables divided by their sum."""
    generator = torch.Generator().manual_seed(seed)

    def draw(branches: int) -> Tensor:
        weights = torch.empty(branches).exponential_(generator=generator)
        return weights / weights.sum()

    return draw


def evaluate(
    translator: Translator, subset: str, criterion, search: dict, max_tokens: int
) -> tuple[list[str], float, float]:
    """Of the model as it is: translations of `subset` in its order, in subwords; loss (bits a token); perplexity."""
    (model,), task, generator, found = translator.models, translator.task, translator.generator(**search), {}
    dataset = task.dataset(subset)
    with metrics.aggregate(new_root=True) as values:
        for batch in translator.batches(dataset, max_tokens):
            *_, log = task.valid_step(batch, model, criterion)
            task.reduce_metrics([log], criterion)
            for number, hypotheses in zip(batch["id"].tolist(), task.inference_step(generator, [model], batch)):
                found[number] = task.target_dictionary.string(hypotheses[0]["tokens"].cpu())
    means = values.get_smoothed_values()
    return [found[number] for number in range(len(dataset))], means["loss"], means["ppl"]


def rows(seeds: list[int]) -> Iterator[tuple[str, Draw | None]]:
    """The table's rows: name, and what draws the weights if they are not the learned ones."""
    yield "learned", None
    yield "uniform (1/M)", uniform
    for seed in seeds:
        yield f"random, seed {seed}", random(seed)


class Scoring(NamedTuple):
    """How translations are scored."""

    name: str
    metric: BLEU
    text: Callable[[str], str]  # what the metric takes, of subwords
    references: list[str]

    def bleu(self, subwords: list[str]) -> float:
        return self.metric.corpus_score([*map(self.text, subwords)], [self.references]).score


def scoring(translator: Translator, subset: str, path: pathlib.Path | None) -> Scoring:
    """How translations of `subset` are scored.

    path: its text as published, or None for that beside the data folder

    Raises:
        InputError: if the text as published is not there or is of another test set
    """
    task, dataset = translator.task, translator.task.dataset(subset)
    prepared = preparation_of(translator.data)
    if not path and (not prepared or prepared.lowercase):
        # An unknown word of the reference is written otherwise than one of a translation, as fairseq-generate does.
        write = task.target_dictionary.string
        rows = [write(dataset.tgt[number], escape_unk=True) for number in range(len(dataset))]
        return Scoring(TOKENS, token_bleu(), joined, [*map(joined, rows)])
    path = path or prepared.folder / "raw" / f"{subset}.{task.cfg.target_lang}"
    references = read_lines(path)
    if len(references) != len(dataset):
        counts = f"{path} has {len(references)} lines and {subset} of {translator.data} {len(dataset)} sentences"
        raise InputError(f"{counts}: name its text with --reference")
    return Scoring("sacreBLEU", BLEU(), translator.decode, references)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = new_parser("ablate_branch_weights", __doc__)
    add_checkpoint(parser)
    add_data(parser, "data", nargs="?")
    parser.add_argument("--subset", default="test", help="what to translate (default: %(default)s)")
    parser.add_argument(
        "--reference",
        type=pathlib.Path,
        metavar="FILE",
        help="its target text as published (default: raw/SUBSET.LANGUAGE beside the data folder, or none, see above)",
    )
    seeds = "of the random weights (default: 1 2 3)"
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help=seeds)
    add_search(parser)
    tokens = "tokens in a batch (default: %(default)s)"
    parser.add_argument("--max-tokens", type=positive, default=6000, metavar="N", help=tokens)
    return parser.parse_args(arguments)


@exit_in_one_line("ablate_branch_weights")
def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    data = args.data or data_of([args.checkpoint])
    prepared = preparation_of(data)
    if args.reference and not prepared:
        reason = "was not prepared by data-prep, so its text is compared token by token"
        raise InputError(f"{data} {reason}: leave --reference out")
    translator = Translator(args.checkpoint, data=data, pretokenised=not prepared)
    (model,), task = translator.models, translator.task
    blocks = branched_blocks(model).values()
    if not blocks:
        reason = "the model has no branch weights (parameters named kappa and alpha)"
        raise InputError(f"{reason}: name a checkpoint of a weighted_transformer")
    task.load_dataset(args.subset)
    score = scoring(translator, args.subset, args.reference)
    criterion = task.build_criterion(translator.cfg.criterion)
    search = {"beam": args.beam, "lenpen": args.lenpen}
    used = search_settings(translator.kept, **search)
    print(f"{'branch weights':<20}{'BLEU':>6}{'loss':>8}{'perplexity':>12}")
    for row, draw in rows(args.seeds):
        for block in blocks if draw else []:
            replace(block, draw)
        subwords, loss, perplexity = evaluate(translator, args.subset, criterion, search, args.max_tokens)
        print(f"{row:<20}{score.bleu(subwords):>6.1f}{loss:>8.3f}{perplexity:>12.2f}", flush=True)
    settings = f"{args.subset}, {len(score.references)} sentences, beam {used['beam']}, length penalty {used['lenpen']}"
    print(f"{settings}; {score.name} {score.metric.get_signature()}")


if __name__ == "__main__":
    main()
