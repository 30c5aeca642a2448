"""The comparison as tables in Markdown."""

import statistics

from sacrebleu.metrics.base import Metric

from ..shared.markdown import table
from .lengths import Bucket
from .significance import Difference
from .systems import System


def report(
    systems: list[System],
    used: dict[str, Metric],
    found: list[Difference],
    parts: list[Bucket],
    lengths_of: str,
) -> str:
    """The tables: scores, differences, and sacreBLEU by length in words of `lengths_of`."""
    names = [system.name for system in systems]
    rows = [
        [system.name, str(len(system.runs)), *(mean(system.scores(name, metric)) for name, metric in used.items())]
        for system in systems
    ]
    differences = [
        [row.system, row.score, f"{row.difference:+.2f}", *map(p_value, (row.p_sentences, row.p_seeds, row.p_paired))]
        for row in found
    ]
    bleu = "sacreBLEU"
    by_length = [
        [part.label, str(len(part.inside)), *(mean(system.scores(bleu, used[bleu], part.inside)) for system in systems)]
        for part in parts
    ]
    paragraphs = [
        f"# {' / '.join(names)}",
        table(["system", "seeds", *used], rows),
        f"Mean ± standard deviation over the seeds. Differences from {names[0]}, with the p-value of the difference\n"
        "under other test sentences (all seeds together) and under other seeds (Welch's t-test; where both systems\n"
        "have the same seeds, read the paired one):",
        table(["system", "score", "difference", "p, other sentences", "p, other seeds", "paired"], differences),
        f"sacreBLEU by length, in words of {lengths_of}:",
        table(["words", "segments", *names], by_length),
    ]
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs)


def mean(scores: list[float]) -> str:
    """With the deviation, where there are several."""
    deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.2f}{deviation}"


def p_value(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
