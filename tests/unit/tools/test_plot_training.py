"""python -m user_dir.tools.plot_training: what is drawn of fairseq's logs; bad input is one line."""

import re

import pytest

from user_dir.tools import plot_training as tool
from user_dir.tools.shared.records import write_record


@pytest.fixture
def log(fairseq_log, steps, tmp_path):
    return tool.read_log(fairseq_log(tmp_path / "train.log", "simple", steps))


def test_curves(log):
    assert tool.curve(log["valid"], "ppl", "updates") == ([75, 100], [300.5, 117.5])
    assert tool.curve(log["train_inner"], "loss", "wall") == ([20 / 3600, 40 / 3600], [10.5, 8.5])
    assert tool.curve({50: {"gnorm": float("nan"), "num_updates": 50}}, "gnorm", "updates") == ([], [])


def test_picture(fairseq_log, steps, tmp_path, printed):
    logs = [fairseq_log(tmp_path / f"{kind}.log", kind, steps, header=True) for kind in ("simple", "json")]
    picture = tmp_path / "training.png"
    assert printed(tool.main, *logs, "--output", picture) == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_panels(log, monkeypatch):
    monkeypatch.setitem(tool.TITLES, "nowhere", "what no log has and nobody asked for")
    figure = tool.draw([log, log, log], ["base", "base", "relative"], None, "updates")
    panels = {axis.get_title(): axis for axis in figure.axes}
    assert list(panels) == list(tool.TITLES.values())[:-1]
    lines = [line for line in panels[tool.TITLES["loss"]].lines if len(line.get_xdata())]
    assert [list(line.get_ydata()) for line in lines] == [[10.5, 8.5], [9.0, 7.5]] * 3
    assert lines[0].get_color() == lines[2].get_color() != lines[4].get_color()
    colours = [handle.get_color() for handle in figure.legends[0].legend_handles[:2]]
    assert colours == [lines[0].get_color(), lines[4].get_color()]
    assert [title for title, axis in panels.items() if axis.get_yscale() == "log"] == ["perplexity"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", "relative", "validation"]
    speed = panels[tool.TITLES["wps"]].lines  # without that of validations
    assert [list(line.get_ydata()) for line in speed if len(line.get_xdata())] == [[4471.8, 4979.5]] * 3
    bleu = panels[tool.TITLES["bleu"]].lines
    assert [list(line.get_ydata()) for line in bleu if len(line.get_xdata())] == [[3.25, 4.5]] * 3


def test_options_reach_the_picture(fairseq_log, steps, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(tool, "save", lambda figure, path: figures.append(figure))
    path = fairseq_log(tmp_path / "train.log", "simple", steps)
    options = ["--names", "base", "--values", "lr", "--against", "seconds"]
    tool.main([str(path), *options, "--output", str(tmp_path / "a.png")])
    ((axis,), (legend,)) = figures[0].axes, figures[0].legends
    assert (axis.get_title(), axis.get_xlabel()) == (tool.TITLES["lr"], "seconds")
    assert legend.get_texts()[0].get_text() == "base"


def test_the_legend_of_many_runs_leaves_room(log):
    """Fifteen long names, below each other under a single panel."""
    names = [f"weighted_relative_transformer_tiny.fr-en.seed{number}" for number in range(15)]
    figure = tool.draw([log] * 15, names, ["loss"], "updates")
    figure.draw_without_rendering()
    panel, legend = (part.get_window_extent() for part in (*figure.axes, *figure.legends))
    assert panel.height > 2.5 * figure.dpi and panel.y0 > legend.y1


def test_over_training_loss(log, tmp_path, fairseq_log, steps):
    """Halfway between the lines of updates 50 and 100, and at the latter: training losses 9.5 and 8.5."""
    found = tool.over_training_loss(log, tmp_path)
    assert list(found) == ["valid"]
    assert tool.curve(found["valid"], "loss", "training-loss") == ([9.5, 8.5], [9.0, 7.5])
    (axis,) = tool.draw([found, found], ["base", "weighted"], None, "training-loss").axes
    lines = [line for line in axis.lines if len(line.get_xdata())]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in lines] == [([9.5, 8.5], [9.0, 7.5])] * 2
    assert axis.get_xlabel() == "training loss"
    without_intervals = {kind: values for kind, values in steps.items() if kind != "train_inner"}  # but with epochs
    log = tool.read_log(fairseq_log(tmp_path / "train.log", "simple", without_intervals))
    assert tool.curve(tool.over_training_loss(log, tmp_path)["valid"], "loss", "training-loss")[0] == [9.5, 9.5]
    path, picture = fairseq_log(tmp_path / "train.log", "json", steps), tmp_path / "a.png"
    tool.main([str(path), "--against", "training-loss", "--reach", "--output", str(picture)])
    assert picture.exists()


def test_epochs_where_there_are_no_intervals(log):
    del log["train_inner"]
    (axis,) = tool.draw([log], ["a"], ["lr"], "updates").axes
    (line,) = (line for line in axis.lines if len(line.get_xdata()))
    assert [*line.get_ydata()] == [1e-3] and line.get_marker() == "_"  # a line alone would not be seen


def test_reached(log):
    """Between the validations after 75 and 100 updates, with losses 9 and 7.5."""
    reached = lambda loss: tool.reached(log["valid"], loss, "updates")  # noqa: E731
    assert [reached(loss) for loss in (9.5, 9, 8.25, 7.5, 7.4)] == [75, 75, 87.5, 100, None]
    assert tool.reached(log["valid"], 8.25, "seconds") == 35


@pytest.mark.parametrize(
    "options, rows",
    [
        (["--reach"], ["| run | updates to validation loss 7.5 | seconds |", "| {} | 100 | 40 |"]),
        (["--reach", "7"], ["| run | updates to validation loss 7 | seconds |", "| {} | not reached | not reached |"]),
    ],
)
def test_what_reach_prints(fairseq_log, steps, tmp_path, printed, options, rows):
    path = fairseq_log(tmp_path / "train.log", "simple", steps)
    lines = printed(tool.main, path, *options, "--output", tmp_path / "a.png").splitlines()
    assert [lines[0], lines[2]] == [rows[0], rows[1].format(tmp_path.name)]


LINE = '{"epoch": 1, "loss": "9", "num_updates": "50"}'
VALIDATION = '{"epoch": 1, "valid_loss": "9", "valid_num_updates": "50"}'


@pytest.mark.parametrize(
    "content, more, words",
    [
        ("", [], "train.log holds no line of a training"),
        ("hello\n{}\nepoch 1 | nothing\n", [], "holds no line of a training"),
        (None, [], "No such file"),
        (LINE, ["--values", "kappa"], "no log has kappa.*there are epoch, loss, num_updates"),
        (LINE, ["--values", "loss", "kappa", "alpha"], "no log has kappa, alpha over updates"),
        (LINE, ["--against", "training-loss"], "train.log has no validation, and --against training-loss"),
        (VALIDATION, ["--against", "training-loss"], "train.log has no training loss, and"),
        (LINE, ["--reach"], "train.log has no validation with a finite loss"),
        (LINE, ["--cost"], "there is no average.pt or checkpoint_last.pt"),
    ],
)
def test_bad_input_is_one_line(tmp_path, content, more, words, refusal):
    if content is not None:
        (tmp_path / "train.log").write_text(content)
    refusal(tool.main, tmp_path / "train.log", *more, "--output", tmp_path / "a.png", match=words)
    assert not any(tmp_path.glob("a.*"))


def test_the_log_without_a_validation_is_named(tmp_path, refusal):
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for log, content in zip(logs, (f"{LINE}\n{VALIDATION}", LINE)):
        log.write_text(content)
    refusal(tool.main, *logs, "--reach", "8", "--output", tmp_path / "a.png", match="b.log has no validation")


@pytest.mark.parametrize(
    "validation, words",
    [
        ([], "run.json holds no validation"),
        (None, "run.json holds no validation"),
        ([1], "run.json is not the record of a run .a validation is not an object with the number of its update"),
        ([{"loss": 3}], "run.json is not the record of a run .a validation is not an object with the number"),
        ([{"update": None}, {"update": 3}], "run.json is not the record of a run .a validation is not an object"),
        (3, "run.json is not the record of a run"),
    ],
    ids=str,
)
def test_a_record_without_validations_is_one_line(tmp_path, refusal, validation, words):
    write_record(tmp_path / "run.json", {"validation": validation, "scores": {}})
    refusal(tool.main, tmp_path / "run.json", "--output", tmp_path / "a.png", match=words)


def test_a_log_may_end_like_a_record(fairseq_log, steps, tmp_path):
    log = tool.read_log(fairseq_log(tmp_path / "train.json", "json", steps))
    assert set(log) == {"train_inner", "train", "valid"}


def test_a_name_for_each_log(capsys):
    with pytest.raises(SystemExit):
        tool.main(["a.log", "b.log", "--names", "a", "--output", "a.png"])
    assert "2 logs and 1 --names" in capsys.readouterr().err


def test_folders_of_runs(fairseq_log, steps, tmp_path, printed):
    for run in ("a.1", "a.2"):
        (tmp_path / run).mkdir()
        fairseq_log(tmp_path / run / "train.log", "simple", steps)
    text = printed(tool.main, tmp_path / "a.1", tmp_path / "a.2", "--reach", "--output", tmp_path / "a.png")
    assert re.findall(r"^\| (a\.\d) \|", text, re.MULTILINE) == ["a.1", "a.2"]


def test_records(tmp_path, printed, refusal):
    """A record stands for its validations; one from before they had a time gives updates only."""
    validation = [{"update": 50, "loss": 9.0, "seconds": 20}, {"update": 100, "loss": 7.0, "seconds": 60}]
    timeless = [{"update": 50, "loss": 8.0}]
    paths = [tmp_path / "new.json", tmp_path / "old.json"]
    for path, points in zip(paths, (validation, timeless)):
        write_record(path, {"validation": points, "scores": {}})
    text = printed(tool.main, *paths, "--reach", 8, "--output", tmp_path / "a.png")
    assert text.splitlines()[2:4] == ["| new | 75 | 40 |", "| old | 50 | – |"]
    refusal(tool.main, *paths, "--against", "wall", "--output", tmp_path / "b.png", match="old: no loss over wall: ")
    write_record(paths[1], {"validation": [{"update": 50, "loss": 7.5}, {"update": 100, "loss": 9.0}], "scores": {}})
    text = printed(tool.main, *paths[::-1], "--reach", "--output", tmp_path / "a.png")
    assert "| updates to validation loss 7.5 |" in text  # the first log's lowest, not its last
    training = [{**point, "training_loss": point["loss"] - 1} for point in validation]
    write_record(paths[0], {"validation": training, "scores": {}})
    found = tool.over_training_loss(tool.read_log(paths[0]), paths[0])
    assert tool.curve(found["valid"], "loss", "training-loss") == ([8.0, 6.0], [9.0, 7.0])


def test_default_names(tmp_path):
    assert tool.names_of([tmp_path / "a" / "train.log", tmp_path / "b" / "train.log"]) == ["a", "b"]
    assert tool.names_of([tmp_path / "a.log", tmp_path / "b.log"]) == ["a", "b"]
    assert tool.names_of([tmp_path / "logs" / "a.log"]) == ["a"]
    assert tool.names_of([tmp_path / "a" / "x.log", tmp_path / "b" / "x.log"]) == ["a", "b"]
    two = [tmp_path / "server1/a/train.log", tmp_path / "server2/a/train.log"]
    assert tool.names_of([*two, tmp_path / "b/train.log"]) == [*map(str, two), "b"]
    mixed = [tmp_path / "a" / "train.log", tmp_path / "b" / "run.json", tmp_path / "c.1.json"]
    assert tool.names_of(mixed) == ["a", "b", "c.1"]
