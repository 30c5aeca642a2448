"""Times self-attention to a neighbourhood of r positions beside self-attention to all, forward and backward.

    python tests/benchmarks/restricted_attention.py --lengths 256 512 1024 2048 4096 --neighbourhood 128

One layer's attention of `_base` width for as many sentences as make 4,096 words; milliseconds (median of rounds in
turn) and the megabytes that are allocated at most. Run it with nothing else running.
"""

import argparse
import functools
import statistics

import torch
from relative_positions import peak_memory
from speed import time_in_turn

from user_dir.attention.multihead import MultiheadAttention
from user_dir.attention.restricted import RestrictedAttention
from user_dir.relative.attention import RelativeMultiheadAttention
from user_dir.transformer.layers import joined

WIDTH, HEADS, WORDS = 512, 8, 4096
KINDS = {"absolute": (MultiheadAttention, {}), "relative": (RelativeMultiheadAttention, {"distance": 16})}


def step(module, x: torch.Tensor) -> None:
    module(x, x, x, need_weights=False)[0].sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--neighbourhood", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, r = {args.neighbourhood}")
    for length in args.lengths:
        x = torch.randn(length, max(1, WORDS // length), WIDTH, device=device, requires_grad=True)
        actions = {}
        for name, (kind, options) in KINDS.items():
            options = {"self_attention": True, **options}
            near = joined(RestrictedAttention, kind)(WIDTH, HEADS, neighbourhood=args.neighbourhood, **options)
            for title, module in ((name, kind(WIDTH, HEADS, **options)), (f"{name}, restricted", near)):
                actions[title] = functools.partial(step, module.to(device), x)
        for title, seconds in time_in_turn(actions, args.rounds).items():
            milliseconds, megabytes = 1e3 * statistics.median(seconds), peak_memory(actions[title])
            print(f"{length:6} {title:24} {milliseconds:8.0f} ms {megabytes:8.0f} MB", flush=True)


if __name__ == "__main__":
    main()
