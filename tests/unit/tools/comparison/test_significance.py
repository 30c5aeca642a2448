"""sacrebleu's private parts give the results of its public functions: another version fails here. p of seeds."""

import pathlib
import types
import warnings

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from user_dir.tools.comparison import significance as adapter
from user_dir.tools.comparison.report import report
from user_dir.tools.shared.metrics import CompoundSplitBLEU


def test_checked_with_the_version_that_is_installed():
    """To raise CHECKED_WITH, read what has become of the names in the adapter, and run these tests."""
    assert sacrebleu.__version__ == adapter.CHECKED_WITH


@pytest.fixture
def outputs(files):
    """A system's translations, and a better one's."""
    return [files.plain(wrong, seed).read_text().splitlines() for wrong, seed in ((0.4, 1), (0.35, 2))]


@pytest.mark.parametrize("metric", [BLEU(), CHRF(), CompoundSplitBLEU("en")], ids=["BLEU", "chrF2", "tokenised"])
def test_a_score_is_that_of_the_sum_of_counts(files, outputs, metric):
    for output in outputs:
        counts = adapter.count(metric, output, files.sentences)
        for part in (slice(None), slice(3, 50)):
            expected = metric.corpus_score(output[part], [files.sentences[part]]).score
            assert adapter.score(metric, counts[part]) == pytest.approx(expected) and 10 < expected < 90


@pytest.mark.parametrize("test, kind", adapter.TESTS.items())
def test_p_values_are_those_of_texts(files, outputs, test, kind):
    metric, references = BLEU(), files.sentences[:40]
    systems = [*zip("abc", (output[:40] for output in (*outputs, outputs[0])))]
    _, columns = PairedTest(systems, {"": metric}, [references], kind)()
    counts = [adapter.count(metric, output, references) for _, output in systems]
    (p, p_of_itself), signature = adapter.p_values(metric, counts, test)
    expected = columns["BLEU"][1].p_value
    assert p == (expected if test == "bootstrap" else pytest.approx(expected)) and 0.001 < p < 0.9
    assert p_of_itself == 1
    assert signature == f"{kind}:{10_000 if kind == 'ar' else 1000}|seed:12345"


@pytest.mark.parametrize("differ, least", [(1, 1), (2, 0.5), (4, 0.125)])
def test_few_segments_that_differ_are_no_evidence(files, differ, least):
    """If all of them are worse, every exchange of one, and half of those of two, make as large a difference."""
    metric, better = BLEU(), files.sentences
    worse = [line if number >= differ else f"wrong {line}" for number, line in enumerate(better)]
    counts = [adapter.count(metric, lines, files.sentences) for lines in (worse, better)]
    (p,), _ = adapter.p_values(metric, counts, "randomisation")
    assert p == pytest.approx(least, abs=0.001)
    (one_sided,), _ = adapter.p_values(metric, counts, "bootstrap")
    assert one_sided == least / 2


def test_five_lengths_with_as_many_segments_each():
    lines = [" ".join("a" * length) for length in range(1, 11)]
    assert [*adapter.buckets(None, lines, None)] == ["1–2", "3–4", "5–6", "7–8", "9–10"]
    assert [*adapter.buckets(None, lines[::2], [1, 2, 4])] == ["1", "3–4", "5–9"]  # none has two words


def test_a_single_seed_of_either_system_is_said():
    run = types.SimpleNamespace(path=pathlib.Path("nowhere"))
    systems = [types.SimpleNamespace(name="a", runs=runs) for runs in ([run], [run, run])]
    texts = [report(some, {}, [], {}, "x") for some in (systems, systems[1:])]
    assert ["With one seed" in text for text in texts] == [True, False]
    assert all("nor the intervals" in text and "by the paired test where" in text for text in texts)


def test_a_single_seed_has_no_spread():
    assert adapter.welch([1.0, 2.0], [1.0]) is adapter.welch([1.0], [1.0, 2.0]) is None
    with warnings.catch_warnings(action="error"):  # t = 19 with one degree of freedom: 2/π atan(1/19), 12.7062 · 0.05
        assert adapter.welch([30.0, 30.0], [29.0, 29.1]) == pytest.approx((0.033475, 0.635310), abs=1e-6)


def test_equal_differences_have_no_p():
    """Those of rounded scores, too, which floating-point numbers make a little different."""
    assert adapter.paired({"1": 40.1, "2": 41.3, "3": 42.7}, {"1": 40.0, "2": 41.2, "3": 42.6}) is None
    assert adapter.paired({"1": 40.2, "2": 41.3, "3": 42.7}, {"1": 40.0, "2": 41.2, "3": 42.6}) is not None
