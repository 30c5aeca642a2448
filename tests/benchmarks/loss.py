"""Times the fused loss with chunks of different numbers of tokens, and slices of W's gradient of different sizes.

    python tests/benchmarks/loss.py --autocast bf16
    python tests/benchmarks/loss.py --autocast bf16 --rows 384 --slices 524288 100000000

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


def step(rows: int, part: int, features: Tensor, weight: Tensor, target: Tensor, cast: torch.dtype) -> None:
    """The loss and its gradient, with `rows` tokens in a chunk and `part` numbers in a slice."""
    criterion.ROWS, criterion.LOGITS, criterion.SLICE = rows, rows * len(weight), part
    ProjectedLoss.apply(features, weight, target, 0.1, cast, True, False)[0].backward()
    features.grad = weight.grad = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[criterion.ROWS, 128, 256, 512, 1024], help="in a chunk")
    parser.add_argument("--slices", type=int, nargs="+", default=[], help="numbers in a slice, with the first --rows")
    parser.add_argument("--autocast", choices=["off", "bf16"], default="off")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    cast = torch.bfloat16 if args.autocast == "bf16" else torch.float32
    settings = {f"{rows}": (rows, criterion.SLICE) for rows in args.rows}
    settings |= {f"slices of {part}": (args.rows[0], part) for part in args.slices}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.autocast}, loss and gradient")
    for tokens, width, vocabulary in SHAPES:
        torch.manual_seed(1)
        features = torch.randn(tokens, width, requires_grad=True)
        weight = torch.randn(vocabulary, width).mul_(width**-0.5).requires_grad_()
        target = torch.randint(vocabulary, (tokens,))
        data = features, weight, target, cast
        steps = {name: functools.partial(step, *setting, *data) for name, setting in settings.items()}
        first, *others = time_in_turn(steps, args.rounds).values()
        print(f"{tokens} tokens, d_model {width}, {vocabulary} words: {1e3 * statistics.median(first):.0f} ms", end="")
        for name, seconds in zip(list(steps)[1:], others):
            print(f", {name}: {statistics.median(a / b for a, b in zip(seconds, first)):.2f}", end="")
        print(flush=True)


if __name__ == "__main__":
    main()
