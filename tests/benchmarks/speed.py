"""Times architectures against fairseq's own `transformer` of the same size, in turn in one process, and prints ratios.

    python tests/benchmarks/speed.py --size tiny --arch vaswani_transformer

`weighted_transformer` is timed in each of its forms, and as a loop over branches, as its equations are written.
One training step is forward, loss and backward, with fairseq's `label_smoothed_cross_entropy` for its own model and our
fused one for ours; an update is that and the optimizer's, fairseq's `adam` and our `fused_adam`; generation is beam
search with 4 beams to a fixed length. trainer.py times fairseq's own trainer.
Run it with nothing else running. Ratios are of medians; the spread says how quiet the machine was.
"""

import argparse
import functools
import pathlib
import statistics
import sys
import types

import torch
from fairseq import models
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.optim.adam import FairseqAdam
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from parts import clock

from user_dir.families import FAMILIES, SIZES
from user_dir.search.beam import BeamSearchGenerator
from user_dir.training.criterion import FusedLabelSmoothedCrossEntropy
from user_dir.training.optimizer import FusedAdam, FusedAdamConfig
from user_dir.transformer.architectures import set_defaults, size_options
from user_dir.weighted.attention import BranchedAttention

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import equations  # noqa: E402

STOCK = "transformer"


class Loop(BranchedAttention):
    """Ahmed et al. 2017, eq. 6 and 7, a branch at a time."""

    def output(self, heads, query, incremental_state):
        def ffn(w1, b1, w2, b2):
            return lambda x: equations.ffn(x, w1.T, b1, w2.T, b2)

        m = self.branches
        w_o = [part.T for part in self.out_proj.weight.chunk(m, 1)]
        parts = (self.fc1.weight.chunk(m), self.fc1.bias.chunk(m), self.fc2.weight.chunk(m, 1), self.fc2.bias)
        return equations.branched(heads.unbind(2), *self.kappa_alpha(), w_o, [ffn(*own) for own in zip(*parts)])


def build(arch: str, size: str, dictionary: Dictionary, device: str, autocast="off", **options):
    """The model of --arch `arch` with the sizes of `size` and further `options`, from the same seed each time."""
    task = types.SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    args = argparse.Namespace(arch=arch, share_all_embeddings=True, autocast=autocast, **options)
    set_defaults(args, size_options(*SIZES[size]))
    models.ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(1)
    return models.ARCH_MODEL_REGISTRY[arch].build_model(args, task).to(device)


def with_attention(model, old: type, new: type):
    """`model` with its attention of class `old` computed by `new`, from the same parameters."""
    for module in model.modules():
        if isinstance(module, old):
            module.__class__ = new
    return model


def numbers(size: int) -> Dictionary:
    """A dictionary of `size` symbols."""
    dictionary = Dictionary()
    for word in range(size - len(dictionary)):
        dictionary.add_symbol(str(word))
    return dictionary


def random_batch(dictionary: Dictionary, sentences: int, length: int, device: str) -> dict:
    """The arguments of a model: random sentences, every third of them with padding."""
    source, target = torch.randint(4, len(dictionary), (2, sentences, length), device=device)
    source[::3, :3] = target[::3, -3:] = dictionary.pad()
    return {"src_tokens": source, "src_lengths": source.ne(dictionary.pad()).sum(1), "prev_output_tokens": target}


def beam_search(model, dictionary: Dictionary, batch: dict, fairseqs: bool):
    """An action that translates `batch`: at least and at most as long as the source, the same steps for every model."""
    model.eval().make_generation_fast_(need_attn=False)  # as fairseq-generate does
    length = batch["src_tokens"].size(1)
    kind = SequenceGenerator if fairseqs else BeamSearchGenerator
    generator = kind([model], dictionary, beam_size=4, min_len=length, max_len_a=0, max_len_b=length)
    sample = {"net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}}
    return lambda: generator.generate([model], sample)


def build_optimizer(model, optimizer: type):
    """fairseq's adam or our fused_adam of a model."""
    options = {"lr": [1e-7], "tpu": False, "max_update": 100000, "fp16": False, "amp": False}
    defaults = OmegaConf.to_container(OmegaConf.structured(FusedAdamConfig()))  # and so those of adam
    return optimizer(OmegaConf.create(defaults | options), list(model.parameters()))


def build_criterion(dictionary: Dictionary, fairseqs: bool):
    kind = LabelSmoothedCrossEntropyCriterion if fairseqs else FusedLabelSmoothedCrossEntropy
    return kind(types.SimpleNamespace(target_dictionary=dictionary), sentence_avg=False, label_smoothing=0.1)


def training_step(model, batch, criterion, optimizer=None) -> None:
    model.train()
    target = batch["prev_output_tokens"]
    loss, _, _ = criterion(model, {"net_input": batch, "target": target, "ntokens": target.numel()})
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad()


def time_in_turn(actions: dict, repeats: int) -> dict[str, list[float]]:
    """Seconds of each action in each round, after one round that is not counted."""
    times = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            start = clock()
            action()
            times[name].append(clock() - start)
    return {name: seconds[1:] for name, seconds in times.items()}


def report(title: str, times: dict[str, list[float]]) -> None:
    print(title)
    stock = statistics.median(times[STOCK])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        spread = f"{1e3 * min(seconds):.0f}–{1e3 * max(seconds):.0f}"
        print(f"  {name:32} {1e3 * median:8.0f} ms ({spread})   ratio to fairseq's {median / stock:.2f}")


def report_speeds(title: str, speeds: dict[str, list[float]]) -> dict:
    """Prints words a second and, for each round, the ratio to fairseq's; returns the medians."""
    print(title)
    found = {}
    for name, values in speeds.items():
        ratios = [one / other for one, other in zip(values, speeds[STOCK], strict=True)]
        found[name] = {"words a second": statistics.median(values), "ratio": statistics.median(ratios)}
        ratio = f"{statistics.median(ratios):.2f} times fairseq's ({min(ratios):.2f}–{max(ratios):.2f})"
        print(f"  {name:36} {statistics.median(values):8.0f} words/s   {ratio}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--autocast", choices=["off", "bf16"], default="off", help="precision of our models")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dictionary = numbers(args.vocabulary)
    common = (args.size, dictionary, device)
    variants = {STOCK: build(STOCK, *common)}
    for family in args.arch:
        variants[family] = build(f"{family}_{args.size}", *common, args.autocast)
    if "weighted_transformer" in args.arch:
        forms = [
            build(f"weighted_transformer_{args.size}", *common, args.autocast, branch_residual=form)
            for form in ("shared", "none", "none")
        ]
        variants["the same, residual shared"], variants["the same, residual none"], loop = forms
        variants["the last as a loop"] = with_attention(loop, BranchedAttention, Loop)
    batch = random_batch(dictionary, args.sentences, args.length, device)

    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {args.size}, ", end="")
    print(f"{args.sentences} sentences of {args.length}, vocabulary {args.vocabulary}")
    criteria = {name: build_criterion(dictionary, fairseqs=name == STOCK) for name in variants}
    steps = {name: functools.partial(training_step, variants[name], batch, criteria[name]) for name in variants}
    report("training step", time_in_turn(steps, args.repeats))

    for name, model in variants.items():
        optimizer = build_optimizer(model, FairseqAdam if name == STOCK else FusedAdam)
        steps[name] = functools.partial(steps[name], optimizer)
    report("update", time_in_turn(steps, args.repeats))
    searches = {name: beam_search(model, dictionary, batch, name == STOCK) for name, model in variants.items()}
    report("generation", time_in_turn(searches, max(2, args.repeats // 2)))


if __name__ == "__main__":
    main()
