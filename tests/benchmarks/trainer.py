"""Times fairseq's own trainer: its `transformer` beside our architectures, in turn in one process.

    python tests/benchmarks/trainer.py --data data/tatoeba.fr-en/data-bin                       the quickstart's size
    python tests/benchmarks/trainer.py --size base --vocabulary 37000 --updates 2 --rounds 5    made-up sentences

An update is what fairseq-train does for one: data, forward, loss, backward, clipping, optimizer; stock has fairseq's
`adam` and `label_smoothed_cross_entropy`, ours `fused_adam` and `fused_label_smoothed_cross_entropy`, on the same
batches. Run it with nothing else running; ratios are medians over rounds, with the smallest and the largest.
"""

import argparse
import functools
import json
import logging
import pathlib
import random
import resource
import subprocess
import tempfile

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import MultiheadAttention
from fairseq.trainer import Trainer
from parts import classes_with, print_shares, seconds_by_part
from speed import STOCK, report_speeds, time_in_turn

from user_dir.families import FAMILIES, SIZES

OURS = "--optimizer fused_adam --criterion fused_label_smoothed_cross_entropy --branch-frozen-updates 0"
FAIRSEQS = "--optimizer adam --criterion label_smoothed_cross_entropy"
COMMON = """--share-all-embeddings --label-smoothing 0.1 --clip-norm 1 --lr 5e-4 --lr-scheduler inverse_sqrt --seed 1
    --warmup-updates 100 --max-update 100000 --num-workers 0 --log-format none --distributed-world-size 1
    --dropout"""
SIDE = "--{0}-layers {1} --{0}-embed-dim {2} --{0}-ffn-embed-dim {3} --{0}-attention-heads {4}"


def made_up(vocabulary: int, pairs: int, folder: pathlib.Path) -> pathlib.Path:
    """A data-bin of that many pairs of 5 to 50 words of that vocabulary."""
    draw = random.Random(1)
    (folder / "dict.txt").write_text("".join(f"w{i} 1\n" for i in range(vocabulary - 4)))
    for language in ("src", "tgt"):
        with open(folder / f"train.{language}", "w") as file:
            for _ in range(pairs):
                print(*(f"w{draw.randrange(vocabulary - 4)}" for _ in range(draw.randint(5, 50))), file=file)
    command = ["fairseq-preprocess", "-s", "src", "-t", "tgt", f"--trainpref={folder / 'train'}", "--joined-dictionary"]
    command += ["--srcdict", str(folder / "dict.txt"), "--destdir", str(folder / "data-bin")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "data-bin"


def build_trainer(family: str, args, data: pathlib.Path) -> tuple[Trainer, object]:
    """fairseq's trainer and its batches of the first epoch, as fairseq-train makes them."""
    *sizes, dropout = SIZES[args.size]
    words = [COMMON, str(dropout), *(SIDE.format(side, *sizes) for side in ("encoder", "decoder"))]
    if family == STOCK:
        words += [FAIRSEQS, "--arch", STOCK]
    else:
        words += [OURS, "--arch", f"{family}_{args.size}", "--autocast", args.autocast]
    if "--fp16" in args.options.split() and family != STOCK and "branched_attention" in FAMILIES[family].options:
        words.append("--fp16-no-flatten-grads")
    words = " ".join([*words, "--max-tokens", str(args.max_tokens), args.options]).split()
    words += [str(data), "--adam-betas", "(0.9, 0.98)"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    torch.manual_seed(1)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    batches = trainer.get_train_iterator(epoch=1, load_dataset=False).next_epoch_itr()
    trainer.begin_epoch(1)
    return trainer, batches


def update(trainer: Trainer, batches, count: int, words: list[int]) -> None:
    """`count` updates; appends the number of target words in them."""
    words.append(0)
    for _ in range(count):
        sample = next(batches)
        words[-1] += sample["ntokens"]
        trainer.train_step([sample])


def parts_of(trainer: Trainer, batches) -> dict:
    model, optimizer = trainer.get_model(), type(trainer.optimizer)
    return {
        "data": [(type(batches), "__next__")],
        "attention": classes_with(model, MultiheadAttention),
        "other parts of layers": [(type(model.encoder), "forward"), (type(model.decoder), "extract_features")],
        "projection and loss": [(type(trainer.get_criterion()), "forward")],
        "backward": [(optimizer, "backward")],
        "scaling of gradients": [(optimizer, "multiply_grads")],
        "clipping": [(optimizer, "clip_grad_norm")],
        "optimizer": [(optimizer, "step")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="a data-bin with a joint vocabulary (default: made up)")
    parser.add_argument("--vocabulary", type=int, default=8000, help="of made-up data")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--arch", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--autocast", choices=["off", "bf16"], default="off", help="precision of our models")
    parser.add_argument("--max-tokens", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=10, help="in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--options", default="", help="more of fairseq-train, for all: --options='--dropout 0'")
    parser.add_argument("--alone", choices=(STOCK, *FAMILIES), help="no timing: the memory of --updates of this one")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there too")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.size}, {args.max_tokens} tokens")
    with tempfile.TemporaryDirectory() as folder:
        pairs = 4000 + args.updates * (args.rounds + 2) * args.max_tokens // 20  # enough batches for one epoch
        data = args.data or made_up(args.vocabulary, pairs, pathlib.Path(folder))
        if args.alone:
            update(*build_trainer(args.alone, args, data), args.updates, [])
            print(f"{args.alone}: at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
            return
        trainers = {family: build_trainer(family, args, data) for family in (STOCK, *args.arch)}
        words = {name: [] for name in trainers}
        steps = {name: functools.partial(update, *both, args.updates, words[name]) for name, both in trainers.items()}
        times = time_in_turn(steps, args.rounds)
        # the first round is not counted
        speeds = {name: [count / s for count, s in zip(words[name][1:], times[name], strict=True)] for name in times}
        found = {"updates": report_speeds("updates", speeds)}
        shares = {name: seconds_by_part(steps[name], parts_of(*trainers[name])) for name in (STOCK, args.arch[0])}
        print_shares(f"where the time of {args.updates} updates goes", shares)
        found["seconds by part"] = shares
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
