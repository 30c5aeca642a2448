"""How far systems differ, and how often chance would make them: by other test sentences, and by other seeds."""

import dataclasses
import statistics

from sacrebleu.metrics.base import Metric

from ...errors import InputError
from .sacrebleu_counts import p_values
from .systems import System


@dataclasses.dataclass
class Difference:
    """Of a system to the baseline in one score."""

    system: str
    score: str
    difference: float  # of the means over seeds
    p_sentences: float
    p_seeds: float | None  # Welch's; None with a single seed, or without any spread
    p_paired: float | None  # of the paired t-test; None, too, where the seeds are not the same


def differences(systems: list[System], used: dict[str, Metric], test: str) -> tuple[list[Difference], str]:
    """Of every system but the first, the baseline, to the first; and the signature of the test.

    test: "bootstrap" or "randomisation"

    Raises:
        InputError: if systems with different numbers of seeds are to be randomised: their counts cannot be exchanged
    """
    if test == "randomisation" and len({len(system.runs) for system in systems}) > 1:
        raise InputError(
            "--test randomisation exchanges translations between systems: "
            "give the same number of files for each, or use --test bootstrap"
        )
    found, (baseline, *others) = [], systems
    for name, metric in used.items():
        over_seeds = [sum(system.counts[name]) for system in systems]
        p, signature = p_values(metric, over_seeds, test)
        theirs = baseline.scores(name, metric)
        for system, p_sentences in zip(others, p):
            ours = system.scores(name, metric)
            gain = statistics.mean(ours) - statistics.mean(theirs)
            p_paired = paired(system.by_seed(ours), baseline.by_seed(theirs))
            found.append(Difference(system.name, name, gain, p_sentences, welch(ours, theirs), p_paired))
    return found, signature


def welch(ours: list[float], theirs: list[float]) -> float | None:
    """p of Welch's t-test: as good a difference of the means if neither system were better, under other seeds."""
    from scipy.stats import ttest_ind  # takes a second to import

    if min(len(ours), len(theirs)) < 2 or len({*ours}) == len({*theirs}) == 1:
        return None
    return float(ttest_ind(ours, theirs, equal_var=False).pvalue)


def paired(ours: dict[str, float], theirs: dict[str, float]) -> float | None:
    """p of the paired t-test over the scores of each seed: the luck that a seed brings to both is not in it."""
    from scipy.stats import ttest_rel

    pairs = [(score, theirs[seed]) for seed, score in ours.items() if seed in theirs]
    if len(pairs) < max(2, len(ours), len(theirs)) or len({one - other for one, other in pairs}) == 1:
        return None
    return float(ttest_rel(*zip(*pairs)).pvalue)
