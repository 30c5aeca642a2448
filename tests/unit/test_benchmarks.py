"""The benchmarks, which are run by hand only, count the right seconds and compare ways of computing the same."""

import growth
import parts
import pytest
import speed
import torch
from relative_positions import Gathered, Published, peak_memory

from user_dir.relative.attention import RelativeMultiheadAttention
from user_dir.tools.shared.training_cost import operations
from user_dir.weighted.attention import BranchedAttention

from comparing import randomise
from support import SMALL


class Clock:
    """A clock that only a test moves."""

    now = 0.0

    def pass_by(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (parts, speed):
        monkeypatch.setattr(module, "clock", lambda: clock.now)
    return clock


def test_time_counts_for_the_innermost_part(clock):
    class Layer:
        def forward(self):
            clock.pass_by(1)
            self.attend()
            clock.pass_by(2)

        def attend(self):
            clock.pass_by(4)

    def action():
        clock.pass_by(8)
        Layer().forward()

    attention = [(Layer, "attend")] * 2  # as where two classes inherit it
    found = parts.seconds_by_part(action, {"layer": [(Layer, "forward")], "attention": attention})
    assert found == {"layer": 3, "attention": 4, parts.REST: 8}


def test_the_first_round_is_not_counted_and_a_ratio_is_that_of_a_round(clock, capsys):
    rounds = {speed.STOCK: iter([90, 2, 4, 4]), "ours": iter([90, 1, 1, 3])}
    actions = {name: lambda seconds=seconds: clock.pass_by(next(seconds)) for name, seconds in rounds.items()}
    times = speed.time_in_turn(actions, 3)
    assert times == {speed.STOCK: [2, 4, 4], "ours": [1, 1, 3]}
    speed.report("update", times)
    assert "1000 ms (1000–3000)   ratio to fairseq's 0.25\n" in capsys.readouterr().out
    speeds = {name: [12 / seconds for seconds in rounds] for name, rounds in times.items()}
    assert speed.report_speeds("updates", speeds)["ours"] == {"words a second": 12, "ratio": 2}
    assert "2.00 times fairseq's (1.33–4.00)" in capsys.readouterr().out


def test_multiplications_are_those_that_torch_counts(build, dictionary, monkeypatch):
    """A multiplication and its addition are two operations; 24 words are three sentences."""
    monkeypatch.setattr(growth, "WIDTH", SMALL["encoder_embed_dim"])
    monkeypatch.setattr(growth, "FFN", SMALL["encoder_ffn_embed_dim"])
    setting = {"sentence length": 8, "words in a batch": 24, "vocabulary": len(dictionary), "layers": 2}
    assert 2 * growth.multiplications(setting) == 3 * operations(build("vaswani_transformer_base"), 8, 8)


OTHERS = [("relative", {"relative_distance": 2}, RelativeMultiheadAttention, way) for way in (Published, Gathered)]
LETTER = {"branch_residual": "none", "branch_weights_init": "random"}
OTHERS += [("weighted", LETTER, BranchedAttention, speed.Loop)]


@pytest.mark.parametrize("family, options, ours, other", OTHERS, ids=lambda value: getattr(value, "__name__", ""))
@torch.no_grad()
def test_other_ways_compute_the_same(build, batch, family, options, ours, other):
    model = randomise(build(f"{family}_transformer_base", **options), 3)
    expected = model(**batch)[0]
    assert isinstance(model.encoder.layers[0].self_attn, ours)
    torch.testing.assert_close(speed.with_attention(model, ours, other)(**batch)[0], expected)


def test_peak_memory_is_that_of_one_time():
    """4 MB three times, one after the other, and two of them together."""

    def in_turn():
        for _ in range(3):
            torch.empty(10**6)

    assert peak_memory(in_turn) == pytest.approx(4, rel=0.01)
    assert peak_memory(lambda: [torch.empty(10**6), torch.empty(10**6)]) == pytest.approx(8, rel=0.01)
