"""Times the fused loss with chunks of different numbers of tokens.

    python tests/benchmarks/loss.py --autocast bf16

Each number has its turn in every round; the ratios to the first one are medians over rounds.
"""

import argparse
import functools
import statistics

import torch
from speed import time_in_turn
from torch import Tensor

from user_dir.training import criterion
from user_dir.training.criterion import ProjectedLoss

SHAPES = [(1000, 128, 8000), (4000, 128, 9700), (4000, 256, 10000), (4000, 512, 8000), (2000, 512, 37000)]


def step(rows: int, features: Tensor, weight: Tensor, target: Tensor, cast: torch.dtype) -> None:
    """The loss and its gradient, with `rows` tokens in a chunk."""
    criterion.ROWS, criterion.LOGITS = rows, rows * len(weight)
    ProjectedLoss.apply(features, weight, target, 0.1, cast, True, False)[0].backward()
    features.grad = weight.grad = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[criterion.ROWS, 128, 256, 512, 1024], help="in a chunk")
    parser.add_argument("--autocast", choices=["off", "bf16"], default="off")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    cast = torch.bfloat16 if args.autocast == "bf16" else torch.float32
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.autocast}, loss and gradient")
    for tokens, width, vocabulary in SHAPES:
        torch.manual_seed(1)
        features = torch.randn(tokens, width, requires_grad=True)
        weight = torch.randn(vocabulary, width).mul_(width**-0.5).requires_grad_()
        target = torch.randint(vocabulary, (tokens,))
        steps = {rows: functools.partial(step, rows, features, weight, target, cast) for rows in args.rows}
        first, *others = time_in_turn(steps, args.rounds).values()
        print(f"{tokens} tokens, d_model {width}, {vocabulary} words: {1e3 * statistics.median(first):.0f} ms", end="")
        for rows, seconds in zip(args.rows[1:], others):
            print(f", {rows}: {statistics.median(a / b for a, b in zip(seconds, first)):.2f}", end="")
        print(flush=True)


if __name__ == "__main__":
    main()
