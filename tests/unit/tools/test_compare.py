"""python -m user_dir.tools.compare: sacrebleu's own numbers and p-values, and one clear line on bad input."""

import argparse
import itertools
import json
import shutil
import statistics
import types

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from scipy.stats import ttest_ind, ttest_rel

from user_dir.tools import compare
from user_dir.tools.comparison.report import draw, p_value
from user_dir.tools.comparison.significance import TESTS, System, count, p_values, paired
from user_dir.tools.shared.metrics import CompoundSplitBLEU

from support import slow_beyond


@pytest.fixture
def comparison(files):
    """comparison(options): the Markdown that is written."""

    def comparison(*options):
        places = ["--reference", files.reference, "--output", files.folder / "report"]
        compare.main([*map(str, [*places, *options])])
        assert (files.folder / "report.png").read_bytes().startswith(b"\x89PNG")
        assert {path.name for path in files.folder.glob("report*")} == {"report.md", "report.png"}
        return (files.folder / "report.md").read_text()

    return comparison


def differences(text, system):
    """{score: [difference, its margin, p over sentences, p over seeds, p of paired seeds]}"""
    lines = [line for line in text.splitlines() if line.startswith(f"| {system} |")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[1]: row[2:] for row in rows if row[1] in ("sacreBLEU", "chrF2", "tokenised BLEU")}


def test_numbers_of_the_tables(comparison, files, cells, capsys):
    runs = {name: [files.plain(wrong, seed) for seed in (1, 2, 3)] for name, wrong in (("worse", 0.4), ("better", 0.2))}
    text = comparison("--system", "worse", *runs["worse"], "--system", "better", *runs["better"], "--bounds", 1, 5, 10)
    assert text in capsys.readouterr().out
    references = files.sentences
    lengths = np.array([len(line.split()) for line in references])
    metrics = [BLEU(), CHRF(), CompoundSplitBLEU("en")]
    everything = range(len(references))

    def mean(name, metric, inside=everything):
        """The cell, from sacrebleu's public functions."""
        truth = [[references[i] for i in inside]]
        outputs = [path.read_text().splitlines() for path in runs[name]]
        scores = [metric.corpus_score([output[i] for i in inside], truth).score for output in outputs]
        return f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}", statistics.mean(scores)

    for name in runs:
        assert cells(text, name) == ["3", *(mean(name, metric)[0] for metric in metrics)]
    for score_name, metric in zip(("sacreBLEU", "chrF2", "tokenised BLEU"), metrics):
        gain = mean("better", metric)[1] - mean("worse", metric)[1]
        found, _, p, *_ = differences(text, "better")[score_name]
        assert (found, p) == (f"{gain:+.2f}", "< 0.001")
    for label, inside in (("3–5", lengths <= 5), ("6–10", (lengths > 5) & (lengths <= 10)), ("11–20", lengths > 10)):
        inside = np.flatnonzero(inside)
        assert cells(text, label) == [str(len(inside)), *(mean(name, metrics[0], inside)[0] for name in runs)]


def test_identical_systems_do_not_differ(comparison, files):
    """For which sacrebleu prints p = 0.001."""
    runs = [files.plain(0.4, seed) for seed in (1, 2)]
    copies = [files.write(f"copy.{path.name}", path.read_text().splitlines()) for path in runs]
    text = comparison("--system", "a", *runs, "--system", "b", *copies)
    rows = differences(text, "b").values()
    assert {(found, *p) for found, _, *p in rows} == {("+0.00", "1.000", "1.000", "–")}
    assert all(float(margin) > 0 for _, margin, *_ in rows)  # Welch's


def test_two_useless_systems_do_not_differ(comparison, files):
    runs = [files.write(f"{word}.txt", [word * 5] * 120) for word in "xz"]
    found = differences(comparison("--system", "x", runs[0], "--system", "z", runs[1]), "z")
    assert found["sacreBLEU"] == found["tokenised BLEU"] == ["+0.00", "–", "1.000", "–", "–"]


def test_two_seeds_of_one_system_do_not_differ(comparison, files):
    """With more seeds of the one than of the other."""
    runs = [files.plain(0.4, seed) for seed in (1, 2, 3, 4, 5)]
    text = comparison("--system", "a", *runs[:2], "--system", "b", *runs[2:])
    assert all(float(p) > 0.01 for row in differences(text, "b").values() for p in row[2:4])
    assert {row[4] for row in differences(text, "b").values()} == {"–"}  # seeds 1, 2 and 3, 4, 5 are no pairs


def test_pairs_of_seeds(comparison, files):
    """For systems with the same seeds, in whatever order; scipy's paired t-test over sacrebleu's scores."""
    runs = {name: [] for name in "ab"}
    for name, seed in itertools.product(runs, (1, 2, 3)):
        folder = files.folder / f"{name}.seed{seed}"
        folder.mkdir()
        wrong = {"a": 0.4, "b": 0.3}[name] + 0.05 * seed
        runs[name].append(files.plain(wrong, seed).rename(folder / "generate.log"))
    texts = [[path.read_text().splitlines() for path in paths] for paths in runs.values()]
    scores = [[BLEU().corpus_score(text, [files.sentences]).score for text in system] for system in texts]
    expected = [p_value(ttest_ind(*scores, equal_var=False).pvalue), p_value(ttest_rel(*scores).pvalue)]
    assert expected[0] != expected[1]
    gains = [b - a for a, b in zip(*scores)]
    margin = 4.302653 * statistics.stdev(gains) / 3**0.5  # t of 97.5% with two degrees of freedom
    folders = [path.parent for path in runs["b"][::-1]]
    text = comparison("--system", "a", *runs["a"], "--system", "b", *folders)
    found = differences(text, "b")["sacreBLEU"]
    assert [found[1], *found[3:]] == [f"{margin:.2f}", *expected]


def test_what_is_no_pair():
    def by_seed(*paths):
        runs = [types.SimpleNamespace(path=path) for path in paths]
        return System("a", runs, {}).by_seed([1.0, 2.5, 4.5][: len(paths)])

    assert by_seed("a.2/b.seed3/x.log", "a.2/b.seed1/x.log") == {"3": 1.0, "1": 2.5}
    assert by_seed("seed1/test2016.log", "seed2/test2016.log") == {"1": 1.0, "2": 2.5}
    assert by_seed("seed_1/test2016.log", "seed_2/test2016.log") == {"1": 1.0, "2": 2.5}
    assert by_seed("seed1/a.1/x.log", "seed1/a.2/x.log") == {"1": 1.0, "2": 2.5}
    assert by_seed("1.log", "x.log") == by_seed("a.1/x.log", "b.1/x.log") == {}
    three = by_seed("1", "2", "3")
    assert paired(three, {"1": 0.0, "2": 0.5, "3": 9.0}).p == ttest_rel([1.0, 2.5, 4.5], [0.0, 0.5, 9.0]).pvalue
    others = ({}, {"1": 0.0, "2": 0.5}, {"1": 0.0, "2": 0.5, "4": 9.0}, {"1": 0.0, "2": 0.5, "3": 9.0, "4": 9.5}, three)
    assert [paired(three, other) for other in others] == [None] * 5
    assert paired({"1": 1.0}, {"1": 2.0}) is None


@pytest.mark.parametrize("test", slow_beyond(["bootstrap"], TESTS))
def test_repeats_do_not_lower_p(comparison, files, test):
    """That it is sacrebleu's is in comparison/test_significance.py."""
    runs = [files.plain(0.4, 1), files.plain(0.35, 2)]
    systems = [(path.name, path.read_text().splitlines()) for path in runs]
    metric = BLEU()
    (p,), _ = p_values(metric, [count(metric, lines, files.sentences) for _, lines in systems], test)
    assert 0.001 < p < 0.9
    repeats = [[files.write(f"{name}.{i}", lines) for i in range(3)] for name, lines in systems]
    once, often = (
        differences(comparison("--system", "a", *a, "--system", "b", *b, "--test", test), "b")
        for a, b in ([[run] for run in runs], repeats)
    )
    assert once == often and once["sacreBLEU"][1:4] == ["–", p_value(p), "–"]  # no spread, no test


def test_tokens_of_other_references_are_not_compared(comparison, files):
    """A dictionary that lacks a word has <<unk>> in its T- lines, which even equal translations do not match."""
    unknown = [line.replace("cat", "<<unk>>") for line in files.sentences]
    first, same, other = (
        files.generated(f"{name}.log", files.sentences, lines, detokenised=False)
        for name, lines in zip("abc", (files.sentences, files.sentences, unknown))
    )
    texts = [comparison("--system", "first", first, "--system", "other", log) for log in (same, other)]
    assert ["BLEU of tokens" in text for text in texts] == [True, False]


def test_other_baseline_and_lengths(comparison, files, cells):
    source = files.write("test.fr", ["un deux"] * 60 + ["un"] * 60)
    systems = ["--system", "a", files.plain(0.4, 1), "--system", "b", files.plain(0.2, 1)]
    output = files.folder / "report.md"  # the ending of one of the files
    text = comparison(*systems, "--baseline", "b", "--lengths-of", source, "--output", output)
    assert differences(text, "a")["sacreBLEU"][0].startswith("-") and not differences(text, "b")
    assert "3 differences are" in text and "With one seed" in text and "bootstrap, one-sided" in text
    assert cells(text, "1")[0] == cells(text, "2")[0] == "60"
    assert "Differences from b, with" in text and f"by length, in words of {source}:" in text
    assert text.endswith(f"- b: {systems[-1]}\n- a: {systems[2]}\n")


@pytest.mark.parametrize(
    "options, words",
    [
        ("--system a A --system b B --baseline c", "--baseline c is none of the systems: name one of a, b"),
        ("--system a A", "only one system"),
        ("--system a A --system a B", "--system a is given twice"),
        ("--system a A --system b", "--system b has no files"),
        ("--system a A --system b A", "is given twice"),
        ("--system a A --system log A", "--system .*generate.log has no name: --system NAME FILE"),
        ("--system a A --system run A", "--system .*run has no name: --system NAME FILE"),
        ("--system run run", "there is only one system"),
        ("--system run beam", "there is only one system"),  # named like the folder of its file
        ("--system a A --system b nowhere.log", "nowhere.log cannot be read"),
        ("--system a A B --system b C --test randomisation", "the same number of files for each"),
        ("--system a A --system b B --lengths-of short", "short has 1 lines and there are 120 segments"),
        ("--system a run --system b log", "generate.log is given twice"),
        ("--system a A --system b B --output nowhere/report", "there is no folder nowhere: make it"),
    ],
)
def test_bad_comparison_is_one_line(files, refusal, options, words):
    named = {letter: files.plain(0.4, seed) for seed, letter in enumerate("ABC")}
    named["short"] = files.write("short", ["one"])
    (folder := files.folder / "run").mkdir()
    named |= {"run": folder, "log": files.plain(0.4, 4).rename(folder / "generate.log")}
    named["beam"] = folder / "beam.log"
    options = ["--output", files.folder / "report", *(named.get(word, word) for word in options.split())]
    refusal(compare.main, *options, "--reference", files.reference, match=words)
    assert not list(files.folder.glob("report*"))


def test_neither_an_input_nor_a_folder_is_written_over(files, refusal):
    """Both files are refused before the scores."""
    shutil.copy(files.reference, files.folder / "reference.md")
    (files.folder / "taken.md").mkdir()
    system = ["--system", "a", files.plain(0.4, 1), "--system", "b", files.plain(0.2, 1), "--target-lang", "en"]
    given = [*system, "--reference", files.folder / "reference.md", "--output"]
    assert "reference.md is the input: name another" in refusal(compare.main, *given, files.folder / "reference")
    shutil.copy(files.reference, files.folder / "lengths.md")
    lengths = ["--lengths-of", files.folder / "lengths.md", "--output", files.folder / "lengths"]
    other = [*system, "--reference", files.reference, *lengths]
    assert "lengths.md is the input: name another" in refusal(compare.main, *other)
    assert "taken.md is a folder: name a file in it" in refusal(compare.main, *given, files.folder / "taken")
    assert not [*files.folder.glob("*.png")]


def test_different_test_sets(files, refusal):
    orders = enumerate((files.sentences, files.sentences[::-1]))
    logs = [files.generated(f"{number}.log", lines, lines) for number, lines in orders]
    systems = itertools.chain(*(("--system", path.name, path) for path in logs))
    line = refusal(compare.main, *systems, "--target-lang", "en", "--output", files.folder / "report")
    assert "different references (T- lines)" in line


@pytest.fixture
def recorded(files):
    """recorded(precision, digest): two systems of two runs, the words of --system; one run has other data."""

    def recorded(precision="off", digest="same"):
        files.sentences = files.sentences[:20]
        files.reference, words = files.write("test.en", files.sentences), []
        for name, speed in (("one", 1000), ("other", 2500)):
            words += ["--system", name]
            for seed in (1, 2):
                folder = files.folder / f"{name}.{seed}"
                folder.mkdir()
                words.append(files.plain(0.3, seed).rename(folder / "out.txt"))
                sha256 = digest if (name, seed) == ("one", 2) else "same"  # neither the first nor the last
                facts = {"corpus": {"data": folder.name, "sha256": sha256}, "parameters": 7, "updates": 40}
                facts |= {"seconds": {"one": "many", "other": 60 + seed}[name], "words_per_second": speed + seed}
                facts |= {"commits": [name], "versions": {"torch": name}, "machine": {"cpu": name}}
                facts["precision"] = {"one": "off", "other": precision}[name]
                (folder / "run.json").write_text(json.dumps(facts))
        return words

    return recorded


@pytest.mark.parametrize(
    "precision, digest, differs",
    [("off", "same", ""), ("off", "another", " corpus,"), ("bf16", "another", " corpus, precision,")],
)
def test_the_records_of_the_runs(comparison, recorded, precision, digest, differs):
    """Their speed and size are shown, and what a fair comparison needs to be equal; data may lie in another folder."""
    text = comparison(*recorded(precision, digest))
    assert "| one | 7 | 40 | 1,001–1,002 | – |" in text and "| other | 7 | 40 | 2,501–2,502 | 61–62 |" in text
    assert f"not have the same{differs} commits, versions, machine**" in text


def test_runs_without_a_record(comparison, recorded, files):
    systems = recorded()
    (files.folder / "one.1/run.json").unlink()
    text = comparison(*systems)
    assert "| one | 7 | 40 | 1,002 | – |" in text and "**Not all runs of one have a run.json.**" in text
    for record in files.folder.glob("*/run.json"):
        record.unlink()
    assert "words/s" not in comparison(*systems)


def test_a_picture_of_many_systems():
    """Each has a colour and mark of its own, and its scores by length; the legend is beside the points."""
    scores = lambda name, metric, inside=(9,): [1.0 * inside[0], 2.0 * inside[0]]  # noqa: E731
    systems = [argparse.Namespace(name=f"_{number}", scores=scores) for number in range(21)]
    figure = draw(systems, None, {"1–5": [2], "6–9": [4]}, "the reference")
    points = [container.lines[0] for container in figure.axes[1].containers]
    assert len({(line.get_color(), line.get_marker()) for line in points}) == 21
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [system.name for system in systems]
    assert [[*line.get_ydata()] for line in points] == [[3.0, 6.0]] * 21
    assert all("mean ± standard deviation" in axis.get_title() for axis in figure.axes)  # both have bars
    seeds, lengths = ([label.get_text() for label in axis.get_xticklabels()] for axis in figure.axes)
    assert seeds == [system.name for system in systems] and lengths == ["1–5\n(1)", "6–9\n(1)"]
    assert [container.lines[0].get_xdata()[0] for container in figure.axes[0].containers] == [*range(21)]


def test_long_names_leave_the_panels_their_room():
    """Such as those of examples/ablations.sh."""
    scores = lambda *given: [1.0, 2.0]  # noqa: E731
    names = [f"weighted.layers-{number} (paper, newstest2013: 26.5)" for number in range(8)]
    systems = [argparse.Namespace(name=name, scores=scores) for name in names]
    figure = draw(systems, None, {"1–5": [2], "6–9": [4]}, "the reference")
    figure.draw_without_rendering()
    assert min(axis.get_window_extent().height for axis in figure.axes) > 2 * figure.dpi
