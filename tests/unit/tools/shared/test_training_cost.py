"""The cost of a training: a model's products, counted by hand for the plain one, and what a log says of it."""

import argparse
import shutil

import pytest
import torch
from fairseq.data.indexed_dataset import make_builder, make_dataset

from user_dir.errors import InputError
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask
from user_dir.tools.plot_training import table_of
from user_dir.tools.shared import training_cost
from user_dir.tools.shared.training_cost import cost, operations, shown

from support import OLD, SMALL

D, FFN, LAYERS = SMALL["encoder_embed_dim"], SMALL["encoder_ffn_embed_dim"], SMALL["encoder_layers"]
POINTS = {50: {"wpb": 10.0, "train_wall": 3.0}, 100: {"wpb": 20.0, "train_wall": 4.0}}


@pytest.mark.parametrize("source, target", [(5, 4), (1, 9)])
def test_operations(build, dictionary, source, target):
    """Each product is one forward and two backward, of two operations for a multiply-add."""
    encoder = source * (4 * D * D + 2 * D * FFN) + 2 * source * source * D
    own = target * (4 * D * D + 2 * D * FFN) + 2 * target * target * D
    other = 2 * target * D * D + 2 * source * D * D + 2 * target * source * D
    expected = 6 * (LAYERS * (encoder + own + other) + target * D * len(dictionary))
    assert operations(build("vaswani_transformer_base"), source, target) == expected


def test_operations_of_the_variants(build):
    """Beside the base's: a^K and a^V, a product with the 2k+1 rows of a table for each position; κ and α have none."""
    base = operations(build("vaswani_transformer_base"), 9, 8)
    relative = operations(build("relative_transformer_base", relative_distance=2), 9, 8)
    assert relative == base + 6 * LAYERS * (9 + 8) * 2 * 5 * D
    assert operations(build("weighted_transformer_base", branch_residual="shared"), 9, 8) == base


def test_operations_of_branches(build, dictionary):
    """x W1 and head_i (W^O_i W1_i), where the base has one product with W1; W^O_i W1_i and β W1 are one a batch."""
    source, target, branches = 9, 8, SMALL["encoder_attention_heads"]
    ffn = 2 * D * FFN + D * FFN // branches
    once = (D * D * FFN // branches + D * FFN) / -(-training_cost.TOKENS // target)
    encoder = source * (4 * D * D + ffn) + 2 * source * source * D + once
    own = target * 4 * D * D + 2 * target * target * D
    other = target * (2 * D * D + ffn) + 2 * source * D * D + 2 * target * source * D + once
    expected = 6 * (LAYERS * (encoder + own + other) + target * D * len(dictionary))
    assert operations(build("weighted_transformer_base"), source, target) == pytest.approx(expected, rel=1e-12)


def test_shown():
    assert shown(POINTS, {}) == (50 * 10 + 50 * 20, 7)
    assert shown({50: POINTS[50], 150: POINTS[100]}, {}) == (50 * 10 + 100 * 20, 7)  # with another --log-interval
    late = {8000 + updates: values for updates, values in POINTS.items()}  # --continue-once
    assert shown(late, {8100: {"train_wall": 99.0}}) == shown(POINTS, {})  # with what its epoch had before


def test_seconds_are_not_those_of_many_rounded_intervals():
    """The intervals take 0.4 s each, for which fairseq writes 0."""
    points = {100 * number: {"wpb": 10.0, "train_wall": 0.0} for number in range(1, 11)}
    epochs = {500: {"train_wall": 2.0}, 1250: {"train_wall": 3.0}}  # after the last interval, too
    assert shown(points, epochs) == (12_500, 5)
    assert shown(points, {500: epochs[500]}) == (10_000, 0)  # it has not ended


@pytest.mark.parametrize("seconds, speed", [(4, "5e+02"), (0, "–")])  # updates of less than a second
def test_operations_a_second(monkeypatch, tmp_path, seconds, speed):
    monkeypatch.setattr(training_cost, "cost", lambda *_: (100, 2000, seconds))
    args = argparse.Namespace(reach=None, cost=True, logs=[tmp_path])
    assert table_of(args, [{}], ["run"]).endswith(f"| run | 100 | 2e+03 | {seconds} | {speed} |")


def test_lengths(tmp_path):
    """Means of the source and of the target, as the files have them; the set has a second file with a long pair."""
    data = shutil.copytree(OLD / "data-bin", tmp_path / "data-bin")
    for language in ("fr", "en"):
        text = f"{data}/test1.fr-en.{language}"
        builder = make_builder(f"{text}.bin", "mmap", 10)
        builder.add_item(torch.full((99,), 4))
        builder.finalize(f"{text}.idx")
    given = {"data": str(data), "train_subset": "test", "dataset_impl": "mmap"}
    task = CheckedTranslationTask.setup_task(CheckedTranslationConfig(**given))
    sides = [make_dataset(str(OLD / f"data-bin/test.fr-en.{language}"), "mmap") for language in ("fr", "en")]
    source, target = ((sum(map(len, side)) + 99) / (len(side) + 1) for side in sides)
    assert source != target and training_cost.lengths(task) == pytest.approx((source, target))


def test_layers_that_are_dropped_have_no_cost(saved, tmp_path, monkeypatch):
    _, path, data = saved("vaswani_transformer_base", encoder_layerdrop=0.5)
    path.rename(tmp_path / "average.pt")
    monkeypatch.setattr(training_cost, "data_of", lambda paths, option: data)
    with pytest.raises(InputError, match="average.pt was trained with other layers in each update .*: omit --cost"):
        cost(tmp_path / "train.log", POINTS, {})


def test_cost(saved, tmp_path, monkeypatch):
    model, path, data = saved("vaswani_transformer_base")
    path.rename(tmp_path / "average.pt")
    monkeypatch.setattr(training_cost, "data_of", lambda paths, option: data)
    monkeypatch.setattr(training_cost, "lengths", lambda task: (5.1, 3.8))
    found = cost(tmp_path / "train.log", POINTS, {})
    assert found == (1500, operations(model, 5, 4) / 4 * 1500, 7)
    for points in ({50: {"wpb": 10.0}}, {}):
        with pytest.raises(InputError, match="train.log has no lines with wpb and train_wall: name a log with"):
            cost(tmp_path / "train.log", points, {})
    (tmp_path / "average.pt").rename(tmp_path / "checkpoint_last.pt")
    assert cost(tmp_path / "train.log", POINTS, {}) == found
    (tmp_path / "checkpoint_last.pt").unlink()
    with pytest.raises(InputError, match="there is no average.pt or checkpoint_last.pt beside .*train.log"):
        cost(tmp_path / "train.log", POINTS, {})
