"""Records a recipe's run: what was run, where and how long, and its scores with their signatures.

    python examples/record.py begin RUN DATA-BIN COMMAND …   # appends commit, command, … to RUN/starts.jsonl
    python examples/record.py end RUN                        # writes RUN/run.json

RUN is a recipe's output folder. Variables of the recipe that are set become part of the command.
"""

import hashlib
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

PROJECT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))  # this checkout, even if another one is installed

from user_dir.errors import InputError  # noqa: E402
from user_dir.files import write_text  # noqa: E402
from user_dir.tools.shared.command import exit_in_one_line  # noqa: E402
from user_dir.tools.shared.records import LOG, RECORD, TRANSLATIONS, read_record, write_record  # noqa: E402
from user_dir.tools.shared.training_log import read_log  # noqa: E402

STARTS = "starts.jsonl"
VARIABLES = """OMP_NUM_THREADS CORPUS SOURCE TARGET TASK TREEBANK PARSED FAMILY ARCH SIZE GPUS PROCESSES NODES
    MAX_TOKENS UPDATES MINUTES PAIRS VALIDATE AVERAGE BATCH CHOOSE VALID_PAIRS PATIENCE PREPARATION MERGES
    SEED MIRROR OUTPUT SMOKE STEPS""".split()
END = re.compile(r"(?:Stopping|stopping) training (?:due to|because) .*|early stop since .*")
INSTRUCTIONS = "avx2", "avx512f", "avx512_bf16", "amx_bf16"  # of CPUs, by the speed of products
GENERATED = re.compile(r"Generate \S+ with beam=\d+: BLEU4 = ([\d.]+).*")


def commit() -> str:
    """The checkout's commit; if files that git tracks are modified, except records and pages, their checksum, too."""
    git = ["git", "-C", str(PROJECT), "--git-dir=.git"]  # none of a folder around it
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = [*git, "diff", "HEAD", "--", ".", ":!examples/results", ":!tests/benchmarks/results", ":!*.md"]
        changes = subprocess.run(changed, capture_output=True, check=True).stdout
        return head + (f" dirty {hashlib.sha256(changes).hexdigest()[:12]}" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return "no checkout"


def begin(run: pathlib.Path, data: pathlib.Path, command: list[str]) -> None:
    """Appends a line to the starts of the run, which all have the same binarised `data`."""
    corpus = digest(data) if data.is_dir() else None
    starts = starts_of(run)
    if corpus and any((start.get("corpus") or corpus) != corpus for start in starts):
        sys.exit(f"{data} has changed since {run} began: remove {run}, or name another folder: OUTPUT=...")
    if corpus and corpus != (os.environ.get("DATA_SHA256") or corpus):  # train.py's
        sys.exit(f"{data} is not the data of the row's other records: prepare it at their commit, or remove them")
    names = [name for name in VARIABLES if name in os.environ and name != "STEPS"]  # all steps make one run
    typed = as_typed({name: os.environ[name] for name in names}, command)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    trained = (run / "trained").exists()
    untold = not starts and (trained or any(run.glob("checkpoint*.pt")))  # version 0.1 kept no starts
    start = {"commit": commit() + " after an unknown one" * untold, "command": typed, "begun": now, "corpus": corpus}
    start |= {"trained": trained, "versions": versions(), "machine": machine()}
    write_text(run / STARTS, "".join(f"{json.dumps(one)}\n" for one in [*starts, start]))


def as_typed(variables: dict[str, str], words: list[str]) -> str:
    """A command with variables before it, in a form that a shell reads."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(words)])


def starts_of(run: pathlib.Path) -> list[dict]:
    file = run / STARTS
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    except ValueError as error:
        sys.exit(f"record.py: {file} is damaged ({error}): remove the line that is not JSON")


def digest(folder: pathlib.Path) -> str:
    """sha256 over names and contents of the binarised data, without the log of the preprocessing."""
    total = hashlib.sha256()
    for file in sorted(file for file in folder.iterdir() if file.suffix in (".bin", ".idx", ".txt")):
        with open(file, "rb") as stream:
            total.update(f"{file.name}\n{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def versions() -> dict[str, str]:
    packages = ("torch", "fairseq-fixed", "sacrebleu", "fairseq-transformer-variants")
    installed = {"python": platform.python_version()}
    for package in packages:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = "not installed as a package"
    return installed


def machine(cpuinfo: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> dict:
    lines = cpuinfo.read_text() if cpuinfo.exists() else ""
    about = dict(re.findall(r"^(model name|flags)\s*: (.*)", lines, re.MULTILINE)[::-1])  # of the first processor
    found = {"cpu": about.get("model name", platform.machine()), "cores": os.cpu_count()}
    # Virtual machines of different speed call themselves "AMD EPYC".
    if wide := [name for name in INSTRUCTIONS if name in about.get("flags", "").split()]:
        found["instructions"] = wide[-1]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible != "" and shutil.which("nvidia-smi"):
        names = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", *(["--id", visible] if visible else [])]
        listed = subprocess.run(names, capture_output=True, text=True)
        if listed.returncode == 0:  # its errors are printed there, too
            found["gpus"] = listed.stdout.splitlines()
    return found


def training(log: pathlib.Path) -> dict:
    """The course of a training, from fairseq-train's log; `seconds` omit each restart's time to its first line."""
    text, points = log.read_text(encoding="utf-8", errors="replace"), read_log(log)
    devices = re.findall(r"training on (\d+) devices", text)
    inner = list((points.get("train_inner") or points.get("train", {})).values())  # of intervals, else of epochs
    walls = [float(wall) for wall in re.findall(r"[,|] wall[= ]([\d.e+]+)$", text, re.MULTILINE)]
    # A training that continues takes its clock from the checkpoint: the time after that is spent twice.
    again = sum(max(0.0, before - after) for before, after in itertools.pairwise(walls))
    why = END.findall(text)  # the reasons why training stopped
    parameters = re.search(r"num\. (?:shared )?model params: ([\d,]+)", text)
    curve = [
        {
            "update": update,
            "epoch": int(values["epoch"]),
            "seconds": round(values["wall"]) if values["wall"] >= 0 else None,
        }
        | {name: round(values[name], 3) for name in ("loss", "nll_loss", "bleu", "training_loss") if name in values}
        for update, values in sorted(points.get("valid", {}).items())
    ]
    memory, held = ([values[name] for values in inner if name in values] for name in ("memory_gb", "gpu_memory_gb"))
    return {
        "processes": int(devices[-1]) if devices else None,
        "updates": max(max(by_update) for by_update in points.values()),
        "epochs": int(max(values["epoch"] for by_update in points.values() for values in by_update.values())),
        "ended": why[-1] if why else "the log gives no reason: all requested epochs are done",
        "seconds": round(walls[-1] + again) if walls else None,
        "words_per_second": round(statistics.median(values["wps"] for values in inner)) if inner else None,
        "peak_memory_gb": max(memory, default=None),  # of the first process and its data-loader workers
        **({"peak_gpu_memory_gb": max(held)} if held else {}),
        "parameters": int(parameters[1].replace(",", "")) if parameters else None,
        "validation": curve,
    }


def scores(run: pathlib.Path) -> dict[str, dict]:
    """The scores in score.txt with their signatures, and the one in fairseq-generate's last line, if there is one."""
    by_name = {}
    text = (run / "score.txt").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    if len(rows) > 2:  # a table, and a list of signatures
        signatures = dict(re.findall(r"^- ([^:\n]+): (.*)$", text, re.MULTILINE))
        for name, value in zip(rows[0][1:], rows[2][1 - len(rows[0]) :]):  # the folder's name may hold a bar
            score = float(value) if re.fullmatch(r"[\d.]+", value) else value
            by_name[name] = {"score": score, "signature": signatures.get(name, "").strip("`")}
    elif match := re.match(r"(\S+) = ([\d.]+)", text):  # sacrebleu's line
        by_name["sacreBLEU"] = {"score": float(match[2]), "signature": match[1]}
    else:
        raise InputError(f"{run / 'score.txt'} holds no score: score the run again")
    with open(run / TRANSLATIONS, encoding="utf-8", errors="replace") as log:
        for line in log:
            if match := GENERATED.search(line):
                by_name["BLEU4 of fairseq-generate"] = {"score": float(match[1]), "signature": match[0]}
    return by_name


def record(run: pathlib.Path) -> dict:
    data, *options = shlex.split((run / "options").read_text(encoding="utf-8"))
    if not (starts := starts_of(run)):
        raise InputError(f"{run / STARTS} holds no start of the training: train again in another folder")
    *earlier, trained = [start for start in starts if not start.get("trained")] or starts  # later ones scored, say
    elsewhere = {
        f"earlier_{name}": [start[name] for start in earlier if name in start]
        for name in ("versions", "machine")  # a training may have continued with others
        if any(start.get(name, trained.get(name)) != trained.get(name) for start in earlier)
    }
    checksum = next((start["corpus"] for start in starts if start.get("corpus")), None)  # all starts have one corpus
    seed = re.findall(r"--seed[ =](\d+)", shlex.join(options))
    return {
        "corpus": {"data": data, "sha256": checksum or digest(PROJECT / data / "data-bin")},
        "command": trained["command"],
        "options": shlex.join(options),
        "precision": precision_of(run, options),
        "seed": int(seed[-1]) if seed else 1,
        "commits": list(dict.fromkeys(start["commit"] for start in starts)),
        "begun": starts[0]["begun"],
        "starts": len(starts),
        "versions": trained.get("versions") or versions(),
        "machine": trained.get("machine") or machine(),
        **elsewhere,
        **(training(log) if (log := run / LOG).exists() else {}),
        **({} if (run / "trained").exists() else {"ended": "not yet: it was scored before its end"}),
        "scores": scores(run),
    }


def precision_of(run: pathlib.Path, options: list[str]) -> str:
    """fairseq's, if the training has one of its options, else the one of --autocast that the recipe has chosen."""
    for word in options:
        if word in ("--fp16", "--memory-efficient-fp16", "--amp"):
            return word.lstrip("-")
    precision = run / "precision"
    return precision.read_text().strip() if precision.exists() else "off"


def end(run: pathlib.Path) -> None:
    found, path = record(run), run / RECORD
    earlier = read_record(path) if path.exists() else {}
    if earlier.get("corpus") == found["corpus"]:  # nmt-score --record may have added scores
        found["scores"] = earlier.get("scores", {}) | found["scores"]
    write_record(path, found)


@exit_in_one_line("record.py")
def main() -> None:
    match sys.argv[1:]:
        case "begin", run, data, *command:
            begin(pathlib.Path(run), pathlib.Path(data), command)
        case "end", run:
            end(pathlib.Path(run))
        case ["-h" | "--help"]:
            print(__doc__)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
