"""python -m user_dir.tools.plot_branch_weights: what it reads and draws; bad input is one line."""

import argparse

import pytest
import torch
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY

from user_dir.transformer.architectures import FAMILIES
from user_dir.weighted.log import BranchLog

pytest.importorskip("matplotlib")

from user_dir.tools import plot_branch_weights as plot  # noqa: E402


def branched(family):
    options = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[f"{family}_base"](options)
    return hasattr(options, "branched_attention")


WEIGHTED = [*filter(branched, FAMILIES)]
assert WEIGHTED


@pytest.mark.parametrize("family", WEIGHTED)
@pytest.mark.parametrize(
    "options, columns",
    [
        ({}, ["encoder self-attention", "decoder self-attention"]),
        (
            {"branched_attention": "both", "branch_weights": "softmax"},
            ["encoder self-attention", "decoder self-attention", "encoder–decoder attention"],
        ),
    ],
)
def test_read_run(trained, tmp_path, family, options, columns):
    for updates in (900, 1000):
        model, _, _ = trained(f"{family}_base", updates=updates, name=f"checkpoint_1_{updates}.pt", **options)
    found = plot.read_run(tmp_path)
    assert {column for column, _ in found} == {f"{column}: {letter}" for column in columns for letter in "κα"}
    assert {layer for _, layer in found} == {1, 2} and len(found) == 4 * len(columns)
    for points in found.values():
        assert sorted(points) == [900, 1000]
        for weights in points.values():
            assert sum(weights) == pytest.approx(1)
    _, alpha = model.encoder.layers[1].self_attn.kappa_alpha()
    assert found["encoder self-attention: α", 2][900] == pytest.approx(alpha.tolist())


@pytest.mark.parametrize("log_format", ["simple", "json"])
@pytest.mark.parametrize("family", WEIGHTED)
@pytest.mark.parametrize(
    "options", [{}, {"branched_attention": "both", "branch_weights": "softmax"}, {"branches": 1}], ids=str
)
def test_log_and_checkpoints_have_the_same_weights(build, trained, fairseq_log, tmp_path, log_format, family, options):
    """The log as fairseq's own classes write it while a model trains; it is preferred where it says branch weights."""
    arch = f"{family}_base"
    trained(arch, updates=200, name="checkpoint_last.pt", **options)
    from_checkpoint = plot.read_run(tmp_path)
    model = build(arch, **options)
    model.load_state_dict(torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["model"])
    fairseq_log(tmp_path / "train.log", log_format, {"train_inner": {200: {**logged(model), "wall": 7.0}}})
    for run in (tmp_path, tmp_path / "train.log"):
        from_log = plot.read_run(run)
        assert list(from_log) == list(from_checkpoint)
        for panel, points in from_checkpoint.items():
            assert list(from_log[panel]) == [200] and from_log[panel][200] == pytest.approx(points[200], abs=6e-5)


def logged(model):
    """What fairseq's log shows of `model` at the end of an update."""
    with metrics.aggregate() as values:
        BranchLog(model).follow()
        return values.get_smoothed_values()


def test_picture(trained, tmp_path, capsys):
    for updates in (50, 100, 150):
        trained("weighted_transformer_base", updates=updates, name=f"checkpoint_1_{updates}.pt")
    plot.main([str(tmp_path), "--output", str(tmp_path / "weights.png")])
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"{tmp_path / 'weights.png'}\n"


def test_lines(tmp_path):
    shifted = {layer: {u: [w + layer * u for w in (0.1, 0.2, 0.7)] for u in (0, 100)} for layer in (1, 2)}
    figure = plot.draw({("encoder self-attention: κ", layer): points for layer, points in shifted.items()}, "")
    for layer, axis in enumerate(figure.axes, 1):
        lines = [line for line in axis.lines if line.get_label().startswith("branch")]
        assert [list(line.get_xdata()) for line in lines] == [[0, 100]] * 3
        for line, weight in zip(lines, (0.1, 0.2, 0.7)):
            assert list(line.get_ydata()) == pytest.approx([weight, weight + 100 * layer])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["branch 1", "branch 2", "branch 3"]


@pytest.mark.parametrize(
    "mistake, words",
    [
        ("plain", "checkpoint.pt has no branch weights .*name a training of a weighted_transformer"),
        ("empty", r"holds no checkpoint\*.pt, and no train.log with branch weights: name the --save-dir"),
        ("garbage", "is not a readable fairseq checkpoint"),
        ("log", "a.log has no branch weights .*name a training of a weighted_transformer"),
        ("no log", "a.log holds no line of a training"),
        ("nowhere", "No such file .*nowhere.log"),
    ],
)
def test_bad_run_is_one_line(saved, fairseq_log, tmp_path, mistake, words):
    run = {"log": "a.log", "no log": "a.log", "nowhere": "nowhere.log"}.get(mistake, ".")
    if mistake == "plain":
        saved("vaswani_transformer_base")
    if mistake == "garbage":
        (tmp_path / "checkpoint.pt").write_text("hello")
    if mistake == "log":
        fairseq_log(tmp_path / "a.log", "simple", {"train_inner": {100: {"loss": 3.5}}})
    if mistake == "no log":
        (tmp_path / "a.log").write_text("hello")
    with pytest.raises(SystemExit, match=words) as stop:
        plot.main([str(tmp_path / run), "--output", str(tmp_path / "a.png")])
    assert "\n" not in str(stop.value) and not any(tmp_path.glob("a.png*"))
