"""The comparison as a picture."""

import statistics

import numpy as np
from sacrebleu.metrics.base import Metric

from ..shared.pictures import line_style, new_figure
from .lengths import Bucket
from .systems import System


def draw(systems: list[System], metric: Metric, parts: list[Bucket], lengths_of: str):
    """The figure: sacreBLEU of each seed with mean and deviation, and by sentence length."""
    figure = new_figure(11, 4.5)
    seeds, lengths = figure.subplots(1, 2, width_ratios=(2, 3))
    width = 0.6 / len(systems)
    for number, system in enumerate(systems):
        scores = system.scores("sacreBLEU", metric)
        colour = line_style(number)["color"]
        seeds.errorbar(number, *mean_and_deviation(scores), fmt="_", markersize=30, capsize=6, color=colour)
        seeds.scatter(np.full(len(scores), number) + 0.12, scores, s=16, color=colour, alpha=0.7)
        by_length = [mean_and_deviation(system.scores("sacreBLEU", metric, part.inside)) for part in parts]
        places = np.arange(len(parts)) + (number - (len(systems) - 1) / 2) * width
        lengths.errorbar(places, *zip(*by_length), fmt="o", capsize=3, color=colour, label=system.name)
    seeds.set_xticks(range(len(systems)), [system.name for system in systems], rotation=20, ha="right")
    seeds.set(title="seeds, mean ± standard deviation", ylabel="sacreBLEU", xlim=(-0.5, len(systems) - 0.5))
    seeds.grid(axis="y", alpha=0.3)
    lengths.set_xticks(range(len(parts)), [f"{part.label}\n({len(part.inside)})" for part in parts])
    lengths.set(title="by sentence length", ylabel="sacreBLEU", xlabel=f"words of {lengths_of} (segments)")
    lengths.grid(axis="y", alpha=0.3)
    lengths.legend(fontsize="small")
    return figure


def mean_and_deviation(scores: list[float]) -> tuple[float, float]:
    return statistics.mean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0
