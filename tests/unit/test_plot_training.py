"""python -m user_dir.tools.plot_training: what it reads from fairseq's logs, as fairseq's own classes write them; the picture."""

import logging
import math

import pytest

pytest.importorskip("matplotlib")

from fairseq.logging import progress_bar  # noqa: E402

from user_dir.tools import plot_training as tool  # noqa: E402

INTERVALS = {50: {"loss": 10.5, "ppl": 1461.8, "wps": 4471.8, "lr": 5e-4, "wall": 20.0}, 100: {"loss": 8.5, "ppl": 212.9, "wps": 4979.5, "lr": 1e-3, "wall": 40.0}}
EPOCHS = {110: {"loss": 9.5, "ppl": 500.0, "wps": 4500.0, "lr": 1e-3, "wall": 50.0}}
VALIDATIONS = {75: {"loss": 9.0, "ppl": 300.5, "wps": 11740.7, "bleu": 3.25}, 100: {"loss": 7.5, "ppl": 117.5, "wps": 9000.0, "bleu": 4.5}}


@pytest.fixture
def write_log(tmp_path):
    """write_log(format, header): a log as fairseq writes it, with or without time and logger before each line."""

    def write_log(log_format, header, name="train.log"):
        path = tmp_path / name
        handler = logging.FileHandler(path)
        handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s" if header else None))
        handler.setLevel(logging.INFO)
        progress_bar.logger.addHandler(handler)
        progress_bar.logger.setLevel(logging.INFO)

        def bar(**more):
            bar = progress_bar.progress_bar([0] * 110, log_format=log_format, log_interval=50, epoch=1, **more)
            next(iter(bar))
            return bar

        progress_bar.logger.info("{'_name': None, 'num_updates': 3, 'epoch': 1}")
        for update, values in INTERVALS.items():
            bar().log({**values, "num_updates": update}, tag="train_inner", step=update)
        for update, values in VALIDATIONS.items():
            bar(prefix="valid on 'valid' subset").print({**values, "num_updates": update}, tag="valid", step=update)
        for update, values in EPOCHS.items():
            bar().print({**values, "num_updates": update}, tag="train", step=update)
        progress_bar.logger.removeHandler(handler)
        handler.close()
        return path

    return write_log


@pytest.mark.parametrize("header", [True, False], ids=["output", "--log-file"])
@pytest.mark.parametrize("log_format", ["simple", "json"])
def test_reads_what_fairseq_writes(write_log, log_format, header):
    log = tool.read_log(write_log(log_format, header))
    assert set(log) == {"train_inner", "train", "valid"}
    for kind, expected in (("train_inner", INTERVALS), ("train", EPOCHS), ("valid", VALIDATIONS)):
        assert {update: {name: point[name] for name in expected[update]} for update, point in log[kind].items()} == expected
    assert [point["wall"] for point in log["valid"].values()] == [30.0, 40.0]  # between and at the clock's readings
    assert tool.curve(log["valid"], "ppl", "num_updates") == ([75, 100], [300.5, 117.5])
    assert tool.curve(log["train_inner"], "loss", "wall") == ([20 / 3600, 40 / 3600], [10.5, 8.5])


def test_lines_of_a_real_log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "2026-11-21 07:22:59 | INFO | train_inner | epoch 001:     50 / 1042 loss=10.748, nll_loss=10.514, ppl=1461.8, wps=0, "
        "ups=0, wpb=1630.9, bsz=161.4, num_updates=50, lr=0.0005, gnorm=nan, clip=56, train_wall=18, wall=20\n"
        "2026-11-21 07:23:17 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 7.613 | nll_loss 6.877 | ppl 117.52 "
        "| wps 11740.7 | wpb 1412.1 | bsz 157.1 | num_updates 100\n"
        '{"epoch": 1, "update": 0.1, "loss": "8.\n'
    )
    log = tool.read_log(path)
    assert log["train_inner"][50]["loss"] == 10.748 and math.isnan(log["train_inner"][50]["gnorm"])
    assert log["valid"][100]["ppl"] == 117.52 and math.isnan(log["valid"][100]["wall"])
    assert tool.curve(log["train_inner"], "gnorm", "num_updates") == ([], [])


def test_resumed_training(tmp_path):
    path = tmp_path / "train.log"
    line = '{"epoch": 1, "update": 0.1, "loss": "%d", "num_updates": "%d", "wall": "%d"}\n'
    path.write_text("".join(line % values for values in [(9, 50, 10), (8, 100, 20), (7, 100, 30), (6, 150, 40)]))
    assert tool.curve(tool.read_log(path)["train_inner"], "loss", "num_updates") == ([50, 100, 150], [9, 7, 6])


def test_picture(write_log, tmp_path, capsys):
    logs = [str(write_log(log_format, True, f"{log_format}.log")) for log_format in ("simple", "json")]
    tool.main([*logs, "--output", str(tmp_path / "training.png")])
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"{tmp_path / 'training.png'}\n"


def test_panels(write_log):
    log = tool.read_log(write_log("simple", True))
    figure = tool.draw([log, log, log], ["base", "base", "relative"], [*tool.TITLES, "nowhere"], "num_updates")
    panels = {axis.get_title(): axis for axis in figure.axes}
    assert list(panels) == list(tool.TITLES.values())
    lines = [line for line in panels[tool.TITLES["loss"]].lines if len(line.get_xdata())]
    assert [list(line.get_ydata()) for line in lines] == [[10.5, 8.5], [9.0, 7.5]] * 3
    assert lines[0].get_color() == lines[2].get_color() != lines[4].get_color()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["base", "relative", "validation"]
    assert [list(line.get_ydata()) for line in panels[tool.TITLES["bleu"]].lines if len(line.get_xdata())] == [[3.25, 4.5]] * 3


def test_epochs_where_there_are_no_intervals(write_log):
    log = tool.read_log(write_log("json", False))
    del log["train_inner"]
    (axis,) = tool.draw([log], ["a"], ["lr"], "num_updates").axes
    assert [list(line.get_ydata()) for line in axis.lines if len(line.get_xdata())] == [[1e-3]]


@pytest.mark.parametrize("content, more, words", [
    ("", [], "train.log holds no line of a training"),
    ("hello\n{}\nepoch 1 | nothing\n", [], "holds no line of a training"),
    (None, [], "No such file"),
    ('{"epoch": 1, "loss": "9", "num_updates": "50"}', ["--values", "kappa"], "no log has kappa.*there are epoch, loss, num_updates"),
])  # fmt: skip
def test_bad_input_is_one_line(tmp_path, content, more, words):
    if content is not None:
        (tmp_path / "train.log").write_text(content)
    with pytest.raises(SystemExit, match=words) as stop:
        tool.main([str(tmp_path / "train.log"), *more, "--output", str(tmp_path / "a.png")])
    assert "\n" not in str(stop.value) and str(stop.value).startswith("plot_training: ")
    assert not any(tmp_path.glob("a.*"))


def test_a_name_for_each_log(capsys):
    with pytest.raises(SystemExit):
        tool.main(["a.log", "b.log", "--names", "a", "--output", "a.png"])
    assert "2 logs and 1 --names" in capsys.readouterr().err


def test_default_names(tmp_path):
    assert tool.names_of([tmp_path / "a" / "train.log", tmp_path / "b" / "train.log"]) == ["a", "b"]
    assert tool.names_of([tmp_path / "a.log", tmp_path / "b.log"]) == ["a", "b"]
