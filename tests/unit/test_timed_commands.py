"""benchmarks/commands.py, without its commands: both sides do the same work, but for what is compared."""

import argparse
import importlib.util
import json
import statistics
import sys

import pytest

from support import PROJECT, one_line, write_preparation

spec = importlib.util.spec_from_file_location("timed_commands", PROJECT / "tests/benchmarks/commands.py")
timed = importlib.util.module_from_spec(spec)  # under its own name tests/commands.py would be found
spec.loader.exec_module(timed)


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """typed(method): the words of the commands of fairseq's side and ours, and the figures."""
    write_preparation(tmp_path / "data-bin")
    for folder in ("raw", "bpe"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "test.src").write_text(f"1 {folder}\n2\n")
    last = []

    def run(commands, words, stdin=None):
        words = [str(word) for word in words]
        text = words[-1] if "--input" in words else stdin
        last[:] = words, text and open(text).read()
        if "--log-file" in words:
            lines = [{"epoch": 1, "wps": wps, "wall": "1", "num_updates": wps} for wps in (1, 30, 40, 90)]
            (commands.folder / "train.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return 7.0, "H-1\t-0.5\tb\nH-0\t-0.5\ta\nD-0\t-0.5\ta\n"

    monkeypatch.setattr(timed.Commands, "run", run)
    about = {"family": "weighted_transformer", "autocast": "bf16", "updates": 80}
    (tmp_path / "work").mkdir()
    commands = timed.Commands(argparse.Namespace(data=tmp_path, checkpoint="average.pt", **about), tmp_path / "work")
    sides = (False, True)
    return lambda method: [(getattr(commands, method)(ours), *last, commands.hypotheses.get(ours)) for ours in sides]


def test_both_sides_train_the_same_model_on_the_same_batches(typed, tmp_path):
    """The first interval, in which everything is made ready, does not count."""
    (stock, theirs, *_), (ours, own, *_) = typed("train")
    assert stock == ours == 40
    family = "weighted_transformer_tiny"
    assert {*theirs} - {*own} == {"label_smoothed_cross_entropy", "adam", "transformer"}
    rule = {"fused_label_smoothed_cross_entropy", "fused_adam", "--branch-frozen-updates", family, "--autocast", "bf16"}
    assert {*own} - {*theirs} == {*timed.TASK} | rule
    assert theirs[theirs.index("--save-dir") + 1] == str(tmp_path / "work")  # not ./checkpoints


def test_both_sides_search_with_the_same_settings(typed):
    """nmt-translate takes others from search.json, and torch where there is no export for CTranslate2."""
    (_, theirs, _, found), (_, own, _, ours) = typed("generate")
    assert {*own} - {*theirs} == {*timed.TASK, "average.pt", "--model-overrides", "{'autocast': 'bf16'}"}
    assert len({*theirs} - {*own}) == 1 and found == ours == [("0", "a"), ("1", "b")]
    for method, lines in (("translate", "1 {}\n2\n"), ("sentence", "1 {}\n")):
        (_, theirs, subwords, _), (_, own, raw, _) = typed(method)
        assert (subwords, raw) == (lines.format("bpe"), lines.format("raw"))
        for name, value in (("--beam", "4"), ("--lenpen", "1")):
            assert theirs[theirs.index(name) + 1] == own[own.index(name) + 1] == value
        assert own[own.index("--engine") + 1] == "ctranslate2"


@pytest.mark.parametrize(
    "words, remedy",
    [
        (["--family", "relative_transformer", "--record", "cpu", "--only", "translate"], "add --only train"),
        (["--updates", "20"], "at least 40 --updates"),
        (["--rounds", "0"], "at least one of --rounds"),
    ],
)
def test_useless_timings_are_refused(monkeypatch, capsys, words, remedy):
    """The checkpoint searches, which is a vaswani_transformer: a record would name another family."""
    commands = argparse.Namespace(translate=lambda ours: 1.0)
    monkeypatch.setattr(timed, "Commands", lambda *given: commands)
    monkeypatch.setattr(timed, "write_record", lambda path, record: None)
    monkeypatch.setattr(sys, "argv", ["commands.py", "data", "average.pt", *words])
    with pytest.raises(SystemExit) as refused:
        timed.main()
    assert refused.value.code == 2 and remedy in capsys.readouterr().err


def test_the_time_of_an_update_of_branches_is_that_of_their_page():
    """Beside the base's; either is a ratio to fairseq's, which ran in turn with it."""
    ratios = {}
    for file in (PROJECT / "tests/benchmarks/results").glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        machine = record["machine"]["cpu"], record["machine"]["instructions"], record["autocast"]
        ratio = statistics.median(ours / stock for stock, ours in record["figures"]["train"])
        ratios.setdefault(machine, {})[record["family"]] = ratio
    times = [of["vaswani_transformer"] / of["weighted_transformer"] for of in ratios.values() if len(of) > 1]
    page = one_line(PROJECT / "examples/weighted.md")
    assert len(times) > 2 and f"[{min(times):.1f} to {max(times):.1f} times as long]" in page
