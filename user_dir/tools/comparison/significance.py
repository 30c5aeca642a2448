"""Systems, their scores on all or some segments, and how often chance would make such differences between them.

Tests over sentences are sacrebleu's, of its counts for each segment. sacrebleu keeps these for itself: `count`, `score`
and `p_values` use names with an underscore, and what PairedTest asks of a metric. They were checked with the version
below, and nothing else uses such names.
"""

import argparse
import copy
import dataclasses
import pathlib
import re
import statistics
import warnings
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from ...errors import InputError
from ..shared.metrics import metrics, texts
from ..shared.translations import Run, read_lines, read_runs, translations_of

CHECKED_WITH = "2.6.0"

TESTS = {"bootstrap": "bs", "randomisation": "ar"}  # sacrebleu's names of them


def count(metric: Metric, hypotheses: list[str], references: list[str]) -> np.ndarray:
    """[segments, counts]: lengths and matches of n-grams."""
    return np.array(metric._extract_corpus_statistics(hypotheses, [references]))


def score(metric: Metric, counts: np.ndarray) -> float:
    """The score of a corpus, from the [segments, counts] of its segments."""
    return metric._compute_score_from_stats(counts.sum(axis=0)).score


def p_values(metric: Metric, counts: list[np.ndarray], test: str) -> tuple[list[float], str]:
    """p of each system's difference to the first system, from their [segments, counts]; the test's signature.

    test: one of TESTS
    """
    systems = [(str(number), values) for number, values in enumerate(counts)]
    kind, on_counts = TESTS[test], copy.copy(metric)
    on_counts._extract_corpus_statistics = lambda counts, references: counts.tolist()  # they stand for hypotheses
    signatures, columns = PairedTest(systems, {"": on_counts}, None, kind)()
    (signature,), (_, results) = signatures.values(), columns.values()  # a column of names, one of results
    # sacrebleu counts resamples *above* the difference, and equal scores may have none: it would give p = 0.001.
    p = [1.0 if result.score == results[0].score else result.p_value for result in results[1:]]
    differ = [int((values != counts[0]).any(axis=1).sum()) for values in counts[1:]]
    if test == "randomisation":
        # To exchange none or all of the segments that differ makes the same difference: with one, p would be 0.0001.
        p = [min(1.0, above + 2.0 ** (1 - segments)) for above, segments in zip(p, differ)]
    else:
        # Samples of few segments are alike: of one, p would be 0.001. By chance all n favour one side in 2^-n of cases.
        p = [max(above, 2.0**-segments) for above, segments in zip(p, differ)]
    return p, f"{kind}:{signature.info[kind]}|seed:{signature.info['seed']}"


@dataclasses.dataclass
class System:
    """A system that is compared, with a file of translations for each seed."""

    name: str
    runs: list[Run]  # one for each seed
    counts: dict[str, list[np.ndarray]]  # by score, for each run: sacrebleu's counts [segments, counts]

    def scores(self, name: str, metric: Metric, subset=slice(None)) -> list[float]:
        """The score called `name` of each seed, on the segments of `subset`."""
        return [score(metric, counts[subset]) for counts in self.counts[name]]

    def by_seed(self, scores: list[float]) -> dict[str, float]:
        """Each run's score by its seed: the number after `seed` in its path, else the last number.

        Empty where two runs have the same seed, or a path has none.
        """
        for pattern in (r"seed[-_=]?(\d+)", r"(\d+)"):
            seeds = [re.findall(pattern, str(run.path))[-1:] for run in self.runs]
            by_seed = {seed: score for (seed,), score in zip(seeds, scores)} if all(seeds) else {}
            if len(by_seed) == len(scores):
                return by_seed
        return {}


FORM = "--system NAME FILE [FILE …], a file for each seed"


def read_systems(args: argparse.Namespace) -> tuple[list[System], dict[str, Metric]]:
    """The systems, the baseline first; and the metrics.

    Raises:
        InputError: as read_runs; if a name occurs twice, a system has no name or no file, there is only one system, or
            the baseline is none of them
    """
    files: dict[str, list[pathlib.Path]] = {}
    for name, *paths in args.system:
        if name in files:
            raise InputError(f"--system {name} is given twice: name all its files after one --system {name}")
        if not paths:
            raise InputError(f"--system {name} has no files: {FORM}")
        files[name], given = [*map(pathlib.Path, paths)], pathlib.Path(name)
        if translations_of(given).is_file() and not any(path.is_relative_to(given) for path in files[name]):
            raise InputError(f"--system {name} has no name: {FORM}")
    if len(files) < 2:
        remedy = "give a --system NAME FILE … for each system, or use nmt-score"
        raise InputError(f"there is only one system: {remedy}")
    baseline = args.baseline or next(iter(files))
    if baseline not in files:
        raise InputError(f"--baseline {baseline} is none of the systems: name one of {', '.join(files)}")
    runs, language = read_runs([path for paths in files.values() for path in paths], args)
    used, remaining, systems = metrics(runs, language), iter(runs), []
    for name, paths in files.items():
        own = [next(remaining) for _ in paths]
        counts = {score: [count(metric, *texts(run, score)) for run in own] for score, metric in used.items()}
        systems.append(System(name, own, counts))
    return sorted(systems, key=lambda system: system.name != baseline), used


def differences(systems: list[System], used: dict[str, Metric], test: str) -> tuple[list[tuple], str]:
    """Rows of a system, a score and their difference to the first system, the baseline; and the signature of the test.

    The difference is that of the means over seeds. The p-value of `test` (one of TESTS) follows, and what `welch` and
    `paired` return.

    Raises:
        InputError: if systems with different numbers of seeds are to be randomised: their counts cannot be exchanged
    """
    if test == "randomisation" and len({len(system.runs) for system in systems}) > 1:
        remedy = "give the same number of files for each, or use --test bootstrap"
        raise InputError(f"--test randomisation exchanges translations between systems: {remedy}")
    rows, (baseline, *others) = [], systems
    for name, metric in used.items():
        p, signature = p_values(metric, [sum(system.counts[name]) for system in systems], test)
        theirs = baseline.scores(name, metric)
        for system, p_sentences in zip(others, p):
            ours = system.scores(name, metric)
            gain = statistics.mean(ours) - statistics.mean(theirs)
            p_paired = paired(system.by_seed(ours), baseline.by_seed(theirs))
            rows.append((system.name, name, gain, p_sentences, welch(ours, theirs), p_paired))
    return rows, signature


class TTest(NamedTuple):
    """A difference of means under other seeds."""

    p: float  # how often they would give such a difference if both systems were equally good
    margin: float  # the 95% confidence interval is the difference ± margin


def t_test(result) -> TTest:
    """From the result of scipy's t-test."""
    low, high = result.confidence_interval(0.95)
    return TTest(float(result.pvalue), float(high - low) / 2)


def welch(ours: list[float], theirs: list[float]) -> TTest | None:
    """The difference by Welch's t-test.

    None with a single seed, or without any spread.
    """
    from scipy.stats import ttest_ind  # takes a second to import

    if min(len(ours), len(theirs)) < 2 or len({*ours}) == len({*theirs}) == 1:
        return None
    with warnings.catch_warnings(action="ignore"):  # where one side has no spread, scipy doubts a p that is right
        return t_test(ttest_ind(ours, theirs, equal_var=False))


def paired(ours: dict[str, float], theirs: dict[str, float]) -> TTest | None:
    """The difference by the paired t-test over the scores of each seed, which leaves out the luck it brings to both.

    None, too, where the seeds are not the same.
    """
    from scipy.stats import ttest_rel

    pairs = [(score, theirs[seed]) for seed, score in ours.items() if seed in theirs]
    spread = {round(one - other, 9) for one, other in pairs}  # differences of rounded scores
    if len(pairs) < max(2, len(ours), len(theirs)) or len(spread) == 1:
        return None
    return t_test(ttest_rel(*zip(*pairs)))


def buckets(path: pathlib.Path | None, references: list[str], bounds: list[int] | None) -> dict[str, np.ndarray]:
    """The numbers of the segments of similar length in words, by that length, such as 6–10.

    Args:
        path: has a line for each segment, whose length counts; None: the references'
        bounds: the longest lengths of all buckets but the last; None: five with about as many segments each

    Raises:
        InputError: if there are not as many lines as references
    """
    lines = read_lines(path) if path else references
    if len(lines) != len(references):
        raise InputError(f"{path} has {len(lines)} lines and there are {len(references)} segments: name another file")
    lengths = np.array([len(line.split()) for line in lines])
    if bounds is None:
        bounds = np.quantile(lengths, [0.2, 0.4, 0.6, 0.8], method="inverted_cdf").tolist()
    shortest, longest = lengths.min(), lengths.max()
    edges = [shortest - 1, *sorted({bound for bound in bounds if shortest <= bound < longest}), longest]
    parts = {}
    for low, high in zip(edges, edges[1:]):
        inside = np.flatnonzero((lengths > low) & (lengths <= high))
        if len(inside):
            parts[f"{low + 1}–{high}" if low + 1 < high else str(high)] = inside
    return parts
