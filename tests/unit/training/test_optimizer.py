"""fused_adam: Adam's equations; for κ and α a learning rate of their own, freezing, and the simplex."""

import argparse
import copy
import itertools
import math

import pytest
import torch
from fairseq import optim
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.utils import clip_grad_norm_

from user_dir.errors import InputError
from user_dir.training.optimizer import FusedAdamConfig

from branches import (
    BRANCH_SCALE,
    Branched,
    assert_on_simplex,
    branch_rate,
    copies,
    fused_adam,
    fused_adam_options,
    update,
)


def gradients():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, 4, generator=generator, dtype=torch.double) for _ in range(10)]


def test_update_equals_the_equations():
    """Kingma and Ba 2015, algorithm 1, with decoupled weight decay."""
    p, m, v = torch.ones(3, 4, dtype=torch.double), 0, 0
    parameter = torch.nn.Parameter(p.clone())
    optimizer = optim.build_optimizer(fused_adam_options(), [parameter])
    for t, g in enumerate(gradients(), 1):
        parameter.grad = g.clone()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
        p = p - 0.01 * 0.1 * p - 0.01 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    torch.testing.assert_close(parameter.detach(), p)


@pytest.mark.parametrize("model", [lambda: torch.nn.Linear(2, 2), lambda: Branched()], ids=["one group", "branches"])
def test_continues_with_the_options_given_now(model):
    """fairseq's optimizer keeps those of the checkpoint, against its docstring; --optimizer-overrides come last."""
    now = fused_adam(model(), lr=[0.5], adam_betas="(0.5, 0.9)", adam_eps=1e-4, weight_decay=0.3)
    before = fused_adam(model()).state_dict()
    common = argparse.Namespace(fp16_init_scale=1, min_loss_scale=0)
    with_amp = AMPOptimizer(argparse.Namespace(common=common, optimizer=None), [], now)
    given = ((None, 0.3), ({"weight_decay": 0.2}, 0.2))
    for optimizer, (overrides, decay) in itertools.product((now, with_amp), given):
        optimizer.load_state_dict(copy.deepcopy(before), overrides)
        group = now.param_groups[0]
        assert [group[name] for name in ("betas", "eps", "weight_decay")] == [(0.5, 0.9), 1e-4, decay]
        assert group["lr"] == 0.01  # the scheduler's


@pytest.mark.parametrize("betas", [{}, {"adam_betas": (0.9, 0.999)}, {"adam_betas": "(0.9, 0.999)"}], ids=str)
def test_options_of_a_program(betas):
    """A Namespace, with the defaults of our and fairseq's options."""
    given = argparse.Namespace(optimizer="fused_adam", lr=[0.1], max_update=20000, fp16=False, amp=False, **betas)
    optimizer = optim.build_optimizer(given, [*Branched().parameters()])
    assert tuple(optimizer.param_groups[0]["betas"]) == (0.9, 0.999)


@pytest.mark.parametrize("option", ["fp16_adam_stats", "use_old_adam"])
def test_refuses_options_of_fairseqs_adam(option):
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')} .*adam: omit it$"):
        fused_adam(torch.nn.Linear(2, 2), **{option: True})


def test_groups_and_checkpoints_without_branch_weights_are_as_before():
    """One group with torch's own keys: what was saved before there were branch weights resumes."""
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before = torch.optim.AdamW(first.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1, fused=True)
    second.load_state_dict(first.state_dict())
    now = fused_adam(second)
    assert now.supports_flat_params and not fused_adam(Branched()).supports_flat_params
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


@pytest.mark.parametrize("aggregate", [None, lambda norm: 2 * norm], ids=["own", "aggregated"])
@pytest.mark.parametrize("limit", [0.0, 0.1, 100.0])
def test_clipping_is_fairseqs(limit, aggregate):
    """No clipping, some, and a limit above the norm; also of a norm that a function makes of the process's own."""
    ours, theirs = Branched(), Branched()
    for model in (ours, theirs):
        model.unused = torch.nn.Parameter(torch.ones(2))  # as a layer that --encoder-layerdrop leaves out
        model.loss(1).backward()
    norm = fused_adam(ours).clip_grad_norm(limit, aggregate)
    expected = clip_grad_norm_([*theirs.parameters()], limit, aggregate)
    assert norm == pytest.approx(expected.item()) and 0.1 < norm < 100
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_norm_beyond_float16():
    """As of --memory-efficient-fp16, whose loss is scaled."""
    model = torch.nn.Linear(3, 3).half()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 6e4)
    assert fused_adam(model, fp16=True).clip_grad_norm(0.0).item() == pytest.approx(12**0.5 * 6e4, rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_divergence_is_said_with_update_and_parameter(build, value):
    """fairseq's NaN detector would fail."""
    model = build("vaswani_transformer_base")
    optimizer = fused_adam(model)
    for bad in (0.5, value):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, bad)
        model.decoder.layers[1].fc2.weight.data[3, 5] = -1e20
        if bad == 0.5:
            assert optimizer.clip_grad_norm(1.0) > 1
            optimizer.step()
    with pytest.raises(InputError, match=r"^update 2: .* decoder.layers.1.fc2.weight .* 1.0e\+20: lower --lr"):
        optimizer.clip_grad_norm(1.0)
    assert not fused_adam(model, amp=True).clip_grad_norm(0.0).isfinite()  # goes on with a smaller scale of the loss
    model.decoder.layers[1].fc2.weight.data[3, 5] = math.nan
    with pytest.raises(InputError, match="^update 1: .* decoder.layers.1.fc2.weight has values of up to inf: lower"):
        fused_adam(model).clip_grad_norm(1.0)


# κ and α


def test_learning_rate_from_the_first_update_beside_any_schedule():
    """Ahmed et al. 2017, section 4; a first step of Adam is lr · sign(gradient), which shows what was really used."""
    model = Branched(simplex=False)
    optimizer = fused_adam(model, branch_warmup_updates=5)
    for t in range(1, 13):
        optimizer.set_lr(0.1 / t)  # as fairseq's schedulers do
        assert optimizer.get_lr() == optimizer.param_groups[0]["lr"] == 0.1 / t
        before = copies(model.branches())
        update(model, optimizer, t)
        assert optimizer.param_groups[1]["lr"] == pytest.approx(branch_rate(t, 5), rel=1e-12)
        if t == 1:
            for old, new, parameter in zip(before, model.branches(), model.branches()):
                expected = old - branch_rate(1, 5) * parameter.grad.sign()
                torch.testing.assert_close(new.detach(), expected, atol=1e-6, rtol=0)


def test_the_papers_settings_are_the_defaults():
    assert (FusedAdamConfig.branch_warmup_updates, FusedAdamConfig.branch_frozen_updates) == (400, 10000)
    model = Branched()
    for t, divisor in ((1, 8000), (400, 20), (1600, 40)):
        assert branch_rate(t) == pytest.approx(BRANCH_SCALE / divisor)
    optimizer = fused_adam(model)
    update(model, optimizer, 1)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(branch_rate(1))


def test_another_rate_and_decay_from_outside_do_not_stay():
    """As ReduceLROnPlateau sets the one, and --optimizer-overrides the other with --amp: in all groups."""
    model = Branched()
    optimizer = fused_adam(model)
    for t in range(1, 4):
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = 0.1, 0.5
        update(model, optimizer, t)
        branches = optimizer.param_groups[1]
        assert branches["lr"] == pytest.approx(branch_rate(t)) and branches["weight_decay"] == 0


@pytest.mark.parametrize("branched", [True, False])
@pytest.mark.parametrize("scale", [2.0**7, 2.0**17])
def test_the_scale_of_amp_does_not_matter(scale, branched):
    """fairseq unscales the gradients of torch's optimizer, and GradScaler would do it again before our step."""
    models = [Branched(), Branched()]
    for parameter in (p for model in models for p in model.branches() if not branched):
        del parameter.param_group
    options = argparse.Namespace(fp16_init_scale=1, min_loss_scale=0)
    optimizers = [fused_adam(model, amp=True) for model in models]
    configuration = argparse.Namespace(common=options, optimizer=None)
    scaled = AMPOptimizer(configuration, models[1].parameters(), optimizers[1])
    scaled._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for t in range(1, 4):
        update(models[0], optimizers[0], t)
        scaled.zero_grad()
        scaled.backward(models[1].loss(t))
        scaled.clip_grad_norm(0.0)
        scaled.step()
    scaled.zero_grad()
    scaled.backward(models[1].loss(4) * math.inf)
    scaled.step()  # does nothing
    assert scaled.scaler.get_scale() == scale / 2
    assert not branched or optimizers[1].param_groups[1]["updates"] == 3
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_others_are_updated_as_by_adamw_and_branches_do_not_decay():
    ours, reference = Branched(), Branched()
    optimizer = fused_adam(ours)
    matrices, branches = {"params": [reference.matrix], "weight_decay": 0.1}, {"params": reference.branches()}
    adamw = torch.optim.AdamW([matrices, branches], lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    for t in range(1, 6):
        update(ours, optimizer, t)
        adamw.param_groups[1]["lr"] = branch_rate(t)
        adamw.zero_grad()
        reference.loss(t).backward()
        adamw.step()
        for vector in reference.branches():  # all positive here: the projection is a shift to sum 1
            vector.data -= (vector.data.sum() - 1) / 4
    for parameter, expected in zip(ours.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter, expected, atol=1e-6, rtol=1e-6)


def test_on_the_simplex_after_every_update():
    model = Branched()
    optimizer = fused_adam(model, branch_warmup_updates=1)
    cut = 0
    for t in range(1, 30):
        update(model, optimizer, t)
        assert_on_simplex(model.branches())
        cut += sum((vector == 0).any().item() for vector in model.branches())
    assert cut  # the learning rate is large enough to leave the simplex on its way


@pytest.mark.parametrize("simplex", [True, False])
def test_frozen_for_the_last_updates_and_resumed_in_the_middle(tmp_path, simplex):
    options = {"max_update": 12, "branch_frozen_updates": 5, "branch_warmup_updates": 3}
    whole = Branched(simplex)
    optimizer = fused_adam(whole, **options)
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
        optimizer = fused_adam(resumed, **options)
        optimizer.load_state_dict(checkpoint["optimizer"], {"weight_decay": 0.1, "lr": 0.01})  # --optimizer-overrides
        for t in range(saved + 1, 13):
            update(resumed, optimizer, t)
        for parameter, expected in zip(resumed.parameters(), whole.parameters()):
            assert torch.equal(parameter, expected)


def test_frozen_weights_are_not_even_projected():
    """A projection may change the last bit; values off the simplex show whether there was one."""
    model = Branched()
    optimizer = fused_adam(model, max_update=3, branch_frozen_updates=2, branch_warmup_updates=1)
    update(model, optimizer, 1)
    assert_on_simplex(model.branches())
    model.kappa[0].data.fill_(0.3)
    for t in (2, 3):
        update(model, optimizer, t)
    assert torch.equal(model.kappa[0].detach(), torch.full((4,), 0.3))


def test_never_frozen_when_asked():
    model = Branched()
    optimizer = fused_adam(model, max_update=0, branch_frozen_updates=0, branch_warmup_updates=1)
    for t in range(1, 4):
        before = copies(model.branches())
        update(model, optimizer, t)
        assert not any(map(torch.equal, before, model.branches()))


def test_refuses_never_to_train_them():
    for name in ("warmup", "frozen"):
        with pytest.raises(InputError, match=f"^--branch-{name}-updates -1: give at least 0$"):
            fused_adam(Branched(), **{f"branch_{name}_updates": -1})
    for max_update in (0, 10000):
        with pytest.raises(InputError, match=f"--max-update {max_update} .*: .*--branch-frozen-updates"):
            fused_adam(Branched(), max_update=max_update)
    fused_adam(torch.nn.Linear(2, 2), max_update=0)  # others have nothing to freeze
    with pytest.raises(InputError, match="fused_adam needs max_update, "):  # a program's, without fairseq's options
        optim.build_optimizer(argparse.Namespace(optimizer="fused_adam", lr=[0.1]), list(Branched().parameters()))
