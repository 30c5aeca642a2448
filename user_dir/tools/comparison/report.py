"""The comparison as tables in Markdown and as a picture."""

import statistics

import numpy as np
from sacrebleu.metrics.base import Metric

from ..shared.command import table
from ..shared.pictures import new_figure, point_style
from ..shared.records import RECORD, checksum_of_data, read_record
from .significance import System

EQUAL = ("corpus", "precision", "commits", "versions", "machine")  # a comparison of systems needs these to be the same
DIFFERENCES = ["system", "score", "difference", "± 95%", "p, other sentences", "p, other seeds", "paired"]


def report(systems: list[System], used: dict[str, Metric], differences: list, parts: dict, lengths_of: str) -> str:
    """The tables: scores, differences, and sacreBLEU by length in words of `lengths_of`."""
    names, bleu = [system.name for system in systems], "sacreBLEU"
    scores = [
        [system.name, str(len(system.runs)), *(mean(system.scores(name, metric)) for name, metric in used.items())]
        for system in systems
    ]
    significance = []
    for system, score, gain, p, unpaired, paired in differences:
        margin = f"{(paired or unpaired).margin:.2f}" if paired or unpaired else "–"
        p_values = [p, unpaired and unpaired.p, paired and paired.p]
        significance.append([system, score, f"{gain:+.2f}", margin, *map(p_value, p_values)])
    by_length = [
        [label, str(len(inside)), *(mean(system.scores(bleu, used[bleu], inside)) for system in systems)]
        for label, inside in parts.items()
    ]
    one_seed = any(len(system.runs) == 1 for system in systems)
    alone = ". With one seed p-values do not say whether another training would differ as much" if one_seed else ""
    paragraphs = [
        f"# {' / '.join(names)}",
        table(["system", "seeds", *used], scores),
        *trainings(systems),
        f"Mean ± standard deviation over the seeds. Differences from {names[0]}, with the p-value of the difference\n"
        "under other test sentences (all seeds together) and under other seeds (Welch's t-test; where both systems\n"
        "have the same seeds, read the paired one). ± 95% is the confidence interval of the difference under other\n"
        "seeds, by the paired test where that has a p-value. Neither the p-values nor the intervals of these\n"
        f"{len(differences)} differences are corrected for their number{alone}:",
        table(DIFFERENCES, significance),
        f"sacreBLEU by length, in words of {lengths_of}:",
        table(["words", "segments", *names], by_length),
    ]
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs)


def trainings(systems: list[System]) -> list[str]:
    """The training of each run, as the run.json beside it says (examples/record.py); empty if all lack it."""
    files = {system.name: [run.path.with_name(RECORD) for run in system.runs] for system in systems}
    records = {name: [read_record(file) for file in of_system if file.is_file()] for name, of_system in files.items()}
    if not any(records.values()):
        return []
    columns = {"parameters": "parameters", "updates": "updates", "words/s": "words_per_second", "seconds": "seconds"}
    rows = []
    for name, of_system in records.items():
        rows.append([name, *(span([record.get(key) for record in of_system]) for key in columns.values())])
    first, *others = (
        record | {"corpus": checksum_of_data(record)} for of_system in records.values() for record in of_system
    )
    differ = [name for name in EQUAL if any(record.get(name) != first.get(name) for record in others)]
    warning = [f"**The trainings do not have the same {', '.join(differ)}**: see their {RECORD}."] if differ else []
    lacking = [name for name in files if len(records[name]) < len(files[name])]
    unknown = [f"**Not all runs of {', '.join(lacking)} have a {RECORD}.**"] if lacking else []
    return [table(["training", *columns], rows), *warning, *unknown]


def span(values: list) -> str:
    """The smallest and the largest of the numbers among `values`."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return "–".join(f"{number:,}" for number in sorted({min(numbers), max(numbers)})) if numbers else "–"


def mean_and_deviation(scores: list[float]) -> tuple[float, float]:
    return statistics.mean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0


def mean(scores: list[float], digits: int = 2) -> str:
    """The mean, with the standard deviation where there are several scores."""
    return " ± ".join(f"{number:.{digits}f}" for number in mean_and_deviation(scores)[: len(scores)])


def p_value(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def draw(systems: list[System], metric: Metric, parts: dict, lengths_of: str):
    """The figure: sacreBLEU of each seed with mean and deviation, and by sentence length."""
    names, width = [system.name for system in systems], 0.6 / len(systems)
    turned = {"rotation": 90} if len(systems) > 6 else {"rotation": 20, "ha": "right"}
    upright = 3 + 0.08 * max(map(len, names)) if len(systems) > 6 else 0  # inches of a panel and the names below it
    figure = new_figure(13 + 0.3 * max(0, len(systems) - 4), max(4.5, 0.23 * len(systems) + 1, upright))
    seeds, lengths = figure.subplots(1, 2, width_ratios=(2, 3))
    for number, system in enumerate(systems):
        scores = system.scores("sacreBLEU", metric)
        style = point_style(number)
        seeds.errorbar(number, *mean_and_deviation(scores), fmt="_", markersize=30, capsize=6, color=style["color"])
        seeds.scatter(np.full(len(scores), number) + 0.12, scores, s=16, color=style["color"], alpha=0.7)
        by_length = [mean_and_deviation(system.scores("sacreBLEU", metric, inside)) for inside in parts.values()]
        places = np.arange(len(parts)) + (number - (len(systems) - 1) / 2) * width
        lengths.errorbar(places, *zip(*by_length), linestyle="none", capsize=3, **style)
    seeds.set_xticks(range(len(systems)), names, **turned)
    seeds.set(title="seeds, mean ± standard deviation", ylabel="sacreBLEU", xlim=(-0.5, len(systems) - 0.5))
    seeds.grid(axis="y", alpha=0.3)
    lengths.set_xticks(range(len(parts)), [f"{label}\n({len(inside)})" for label, inside in parts.items()])
    lengths.set(title="by sentence length, mean ± standard deviation", ylabel="sacreBLEU")
    lengths.set_xlabel(f"words of {lengths_of} (segments)")
    lengths.grid(axis="y", alpha=0.3)
    # Given as labels, names that begin with _ would be left out.
    figure.legend(lengths.containers, names, loc="outside right upper", fontsize="small")
    return figure
