"""python -m user_dir.tools.score and … compare: sacrebleu's own numbers, and one clear line on bad input."""

import itertools
import random
import re
import statistics

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from sacremoses import MosesTokenizer

from user_dir.tools import compare, score

from support import run

WORDS = "the a state-of-the-art cat dog doesn't sees well-known \"books\" , 3.5 % in (Paris) and runs".split()


def sentences(count=120):
    choose = random.Random(1)
    return [" ".join(choose.choices(WORDS, k=choose.randint(3, 20))) + "." for _ in range(count)]


def translated(references, wrong, seed):
    """The references with that share of wrong words."""
    choose = random.Random(seed)
    return [" ".join(choose.choice(WORDS) if choose.random() < wrong else word for word in line.split()) for line in references]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def log(path, hypotheses, references, detokenised=True, skip=()):
    """As fairseq-generate prints it, the last segment first; D- is detokenised, or as H-."""
    moses, lines = MosesTokenizer("en"), []
    for number, (hypothesis, reference) in reversed([*enumerate(zip(hypotheses, references))]):
        tokens, truth = (moses.tokenize(text, return_str=True) for text in (hypothesis, reference))
        if number not in skip:
            lines += [f"S-{number}\tx", f"T-{number}\t{reference if detokenised else truth}", f"H-{number}\t-0.5\t{tokens}"]
            lines += [f"D-{number}\t-0.5\t{hypothesis if detokenised else tokens}", f"P-{number}\t-0.1 -0.2"]
    return write(path, [*lines, "Generate test with beam=4: BLEU4 = 12.34"])


@pytest.fixture
def reference(tmp_path):
    return write(tmp_path / "test.en", sentences())


@pytest.fixture
def plain(tmp_path, reference):
    """plain(wrong, seed): a file of hypotheses."""
    return lambda wrong, seed: write(tmp_path / f"{wrong}.{seed}.txt", translated(sentences(), wrong, seed))


def cells(text, first):
    """The cells of the table's line that begins with `first`."""
    return [cell.strip() for cell in next(line for line in text.splitlines() if line.startswith(f"| {first} |")).split("|")[2:-1]]


def test_scores_are_those_of_sacrebleus_command(plain, reference, tmp_path, capsys):
    files = [plain(0.2, 1), plain(0.5, 2)]
    score.main([*map(str, files), "--reference", str(reference)])
    printed = capsys.readouterr().out

    def split(path):
        lines = [MosesTokenizer("en").tokenize(line, return_str=True) for line in path.read_text().splitlines()]
        return write(tmp_path / f"{path.name}.atat", [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in lines])

    def sacrebleu(reference, path, *options):
        return run("sacrebleu", reference, "-i", path, "-b", "-w", 2, *options).stdout.strip()

    for path in files:
        tokenised = sacrebleu(split(reference), split(path), "--tokenize", "none", "--force", "--smooth-method", "none")
        assert cells(printed, path) == [sacrebleu(reference, path), sacrebleu(reference, path, "-m", "chrf"), tokenised]
        assert len({*cells(printed, path)}) == 3
    assert "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in printed
    assert "chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:" in printed
    assert "tok:moses-en-compounds|smooth:none" in printed


@pytest.mark.parametrize("text, tokens", [
    ("rich-text format", "rich ##AT##-##AT## text format"),
    ("well-known-fact", "well ##AT##-##AT## known ##AT##-##AT## fact"),
    ("a-b-c", "a ##AT##-##AT## b-c"),  # as Perl reads bytes: a match takes both letters,
    ("ä-ö-ü", "ä ##AT##-##AT## ö ##AT##-##AT## ü"),  # of these only a half
    ("- yes - 10-", "- yes - 10-"),
    ("Mr. O'Neil-Smith's.", "Mr. O &apos;Neil ##AT##-##AT## Smith &apos;s ."),
])  # fmt: skip
def test_compounds(text, tokens):
    assert score.CompoundSplitting("en")(text) == tokens


def test_generated_by_number_of_segment(plain, reference, tmp_path, capsys):
    """Detokenised, tokenised and plain give the same scores; so do T- lines and the reference, whose tokens Moses puts back."""
    hypotheses, references = plain(0.3, 1).read_text().splitlines(), sentences()
    hypotheses[7] = ""
    write(plain(0.3, 1), hypotheses)
    logs = [log(tmp_path / f"{d}.log", hypotheses, references, d) for d in (True, False)]
    score.main([*map(str, logs), str(tmp_path / "0.3.1.txt"), "--reference", str(reference)])
    printed = capsys.readouterr().out
    expected = cells(printed, tmp_path / "0.3.1.txt")
    assert cells(printed, logs[0]) == expected
    bleu = BLEU(tokenize="none", force=True)
    texts = [[MosesTokenizer("en").tokenize(line, return_str=True) for line in lines] for lines in (hypotheses, references)]
    score.main([str(logs[1]), "--target-lang", "en"])
    assert cells(capsys.readouterr().out, logs[1])[-1] == f"{bleu.corpus_score(texts[0], [texts[1]]).score:.2f}"
    score.main([str(logs[1]), "--reference", str(reference), "--tokenised", "no"])
    assert cells(capsys.readouterr().out, logs[1])[0] == f"{BLEU(force=True).corpus_score(texts[0], [references]).score:.2f}" != expected[0]
    score.main([str(logs[0]), "--target-lang", "en"])
    printed = capsys.readouterr().out
    assert cells(printed, logs[0]) == expected and "give --reference for scores to report" in printed


def missing_segment(tmp_path, reference):
    return [log(tmp_path / "a.log", sentences(), sentences(), skip=(3, 5))]


def missing_end(tmp_path, reference):
    return [log(tmp_path / "a.log", sentences(), sentences(), skip=(118, 119)), "--reference", reference]


def duplicate(tmp_path, reference):
    path = log(tmp_path / "a.log", sentences(), sentences())
    path.write_text(path.read_text() * 2)
    return [path]


def subwords(tmp_path, reference):
    return [write(tmp_path / "a.txt", ["a wo@@ rd"] * 120), "--reference", reference]


def too_long(tmp_path, reference):
    return [log(tmp_path / "a.log", sentences(), sentences()), "--reference", write(tmp_path / "b.en", sentences(100))]


MISTAKES = [
    (missing_segment, r"a.log: 2 of 120 segments were not translated, the first is number 3 .*--required-batch-size-multiple 1"),
    (missing_end, r"a.log: 2 of 120 segments were not translated, the first is number 118 "),
    (duplicate, r"a.log, line 602: S-119 occurs a second time.*--nbest 1"),
    (too_long, r"a.log has 120 segments and the reference has 100"),
    (subwords, r"a.txt: segment 0 is in subwords \(a wo@@ rd …\): translate with --remove-bpe"),
    (lambda folder, reference: [write(folder / "a.txt", [])], "a.txt is empty"),
    (lambda folder, reference: [folder / "a.txt"], "a.txt cannot be read: No such file"),
    (lambda folder, reference: [folder], "cannot be read: Is a directory"),
    (lambda folder, reference: [write(folder / "a.txt", ["a"])], "a.txt is plain text, .*give --reference FILE"),
    (lambda folder, reference: [write(folder / "a.txt", ["a"]), "--reference", reference], "a.txt has 1 lines and .*test.en has 120"),
    (lambda folder, reference: [reference, reference, "--reference", reference], "test.en is given twice"),
]


def refusal(main, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    assert isinstance(stop.value.code, str) and "\n" not in stop.value.code  # one line to stderr, exit status 1
    return stop.value.code


@pytest.mark.parametrize("mistake, words", MISTAKES, ids=[words[:20] for _, words in MISTAKES])
def test_bad_input_is_one_line(reference, tmp_path, mistake, words):
    assert re.match(f"score: .*{words}", refusal(score.main, *mistake(tmp_path, reference), "--target-lang", "en"))


def test_language_and_encoding(reference, tmp_path):
    assert "give --target-lang" in refusal(score.main, write(tmp_path / "a.txt", ["a"]))
    (tmp_path / "latin1.txt").write_bytes("façade\n".encode("latin1"))
    assert "is not text in UTF-8" in refusal(score.main, tmp_path / "latin1.txt", "--reference", reference)


@pytest.fixture
def comparison(reference, tmp_path):
    """comparison(options): the Markdown that is written."""
    pytest.importorskip("matplotlib")

    def comparison(*options):
        compare.main([*map(str, options), "--reference", str(reference), "--output", str(tmp_path / "report")])
        assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
        assert not list(tmp_path.glob("*partial*"))
        return (tmp_path / "report.md").read_text()

    return comparison


def differences(text, system):
    """{score: [difference, p over sentences, p over seeds]}"""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith(f"| {system} |")]
    return {row[1]: row[2:] for row in rows if row[1] in ("sacreBLEU", "chrF2", "tokenised BLEU")}


def test_numbers_of_the_tables(comparison, plain, capsys):
    files = {name: [plain(wrong, seed) for seed in (1, 2, 3)] for name, wrong in (("worse", 0.4), ("better", 0.2))}
    text = comparison("--system", "worse", *files["worse"], "--system", "better", *files["better"], "--bounds", 5, 10)
    assert text in capsys.readouterr().out
    references = sentences()
    lengths = np.array([len(line.split()) for line in references])
    metrics = [BLEU(), CHRF(), score.CompoundSplitBLEU("en")]

    def mean(name, metric, inside=range(len(references))):
        """The cell, from sacrebleu's public functions."""
        outputs = [path.read_text().splitlines() for path in files[name]]
        scores = [metric.corpus_score([output[i] for i in inside], [[references[i] for i in inside]]).score for output in outputs]
        return f"{statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}", statistics.mean(scores)

    for name in files:
        assert cells(text, name) == ["3", *(mean(name, metric)[0] for metric in metrics)]
    for score_name, metric in zip(("sacreBLEU", "chrF2", "tokenised BLEU"), metrics):
        gain = mean("better", metric)[1] - mean("worse", metric)[1]
        assert differences(text, "better")[score_name][:2] == [f"{gain:+.2f}", "< 0.001"]
    for label, inside in (("3–5", lengths <= 5), ("6–10", (lengths > 5) & (lengths <= 10)), ("11–20", lengths > 10)):
        inside = np.flatnonzero(inside)
        assert cells(text, label) == [str(len(inside)), *(mean(name, metrics[0], inside)[0] for name in files)]


def test_identical_systems_do_not_differ(comparison, plain, tmp_path):
    """For which sacrebleu prints p = 0.001."""
    copies = [write(tmp_path / f"copy.{seed}", plain(0.4, seed).read_text().splitlines()) for seed in (1, 2)]
    text = comparison("--system", "a", plain(0.4, 1), plain(0.4, 2), "--system", "b", *copies)
    assert {tuple(row) for row in differences(text, "b").values()} == {("+0.00", "1.000", "1.000")}


def test_two_useless_systems_do_not_differ(comparison, tmp_path):
    files = [write(tmp_path / f"{word}.txt", [word * 5] * 120) for word in "xz"]
    found = differences(comparison("--system", "x", files[0], "--system", "z", files[1]), "z")
    assert found["sacreBLEU"] == found["tokenised BLEU"] == ["+0.00", "1.000", "–"]


def test_two_seeds_of_one_system_do_not_differ(comparison, plain):
    text = comparison("--system", "a", plain(0.4, 1), plain(0.4, 2), "--system", "b", plain(0.4, 3), plain(0.4, 4))
    assert all(float(p) > 0.01 for row in differences(text, "b").values() for p in row[1:])


@pytest.mark.parametrize("test, kind", compare.TESTS.items())
def test_p_is_sacrebleus_and_repeats_do_not_lower_it(comparison, plain, tmp_path, test, kind):
    files = [plain(0.4, 1), plain(0.35, 2)]
    systems = [(path.name, path.read_text().splitlines()) for path in files]
    results = PairedTest(systems, {"BLEU": BLEU(), "chrF": CHRF()}, [sentences()], kind)()[1]
    expected = [compare.p_value(results[name][1].p_value) for name in ("BLEU", "chrF2")]
    assert 0.001 < results["BLEU"][1].p_value < 0.9
    repeats = [[write(tmp_path / f"{path.name}.{i}", path.read_text().splitlines()) for i in range(3)] for path in files]
    for a, b in (files, repeats):
        a, b = ([*file] if isinstance(file, list) else [file] for file in (a, b))
        found = differences(comparison("--system", "a", *a, "--system", "b", *b, "--test", test), "b")
        assert [found[name][1] for name in ("sacreBLEU", "chrF2")] == expected
        assert found["sacreBLEU"][2] == "–"  # no spread, no test


def test_other_baseline_and_lengths(comparison, plain, tmp_path):
    source = write(tmp_path / "test.fr", ["un deux"] * 60 + ["un"] * 60)
    text = comparison("--system", "a", plain(0.4, 1), "--system", "b", plain(0.2, 1), "--baseline", "b", "--lengths-of", source)
    assert differences(text, "a")["sacreBLEU"][0].startswith("-") and not differences(text, "b")
    assert cells(text, "1")[0] == cells(text, "2")[0] == "60"


@pytest.mark.parametrize("options, words", [
    ("--system a A --system b B --baseline c", r"--baseline c is none of the systems \(a, b\)"),
    ("--system a A", "there is one system"),
    ("--system a A --system a B", "--system a is given twice"),
    ("--system a A --system b", "--system b has no files"),
    ("--system a A --system b A", "is given twice"),
    ("--system a A --system b nowhere.log", "nowhere.log cannot be read"),
    ("--system a A B --system b C --test randomisation", "the same number of files for each"),
    ("--system a A --system b B --lengths-of short", "short has 1 lines and there are 120 segments"),
    ("--system a A --system b B --output nowhere/report", "No such file or directory"),
])  # fmt: skip
def test_bad_comparison_is_one_line(reference, plain, tmp_path, options, words):
    pytest.importorskip("matplotlib")
    files = {letter: str(plain(0.4, seed)) for seed, letter in enumerate("ABC")} | {"short": str(write(tmp_path / "short", ["one"]))}
    options = ["--output", tmp_path / "report", *(files.get(word, word) for word in options.split())]
    assert re.match(f"compare: .*{words}", refusal(compare.main, *options, "--reference", reference))
    assert not list(tmp_path.glob("report*"))


def test_different_test_sets(tmp_path):
    pytest.importorskip("matplotlib")
    logs = [log(tmp_path / f"{n}.log", lines, lines) for n, lines in enumerate((sentences(), sentences()[::-1]))]
    systems = itertools.chain(*(("--system", path.name, path) for path in logs))
    assert "different references (T- lines)" in refusal(compare.main, *systems, "--target-lang", "en", "--output", tmp_path / "report")
