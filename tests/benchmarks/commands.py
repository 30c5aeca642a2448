"""Times the commands that users type, with fairseq's own Transformer and with ours, in turn, and prints ratios.

    python tests/benchmarks/commands.py data/tatoeba.fr-en runs/vaswani_transformer_tiny.fr-en/average.pt

train        words/s in fairseq-train's log, of the quickstart's model and batch; without checkpoints
generate     seconds of fairseq-generate for the test set; how many hypotheses are the same
translate    seconds of nmt-translate for the lines of the test set, beside those of fairseq-interactive for the same
             lines in subwords
sentence     the same for one line

Both sides run with the same environment: set OMP_NUM_THREADS, or the recipes' MALLOC_… variables (steps.sh), for both.
A ratio is that of one round: above 1 ours is faster. Nothing else should run. With --record NAME the figures are kept
in results/NAME.json, and python examples/tables.py puts them into the README's table.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch

PROJECT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "examples"))

from record import commit, machine, versions  # noqa: E402
from tables import command_rows  # noqa: E402

from user_dir.families import FAMILIES  # noqa: E402
from user_dir.preparation import preparation_of  # noqa: E402
from user_dir.tools.shared.command import table  # noqa: E402
from user_dir.tools.shared.records import write_record  # noqa: E402
from user_dir.tools.shared.training_log import read_log  # noqa: E402

SEARCH = "--beam 4 --lenpen 1 --max-len-a 1 --max-len-b 50 --max-tokens 6000 --required-batch-size-multiple 1".split()
TRAINING = """--share-all-embeddings --label-smoothing 0.1 --clip-norm 1 --dropout 0 --max-tokens 1000 --lr 5e-3
    --lr-scheduler polynomial_decay --warmup-updates 250 --total-num-update 2400 --seed 1 --no-save --disable-validation
    --log-format simple --log-interval 20 --encoder-normalize-before --decoder-normalize-before""".split()
SIDES = """--encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512 --encoder-attention-heads 4
    --decoder-layers 2 --decoder-attention-heads 4""".split()  # the decoder's widths are the encoder's
TASK = ["--user-dir", "user_dir", "--task", "checked_translation"]
RULE = "--criterion fused_label_smoothed_cross_entropy --optimizer fused_adam --branch-frozen-updates 0".split()


class Commands:
    """The commands on both sides; each method returns a figure; `command_rows` says whether more is better."""

    def __init__(self, args: argparse.Namespace, folder: pathlib.Path):
        self.args, self.folder, self.data = args, folder, str(args.data / "data-bin")
        prepared = preparation_of(args.data / "data-bin")
        self.raw, self.subwords = (args.data / folder / f"test.{prepared.languages[0]}" for folder in ("raw", "bpe"))
        self.stock = folder / "stock.pt"
        convert = ["-m", "user_dir.tools.convert_checkpoint", args.checkpoint, "--to", "transformer"]
        self.run([sys.executable, *convert, "--output", self.stock])
        self.hypotheses: dict[bool, list[str]] = {}

    def run(self, words: list, stdin: pathlib.Path | None = None) -> tuple[float, str]:
        """The seconds and the output of a command."""
        begun = time.perf_counter()
        with open(stdin or os.devnull) as file:
            done = subprocess.run([*map(str, words)], stdin=file, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"commands.py: {' '.join(map(str, words))} failed:\n{done.stderr[-2000:]}")
        return time.perf_counter() - begun, done.stdout

    def train(self, ours: bool) -> float:
        log = self.folder / "train.log"
        log.unlink(missing_ok=True)
        own = ["--criterion", "label_smoothed_cross_entropy", "--optimizer", "adam", "--arch", "transformer"]
        if ours:
            own = [*TASK, *RULE, "--arch", f"{self.args.family}_tiny", "--autocast", self.args.autocast]
        limits = ["--adam-betas", "(0.9, 0.98)", "--max-update", self.args.updates, "--log-file", log]
        limits += ["--save-dir", self.folder]  # fairseq would continue from a checkpoint in checkpoints/
        self.run(["fairseq-train", self.data, *TRAINING, *SIDES, *own, *limits])
        speeds = [values["wps"] for values in read_log(log)["train_inner"].values()]
        return statistics.median(speeds[1:])

    def generate(self, ours: bool) -> float:
        own = ["--path", self.stock]
        if ours:
            overrides = f"{{'autocast': '{self.args.autocast}'}}"
            own = [*TASK, "--path", self.args.checkpoint, "--model-overrides", overrides]
        seconds, output = self.run(["fairseq-generate", self.data, *own, *SEARCH])
        self.hypotheses[ours] = sorted(re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.MULTILINE))
        return seconds

    def search(self, ours: bool, raw: pathlib.Path, subwords: pathlib.Path) -> float:
        if ours:
            own = ["--engine", "ctranslate2", "--beam", 4, "--lenpen", 1]
            return self.run(["nmt-translate", self.args.checkpoint, *own, "--input", raw])[0]
        buffer = ["--buffer-size", 2000]
        return self.run(["fairseq-interactive", self.data, "--path", self.stock, *SEARCH, *buffer], stdin=subwords)[0]

    def translate(self, ours: bool) -> float:
        return self.search(ours, self.raw, self.subwords)

    def sentence(self, ours: bool) -> float:
        first = [self.folder / "raw", self.folder / "subwords"]
        for file, text in zip(first, (self.raw, self.subwords)):
            file.write_text(text.read_text(encoding="utf-8").partition("\n")[0] + "\n", encoding="utf-8")
        return self.search(ours, *first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="a folder of data-prep, such as data/tatoeba.fr-en")
    parser.add_argument("checkpoint", type=pathlib.Path, help="a vaswani_transformer that was trained with it")
    names = ["train", "generate", "translate", "sentence"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--family", choices=FAMILIES, default="vaswani_transformer", help="family to train")
    parser.add_argument(
        "--autocast", choices=("off", "bf16"), default="off", help="of our training and fairseq-generate"
    )
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", metavar="NAME", help="keep the figures in results/NAME.json")
    args = parser.parse_args()
    if args.family != "vaswani_transformer" and args.only != ["train"]:
        parser.error(f"--family {args.family}: the other commands have the checkpoint's family: add --only train")
    if args.updates < 40 or args.rounds < 1:
        parser.error("give at least 40 --updates, because the first 20 do not count, and at least one of --rounds")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(args, pathlib.Path(folder))
        for name in args.only:
            pairs = [(getattr(commands, name)(False), getattr(commands, name)(True)) for _ in range(args.rounds)]
            figures[name] = pairs
            print(f"{name}: {pairs}", flush=True)
    about = {"family": args.family, "autocast": args.autocast, "updates": args.updates}
    about["threads"] = torch.get_num_threads()
    record = {**about, "commit": commit(), "versions": versions(), "machine": machine(), "figures": figures}
    print(table(["command", "fairseq's", "ours", "ratio"], command_rows(record)))
    if "generate" in figures:
        both = zip(*(commands.hypotheses[ours] for ours in (False, True)), strict=True)
        same = [stock == ours for stock, ours in both]
        print(f"{sum(same):,} of {len(same):,} hypotheses of fairseq-generate are the same")
    if args.record:
        results = pathlib.Path(__file__).parent / "results"
        results.mkdir(exist_ok=True)
        write_record(results / f"{args.record}.json", record)


if __name__ == "__main__":
    main()
