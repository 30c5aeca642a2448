"""Writes the record of a finished training: python examples/record.py RUN RECORD ROW

RUN is a recipe's output folder, with starts.jsonl of train.py; RECORD is the JSON file to write; ROW is the name of the
training without its seed. The record describes the training, its code, machine and course, and every score with its
signature.
"""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import statistics
import sys

PROJECT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))  # this checkout, even if another one is installed

from user_dir.tools.shared.training_log import read_log  # noqa: E402

END = re.compile(r"(?:Stopping|stopping) training (?:due to|because) .*|early stop since .*")
GENERATED = re.compile(r"Generate \S+ with beam=\d+: (BLEU4) = ([\d.]+).*")


def digest(folder: pathlib.Path) -> str:
    """sha256 over names and contents of the binarised data, without the log of the preprocessing."""
    total = hashlib.sha256()
    for file in sorted(file for file in folder.iterdir() if file.suffix in (".bin", ".idx", ".txt")):
        total.update(f"{file.name}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
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


def machine() -> dict[str, str | int | None]:
    path = pathlib.Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", path.read_text()) if path.exists() else None
    return {"cpu": model[1] if model else platform.processor(), "cores": os.cpu_count()}


def training(log: pathlib.Path) -> dict:
    """The course of a training, from fairseq-train's log. The times of all its starts are added."""
    text, points = log.read_text(encoding="utf-8", errors="replace"), read_log(log)
    validated = re.findall(r"epoch (\d+) \| valid on .*num_updates (\d+)", text)
    epochs = {int(update): int(epoch) for epoch, update in validated}
    inner = list(points.get("train_inner", {}).values())
    walls = [float(wall) for wall in re.findall(r"[,|] wall[= ]([\d.]+)", text)]
    # The clock of each start begins at 0.
    ends = [wall for wall, after in zip(walls, [*walls[1:], 0.0]) if after < wall]
    why = END.findall(text)  # the reasons why training stopped
    parameters = re.search(r"num\. shared model params: ([\d,]+)|num\. model params: ([\d,]+)", text)
    curve = [
        {"update": update, "epoch": epochs.get(update), "loss": values["loss"], "nll_loss": values.get("nll_loss")}
        for update, values in sorted(points.get("valid", {}).items())
    ]
    return {
        "updates": max(max(by_update) for by_update in points.values()),
        "epochs": max(int(epoch) for epoch in re.findall(r"epoch (\d+)", text)),
        "ended": why[-1] if why else "the log gives no reason: all requested epochs are done",
        "seconds": round(sum(ends)),
        "words_per_second": round(statistics.median(values["wps"] for values in inner)) if inner else None,
        "parameters": int((parameters[1] or parameters[2]).replace(",", "")) if parameters else None,
        "validation": curve,
    }


def scores(run: pathlib.Path) -> dict[str, dict]:
    """Every column of score.txt with its signature, and the score in fairseq-generate's last line, if there is one."""
    by_name = {}
    lines = (run / "score.txt").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    signatures = dict(re.findall(r"^- ([^:\n]+): (.*)$", "\n".join(lines), re.MULTILINE))
    for name, value in zip(rows[0][1:], rows[2][1:]):
        by_name[name] = {"score": number(value), "signature": signatures.get(name, "").strip("`")}
    with open(run / "generate.log", encoding="utf-8", errors="replace") as log:
        for line in log:
            if match := GENERATED.search(line):
                by_name["BLEU4 of fairseq-generate"] = {"score": float(match[2]), "signature": match[0]}
    return by_name


def number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def record(run: pathlib.Path, row: str) -> dict:
    data, *options = shlex.split((run / "options").read_text(encoding="utf-8"))
    notes = [json.loads(line) for line in (run / "starts.jsonl").read_text(encoding="utf-8").splitlines()]
    starts = [note for note in notes if "commit" in note]
    precision = run / "precision"
    return {
        "row": row,
        "corpus": {"data": data, "sha256": digest(PROJECT / data / "data-bin")},
        "command": starts[-1]["command"],
        "options": shlex.join(options),
        "precision": precision.read_text().strip() if precision.exists() else "float32",
        "seed": int(options[options.index("--seed") + 1]),
        "commits": list(dict.fromkeys(start["commit"] for start in starts)),
        "begun": starts[0]["begun"],
        "starts": len(starts),
        "versions": versions(),
        "machine": machine(),
        **training(run / "train.log"),
        "peak_mib_of_largest_process": max(note.get("peak_kib", 0) for note in notes) // 1024,
        "scores": scores(run),
    }


def main(run: str, path: str, row: str) -> None:
    made = json.dumps(record(pathlib.Path(run), row), indent=1, ensure_ascii=False) + "\n"
    made = re.sub(r"\{\s+(\"update\": [^}]*?)\s+\}", lambda match: "{" + re.sub(r"\s*\n\s*", " ", match[1]) + "}", made)
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.write_text(made, encoding="utf-8")
    partial.replace(target)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
