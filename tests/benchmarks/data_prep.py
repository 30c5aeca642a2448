"""The cost of preparing a corpus: against the libraries' commands, by step, and in memory.

    python tests/benchmarks/data_prep.py a.de a.en --source-lang de --target-lang en [--lines 20000] [--copies 1 8]

1. sacremoses' and subword-nmt's command lines one after the other, and ours, in turn on the same lines: seconds, ratio,
   and whether the files are equal. Theirs include the start of each command; our processes wait already.
2. prepare.py on all the text once and so many times (each copy with a word of its own, or it would be dropped as a
   duplicate): seconds of each stage, what more pairs take, the time to expect for WMT14 from the difference of the two
   sizes (learning subwords depends on the number of different words instead), and the largest process's memory.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

DATA_PREP = Path(__file__).resolve().parents[2] / "data-prep"
sys.path.insert(0, str(DATA_PREP))

from preparation import subwords  # noqa: E402
from preparation.parallel import map_file  # noqa: E402
from preparation.tokenising import tokenise_lines  # noqa: E402

OPERATIONS = 8000


def run(source: Path, target: Path, name: str, *arguments: str) -> float:
    """Seconds that a command of the libraries takes from file to file."""
    start = time.perf_counter()
    with open(source, "rb") as read, open(target, "wb") as write:
        command = [Path(sys.executable).with_name(name), *arguments]
        subprocess.run(command, stdin=read, stdout=write, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def timed(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def compare(text: Path, language: str, lines: int, folder: Path) -> None:
    """Prints what each step takes with the libraries' commands and with ours."""
    part = folder / "text"
    with open(text, encoding="utf-8") as source:
        chosen = [*islice(source, lines)]
    part.write_text("".join(chosen), encoding="utf-8")
    theirs = {
        "normalise": run(part, folder / "normalised", "sacremoses", "-q", "-l", language, "normalize"),
        "tokenise": run(folder / "normalised", folder / "tokens", "sacremoses", "-q", "-l", language, "tokenize"),
        "learn": run(folder / "tokens", folder / "codes", "subword-nmt", "learn-bpe", "-s", str(OPERATIONS)),
        "segment": run(folder / "tokens", folder / "pieces", "subword-nmt", "apply-bpe", "-c", str(folder / "codes")),
    }
    steps = {
        "normalise, tokenise": (tokenise_lines, part, "tokens", (language, False)),
        "split into subwords": (subwords.segment_lines, folder / "tokens", "pieces", (folder / "codes",)),
    }
    print(f"{len(chosen):,} lines of {text.name}")
    print(f"{'':30}   commands   1 core  {os.cpu_count()} cores   ratio   lines/s a core   equal")
    for name, (function, source, result, arguments) in steps.items():
        seconds = theirs["segment"] if result == "pieces" else theirs["normalise"] + theirs["tokenise"]
        ours = []
        for workers in (1, os.cpu_count()):
            with ProcessPoolExecutor(workers) as pool:
                list(pool.map(abs, range(workers)))  # processes are started
                ours.append(timed(map_file, pool, function, source, folder / f"our {result}", *arguments))
        equal = (folder / f"our {result}").read_bytes() == (folder / result).read_bytes()
        times = f"{seconds:8.2f} s {ours[0]:6.2f} s {ours[1]:6.2f} s"
        print(f"{name:30} {times} {seconds / ours[1]:6.1f}x {len(chosen) / ours[0]:12,.0f}       {equal}")
    ours = timed(subwords.learn, [folder / "tokens"], folder / "our codes", OPERATIONS)
    equal = (folder / "our codes").read_bytes() == (folder / "codes").read_bytes()
    times = f"{theirs['learn']:8.2f} s {ours:6.2f} s {'':8}"
    print(f"{'learn subwords (one process)':30} {times} {theirs['learn'] / ours:6.1f}x {'':18} {equal}")


def prepare(texts: list[Path], languages: list[str], copies: int, folder: Path) -> tuple[int, dict[str, float]]:
    """Pairs, and seconds of each stage, when prepare.py is given so many copies of the texts."""
    files = [folder / f"{copies}.{language}" for language in languages]
    for text, file in zip(texts, files):
        lines = text.read_text(encoding="utf-8").split("\n")[:-1]
        with open(file, "w", encoding="utf-8") as target:
            for copy in range(copies):
                target.writelines(f"{line} {copy}{number % 10}\n" for number, line in enumerate(lines))
    output = folder / f"out{copies}"
    codes = ["--source-lang", languages[0], "--target-lang", languages[1], "--bpe-operations", str(OPERATIONS)]
    command = [sys.executable, DATA_PREP / "prepare.py", "--train", *files, *codes, "--output", output]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of the largest process so far
    stages = json.loads((output / "manifest.json").read_text())["stages"]
    pairs = stages["raw"]["counts"]["in"]
    print(f"\n{pairs:,} pairs, {os.cpu_count()} cores; largest process {memory:,.0f} MB")
    seconds = {name: stage["seconds"] for name, stage in stages.items()}
    print("  ".join(f"{name} {value} s" for name, value in seconds.items()))
    return pairs, seconds


def project(few: tuple[int, dict], many: tuple[int, dict]) -> None:
    """Prints what a pair more takes, and what that means for WMT14."""
    for name, seconds in many[1].items():
        each = (seconds - few[1][name]) / (many[0] - few[0])
        hours = [(seconds + each * (pairs - many[0])) / 3600 for pairs in (4.5e6, 36e6)]
        minutes = f"4.5M: {hours[0] * 60:6.0f} min   36M: {hours[1]:5.1f} h"
        print(f"{name:10} {1 / max(each, 1e-9):10,.0f} pairs/s   {minutes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs=2, type=Path, help="source and target, one sentence a line")
    parser.add_argument("--source-lang", required=True)
    parser.add_argument("--target-lang", required=True)
    parser.add_argument("--lines", type=int, default=20_000, help="lines for the comparison with the commands; 0: none")
    parser.add_argument("--copies", type=int, nargs="*", default=[1, 8], help="of the text to prepare (default: 1 8)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.lines:
            compare(options.texts[0], options.source_lang, options.lines, Path(folder))
        languages = [options.source_lang, options.target_lang]
        runs = [prepare(options.texts, languages, copies, Path(folder)) for copies in options.copies]
        if len(runs) > 1:
            project(runs[0], runs[-1])


if __name__ == "__main__":
    main()
