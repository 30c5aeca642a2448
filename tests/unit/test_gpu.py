"""gpu.py, without a GPU and its commands: a result that is wrong is a row that says so, and the report has all rows."""

import contextlib
import json
import sys

import gpu
import pytest
import speed
import torch

from user_dir.families import FAMILIES


@pytest.fixture
def parts(tmp_path):
    """The parts, whose data are there; a test gives parts.commands.run."""
    found = gpu.Parts(gpu.Commands(minutes=1), tmp_path, small=True)
    found.copies = "data"
    return found


def test_a_command_that_fails_or_has_no_time_left(tmp_path):
    with pytest.raises(gpu.Failure, match="^the reason$"):
        gpu.Commands(minutes=1).run("sh", "-c", "echo first; echo the reason >&2; exit 3")
    with pytest.raises(gpu.TimeIsOver):
        gpu.Commands(minutes=0.05).run("touch", tmp_path / "begun")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "loss, kappa, failure",
    [
        (2, [0.25, 0.75], None),
        (5, [0.5, 0.5], "the loss was 5.0 and is 5.0 after 40 updates"),
        ("nan", [0.5, 0.5], "the loss was 5.0 and is nan after 40 updates"),
        (2, [0.5, 0.6], "κ or α is 1.0e-01 away from the simplex"),
        (2, [-0.1, 1.1], "κ or α is 1.0e-01 away from the simplex"),
        (2, None, "the checkpoint has no κ and α"),
    ],
)
def test_a_training_that_diverges_or_leaves_the_simplex_has_failed(parts, monkeypatch, loss, kappa, failure):
    lines = [{"loss": first, "wps": wps, "wall": "1", "num_updates": n} for first, wps, n in ((5, 70, 10), (3, 90, 40))]
    lines.append({"valid_loss": str(loss), "valid_num_updates": "40"})

    def run(*words, **variables):
        words[words.index("--save-dir") + 1].mkdir()
        return "".join(json.dumps({"epoch": 1, **line}) + "\n" for line in lines) + "at most 7 MB\n"

    parts.commands.run = run
    weights = {"encoder.layers.0.kappa": kappa, "decoder.layers.0.alpha": [1.0]} if kappa else {}
    state = {name: torch.tensor(values) for name, values in weights.items()}
    monkeypatch.setattr(gpu, "load", lambda path: {"model": state})
    with pytest.raises(gpu.Failure, match=failure) if failure else contextlib.nullcontext():
        found = parts.train("name", "weighted_transformer")
        assert found == {"first loss": 5, gpu.LOSS: 2, "words/s": 90, "MB": 7, "κ, α from the simplex": "0.0e+00"}


def test_a_loss_is_compared_with_that_of_its_own_family(parts, monkeypatch):
    """Here every family's is larger than the one before, by much less in its other precisions than is allowed."""
    monkeypatch.setattr(gpu, "ON_GPU", False)
    for part, times in ((parts.precisions, 1.05), (parts.processes, 1.01)):
        for factor in (times, times + 0.01):
            losses = iter([3 * number * by for number in range(1, 5) for by in (1, factor)])
            parts.train = lambda *args, losses=losses, **options: {gpu.LOSS: next(losses)}
            failed = ["failed" in row for row in part()]
            assert failed == [False, factor > times] * len(FAMILIES)


@pytest.mark.parametrize("right, precisions", [(20, 3), (19, 3), (18, 1), (16, 1), (15, 0), (None, 0)])
def test_translations_are_compared_with_those_of_the_cpu(parts, monkeypatch, right, precisions):
    """With 16 to 18 of 20 only those in half precision are as they should be, and without any, none is."""

    def run(*words, **variables):
        same = 20 if "--cpu" in words else right
        return "" if right is None else "".join(f"H-{n}\t-1.0\tw{n if n < same else ''}\n" for n in range(20))

    parts.train, parts.commands.run = lambda name, family: None, run
    monkeypatch.setattr(gpu, "ON_GPU", True)
    rows = [*parts.search()]
    assert [row.get("as the CPU's") for row in rows if "failed" not in row] == [f"{right} of 20"] * precisions * 4
    assert len(rows) == 3 * len(FAMILIES)


def test_seconds_of_a_search_are_read_as_speed_prints_them(parts, capsys):
    times = {speed.STOCK: [4, 4], "the same, residual none": [1, 1]}
    for title, factor in (("update", 2), ("generation", 1)):
        speed.report(title, {name: [factor * s for s in seconds] for name, seconds in times.items()})
    printed = capsys.readouterr().out
    parts.commands.run = lambda *words, **variables: printed
    (row,) = parts.generation()
    expected = {speed.STOCK: "4000 ms, 1.00 of fairseq's", "the same, residual none": "1000 ms, 0.25 of fairseq's"}
    assert row == {"sentences": 4} | expected


def test_data_that_could_not_be_made_are_made_by_the_next_part(tmp_path, monkeypatch):
    parts = gpu.Parts(gpu.Commands(minutes=1), tmp_path, small=True)
    made = iter([gpu.Failure("no memory"), "data"])

    def run(*words):
        if isinstance(result := next(made), Exception):
            raise result

    parts.commands.run = run
    with pytest.raises(gpu.Failure, match="no memory"):
        _ = parts.copies
    assert parts.copies == tmp_path / "copies/data-bin"
    assert (tmp_path / "copies/test.src").read_text() == (tmp_path / "copies/test.tgt").read_text()


def test_a_part_that_fails_ends_neither_the_report_nor_the_other_parts(tmp_path, monkeypatch):
    def fails(with_what):
        def part(parts):
            """a part"""
            yield {"done": 1}
            if with_what:
                raise with_what

        return part

    outcomes = {"machine": OSError("the disk is full"), "search": gpu.TimeIsOver(), "speed": None}
    for name, with_what in outcomes.items():
        monkeypatch.setattr(gpu.Parts, name, fails(with_what))
    for names, status in ((["speed"], 0), ([*outcomes], 1)):
        output = tmp_path / "report"
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--small", "--output", str(output), "--parts", *names])
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        assert ended.value.code == status
    report = json.loads(output.with_suffix(".json").read_text())
    reasons = {"machine": "the disk is full", "search": "the time was over"}
    assert [rows[0] for rows in report.values()] == [{"done": 1}] * 3
    assert {name: rows[1]["failed"] for name, rows in report.items() if len(rows) > 1} == reasons
    assert "the disk is full" in output.with_suffix(".md").read_text()
