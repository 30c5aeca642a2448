"""The systems that are compared: each a name, and a file of translations for each seed."""

import argparse
import dataclasses
import pathlib
import re

import numpy as np
from sacrebleu.metrics.base import Metric

from ...errors import InputError
from ..shared.metrics import metrics, texts
from ..shared.translations import Run, read_runs
from .sacrebleu_counts import count, score


@dataclasses.dataclass
class System:
    name: str
    runs: list[Run]  # one for each seed
    counts: dict[str, list[np.ndarray]]  # by score, for each run: what sacrebleu counts of it [segments, counts]

    def scores(self, name: str, metric: Metric, subset=slice(None)) -> list[float]:
        """The score called `name` of each seed, on the segments of `subset`."""
        return [score(metric, counts[subset]) for counts in self.counts[name]]

    def by_seed(self, scores: list[float]) -> dict[str, float]:
        """Of each run's score, by its seed: the last number in its path (runs/vaswani.seed3/generate.log).

        Nothing where two runs have one, or a path has none.
        """
        seeds = [re.findall(r"\d+", str(run.path))[-1:] for run in self.runs]
        found = {seed: score for (seed,), score in zip(seeds, scores)} if all(seeds) else {}
        return found if len(found) == len(scores) else {}


def named(words: list[list[str]]) -> dict[str, list[pathlib.Path]]:
    """--system NAME FILE … as {name: files}.

    Raises:
        InputError: if a name occurs twice, a system has no file, or there is one system
    """
    found: dict[str, list[pathlib.Path]] = {}
    for name, *files in words:
        if name in found:
            raise InputError(f"--system {name} is given twice: name all its files after one --system {name}")
        if not files:
            raise InputError(f"--system {name} has no files: --system NAME FILE [FILE …], a file for each seed")
        found[name] = [pathlib.Path(file) for file in files]
    if len(found) < 2:
        raise InputError(
            "there is one system: give a --system NAME FILE … for each of those to compare, or use user_dir.tools.score"
        )
    return found


def read_systems(args: argparse.Namespace) -> tuple[list[System], dict[str, Metric]]:
    """The systems, the baseline first; and the metrics.

    Raises:
        InputError: as read_runs and named; if the baseline is none of the systems
    """
    files = named(args.system)
    baseline = args.baseline or next(iter(files))
    if baseline not in files:
        raise InputError(f"--baseline {baseline} is none of the systems ({', '.join(files)})")
    runs, language = read_runs([path for paths in files.values() for path in paths], args)
    used = metrics(runs, language)
    rest = iter(runs)
    systems = []
    for name, paths in files.items():
        own = [next(rest) for _ in paths]
        counts = {score: [count(metric, *texts(run, score)) for run in own] for score, metric in used.items()}
        systems.append(System(name, own, counts))
    return sorted(systems, key=lambda system: system.name != baseline), used
