"""Everything that only a GPU can show, in one report; gpu.sh starts it.

The report (JSON and Markdown) is written anew after each row, so that one that is cut off holds all that was done. A
part that fails is a row that says so, and makes the exit status 1; what there was no time for is said, too.
"""

import argparse
import functools
import itertools
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from user_dir.families import FAMILIES
from user_dir.files import write_text
from user_dir.serving.models import load
from user_dir.tools.shared.command import table
from user_dir.tools.shared.training_log import read_log

from support import PROJECT, hypotheses, write_toy_data

ON_GPU = torch.cuda.is_available()
AT_A_TIME = 6  # trainings that are checked, not timed
PRECISIONS = {
    "float32": "",
    "--fp16": "--fp16 --fp16-init-scale 16",
    "--memory-efficient-fp16": "--memory-efficient-fp16 --fp16-init-scale 16",
    "--amp": "--amp --fp16-init-scale 16",
    "--autocast bf16": "--autocast bf16",
}
LOSS = "last loss of validation"
TRAINING = """--user-dir user_dir --source-lang src --target-lang tgt --share-all-embeddings --optimizer fused_adam
    --criterion fused_label_smoothed_cross_entropy --label-smoothing 0.1 --clip-norm 1 --branch-frozen-updates 0
    --attention-dropout 0.1 --lr 5e-3 --lr-scheduler inverse_sqrt --warmup-updates 50 --max-tokens 1000
    --log-format json --log-interval 10 --encoder-layers 2 --decoder-layers 2 --no-epoch-checkpoints
    --task checked_translation --update-epoch-batch-itr True --seed 1 --distributed-world-size 1""".split()
MEASURED = """
import torch, fairseq_cli.train
torch.cuda.reset_peak_memory_stats = lambda: None  # fairseq's trainer calls it after each update
fairseq_cli.train.cli_main()
if torch.cuda.is_available():
    print("at most", torch.cuda.max_memory_allocated() // 2**20, "MB")
"""


class Failure(Exception):
    """A command that fails, or a result that is not what it must be."""


class TimeIsOver(Exception):
    pass


class Commands:
    """Runs commands in the project's folder until the time is over."""

    def __init__(self, minutes: float):
        self.end = time.monotonic() + 60 * minutes

    def run(self, *words, **variables) -> str:
        """The command's standard output and error, in the order in which they were written.

        Raises:
            Failure: with its last line, if it fails
            TimeIsOver: if it does not end in time; it is ended then, and all that it has started
        """
        left = self.end - time.monotonic()
        if left < 5:
            raise TimeIsOver
        environment = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "4", **os.environ, **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen([*map(str, words)], cwd=PROJECT, env=environment, start_new_session=True, **pipes)
        try:
            output, _ = process.communicate(timeout=left)
        except BaseException as reason:  # also Ctrl-C, which a session of its own does not hear
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(reason, subprocess.TimeoutExpired):
                raise TimeIsOver from None
            raise
        if process.returncode:
            raise Failure(([""] + output.strip().splitlines())[-1][:300])
        return output


class Parts:
    """The parts of the report, by the names of the functions; each yields rows: {column: value}."""

    def __init__(self, commands: Commands, work: pathlib.Path, small: bool):
        self.commands, self.work, self.small = commands, work, small

    def output(self, *command, **variables) -> dict:
        """{"output": …}, or {"failed": …}."""
        return attempt(lambda: {"output": self.commands.run(*command, **variables)})

    def machine(self) -> Iterator[dict]:
        """the machine: its processors, memory and versions"""
        found = {"Python": sys.version.split()[0], "torch": torch.__version__, "processors": os.cpu_count()}
        for number in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(number)
            found |= {f"GPU {number}": device.name, f"GPU {number}, GB": device.total_memory // 2**30}
        yield found

    @functools.cached_property
    def copies(self) -> pathlib.Path:
        """A data-bin whose targets are its sources."""
        folder = self.work / "copies"
        folder.mkdir(exist_ok=True)  # a part before may have failed here
        return write_toy_data(folder, train=4000, vocabulary=20, longest=11, command=self.commands.run)

    def train(self, name: str, family: str, *options, launch=(sys.executable, "-c", MEASURED)) -> dict:
        """Trains a small model on `copies`; its losses, what it took, and how far κ and α are from the simplex."""
        folder = self.work / name
        updates = 40 if self.small else 400
        more = ["--arch", f"{family}_tiny", "--save-dir", folder, "--max-update", updates, *options]
        output = self.commands.run(*launch, self.copies, *TRAINING, *([] if ON_GPU else ["--cpu"]), *more)
        (folder / "train.log").write_text(output)
        log = read_log(folder / "train.log")
        first, last = (float(list(log[kind].values())[at]["loss"]) for kind, at in (("train_inner", 0), ("valid", -1)))
        if not (math.isfinite(last) and last < first):
            raise Failure(f"the loss was {first} and is {last} after {updates} updates")
        state = load(folder / "checkpoint_last.pt")["model"]
        weights = [value.double() for name, value in state.items() if name.endswith((".kappa", ".alpha"))]
        if not weights and "branched_attention" in FAMILIES[family].options:
            raise Failure("the checkpoint has no κ and α")
        apart = max((max(abs(value.sum() - 1).item(), -value.min().item()) for value in weights), default=None)
        if apart is not None and apart > 2e-3:  # --fp16 saves them in half precision
            raise Failure(f"κ or α is {apart:.1e} away from the simplex")
        memory = re.search(r"at most (\d+) MB", output)
        return {
            "first loss": first,
            LOSS: last,
            "words/s": list(log["train_inner"].values())[-1].get("wps"),
            "MB": int(memory[1]) if memory else None,
            "κ, α from the simplex": None if apart is None else f"{apart:.1e}",
        }

    def precisions(self) -> Iterator[dict]:
        """every family learns to copy in every precision that fairseq has"""
        _ = self.copies  # before several need it
        wanted = [
            (family, name)
            for family, name in itertools.product(FAMILIES, PRECISIONS)
            if ON_GPU or name in ("float32", "--autocast bf16")
            # which refuses κ and α
            if name != "--memory-efficient-fp16" or "branched_attention" not in FAMILIES[family].options
        ]
        with ThreadPoolExecutor(AT_A_TIME if ON_GPU else 1) as pool:
            reference = None
            for row in pool.map(self.of_precision, *zip(*wanted)):  # of each family, float32 first
                reference = row.get(LOSS) if row["precision"] == "float32" else reference
                yield row | higher(row, reference, 1.05)

    def of_precision(self, family: str, precision: str) -> dict:
        name, options = f"{family}{precision}".replace(" ", ""), PRECISIONS[precision].split()
        if precision == "--fp16" and "branched_attention" in FAMILIES[family].options:
            options.append("--fp16-no-flatten-grads")
        return {"family": family, "precision": precision, **attempt(self.train, name, family, *options)}

    def search(self) -> Iterator[dict]:
        """translations on this device beside those on its CPU, in float32 and half precision"""

        def best(family: str, options: str) -> list[str]:
            path = self.work / f"{family}float32" / "checkpoint_last.pt"
            if not path.exists():  # which `precisions` trains
                self.train(f"{family}float32", family)
            command = ["fairseq-generate", self.copies, "--user-dir", "user_dir", "--path", path, "--beam", 4]
            output = self.commands.run(*command, "--required-batch-size-multiple", 1, *options.split())
            return [text for _, text in hypotheses(output)]

        def compared(family: str, options: str) -> dict:
            expected = best(family, "--cpu")
            same = sum(one == other for one, other in zip(best(family, options), expected, strict=True))
            if not expected or same < len(expected) * (0.8 if "--fp16" in options else 0.95):
                raise Failure(f"only {same} of {len(expected)} translations are those of the CPU")
            return {"as the CPU's": f"{same} of {len(expected)}"}

        ours = "--task checked_translation"
        for family, options in itertools.product(FAMILIES, ("--task translation", ours, *[f"{ours} --fp16"] * ON_GPU)):
            yield {"family": family, "options": options, **attempt(compared, family, options)}

    def processes(self) -> Iterator[dict]:
        """the same batch on one device and on several, started as the recipes start them"""
        count = torch.cuda.device_count() if ON_GPU else 2
        if count == 1:
            yield {"devices": 1, "processes": "nothing to compare"}
            return
        alone = None
        for family, size in itertools.product(FAMILIES, sorted({1, 2 - count % 2, count})):  # which divide it
            options = ["--update-freq", count // size, "--dropout", 0, "--attention-dropout", 0]
            options += ["--distributed-world-size", size]
            launch = [sys.executable, "-c", MEASURED]
            if size > 1:
                launch = ["torchrun", "--standalone", "--nproc-per-node", str(size), "--no-python"]
                launch += ["fairseq-train"] if ON_GPU else ["examples/shared/cpu_process.sh"]
            if size > 1 and not ON_GPU:
                options += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
                options += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
            found = attempt(self.train, f"{family}-{size}", family, *options, launch=launch)
            alone = found.get(LOSS) if size == 1 else alone
            yield {"family": family, "processes": size, **found, **higher(found, alone, 1.01)}

    def speed(self) -> Iterator[dict]:
        """fairseq's trainer, V = 37,000: words/s of ours and its own model"""
        sizes = ["tiny"] if self.small else ["base", "big"]
        options = {"float32": ()}
        if ON_GPU:
            options["--fp16"] = (f"--options={PRECISIONS['--fp16']}",)
        options["ours --autocast bf16, fairseq's float32"] = ("--autocast", "bf16")
        for (precision, more), size in itertools.product(options.items(), sizes):
            found = self.work / "speed.json"
            command = [sys.executable, "tests/benchmarks/trainer.py", "--size", size, "--json", found, *more]
            command += ["--vocabulary", 1000 if self.small else 37000, "--max-tokens", 1000 if self.small else 4096]
            command += ["--updates", 2 if self.small else 10, "--rounds", 2 if self.small else 5]
            done = self.output(*command)
            if "output" not in done:
                yield {"size": size, "precision": precision, **done}
                continue
            for model, values in json.loads(found.read_text())["updates"].items():
                rounded = {name: float(f"{value:.4g}") for name, value in values.items()}
                yield {"size": size, "precision": precision, "model": model, **rounded}

    def generation(self) -> Iterator[dict]:
        """beam search of 64 and 512 sentences of 32 words: seconds of ours and fairseq's own model"""
        scale = ("tiny", 1000, 2) if self.small else ("base", 37000, 6)
        for sentences in (4,) if self.small else (64, 512):
            command = [sys.executable, "tests/benchmarks/speed.py", "--sentences", sentences]
            command += [word for both in zip(("--size", "--vocabulary", "--repeats"), scale) for word in both]
            found = self.output(*command)
            output = found.pop("output", "").partition("generation\n")[2]
            for model, ms, ratio in re.findall(r"^  (.*?) +(\d+) ms .* (\S+)$", output, re.MULTILINE):
                found[model] = f"{ms} ms, {ratio} of fairseq's"
            yield {"sentences": sentences, **found}


ORDER = ("machine", "precisions", "search", "processes", "speed", "generation")


def attempt(action, *args, **kwargs) -> dict:
    """The row that `action` returns, or one that says why there is none; when time is over that is raised."""
    try:
        return action(*args, **kwargs)
    except TimeIsOver:
        raise
    except Exception as failure:
        return {"failed": str(failure) or type(failure).__name__}


def higher(row: dict, reference: float | None, times: float) -> dict:
    """{"failed": …} if the loss in `row` is that many times `reference`, else empty."""
    if LOSS not in row or reference is None or row[LOSS] <= times * reference + 0.01:
        return {}
    return {"failed": f"the loss is {row[LOSS]}, and {reference} in the first row of this family"}


def markdown(report: dict) -> str:
    """Each part as a table."""
    blocks = ["# The report of a GPU"]
    for name, rows in report.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        cells = [["" if row.get(column) is None else str(row[column]) for column in columns] for row in rows]
        blocks.append(f"## {name}: {getattr(Parts, name).__doc__}\n\n{table(columns, cells)}")
    return "\n\n".join(blocks) + "\n"


def save(report: dict, output: str) -> None:
    for ending, text in ((".json", json.dumps(report, indent=1, ensure_ascii=False) + "\n"), (".md", markdown(report))):
        write_text(pathlib.Path(output + ending), text)


def main() -> None:
    parts = "\n".join(f"  {name:12} {getattr(Parts, name).__doc__}" for name in ORDER)
    parser = argparse.ArgumentParser("tests/gpu.sh", description=__doc__, epilog=f"parts:\n{parts}")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=25, help="after which a running part is ended")
    parser.add_argument("--output", default="gpu-report", help="the report's name, without .json and .md")
    parser.add_argument("--parts", nargs="+", choices=ORDER, default=ORDER, metavar="NAME")
    parser.add_argument("--small", action="store_true", help="small sizes, also without a GPU: does the report work?")
    args = parser.parse_args()
    if not (ON_GPU or args.small):
        sys.exit("gpu.sh: torch sees no GPU here: run it where there is one, or see whether it works with --small")
    report, failed = {}, False
    with tempfile.TemporaryDirectory() as work:
        found = Parts(Commands(args.minutes), pathlib.Path(work), args.small)
        for name in args.parts:
            report[name] = []
            try:
                for row in getattr(found, name)():
                    report[name].append(row)
                    print(f"{name}:", ", ".join(f"{column} {value}" for column, value in row.items()), flush=True)
                    save(report, args.output)
            except Exception as reason:
                said = "the time was over" if isinstance(reason, TimeIsOver) else str(reason) or type(reason).__name__
                report[name].append({"failed": said})
                save(report, args.output)
            failed |= any("failed" in row for row in report[name])
    print(f"written: {args.output}.json, {args.output}.md")
    sys.exit(failed)


if __name__ == "__main__":
    main()
