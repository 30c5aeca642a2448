"""fused_adam and the branch weights κ, α: learning rate, freezing, simplex, precision, resuming, refusals."""

import copy
import types

import pytest
import torch
from fairseq import optim
from fairseq.logging import metrics
from fairseq.models.ema import EMA
from omegaconf import OmegaConf

from user_dir.branch_training import BranchTraining, BranchTrainingError
from user_dir.optimizer import FusedAdamConfig

SCALE = (512 / 6) ** -0.5
ADAM = {"lr": [0.01], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-9, "weight_decay": 0.1, "tpu": False}
TRAINING = {"max_update": 20000, "use_bmuf": False, "ddp_backend": "pytorch_ddp"}


class Branched(torch.nn.Module):
    """Two blocks of four branches, and a matrix."""

    def __init__(self, simplex=True):
        super().__init__()
        torch.manual_seed(1)
        self.matrix = torch.nn.Parameter(torch.randn(4, 4))
        self.kappa, self.alpha = (torch.nn.ParameterList([torch.nn.Parameter(torch.full((4,), 0.25)) for _ in range(2)]) for _ in "κα")
        self.weights = BranchTraining(lr_scale=SCALE, simplex=simplex)
        for parameter in self.branches():
            parameter.param_group = self.weights

    def branches(self):
        return [*self.kappa, *self.alpha]

    def forward(self, x):  # [batch, 4]
        for kappa, alpha in zip(self.kappa, self.alpha):
            x = (x @ self.matrix * kappa).relu() * alpha + x
        return x


def config(**options):
    return OmegaConf.create({"_name": "fused_adam", **ADAM, **TRAINING, **options})


def build(model, **options):
    return optim.build_optimizer(config(**options), list(model.parameters()))


def loss(model, seed):
    generator = torch.Generator().manual_seed(seed)
    x, target = torch.randn(2, 8, 4, generator=generator).to(model.matrix.dtype)
    return (model(x) - target).float().pow(2).mean()


def update(model, optimizer, seed):
    optimizer.zero_grad()
    optimizer.backward(loss(model, seed))
    optimizer.step()


def copies(parameters):
    return [parameter.detach().clone() for parameter in parameters]


def assert_on_simplex(vectors, tolerance=1e-6):
    for vector in vectors:
        assert vector.min() >= 0
        assert abs(vector.double().sum().item() - 1) <= tolerance


def rate(t, warmup=400):
    return SCALE * min(t**-0.5, t * warmup**-1.5)


def test_learning_rate_from_the_first_update_beside_any_schedule():
    """Ahmed et al. 2017, section 4; a first step of Adam is lr · sign(gradient), which shows what was really used."""
    model = Branched(simplex=False)
    optimizer = build(model, branch_warmup_updates=5)
    for t in range(1, 13):
        optimizer.set_lr(0.1 / t)  # as fairseq's schedulers do
        assert optimizer.get_lr() == optimizer.param_groups[0]["lr"] == 0.1 / t
        assert optimizer.param_groups[1]["lr"] == pytest.approx(rate(t, 5), rel=1e-12)
        before = copies(model.branches())
        update(model, optimizer, t)
        if t == 1:
            for old, new, parameter in zip(before, model.branches(), model.branches()):
                torch.testing.assert_close(new.detach(), old - rate(1, 5) * parameter.grad.sign(), atol=1e-6, rtol=0)


def test_the_papers_settings_are_the_defaults():
    assert (FusedAdamConfig.branch_warmup_updates, FusedAdamConfig.branch_frozen_updates) == (400, 10000)
    model = Branched()
    assert rate(1) == pytest.approx(SCALE / 8000) and rate(400) == pytest.approx(SCALE / 20) and rate(1600) == pytest.approx(SCALE / 40)
    assert build(model).param_groups[1]["lr"] == pytest.approx(rate(1))


def test_no_warmup():
    assert BranchTraining(2.0).learning_rate(1, 0) == 2.0


def test_others_are_updated_as_by_adamw_and_branches_do_not_decay():
    ours, reference = Branched(), Branched()
    optimizer = build(ours)
    adamw = torch.optim.AdamW([
        {"params": [reference.matrix], "weight_decay": 0.1, "lr": 0.01},
        {"params": reference.branches(), "weight_decay": 0.0},
    ], betas=(0.9, 0.98), eps=1e-9)  # fmt: skip
    for t in range(1, 6):
        update(ours, optimizer, t)
        adamw.param_groups[1]["lr"] = rate(t)
        adamw.zero_grad()
        loss(reference, t).backward()
        adamw.step()
        for vector in reference.branches():  # all positive here: the projection is a shift to sum 1
            vector.data -= (vector.data.sum() - 1) / 4
    for parameter, expected in zip(ours.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter, expected, atol=1e-6, rtol=1e-6)


def test_on_the_simplex_after_every_update():
    model = Branched()
    optimizer = build(model, branch_warmup_updates=1)
    cut = 0
    for t in range(1, 30):
        update(model, optimizer, t)
        assert_on_simplex(model.branches())
        cut += sum((vector == 0).any().item() for vector in model.branches())
    assert cut  # the learning rate is large enough to leave the simplex on its way


def test_softmax_branches_are_not_projected():
    model = Branched(simplex=False)
    optimizer = build(model, branch_warmup_updates=1)
    for t in range(1, 5):
        update(model, optimizer, t)
    assert all(abs(vector.sum().item() - 1) > 1e-3 for vector in model.branches())


@pytest.mark.parametrize("simplex", [True, False])
def test_frozen_for_the_last_updates_and_resumed_in_the_middle(tmp_path, simplex):
    options = {"max_update": 12, "branch_frozen_updates": 5, "branch_warmup_updates": 3}
    whole = Branched(simplex)
    optimizer = build(whole, **options)
    states = {}
    for t in range(1, 13):
        update(whole, optimizer, t)
        states[t] = copies(whole.branches())
        if t in (4, 9):  # before and in the frozen part
            torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / f"{t}.pt")
    assert not all(map(torch.equal, states[6], states[7]))
    assert all(torch.equal(a, b) for t in range(8, 13) for a, b in zip(states[7], states[t]))

    for saved in (4, 9):
        checkpoint = torch.load(tmp_path / f"{saved}.pt", weights_only=True)
        resumed = Branched(simplex)
        resumed.load_state_dict(checkpoint["model"])
        optimizer = build(resumed, **options)
        optimizer.load_state_dict(checkpoint["optimizer"], {"weight_decay": 0.1, "lr": 0.01})  # --optimizer-overrides
        for t in range(saved + 1, 13):
            update(resumed, optimizer, t)
        for parameter, expected in zip(resumed.parameters(), whole.parameters()):
            assert torch.equal(parameter, expected)


def test_frozen_weights_are_not_even_projected():
    """A projection may change the last bit; values off the simplex show whether there was one."""
    model = Branched()
    optimizer = build(model, max_update=3, branch_frozen_updates=2, branch_warmup_updates=1)
    update(model, optimizer, 1)
    assert_on_simplex(model.branches())
    model.kappa[0].data.fill_(0.3)
    for t in (2, 3):
        update(model, optimizer, t)
    assert torch.equal(model.kappa[0].detach(), torch.full((4,), 0.3))


def test_never_frozen_when_asked():
    model = Branched()
    optimizer = build(model, max_update=3, branch_frozen_updates=0, branch_warmup_updates=1)
    for t in range(1, 4):
        before = copies(model.branches())
        update(model, optimizer, t)
        assert not any(map(torch.equal, before, model.branches()))


def test_learning_rate_is_logged():
    model = Branched()
    optimizer = build(model)
    with metrics.aggregate() as logged:
        update(model, optimizer, 1)
    assert logged.get_smoothed_value("lr_branch_weights") == pytest.approx(rate(1))


FP16 = {
    "common": {"fp16": True, "bf16": False, "fp16_no_flatten_grads": True, "fp16_init_scale": 128, "fp16_scale_window": 100, "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None, "min_loss_scale": 1e-4, "model_parallel_size": 1},
    "optimization": {"update_freq": [1]},
    "distributed_training": {"distributed_world_size": 1},
}  # fmt: skip


@pytest.mark.parametrize("wrapper", [optim.FP16Optimizer, optim.MemoryEfficientFP16Optimizer])
def test_on_the_simplex_in_half_precision(wrapper, tmp_path):
    """With accumulation, a skipped update and a resume."""
    def start():
        model = Branched().half()
        cfg = OmegaConf.create({**FP16, "optimizer": config(branch_warmup_updates=3)})
        return model, wrapper.build_optimizer(cfg, list(model.parameters()))

    def accumulate(model, optimizer, t, overflow=False):
        optimizer.zero_grad()
        for part in (0, 100):
            optimizer.backward(loss(model, t + part) * (float("inf") if overflow else 1))
        optimizer.multiply_grads(0.5)
        optimizer.clip_grad_norm(1.0)
        optimizer.step()

    model, optimizer = start()
    assert model.weights.adopted
    initial = copies(model.branches())
    masters = optimizer.param_groups[1]["params"]
    for t in range(1, 21):
        if t == 7:
            before = copies(model.branches())
            with pytest.raises(OverflowError):
                accumulate(model, optimizer, t, overflow=True)
            assert all(map(torch.equal, before, model.branches()))
        assert optimizer.param_groups[1]["lr"] == pytest.approx(rate(t, 3))
        accumulate(model, optimizer, t)
        assert_on_simplex(model.branches(), tolerance=4 * 2**-11)  # float16 rounds each of four to 11 bits
        assert all(vector.dtype == torch.half for vector in model.branches())
        if wrapper is optim.FP16Optimizer:
            assert_on_simplex(masters)
        if t == 10:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "half.pt")
    assert not any(map(torch.equal, initial, model.branches()))

    if wrapper is optim.MemoryEfficientFP16Optimizer:  # no masters: half-precision parameters are all there is
        resumed, optimizer = start()
        checkpoint = torch.load(tmp_path / "half.pt", weights_only=True)
        resumed.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        for t in range(11, 21):
            accumulate(resumed, optimizer, t)
        assert all(map(torch.equal, resumed.parameters(), model.parameters()))


def test_moving_average_and_mean_of_checkpoints_lie_on_the_simplex():
    model = Branched()
    optimizer = build(model, branch_warmup_updates=1)
    average = EMA(model, types.SimpleNamespace(ema_decay=0.9, ema_start_update=0, ema_update_freq=1, ema_fp32=False, ema_seed_model=None))
    history = []
    for t in range(1, 11):
        update(model, optimizer, t)
        average.step(model, t)
        history.append(copies(model.branches()))
    assert_on_simplex(average.get_model().branches())
    assert not all(map(torch.equal, average.get_model().branches(), model.branches()))
    assert_on_simplex([torch.stack(vectors).mean(0) for vectors in zip(*history)])


def test_refuses_never_to_train_them():
    for max_update in (0, 10000):
        with pytest.raises(BranchTrainingError, match=f"--max-update {max_update} .*smaller --branch-frozen-updates"):
            build(Branched(), max_update=max_update)
    build(torch.nn.Linear(2, 2), max_update=0)  # others have nothing to freeze


@pytest.mark.parametrize("option", [{"use_bmuf": True}, {"ddp_backend": "slowmo"}])
def test_refuses_what_moves_parameters_after_the_step(option):
    with pytest.raises(BranchTrainingError, match="--ddp-backend pytorch_ddp"):
        build(Branched(), **option)
    build(torch.nn.Linear(2, 2), **option)


def test_another_optimizer_is_noticed():
    model = Branched()
    optim.build_optimizer(OmegaConf.create({"_name": "adam", **ADAM}), list(model.parameters()))
    with pytest.raises(BranchTrainingError, match="--optimizer fused_adam.*--fp16-no-flatten-grads"):
        model.weights.require_adopted()
    build(model)
    model.weights.require_adopted()


def test_flattened_masters_are_noticed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # fairseq asks for it, and uses it as a name only
    model = Branched().half()
    cfg = OmegaConf.create({**FP16, "common": {**FP16["common"], "fp16_no_flatten_grads": False}, "optimizer": config()})
    optim.FP16Optimizer.build_optimizer(cfg, list(model.parameters()))
    with pytest.raises(BranchTrainingError, match="--fp16-no-flatten-grads"):
        model.weights.require_adopted()


def test_groups_and_checkpoints_without_branch_weights_are_as_before():
    """One group with torch's own keys: what was saved before there were branch weights resumes."""
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before = torch.optim.AdamW(first.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1, fused=True)
    second.load_state_dict(first.state_dict())
    now = build(second)
    assert now.supports_flat_params and not build(Branched()).supports_flat_params
    assert now.state_dict()["param_groups"] == before.state_dict()["param_groups"]

    def steps(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).pow(2).sum().backward()
            optimizer.step()

    steps(first, before)
    second.load_state_dict(first.state_dict())
    now.load_state_dict(copy.deepcopy(before.state_dict()))
    steps(first, before)
    steps(second, now)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
