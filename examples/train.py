"""Trains the groups of trainings.toml to their end, several at a time, and leaves a record of each in results/.

    python examples/train.py multi30k g2p --mirror /data     # goes on where it stopped; finished trainings are skipped
    python examples/train.py multi30k --list                 # the commands, and which of them have a record

Each training is the recipe's command as it can be typed, with one thread on CPUs (OMP_NUM_THREADS and GPUS say
otherwise), at the lowest priority, in runs/trainings/NAME; its output is in NAME.log there. Ctrl-C or SIGTERM ends
everything that it started. The recipes and the code are read all the time: start it in a checkout that nobody edits.
"""

import argparse
import fnmatch
import itertools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from typing import NamedTuple

PROJECT = pathlib.Path(__file__).resolve().parents[1]
TABLE = PROJECT / "examples/trainings.toml"
RESULTS = PROJECT / "examples/results"
RUNS = PROJECT / "runs/trainings"
# What a recipe reads from its environment and is part of the command where it is set.
VARIABLES = "SOURCE SIZE GPUS PROCESSES MAX_TOKENS UPDATES AVERAGE BATCH SMOKE STEPS OMP_NUM_THREADS".split()
GRACE = 20  # seconds that processes have to end after SIGTERM


class Training(NamedTuple):
    name: str
    row: str  # the name without the seed
    group: str
    published: str  # key of the figure to compare with
    recipe: str
    variables: dict[str, str]
    options: list[str]
    mirror: str  # within the folder of --mirror

    @property
    def run(self) -> pathlib.Path:
        return RUNS / self.name

    @property
    def record(self) -> pathlib.Path:
        return RESULTS / f"{self.name}.json"

    def command(self, mirror: pathlib.Path | None) -> tuple[dict[str, str], list[str]]:
        """The variables and the words."""
        given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        variables = {"OMP_NUM_THREADS": "1", "GPUS": "0", **given, **self.variables}
        if mirror is not None:
            variables["MIRROR"] = str(mirror.resolve() / self.mirror)
        variables["OUTPUT"] = str(self.run.relative_to(PROJECT))
        return variables, [f"examples/{self.recipe}", *self.options]


def read_table() -> dict[str, dict]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def trainings_of(group: str, table: dict[str, dict]) -> list[Training]:
    """In the order of the table; each seed of all rows before the next one, so that an early end leaves whole seeds."""
    found = []
    for row in table[group]["rows"]:
        given = {name: [value] if isinstance(value, str) else value for name, value in row.get("variables", {}).items()}
        for values in itertools.product(*given.values()):
            variables = dict(zip(given, values))
            key = ".".join(value for name, value in variables.items() if len(given[name]) > 1)
            for family, seed in itertools.product(row["families"], row["seeds"]):
                label = ".".join(filter(None, [group, key, family, row.get("word")]))
                everything = variables | {"FAMILY": family, "SEED": str(seed)}
                mirror = row.get("mirror", "").format(**everything)
                options = row.get("options", [])
                found.append(
                    (seed, Training(f"{label}.{seed}", label, group, key, row["recipe"], everything, options, mirror))
                )
    return [training for _, training in sorted(found, key=lambda pair: pair[0])]


def commit() -> str:
    """Of the checkout; "dirty" if files that git tracks are modified, records and pages aside."""
    git = ["git", "-C", str(PROJECT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!examples/results", ":!*.md"]
        return head + (" dirty" if subprocess.run(changed, capture_output=True, text=True, check=True).stdout else "")
    except (OSError, subprocess.CalledProcessError):
        return "no checkout"


class Running:
    """A training under way, in a session of its own, so that it and what it starts can be ended together."""

    def __init__(self, training: Training, mirror: pathlib.Path | None):
        self.training = training
        variables, words = training.command(mirror)
        self.command = shlex.join([*(f"{name}={value}" for name, value in variables.items()), *words])
        training.run.mkdir(parents=True, exist_ok=True)
        self.log = training.run.with_name(f"{training.name}.log")
        # The environment is that of this Python; two recipes must not complete it at a time.
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.note(commit=commit(), command=self.command, begun=begun)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["nice", "-n", "19", "bash", *words],
                cwd=PROJECT,
                env=os.environ | variables | {"PATH": path, "INSTALL": "no"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.status = None

    def ended(self) -> bool:
        if self.status is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = self.status = os.waitstatus_to_exitcode(status)
                self.note(status=self.status, peak_kib=usage.ru_maxrss)  # of the largest process that it started
        return self.status is not None

    def note(self, **facts) -> None:
        """Adds a line to those of the run's starts and ends, which record.py reads."""
        with open(self.training.run / "starts.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")

    def signal(self, number: int) -> bool:
        """Whether there was any process left to get it."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def progress(self) -> str:
        """The last report and the last validation loss in the recipe's output."""
        with open(self.log, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 20_000))
            text = log.read().decode(errors="replace")
        update = re.findall(r"^update (\d+ of \d+): (?!valid)(?:.*?([\d.]+) words/s)?", text, re.MULTILINE)
        valid = re.findall(r"^update \d+ of \d+: valid loss ([\d.]+)", text, re.MULTILINE)
        step = re.findall(r"^# (\w+)$", text, re.MULTILINE)
        said = f"{update[-1][0]}, {update[-1][1]} words/s" if update else (step[-1] if step else "begins")
        return f"{self.training.name}: {said}" + (f", valid {valid[-1]}" if valid else "")


def train(waiting: list[Training], jobs: int, mirror: pathlib.Path | None) -> int:
    """Returns how many failed. Ctrl-C and SIGTERM end what runs, and this command."""
    running: list[Running] = []
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):  # looked at between two steps, so that nothing is started and missed
        signal.signal(number, lambda number, frame: stop.append(number))
    count, failed, shown, said = len(waiting), 0, 0.0, ""
    terminal = sys.stdout.isatty()
    try:
        while waiting or running:
            if stop:
                sys.exit(128 + stop[0])
            while waiting and len(running) < jobs:
                running.append(Running(waiting.pop(0), mirror))
            time.sleep(0.2)
            for one in [one for one in running if one.ended()]:
                running.remove(one)
                one.signal(signal.SIGTERM)
                outcome = finish(one)
                failed += outcome is not None
                print(f"{chr(13) if terminal else ''}{one.training.name}: {outcome or one.training.record}", flush=True)
            if running and time.monotonic() - shown > (3 if terminal else 60):
                shown, before = time.monotonic(), len(said)
                left = f"{count - len(waiting) - len(running)} of {count} ended"
                said = " | ".join([left, *(one.progress() for one in running)])
                print(f"\r{said:{before}}" if terminal else said, end="" if terminal else "\n", flush=True)
    finally:
        end(running)
    return failed


def finish(one: Running) -> str | None:
    """Writes the record of a training that has ended; returns why there is none."""
    if one.status:
        return f"ended with status {one.status}; see the end of {one.log}"
    script = [sys.executable, PROJECT / "examples/record.py", one.training.run, one.training.record, one.training.row]
    done = subprocess.run(script, cwd=PROJECT, capture_output=True, text=True)
    return f"no record: {done.stderr.strip()[-500:]}" if done.returncode else None


def end(running: list[Running]) -> None:
    for one in running:
        one.signal(signal.SIGTERM)
    limit = time.monotonic() + GRACE
    for one in running:
        while (not one.ended() or one.signal(0)) and time.monotonic() < limit:
            time.sleep(0.05)
        one.signal(signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    table = read_table()
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help=f"a group ({', '.join(table)}) or a pattern of names, as 'g2p.hun.*.1'"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="trainings at a time (default: %(default)s)")
    parser.add_argument("--mirror", type=pathlib.Path, metavar="FOLDER", help="with the corpora, where not fetched")
    parser.add_argument("--list", action="store_true", help="print the commands and do nothing")
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: at least 1")
    every = [training for group in table for training in trainings_of(group, table)]
    chosen = {
        name: [one for one in every if name == one.group or fnmatch.fnmatchcase(one.name, name)] for name in args.names
    }
    for name, found in chosen.items():
        if not found:
            parser.error(f"{name}: neither a group ({', '.join(table)}) nor a pattern of a training's name; see --list")
    trainings = list({training.name: training for found in chosen.values() for training in found}.values())
    waiting = [training for training in trainings if not training.record.exists()]
    if args.list:
        for training in trainings:
            variables, words = training.command(args.mirror)
            line = shlex.join([*(f"{name}={value}" for name, value in variables.items()), *words])
            print(f"{'to do' if training in waiting else 'done '} {training.name}: {line}")
        return
    print(f"{len(trainings) - len(waiting)} of {len(trainings)} trainings have a record", flush=True)
    failed = train(waiting, args.jobs, args.mirror)
    if failed:
        sys.exit(f"train.py: {failed} of {len(trainings)} trainings failed; the same command tries them again")


if __name__ == "__main__":
    main()
