"""What sacrebleu counts of each segment, scores of sums of such counts, and its significance tests on them.

sacrebleu keeps these for itself: names with an underscore, and what PairedTest asks of a metric. They are used here and
nowhere else, and were checked with the version below.
"""

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

CHECKED_WITH = "2.6.0"

TESTS = {"bootstrap": "bs", "randomisation": "ar"}


def count(metric: Metric, hypotheses: list[str], references: list[str]) -> np.ndarray:
    """[segments, counts]: lengths and matches of n-grams."""
    return np.array(metric._extract_corpus_statistics(hypotheses, [references]))


def score(metric: Metric, counts: np.ndarray) -> float:
    """The score of a corpus, of the [segments, counts] of its segments."""
    return metric._compute_score_from_stats(counts.sum(axis=0)).score


class OnCounts:
    """A metric for PairedTest that takes [segments, counts] in place of hypotheses."""

    def __init__(self, metric: Metric):
        self.metric = metric

    def __getattr__(self, name: str):
        return getattr(self.metric, name)

    def _extract_corpus_statistics(self, counts: np.ndarray, references: None) -> list[list[int]]:
        return counts.tolist()


def p_values(metric: Metric, counts: list[np.ndarray], test: str) -> tuple[list[float], str]:
    """p of the difference of all systems but the first to the first, by their [segments, counts]; the test's signature.

    test: "bootstrap" or "randomisation"
    """
    systems = [(str(number), values) for number, values in enumerate(counts)]
    kind = TESTS[test]
    signatures, columns = PairedTest(systems, {"": OnCounts(metric)}, None, kind)()
    (signature,), (_, results) = signatures.values(), columns.values()  # a column of names, one of results
    # sacrebleu counts resamples *above* the difference, and equal scores may have none: it would give p = 0.001.
    p = [1.0 if result.score == results[0].score else result.p_value for result in results[1:]]
    return p, f"{kind}:{signature.info[kind]}|seed:{signature.info['seed']}"
