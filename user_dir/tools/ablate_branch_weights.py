"""Scores a Weighted Transformer with its learned branch weights, with uniform and with random ones (Ahmed et al. 2017, table 3).

    python -m user_dir.tools.ablate_branch_weights RUN/average.pt

κ and α are replaced in the trained model, which is not trained again: learned, 1/M each, and drawn at random, where each point
of the simplex is equally likely (Dirichlet(1, …, 1); the paper does not say how it drew), anew in every block, a row for each
seed. A row has BLEU of the translations (beam search with fairseq's generator) and the model's loss and perplexity on the same
sentences, which need no search. BLEU is sacreBLEU of detokenised text against raw/ beside the data folder, or --reference;
BLEU of tokens, as tools.score and fairseq-generate compute it, where the training data are lower-cased or were not prepared
by data-prep, so that no text as published belongs to them.
"""

import argparse
import pathlib
from collections.abc import Callable, Iterator

import torch
from fairseq.logging import metrics
from sacrebleu.metrics import BLEU
from torch import Tensor, nn

from ..branch_log import branched_blocks
from ..checkpoints import data_of
from ..translator import Translator, joined, preparation_of
from .errors import ToolError, exit_in_one_line
from .score import TOKENS, token_bleu
from .translations import read_lines

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


def evaluate(translator: Translator, dataset, criterion, search: dict, max_tokens: int) -> tuple[list[str], float, float]:
    """Translations in the order of `dataset`, in subwords; loss (bits a token) and perplexity of the model as it is now."""
    (model,), task, generator, found = translator.models, translator.task, translator.generator(**search), {}
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


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ablate_branch_weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path, nargs="?", help="the data-bin folder (default: that of the training)")
    parser.add_argument("--subset", default="test", help="what to translate (default: %(default)s)")
    parser.add_argument(
        "--reference", type=pathlib.Path, metavar="FILE", help="its target text as published (default: raw/SUBSET.LANGUAGE beside the data folder, or none, see above)"
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="of the random weights (default: 1 2 3)")
    parser.add_argument("--beam", type=int, default=4, help="beam size (default: %(default)s)")
    parser.add_argument("--lenpen", type=float, default=0.6, help="length penalty (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=6000, metavar="N", help="tokens in a batch (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    with exit_in_one_line("ablate_branch_weights"):
        data = args.data or data_of([args.checkpoint])
        prepared = preparation_of(data)
        if args.reference and not prepared:
            raise ToolError(f"{data} was not prepared by data-prep, so its text is compared token by token: leave --reference out")
        translator = Translator(args.checkpoint, data=data, already_split=not prepared)
        (model,), task = translator.models, translator.task
        blocks = branched_blocks(model).values()
        if not blocks:
            raise ToolError("the model has no branch weights (parameters named kappa and alpha): name a checkpoint of a weighted_transformer")
        task.load_dataset(args.subset)
        dataset = task.dataset(args.subset)
        if args.reference or prepared and not prepared.lowercase:
            name, metric, plain = "sacreBLEU", BLEU(), translator.decode
            path = args.reference or data.resolve().parent / "raw" / f"{args.subset}.{task.cfg.target_lang}"
            references = read_lines(path)
            if len(references) != len(dataset):
                raise ToolError(
                    f"{path} has {len(references)} lines and {args.subset} of {data} {len(dataset)} sentences: name its text with --reference"
                )
        else:
            name, metric, plain = TOKENS, token_bleu(), joined
            # An unknown word of the reference is written otherwise than one of a translation, as fairseq-generate writes it.
            references = [joined(task.target_dictionary.string(dataset.tgt[number], escape_unk=True)) for number in range(len(dataset))]
        criterion = task.build_criterion(translator.cfg.criterion)
        search = {"beam": args.beam, "lenpen": args.lenpen}
        print(f"{'branch weights':<20}{'BLEU':>6}{'loss':>8}{'perplexity':>12}")
        for row, draw in rows(args.seeds):
            for block in blocks if draw else []:
                replace(block, draw)
            subwords, loss, perplexity = evaluate(translator, dataset, criterion, search, args.max_tokens)
            bleu = metric.corpus_score([*map(plain, subwords)], [references]).score
            print(f"{row:<20}{bleu:>6.1f}{loss:>8.3f}{perplexity:>12.2f}", flush=True)
        print(f"{args.subset}, {len(references)} sentences, beam {args.beam}, length penalty {args.lenpen}; {name} {metric.get_signature()}")


if __name__ == "__main__":
    main()
