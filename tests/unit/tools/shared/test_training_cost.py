"""What a training costs: a model's products, counted by hand for the plain one, and what a log says of a training."""

import pytest

from user_dir.errors import InputError
from user_dir.tools.shared import training_cost
from user_dir.tools.shared.training_cost import cost, operations, shown

from support import SMALL

POINTS = {50: {"wpb": 10.0, "train_wall": 3.0}, 100: {"wpb": 20.0, "train_wall": 4.0}}


@pytest.mark.parametrize("source, target", [(5, 4), (1, 9)])
def test_operations(build, dictionary, source, target):
    """Each product is one forward and two backward, of two operations for a multiply-add."""
    d, ffn, layers = SMALL["encoder_embed_dim"], SMALL["encoder_ffn_embed_dim"], SMALL["encoder_layers"]
    encoder = source * (4 * d * d + 2 * d * ffn) + 2 * source * source * d
    own = target * (4 * d * d + 2 * d * ffn) + 2 * target * target * d
    other = 2 * target * d * d + 2 * source * d * d + 2 * target * source * d
    expected = 6 * (layers * (encoder + own + other) + target * d * len(dictionary))
    assert operations(build("vaswani_transformer_base"), source, target) == expected


@pytest.mark.parametrize("family", ["relative_transformer", "weighted_transformer"])
def test_a_variant_has_more(build, family):
    assert operations(build(f"{family}_base"), 5, 4) > operations(build("vaswani_transformer_base"), 5, 4)


def test_shown():
    assert shown(POINTS) == (50 * 10 + 50 * 20, 7)


def test_cost(saved, tmp_path, monkeypatch):
    model, path, data = saved("vaswani_transformer_base")
    path.rename(tmp_path / "average.pt")
    monkeypatch.setattr(training_cost, "data_of", lambda paths: data)
    monkeypatch.setattr(training_cost, "lengths", lambda task: (5.1, 3.8))
    found = cost(tmp_path / "train.log", POINTS)
    assert found == (1500, operations(model, 5, 4) / 4 * 1500, 7)
    with pytest.raises(InputError, match="train.log has no lines with wpb and train_wall"):
        cost(tmp_path / "train.log", {50: {"wpb": 10.0}})
    (tmp_path / "average.pt").unlink()
    with pytest.raises(InputError, match="there is no average.pt or checkpoint_last.pt beside .*train.log"):
        cost(tmp_path / "train.log", POINTS)
