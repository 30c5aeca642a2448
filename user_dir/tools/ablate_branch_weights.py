"""Scores a Weighted Transformer with its learned branch weights, with uniform and with random ones (Ahmed et al. 2017, table 3).

    python -m user_dir.tools.ablate_branch_weights RUN/average.pt DATA/data-bin

κ and α are replaced in the trained model, which is not trained again: learned, 1/M each, and drawn at random, where each point
of the simplex is equally likely (Dirichlet(1, …, 1); the paper does not say how it drew), anew in every block, a row for each
seed. A row has sacreBLEU of the translations (beam search with fairseq's generator, subwords joined, detokenised by Moses)
and the model's loss and perplexity on the same sentences, which need no search.
"""

import argparse
import pathlib
from collections.abc import Callable, Iterator

import sacrebleu
import torch
from fairseq import utils
from fairseq.logging import metrics
from sacremoses import MosesDetokenizer
from torch import Tensor, nn

from ..branch_weights import branched_blocks
from .checkpoints import load_model
from .errors import ToolError, exit_in_one_line

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


def evaluate(model, task, criterion, generator, batches) -> tuple[list[str], float, float]:
    """Translations in the subset's order, loss (bits a token) and perplexity of the model as it is now."""
    detokenizer = MosesDetokenizer(task.cfg.target_lang)
    translations, device = {}, next(model.parameters()).device
    with metrics.aggregate(new_root=True) as values:
        for sample in batches.next_epoch_itr(shuffle=False):
            sample = utils.apply_to_sample(lambda x: x.to(device), sample)
            *_, log = task.valid_step(sample, model, criterion)
            task.reduce_metrics([log], criterion)
            for number, hypotheses in zip(sample["id"].tolist(), task.inference_step(generator, [model], sample)):
                words = task.target_dictionary.string(hypotheses[0]["tokens"].int().cpu(), "subword_nmt")
                translations[number] = detokenizer.detokenize(words.split())
    means = values.get_smoothed_values()
    return [translations[number] for number in sorted(translations)], means["loss"], means["ppl"]


def rows(seeds: list[int]) -> Iterator[tuple[str, Draw | None]]:
    """The table's rows: name, and what draws the weights if they are not the learned ones."""
    yield "learned", None
    yield "uniform (1/M)", uniform
    for seed in seeds:
        yield f"random, seed {seed}", random(seed)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ablate_branch_weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path, help="the data-bin folder")
    parser.add_argument("--subset", default="test", help="what to translate (default: %(default)s)")
    parser.add_argument(
        "--reference", type=pathlib.Path, metavar="FILE", help="its untokenised target text (default: raw/SUBSET.LANGUAGE beside the data folder)"
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="of the random weights (default: 1 2 3)")
    parser.add_argument("--beam", type=int, default=4, help="beam size (default: %(default)s)")
    parser.add_argument("--lenpen", type=float, default=0.6, help="length penalty (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=6000, metavar="N", help="tokens in a batch (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    with exit_in_one_line("ablate_branch_weights"):
        model, task, cfg = load_model(args.checkpoint, args.data)
        blocks = branched_blocks(model).values()
        if not blocks:
            raise ToolError("the model has no branch weights (parameters named kappa and alpha): name a checkpoint of a weighted_transformer")
        path = args.reference or args.data.resolve().parent / "raw" / f"{args.subset}.{task.cfg.target_lang}"
        references = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        task.load_dataset(args.subset)
        dataset = task.dataset(args.subset)
        if len(references) != len(dataset):
            raise ToolError(
                f"{path} has {len(references)} lines and {args.subset} of {args.data} {len(dataset)} sentences: "
                "name its text with --reference"
            )
        model.prepare_for_inference_(cfg)
        if torch.cuda.is_available():
            model.cuda()
        criterion = task.build_criterion(cfg.criterion)
        search = argparse.Namespace(beam=args.beam, lenpen=args.lenpen, max_len_a=1, max_len_b=50)
        batches = task.get_batch_iterator(dataset, max_tokens=args.max_tokens, max_positions=model.max_positions())
        metric = sacrebleu.BLEU()
        print(f"{'branch weights':<20}{'BLEU':>6}{'loss':>8}{'perplexity':>12}")
        for name, draw in rows(args.seeds):
            for block in blocks if draw else []:
                replace(block, draw)
            translations, loss, perplexity = evaluate(model, task, criterion, task.build_generator([model], search), batches)
            bleu = metric.corpus_score(translations, [references]).score
            print(f"{name:<20}{bleu:>6.1f}{loss:>8.3f}{perplexity:>12.2f}", flush=True)
        print(f"{args.subset}, {len(references)} sentences, beam {args.beam}, length penalty {args.lenpen}; sacreBLEU {metric.get_signature()}")


if __name__ == "__main__":
    main()
