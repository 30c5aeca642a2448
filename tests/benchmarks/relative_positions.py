"""Times relative positions and measures their memory, in turn in one process, beside three other ways.

    python tests/benchmarks/relative_positions.py                   attention, forward and backward, by length
    python tests/benchmarks/relative_positions.py --step --size base          one whole training step
    python tests/benchmarks/relative_positions.py --generation --size base    beam search, each step a token
    python tests/benchmarks/relative_positions.py --ways ours --plain --neighbourhood 128    beside restricted attention

absolute   our attention without relative positions
published  a^K and a^V gathered into [n, n, d_z], n products for each (Shaw et al. 2018, section 3.3)
gathered   2k+1 scores a query gathered, weights scatter-added by index, derivative by autograd
ours       user_dir/relative/attention.py

Run it with nothing else running. Times are medians of rounds (in brackets the ratio to absolute, its smallest and
largest in the rounds); memory is the peak of what torch allocated beyond what was there before.
"""

import argparse
import functools
import statistics

import torch
from fairseq.data import Dictionary
from speed import (
    beam_search,
    build,
    build_criterion,
    numbers,
    random_batch,
    time_in_turn,
    training_step,
    with_attention,
)

from user_dir.attention.multihead import MultiheadAttention
from user_dir.attention.restricted import RestrictedAttention
from user_dir.relative.attention import RelativeMultiheadAttention
from user_dir.transformer.layers import joined

LENGTHS = [16, 32, 64, 256, 1024]


class ByIndex(RelativeMultiheadAttention):
    """The part that the other two ways share: the [T, S] index of the rows, and a softmax of scores [B, h, T, S]."""

    def attend(self, q, k, v, mask, need_weights, first_query=0):
        query = first_query + torch.arange(q.size(2), device=q.device)
        distance = torch.arange(k.size(2), device=q.device) - query[:, None]
        rows = distance.clamp(-self.distance, self.distance) + self.distance
        scores = (q @ k.mT + self.scores(q, self.each(self.relative_keys, q), rows)) * self.key_dim**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        weights = torch.softmax(scores, dim=-1).to(q.dtype)
        return weights @ v + self.values(weights, self.each(self.relative_values, q), rows), weights

    def each(self, table, q):
        return table.to(q.dtype).expand(self.num_heads, -1, -1)


class Published(ByIndex):
    def scores(self, q, table, rows):
        return torch.einsum("bhtd,htsd->bhts", q, table[:, rows])

    def values(self, weights, table, rows):
        return torch.einsum("bhts,htsd->bhtd", weights, table[:, rows])


class Gathered(ByIndex):
    def scores(self, q, table, rows):
        return (q @ table.mT).gather(-1, rows.expand(*q.shape[:2], -1, -1))

    def values(self, weights, table, rows):
        sums = weights.new_zeros(*weights.shape[:3], table.size(-2))
        return sums.scatter_add(-1, rows.expand_as(weights), weights) @ table


WAYS = {"published": Published, "gathered": Gathered, "ours": RelativeMultiheadAttention}


def peak_memory(action) -> float:
    """MB allocated at most while `action` runs, beyond what was allocated before."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        action()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        action()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak / 1e6


def report(times: dict[str, list[float]], memory: dict[str, float] | None = None) -> None:
    for name, seconds in times.items():
        ratios = [one / other for one, other in zip(seconds, times["absolute"])]
        ratio = f"{statistics.median(ratios):.3f}; {min(ratios):.3f}–{max(ratios):.3f}"
        text = f"  {name:20} {1e3 * statistics.median(seconds):9.2f} ms ({ratio})"
        print(text + (f" {memory[name]:9.1f} MB" if memory else ""), flush=True)


def both(module, x, masks) -> None:
    """Forward and backward of an attention with either mask."""
    for options in masks:
        output, _ = module(x, x, x, **options, need_weights=False)
        output.sum().backward()
        module.zero_grad()
        x.grad = None


def attention(args, device) -> None:
    """Self-attention by itself, of encoder (padding) and decoder (no future), one size of head and batch by length."""
    for length in args.lengths:
        sentences = max(1, args.tokens // length)
        sizes, relative = (args.heads * 64, args.heads), {"distance": args.k, "shared": args.shared}
        kinds = {"absolute": (MultiheadAttention, {}), **{name: (WAYS[name], relative) for name in args.ways}}
        modules = {name: kind(*sizes, **options, self_attention=True) for name, (kind, options) in kinds.items()}
        if args.neighbourhood:
            near = {"neighbourhood": args.neighbourhood, "self_attention": True}
            for name, (kind, options) in kinds.items():
                modules[f"{name}, restricted"] = joined(RestrictedAttention, kind)(*sizes, **options, **near)
        x = torch.randn(length, sentences, args.heads * 64, device=device, requires_grad=True)
        padding = torch.zeros(sentences, length, dtype=torch.bool, device=device)
        padding[::2, :3] = True
        mask = torch.full((length, length), float("-inf"), device=device).triu(1)

        masks = ({},) if args.plain else ({"key_padding_mask": padding}, {"attn_mask": mask})
        actions = {name: functools.partial(both, module.to(device), x, masks) for name, module in modules.items()}
        print(f"n = {length}, {sentences} sentences, {args.heads} heads of 64, k = {args.k}")
        times = time_in_turn(actions, args.repeats)
        report(times, {name: peak_memory(action) for name, action in actions.items()})


def models(args, device) -> tuple[dict, dict, Dictionary]:
    """The models by name, a batch and its dictionary."""
    dictionary = numbers(8000)
    common = (args.size, dictionary, device)
    positions = max(1024, args.length + 1)
    options = {"max_source_positions": positions, "max_target_positions": positions}
    if args.layers:
        options |= {"encoder_layers": args.layers, "decoder_layers": args.layers}
    variants = {"absolute": build(f"vaswani_transformer_{args.size}", *common, **options)}
    for name in args.ways:
        model = build(f"relative_transformer_{args.size}", *common, **options)
        variants[name] = with_attention(model, RelativeMultiheadAttention, WAYS[name])
    sentences = max(1, args.tokens // args.length)
    print(f"{args.size}, {sentences} sentences of {args.length}, vocabulary {len(dictionary)}")
    return variants, random_batch(dictionary, sentences, args.length, device), dictionary


def step(args, device) -> None:
    variants, batch, dictionary = models(args, device)
    criterion = build_criterion(dictionary, fairseqs=True)
    actions = {name: functools.partial(training_step, model, batch, criterion) for name, model in variants.items()}
    report(time_in_turn(actions, args.repeats), {name: peak_memory(action) for name, action in actions.items()})


def generation(args, device) -> None:
    variants, batch, dictionary = models(args, device)
    searches = {name: beam_search(model, dictionary, batch, fairseqs=True) for name, model in variants.items()}
    report(time_in_turn(searches, args.repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="store_true", help="whole training steps")
    parser.add_argument("--generation", action="store_true", help="beam search with 4 beams to a fixed length")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="to time beside `absolute`")
    parser.add_argument("--size", default="base", help="of the models")
    parser.add_argument("--layers", type=int, help="of each side of the models (default: those of the size)")
    parser.add_argument("--length", type=int, default=32, help="of the models' sentences")
    parser.add_argument("--tokens", type=int, default=2048, help="on each side of a batch")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--shared", action="store_true", help="one table for all heads")
    parser.add_argument("--plain", action="store_true", help="attention without masks")
    parser.add_argument("--neighbourhood", type=int, metavar="R", help="also attention restricted to R positions")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads")
    torch.manual_seed(1)
    (step if args.step else generation if args.generation else attention)(args, device)


if __name__ == "__main__":
    main()
