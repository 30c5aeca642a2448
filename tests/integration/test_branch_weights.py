"""κ and α of the Weighted Transformer under fairseq's trainer: on the simplex, frozen at the end, seen in the log."""

import json

import pytest
import torch

from user_dir.tools.plot_branch_weights import read_run
from user_dir.weighted.log import log_name

from branches import assert_on_simplex
from support import TWO_FAMILIES, families_with, slow_beyond, train

# Two blocks a layer of two; frozen for the last 10 of 30 updates of two batches each.
RUN = """
    --branched-attention encoder_decoder --max-update 30 --update-freq 2 --max-tokens 150 --dropout 0.1
    --branch-frozen-updates 10 --branch-warmup-updates 30 --store-ema --ema-fp32 --ema-decay 0.5
    --log-format json --log-interval 1 --save-interval-updates 5 --disable-validation
""".split()


def branch_weights(state):
    return {name: weights for name, weights in state.items() if name.endswith((".kappa", ".alpha"))}


@pytest.fixture(scope="module", params=slow_beyond(TWO_FAMILIES, families_with("branched_attention")))
def run_of_30(request, command, copies, tmp_path_factory):
    """RUN of a family: folder and finished process."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, train(command, copies, request.param, folder, *RUN)


def checkpoint(folder, update):
    (path,) = folder.glob(f"checkpoint_*_{update}.pt")
    return torch.load(path)


def test_on_the_simplex_at_every_checkpoint_and_in_their_moving_average(run_of_30):
    folder, _ = run_of_30
    for update in range(5, 31, 5):
        state = checkpoint(folder, update)
        for weights in (branch_weights(state["model"]), branch_weights(state["extra_state"]["ema"])):
            assert len(weights) == 8
            assert_on_simplex(weights.values())


def test_they_learn_and_are_frozen_at_the_end(run_of_30):
    folder, _ = run_of_30
    at = {update: branch_weights(checkpoint(folder, update)["model"]) for update in (15, 20, 25, 30)}
    for name in at[20]:
        assert at[20][name].max() - at[20][name].min() > 0.01, name
        assert not torch.equal(at[15][name], at[20][name])
        assert torch.equal(at[20][name], at[25][name]) and torch.equal(at[20][name], at[30][name])


def test_average_of_checkpoints_is_on_the_simplex(run_of_30, command, tmp_path):
    folder, _ = run_of_30
    options = ["--last", "4", "--by", "update", "--output", tmp_path / "average.pt"]
    command("python", "-m", "user_dir.tools.average_checkpoints", folder, *options)
    state = torch.load(tmp_path / "average.pt")
    assert not {"ema", "ema_fp32_params"} & state["extra_state"].keys()  # they are of one checkpoint
    weights = branch_weights(state["model"])
    assert len(weights) == 8
    assert_on_simplex(weights.values())


def test_log_shows_weights_and_both_learning_rates(run_of_30, tmp_path):
    """(d_model / N)^-0.5 · min(t^-0.5, t · 30^-1.5) for updates 1 to 20, then 0, beside --lr's."""
    folder, done = run_of_30
    log = (done.stdout + done.stderr).splitlines()
    lines = [json.loads(line[line.index("{") :]) for line in log if "train_inner" in line]
    assert len(lines) == 30
    for update, line in enumerate(lines, 1):
        expected = (32 / 2) ** -0.5 * min(update**-0.5, update * 30**-1.5) if update <= 20 else 0
        assert float(line["lr"]) == pytest.approx(5e-3 * update / 100, rel=1e-3)
        assert float(line["lr_branch_weights"]) == pytest.approx(expected, rel=1e-3)
    for update in range(5, 31, 5):  # as the update has left them
        for name, weights in branch_weights(checkpoint(folder, update)["model"]).items():
            shown = [float(weight) for weight in lines[update - 1][log_name(name)].split("/")]
            assert shown == pytest.approx(weights.tolist(), abs=6e-5)
            entropy = torch.special.entr(weights).sum().item()
            assert float(lines[update - 1][f"{log_name(name)}_entropy"]) == pytest.approx(entropy, abs=6e-4)
    (tmp_path / "train.log").write_text(done.stdout + done.stderr)
    assert all(len(points) == 30 for points in read_run(tmp_path).values())  # the log alone is drawn


PRECISIONS = {
    "--autocast bf16": 1e-6,
    "--amp": 1e-6,
    # Rounded to half precision for the model. On CPUs fairseq needs a scale that no gradient overflows with.
    "--fp16 --fp16-no-flatten-grads --fp16-init-scale 1": 1e-3,
}


@pytest.mark.parametrize("options", PRECISIONS)
def test_on_the_simplex_and_frozen_in_every_precision(call, copies, tmp_path, options):
    branches = "--max-update 20 --branch-frozen-updates 5 --branch-warmup-updates 60 --disable-validation".split()
    branches += ["--save-interval-updates", "5"]
    train(call, copies, "weighted_transformer", tmp_path, *branches, *options.split())
    at = {update: branch_weights(checkpoint(tmp_path, update)["model"]) for update in (10, 15, 20)}
    weights = at[20]
    for name in weights:  # frozen from the 16th update on
        assert not torch.equal(at[10][name], at[15][name]) and torch.equal(at[15][name], at[20][name])
    assert len(weights) == 8 and all(vector.max() - vector.min() > 0.005 for vector in weights.values())
    assert_on_simplex(weights.values(), PRECISIONS[options])
