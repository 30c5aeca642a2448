"""Compares systems, each trained with one or more seeds: scores, significance, and scores by sentence length.

    python -m user_dir.tools.compare --reference data/tatoeba.fr-en/raw/test.en --output runs/comparison \\
        --system vaswani runs/vaswani.seed*/generate.log --system relative runs/relative.seed*/generate.log

Writes OUTPUT.md (printed too) and OUTPUT.png. Scores are those of user_dir.tools.score: mean ± standard deviation (n - 1)
over the seeds. Two sources of chance stand between two systems, and each has a p-value of its own:

p, other sentences   were both equally good, how often would test sentences show such a difference? Paired bootstrap (Koehn
                     2004) or approximate randomisation, by sacrebleu. A segment is drawn with all seeds' translations, whose
                     n-gram counts are added up: repeats of one segment are no independent observations.
p, other seeds       and how often would seeds? Welch's t-test over the seeds' scores; it needs two seeds of each system.

A difference worth reporting is small in both. p-values are two-sided and, with several systems, not corrected.
"""

import argparse
import dataclasses
import logging
import pathlib
import statistics

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from .errors import exit_in_one_line
from .files import write
from .pictures import line_style, new_figure, save
from .score import add_options, metrics, read_runs, signatures, table, texts
from .translations import BadInput, Run, read_lines

TESTS = {"bootstrap": "bs", "randomisation": "ar"}


@dataclasses.dataclass
class System:
    name: str
    runs: list[Run]  # one for each seed
    counts: dict[str, list[np.ndarray]]  # by score, for each run: what sacrebleu counts of each segment [segments, counts]

    def scores(self, name: str, metric: Metric, subset=slice(None)) -> list[float]:
        """The score called `name` of each seed, on the segments of `subset`."""
        return [metric._compute_score_from_stats(counts[subset].sum(axis=0)).score for counts in self.counts[name]]


class OnCounts:
    """A metric for PairedTest that takes a system's counts, added up over its seeds, in place of hypotheses."""

    def __init__(self, metric: Metric):
        self.metric = metric

    def __getattr__(self, name: str):
        return getattr(self.metric, name)

    def _extract_corpus_statistics(self, counts: np.ndarray, references: None) -> list[list[int]]:
        return counts.tolist()


@dataclasses.dataclass
class Difference:
    """Of a system to the baseline in one score."""

    system: str
    score: str
    difference: float  # of the means over seeds
    p_sentences: float
    p_seeds: float | None  # None with a single seed, or without any spread


def named(words: list[list[str]]) -> dict[str, list[pathlib.Path]]:
    """--system NAME FILE … as {name: files}.

    Raises:
        BadInput: if a name occurs twice, or a system has no file
    """
    found: dict[str, list[pathlib.Path]] = {}
    for name, *files in words:
        if name in found:
            raise BadInput(f"--system {name} is given twice: name all its files after one --system {name}")
        if not files:
            raise BadInput(f"--system {name} has no files: --system NAME FILE [FILE …], a file for each seed")
        found[name] = [pathlib.Path(file) for file in files]
    if len(found) < 2:
        raise BadInput("there is one system: give a --system NAME FILE … for each of those to compare, or use user_dir.tools.score")
    return found


def differences(systems: list[System], used: dict[str, Metric], test: str) -> tuple[list[Difference], str]:
    """Of every system but the first, the baseline, to the first; and the signature of the test.

    test: "bootstrap" or "randomisation"

    Raises:
        BadInput: if systems with different numbers of seeds are to be randomised: their counts cannot be exchanged
    """
    if test == "randomisation" and len({len(system.runs) for system in systems}) > 1:
        raise BadInput("--test randomisation exchanges translations between systems: give the same number of files for each, or use --test bootstrap")
    found, baseline = [], systems[0]
    for name, metric in used.items():
        pooled = [(system.name, sum(system.counts[name])) for system in systems]
        labels, columns = PairedTest(pooled, {name: OnCounts(metric)}, None, TESTS[test])()
        (signature,), (_, results) = labels.values(), columns.values()  # a column of names, one of results
        theirs = baseline.scores(name, metric)
        for system, result in zip(systems[1:], results[1:]):
            ours = system.scores(name, metric)
            # sacrebleu counts resamples *above* the difference, and equal scores may have none: it would give p = 0.001.
            p = 1.0 if result.score == results[0].score else result.p_value
            found.append(Difference(system.name, name, statistics.mean(ours) - statistics.mean(theirs), p, welch(ours, theirs)))
    return found, f"{TESTS[test]}:{signature.info[TESTS[test]]}|seed:{signature.info['seed']}"


def welch(ours: list[float], theirs: list[float]) -> float | None:
    """p of Welch's t-test: as good a difference of the means if neither system were better, under other seeds."""
    from scipy.stats import ttest_ind  # takes a second to import

    if min(len(ours), len(theirs)) < 2 or len({*ours}) == len({*theirs}) == 1:
        return None
    return float(ttest_ind(ours, theirs, equal_var=False).pvalue)


def count(metric: Metric, hypotheses: list[str], references: list[str]) -> np.ndarray:
    """[segments, counts]: lengths and matches of n-grams; a corpus's score is that of their sum."""
    return np.array(metric._extract_corpus_statistics(hypotheses, [references]))


def buckets(lengths: np.ndarray, bounds: list[int] | None) -> list[tuple[str, np.ndarray]]:
    """(label, indices of segments) by length in words; `bounds` are the longest lengths of all buckets but the last.

    None: five with about as many segments each.
    """
    if bounds is None:
        bounds = np.quantile(lengths, [0.2, 0.4, 0.6, 0.8], method="inverted_cdf").tolist()
    edges = [-1, *sorted({bound for bound in bounds if lengths.min() <= bound < lengths.max()}), lengths.max()]
    found = []
    for low, high in zip(edges, edges[1:]):
        inside = np.flatnonzero((lengths > low) & (lengths <= high))
        if len(inside):
            shortest = lengths[inside].min() if low < 0 else low + 1
            found.append((f"{shortest}–{high}" if shortest < high else str(high), inside))
    return found


def with_deviation(scores: list[float]) -> str:
    deviation = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.2f}{deviation}"


def p_value(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def report(systems: list[System], used: dict[str, Metric], found: list[Difference], parts: list[tuple[str, np.ndarray]], lengths_of: str) -> str:
    """The tables, in Markdown; `parts` as of `buckets`."""
    head = [[s.name, str(len(s.runs)), *(with_deviation(s.scores(name, metric)) for name, metric in used.items())] for s in systems]
    rows = [[d.system, d.score, f"{d.difference:+.2f}", p_value(d.p_sentences), p_value(d.p_seeds)] for d in found]
    bleu = used["sacreBLEU"]
    lengths = [[label, str(len(inside)), *(with_deviation(s.scores("sacreBLEU", bleu, inside)) for s in systems)] for label, inside in parts]
    return "\n\n".join([
        f"# {' / '.join(system.name for system in systems)}",
        table(["system", "seeds", *used], head),
        f"Mean ± standard deviation over the seeds. Differences from {systems[0].name}, with the p-value of the difference\n"
        "under other test sentences (all seeds together) and under other seeds (Welch's t-test):",
        table(["system", "score", "difference", "p, other sentences", "p, other seeds"], rows),
        f"sacreBLEU by length, in words of {lengths_of}:",
        table(["words", "segments", *(system.name for system in systems)], lengths),
    ]) + "\n\n"  # fmt: skip


def draw(systems: list[System], metric: Metric, parts: list[tuple[str, np.ndarray]], lengths_of: str):
    """The figure: sacreBLEU of each seed with mean and deviation, and by sentence length."""
    figure = new_figure(11, 4.5)
    seeds, lengths = figure.subplots(1, 2, width_ratios=(2, 3))
    width = 0.6 / len(systems)
    for number, system in enumerate(systems):
        scores = system.scores("sacreBLEU", metric)
        colour = line_style(number)["color"]
        seeds.errorbar(number, *mean_and_deviation(scores), fmt="_", markersize=30, capsize=6, color=colour)
        seeds.scatter(np.full(len(scores), number) + 0.12, scores, s=16, color=colour, alpha=0.7)
        means, deviations = zip(*(mean_and_deviation(system.scores("sacreBLEU", metric, inside)) for _, inside in parts))
        places = np.arange(len(parts)) + (number - (len(systems) - 1) / 2) * width
        lengths.errorbar(places, means, deviations, fmt="o", capsize=3, color=colour, label=system.name)
    seeds.set_xticks(range(len(systems)), [system.name for system in systems], rotation=20, ha="right")
    seeds.set(title="seeds, mean ± standard deviation", ylabel="sacreBLEU", xlim=(-0.5, len(systems) - 0.5))
    seeds.grid(axis="y", alpha=0.3)
    lengths.set_xticks(range(len(parts)), [f"{label}\n({len(inside)})" for label, inside in parts])
    lengths.set(title="by sentence length", ylabel="sacreBLEU", xlabel=f"words of {lengths_of} (segments)")
    lengths.grid(axis="y", alpha=0.3)
    lengths.legend(fontsize="small")
    return figure


def mean_and_deviation(scores: list[float]) -> tuple[float, float]:
    return statistics.mean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0


def read_systems(args: argparse.Namespace) -> tuple[list[System], dict[str, Metric]]:
    """The systems, the baseline first; and the metrics.

    Raises:
        BadInput: as read_runs and named; if the baseline is none of the systems
    """
    files = named(args.system)
    baseline = args.baseline or next(iter(files))
    if baseline not in files:
        raise BadInput(f"--baseline {baseline} is none of the systems ({', '.join(files)})")
    runs, language = read_runs([path for paths in files.values() for path in paths], args)
    used = metrics(runs, language)
    rest = iter(runs)
    systems = []
    for name, paths in files.items():
        own = [next(rest) for _ in paths]
        systems.append(System(name, own, {score: [count(metric, *texts(run, score)) for run in own] for score, metric in used.items()}))
    return sorted(systems, key=lambda system: system.name != baseline), used


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", action="append", nargs="+", required=True, metavar=("NAME", "FILE"), help="a system and its outputs, one for each seed")
    parser.add_argument("--baseline", help="the system the others are compared with (default: the first)")
    add_options(parser)
    parser.add_argument("--test", choices=TESTS, default="bootstrap", help="of other sentences (default: bootstrap, 1,000 samples; randomisation: 10,000)")
    parser.add_argument("--lengths-of", type=pathlib.Path, metavar="FILE", help="text by whose lengths scores are split, e.g. the source (default: the reference)")
    parser.add_argument("--bounds", type=int, nargs="+", metavar="WORDS", help="longest lengths of all buckets but the last (default: five of about one size)")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="OUTPUT.md and OUTPUT.png are written")
    args = parser.parse_args(arguments)
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # fairseq's import lets its debugging lines through
    with exit_in_one_line("compare"):
        new_figure(1, 1)  # matplotlib is missed before minutes are spent on scores
        systems, used = read_systems(args)
        found, signature = differences(systems, used, args.test)
        references = systems[0].runs[0].references
        measured = read_lines(args.lengths_of) if args.lengths_of else references
        if len(measured) != len(references):
            raise BadInput(f"{args.lengths_of} has {len(measured)} lines and there are {len(references)} segments")
        parts = buckets(np.array([len(line.split()) for line in measured]), args.bounds)
        lengths_of = str(args.lengths_of or "the reference")
        text = report(systems, used, found, parts, lengths_of)
        text += signatures(used, args) + f"\n- p, other sentences: paired {args.test}, `{signature}`\n"
        text += "".join(f"- {system.name}: {', '.join(str(run.path) for run in system.runs)}\n" for system in systems)
        output = args.output.with_suffix("") if args.output.suffix in (".md", ".png") else args.output
        save(draw(systems, used["sacreBLEU"], parts, lengths_of), output.with_name(output.name + ".png"))
        write(output.with_name(output.name + ".md"), lambda path: path.write_text(text, encoding="utf-8"))
    print(text)
    print(f"{output}.md, {output}.png")


if __name__ == "__main__":
    main()
