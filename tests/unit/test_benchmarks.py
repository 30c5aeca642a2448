"""The benchmarks, which are run by hand only, count the right seconds and compare ways of computing the same."""

import functools
import logging
import sys

import data_prep
import generator
import growth
import loss
import parts
import pytest
import relative_positions
import speed
import torch
from fairseq.optim.adam import FairseqAdam
from relative_positions import Gathered, Published, peak_memory

from user_dir.relative.attention import RelativeMultiheadAttention
from user_dir.search.beam import BeamSearchGenerator
from user_dir.tools.shared.training_cost import operations
from user_dir.training import criterion
from user_dir.training.optimizer import FusedAdam
from user_dir.weighted.attention import BranchedAttention

from comparing import randomise
from support import OLD, SMALL


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
    relative_positions.report({"absolute": [2, 4, 4], "ours": [1, 4, 3]}, {"absolute": 1, "ours": 2.5})
    assert capsys.readouterr().out.split("\n")[1].split() == "ours 3000.00 ms (0.750; 0.500–1.000) 2.5 MB".split()


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


def test_a_step_derives_and_an_update_changes_the_model(build, dictionary, batch):
    for fairseqs, kind in ((True, FairseqAdam), (False, FusedAdam)):
        model, derived = build("vaswani_transformer_base"), []
        (weight := model.encoder.layers[0].fc1.weight).register_hook(derived.append)
        step = functools.partial(speed.training_step, model, batch, speed.build_criterion(dictionary, fairseqs))
        before = weight.detach().clone()
        step()
        assert weight.equal(before) and weight.grad is None and len(derived) == 1 and model.training
        step(speed.build_optimizer(model, kind))
        assert not weight.equal(before) and weight.grad is None and len(derived) == 2


@pytest.mark.parametrize("fairseqs", [True, False])
def test_every_hypothesis_of_a_timed_search_is_as_long_as_the_source(build, dictionary, monkeypatch, fairseqs):
    asked = []
    monkeypatch.setattr(BeamSearchGenerator, "is_plain_beam_search", lambda search: asked.append(search) or True)
    batch = speed.random_batch(dictionary, 4, 8, "cpu")
    assert batch["src_lengths"].tolist() == [5, 8, 8, 5]
    assert batch["prev_output_tokens"].eq(dictionary.pad()).sum(1).tolist() == [3, 0, 0, 3]
    found = speed.beam_search(randomise(build("vaswani_transformer_base"), 3), dictionary, batch, fairseqs)()
    assert [[len(one["tokens"]) for one in beams] for beams in found] == [[9] * 4] * 4  # with </s>
    assert bool(asked) != fairseqs


def test_fairseqs_model_has_the_same_weights_in_its_generator(monkeypatch, capsys):
    """10 of the 20 sentences, of which each has 4 hypotheses of 4 words; here a round takes a second."""
    monkeypatch.setattr(logging, "disable", lambda level: None)
    monkeypatch.setattr(generator, "BEAM", generator.GenerationConfig(beam=4))
    monkeypatch.setattr(generator, "time_in_turn", lambda todo, n: {name: [todo[name]() or 1.0] for name in todo})
    words = f"generator.py {OLD}/data-bin {OLD}/vaswani_transformer.pt --batches 5 --sentences 10 --steps 4"
    monkeypatch.setattr(sys, "argv", words.split())
    generator.main()
    printed = capsys.readouterr().out
    assert printed.count(" 40 words/s   1.00 times fairseq's") == 2
    assert "40 of 40 hypotheses of vaswani_transformer" in printed


def test_the_loss_is_timed_with_that_many_tokens_in_a_chunk(monkeypatch):
    for name in ("ROWS", "LOGITS", "SLICE"):
        monkeypatch.setattr(criterion, name, None)  # which `step` sets
    chunks, mm = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda x, *args, **options: chunks.append(len(x)) or mm(x, *args, **options))
    features, weight = torch.randn(10, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    loss.step(4, 24, features, weight, torch.randint(6, (10,)), torch.float32)
    assert chunks == [4, 4, 2] and features.grad is None and weight.grad is None


def test_a_projection_is_of_what_more_pairs_take(capsys):
    data_prep.project((1000, {"tok": 3603.0}), (3000, {"tok": 3605.0}))
    assert capsys.readouterr().out.split() == "tok 1,000 pairs/s 4.5M: 135 min 36M: 11.0 h".split()
