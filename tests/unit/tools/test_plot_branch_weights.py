"""python -m user_dir.tools.plot_branch_weights: what it reads and draws; bad input is one line."""

import pytest
from fairseq.logging import metrics

from user_dir.tools import plot_branch_weights as plot
from user_dir.weighted.log import BranchLog

SELF = ["encoder self-attention", "decoder self-attention"]
ALL = [*SELF, "encoder–decoder attention"]
BOTH = {"branched_attention": "both", "branch_weights": "softmax"}


LOGS = [("simple", {"branches": 1}, SELF), ("simple", BOTH, ALL), ("json", BOTH, ALL)]


@pytest.mark.parametrize("log_format, options, columns", LOGS)
def test_read_run(build, fairseq_log, tmp_path, log_format, options, columns):
    """The log as fairseq's own classes write it while a model trains."""
    model = build("weighted_transformer_base", branch_weights_init="random", **options)
    points = {updates: {**logged(model), "wall": 7.0} for updates in (900, 1000, 1100)}
    epoch = {1100: points.pop(1100)}  # ends after an interval
    fairseq_log(tmp_path / "train.log", log_format, {"train_inner": points, "train": epoch})
    for run in (tmp_path, tmp_path / "train.log"):
        found = plot.read_run(run)
        assert {column for column, _ in found} == {f"{column}: {letter}" for column in columns for letter in "κα"}
        assert {layer for _, layer in found} == {1, 2} and len(found) == 4 * len(columns)
        for layer, block in enumerate(model.encoder.layers, 1):
            for letter, weights in zip("κα", block.self_attn.kappa_alpha()):
                expected = pytest.approx(weights.tolist(), abs=6e-5)
                curve = found[f"encoder self-attention: {letter}", layer]
                assert curve == {900: expected, 1000: expected, 1100: expected}


def logged(model):
    """The values of `model` that fairseq logs at the end of an update."""
    with metrics.aggregate() as values:
        BranchLog(model).follow()
        return values.get_smoothed_values()


def test_picture(build, fairseq_log, tmp_path, printed):
    model, picture = build("weighted_transformer_base", branch_weights_init="random"), tmp_path / "weights.png"
    fairseq_log(tmp_path / "train.log", "simple", {"train_inner": {50: logged(model), 100: logged(model)}})
    assert printed(plot.main, tmp_path, "--output", picture) == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_lines():
    shifted = {layer: {u: [w + layer * u for w in (0.1, 0.2, 0.7)] for u in (100, 0)} for layer in (1, 2)}
    figure = plot.draw({("encoder self-attention: κ", layer): points for layer, points in shifted.items()}, "")
    for layer, axis in enumerate(figure.axes, 1):
        lines = [line for line in axis.lines if line.get_label().startswith("branch")]
        assert [list(line.get_xdata()) for line in lines] == [[0, 100]] * 3 and axis.lines[0].get_ydata()[0] == 1 / 3
        for line, weight in zip(lines, (0.1, 0.2, 0.7)):
            assert list(line.get_ydata()) == pytest.approx([weight, weight + 100 * layer])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["branch 1", "branch 2", "branch 3"]


def test_sides_of_another_depth():
    """A layer that only the decoder has is labelled there, and the encoder's third branch is in the legend."""
    two = {0: [0.5, 0.5]}
    figure = plot.draw({("encoder: κ", 1): {0: [0.2, 0.3, 0.5]}, ("decoder: κ", 1): two, ("decoder: κ", 2): two}, "")
    assert len(figure.legends[0].get_texts()) == 3
    lines = {axis.get_title(): len(axis.lines) - 1 for axis in figure.axes if axis.get_title()}  # without 1/M
    assert lines == {"encoder: κ": 3, "decoder: κ": 2}
    labels = {axis.get_ylabel(): axis for axis in figure.axes if axis.get_visible()}
    assert {"layer 1", "layer 2"} <= labels.keys() and labels["layer 2"].yaxis.get_tick_params()["labelleft"]


@pytest.mark.parametrize(
    "run, words",
    [
        ("loss.log", "loss.log has no branch weights .*name a training of a weighted_transformer"),
        ("text.log", "text.log holds no line of a training"),
        ("nowhere.log", "nowhere.log: No such file"),
        (".", "has no train.log: name the log, "),
    ],
)
def test_bad_run_is_one_line(fairseq_log, tmp_path, run, words, refusal):
    fairseq_log(tmp_path / "loss.log", "simple", {"train_inner": {100: {"loss": 3.5}}})
    (tmp_path / "text.log").write_text("hello")
    refusal(plot.main, tmp_path / run, "--output", tmp_path / "a.png", match=words)
    assert not any(tmp_path.glob("a.png*"))
