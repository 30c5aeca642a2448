"""Long trainings stay finite and on the simplex in each precision; a search does not depend on its batch."""

import math

import pytest
import torch

from user_dir.checkpoints.files import load
from user_dir.serving.translator import Translator
from user_dir.transformer.architectures import FAMILIES

from branches import assert_on_simplex
from support import OLD, families_with, train

FRENCH = (OLD / "test.fr").read_text(encoding="utf-8").splitlines()
BASE = """--encoder-layers 6 --decoder-layers 6 --encoder-embed-dim 512 --encoder-ffn-embed-dim 2048
    --encoder-attention-heads 8 --lr 7e-4 --warmup-updates 400 --max-tokens 60""".split()
RUNS = [*((family, []) for family in FAMILIES), ("weighted_relative_transformer", BASE)]


@pytest.mark.slow
@pytest.mark.parametrize("autocast", ["off", "bf16"])
@pytest.mark.parametrize("family, size", RUNS)
def test_a_thousand_updates(command, copies, tmp_path, family, size, autocast):
    train(command, copies, family, tmp_path, "--max-update", "1000", "--autocast", autocast, *size)
    state = load(tmp_path / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 1000
    assert all(parameter.isfinite().all() for parameter in state["model"].values())
    moments = [value for values in state["last_optimizer_state"]["state"].values() for value in values.values()]
    assert all(torch.as_tensor(moment).isfinite().all() for moment in moments)
    weights = [value for name, value in state["model"].items() if name.endswith((".kappa", ".alpha"))]
    assert bool(weights) == (family in families_with("branched_attention"))
    assert_on_simplex(weights)


@pytest.fixture(scope="module", params=FAMILIES)
def translator(request):
    return Translator(OLD / f"{request.param}.pt", data=OLD / "data-bin")


def test_alone_and_in_a_batch(translator):
    rows = [translator.encode(text) for text in FRENCH]
    alone, together = (translator.search(rows, batch_size=size) for size in (1, 64))
    for (one,), (other,) in zip(alone, together, strict=True):
        assert one.text == other.text and one.score == pytest.approx(other.score, abs=1e-5)


def test_far_longer_than_any_in_training(translator):
    """Finite scores, and the rest of the batch as ever."""
    short, long = translator.encode(FRENCH[0]), " ".join(translator.encode(" ".join(FRENCH * 20)).split()[:300])
    ((expected,),) = translator.search([short])
    (of_short,), (of_long,) = translator.search([short, long])
    assert of_short.text == expected.text and math.isfinite(of_long.score) and of_long.text
