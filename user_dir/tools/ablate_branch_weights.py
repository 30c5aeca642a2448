"""Scores a Weighted Transformer with its learned branch weights, and with others (Ahmed et al. 2017, table 3).

    nmt-ablate-branch-weights RUN

The model is not trained again. Its κ and α are the learned ones, 1/M each, or drawn for each seed and block uniformly
from the simplex (Dirichlet(1, …, 1); the paper does not name its distribution). A row has the BLEU of the translations,
and the model's loss (in bits per token) and perplexity on the same sentences. BLEU is sacreBLEU of detokenised text,
without case if the training data are lower-cased; for data that data-prep did not tokenise it is BLEU of tokens.
"""

import argparse
import pathlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from fairseq.data import LanguagePairDataset
from fairseq.logging import metrics
from sacrebleu.metrics import BLEU
from torch import Tensor, nn

from ..errors import InputError
from ..preparation import preparation_of
from ..search.search_settings import search_settings
from ..serving.translator import Translator
from ..weighted.heads import branched_blocks
from .shared.command import add_checkpoint, add_data, add_search, exit_in_one_line, new_parser
from .shared.examined import add_sentences, load_sentences, open_model
from .shared.metrics import bleu, token_bleu
from .shared.translations import read_lines

Draw = Callable[[int], Tensor]  # M → a point [M] of the simplex


@torch.no_grad()
def replace(block: nn.Module, draw: Draw) -> None:
    """Draws κ and α of `block` anew."""
    for parameter in (block.kappa, block.alpha):
        weights = draw(len(parameter))
        parameter.copy_(weights.log() if block.softmax else weights)


def uniform(branches: int) -> Tensor:
    return torch.full((branches,), 1 / branches)


def random(seed: int) -> Draw:
    """Draws from Dirichlet(1, …, 1): exponential variables divided by their sum."""
    generator = torch.Generator().manual_seed(seed)
    return lambda branches: F.normalize(torch.empty(branches).exponential_(generator=generator), p=1, dim=0)


def losses(translator: Translator, dataset: LanguagePairDataset, max_tokens: int) -> dict[str, float]:
    """The values of the training's criterion on `dataset`, such as "loss" (bits a token) and "ppl"."""
    (model,), task = translator.models, translator.task
    criterion = task.build_criterion(translator.cfg.criterion)
    with metrics.aggregate(new_root=True) as values:
        for batch in translator.batches(dataset, max_tokens):
            *_, log = task.valid_step(batch, model, criterion)
            task.reduce_metrics([log], criterion)
    return values.get_smoothed_values()


def scoring(translator: Translator, dataset: LanguagePairDataset, args: argparse.Namespace) -> tuple[BLEU, list[str]]:
    """How translations of `dataset` are scored, and their references.

    Raises:
        InputError: if the text as published is not there or is of another test set
    """
    prepared, target = preparation_of(translator.data), translator.task.target_dictionary
    text = prepared and prepared.tokenise  # otherwise translations are tokens
    if not text and not args.reference:
        # A reference's unknown word is written differently from a translation's, as fairseq-generate does.
        rows = [target.string(dataset.tgt[number], escape_unk=True) for number in range(len(dataset))]
        return token_bleu(), [translator.decode(row) for row in rows]
    language = translator.task.cfg.target_lang
    path = args.reference or prepared.folder / "raw" / f"{args.subset}.{language}"
    references = read_lines(path)
    if len(references) != len(dataset):
        counts = f"{path} has {len(references)} lines and {args.subset} of {translator.data} {len(dataset)} sentences"
        raise InputError(f"{counts}: name its text with --reference")
    return bleu(language, lowercase=prepared.lowercase) if text else token_bleu(), references


@exit_in_one_line("nmt-ablate-branch-weights")
def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("nmt-ablate-branch-weights", __doc__)
    add_checkpoint(parser)
    add_data(parser)
    add_sentences(parser)
    reference = "the target text as published (default: raw/SUBSET.LANGUAGE beside the data folder, or the data)"
    parser.add_argument("--reference", type=pathlib.Path, metavar="FILE", help=reference)
    seeds = "seeds of the random weights (default: 1 2 3)"
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], metavar="N", help=seeds)
    add_search(parser)
    args = parser.parse_args(arguments)
    translator = open_model(args)
    blocks = branched_blocks(translator.models[0]).values()
    if not blocks:
        reason = "the model has no branch weights (parameters named kappa and alpha)"
        raise InputError(f"{reason}: name a checkpoint of a weighted_transformer")
    dataset = load_sentences(translator, args.subset)
    metric, references = scoring(translator, dataset, args)
    search = {"beam": args.beam, "lenpen": args.lenpen}
    sources = [dataset.src[number] for number in range(len(dataset))]
    draws = {"learned": None, "uniform (1/M)": uniform, **{f"random, seed {seed}": random(seed) for seed in args.seeds}}
    print(f"{'branch weights':<20}{'BLEU':>6}{'loss':>8}{'perplexity':>12}")
    for row, draw in draws.items():
        for block in blocks if draw else []:
            replace(block, draw)
        found = translator.beam_search(sources, max_tokens=args.max_tokens, **search)
        texts = [translator.hypothesis(best).text for best, *_ in found]
        points, values = metric.corpus_score(texts, [references]).score, losses(translator, dataset, args.max_tokens)
        print(f"{row:<20}{points:>6.1f}{values['loss']:>8.3f}{values['ppl']:>12.2f}", flush=True)
    used = search_settings(translator.kept, **search)
    settings = f"{args.subset}, {len(references)} sentences, beam {used['beam']}, length penalty {used['lenpen']}"
    print(f"{settings}; BLEU {metric.get_signature()}")


if __name__ == "__main__":
    main()
