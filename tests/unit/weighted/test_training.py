"""The agreement of model and optimizer about κ and α: refused trainings, and that others leave κ and α right."""

import copy
import pickle

import pytest
import torch
from fairseq import optim
from fairseq.dataclass.configs import CommonConfig
from fairseq.optim.adam import Adam
from omegaconf import OmegaConf

from user_dir.errors import InputError
from user_dir.weighted.training import BranchTraining, refuse_training

from branches import Branched, adam_options, assert_on_simplex, branch_rate, copies, fused_adam, fused_adam_options
from support import families_with


def test_no_warmup():
    assert BranchTraining(2.0).learning_rate(1, 0) == 2.0


FLATTENED = {"optimizer": "fused_adam", "fp16": True, "fp16_no_flatten_grads": False, "memory_efficient_fp16": False}
SHARDED = {"optimizer": "fused_adam", "ddp_backend": "fully_sharded"}
UNSUITABLE = [
    ({"optimizer": "adam"}, "train with --optimizer fused_adam"),
    (FLATTENED, "--fp16-no-flatten-grads"),
    (SHARDED, "--ddp-backend fully_sharded .*: train with --ddp-backend pytorch_ddp"),
    ({"ddp_backend": "slowmo"}, "--ddp-backend .* slowmo"),
    ({"use_bmuf": True}, "--use-bmuf"),
    ({**SHARDED, "optimizer": "adam"}, "--ddp-backend fully_sharded .*; .*--optimizer fused_adam"),
]
SUITABLE = [
    {"optimizer": "fused_adam", "ddp_backend": "legacy_ddp", "fp16": False},
    {"optimizer": "fused_adam", "fp16": True, "fp16_no_flatten_grads": True},
    {"optimizer": "fused_adam", "fp16": True, "memory_efficient_fp16": True},
]


@pytest.mark.parametrize("family", families_with("branched_attention"))
@pytest.mark.parametrize("options, words", UNSUITABLE)
def test_unsuitable_trainings_are_refused_when_the_model_is_built(build, family, options, words):
    """fairseq-train gives a model all options of the command line."""
    with pytest.raises(InputError, match=words):
        build(f"{family}_tiny", **options)
    build("vaswani_transformer_tiny", **options)


def test_an_unsuitable_training_of_hydras_is_refused():
    """fairseq-hydra-train gives a model one group of its configuration."""
    groups = {"common": {}, "distributed_training": {"ddp_backend": "fully_sharded"}, "model": {}}
    config = OmegaConf.create({**groups, "optimizer": {"_name": "fused_adam"}})
    with pytest.raises(InputError, match="--ddp-backend fully_sharded"):
        refuse_training(config.model)


def test_a_trained_model_is_evaluated_in_any_precision(build):
    """fairseq-validate writes its own --fp16 among the options of the training."""
    build("weighted_transformer_tiny", **FLATTENED, path="checkpoint_best.pt")
    groups = {"common": {"fp16": True}, "common_eval": {"path": "checkpoint_best.pt"}, "model": {}}  # hydra's
    refuse_training(OmegaConf.create({**groups, "optimizer": {"_name": "fused_adam"}}).model)


@pytest.mark.parametrize("options", SUITABLE)
def test_suitable_trainings_are_not(build, options):
    build("weighted_transformer_tiny", **options)


def test_another_optimizer_is_noticed():
    model = Branched()
    optim.build_optimizer(adam_options(), list(model.parameters()))
    with pytest.raises(InputError, match="--optimizer fused_adam.*--fp16-no-flatten-grads"):
        model.weights.require_adopted()
    fused_adam(model)
    model.weights.require_adopted()


@pytest.mark.parametrize("form", ["per_branch", "shared", "none"])
def test_every_form_is_trained_on_the_simplex(build, batch, form):
    model = build("weighted_relative_transformer_base", branch_residual=form).train()
    optimizer = fused_adam(model, branch_warmup_updates=3)
    weights = [weight for name, weight in model.named_parameters() if name.endswith(("kappa", "alpha"))]
    before = copies(weights)
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch)[0].log_softmax(-1)[..., 7].mean().backward()
        optimizer.step()
        assert_on_simplex(weights)
    assert len(weights) == 8 and not any(map(torch.equal, before, weights))


def test_each_model_has_an_optimizer_of_its_own():
    """As in a program that trains both directions; their rates may differ."""
    both = torch.nn.ModuleList([Branched(), Branched()])
    with pytest.raises(InputError, match="several models: build an optimizer for each"):
        fused_adam(both)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_an_optimizer_of_its_own(build, copied):
    model = build("weighted_relative_transformer_base", restricted_attention="both")
    assert [*map(id, fused_adam(model).params)] == [*map(id, model.parameters())]
    other = copied(model)
    model.branch_training.require_adopted()
    with pytest.raises(InputError, match="--optimizer fused_adam"):
        other.branch_training.require_adopted()
    assert len(fused_adam(other).param_groups) == 2
    other.branch_training.require_adopted()


def half_precision(flatten=False, **options):
    """The options of fairseq-train --fp16, as its wrappers of optimizers read them."""
    common = {**vars(CommonConfig()), "fp16": True, "fp16_no_flatten_grads": not flatten}
    training = {"optimization": {"update_freq": [1]}, "distributed_training": {"distributed_world_size": 1}}
    return OmegaConf.create({"common": common, **training, "optimizer": fused_adam_options(fp16=True, **options)})


def test_flattened_masters_are_noticed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # fairseq asks for it, and uses it as a name only
    model = Branched().half()
    optim.FP16Optimizer.build_optimizer(half_precision(flatten=True), list(model.parameters()))
    with pytest.raises(InputError, match="--fp16-no-flatten-grads"):
        model.weights.require_adopted()


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_branch_weights_of_half_precision_are_refused(dtype):
    """With --memory-efficient-fp16 the model's parameters are all there is, and rounding would undo the updates."""
    parameters = list(Branched().to(dtype).parameters())
    with pytest.raises(InputError, match="--memory-efficient-fp16 .*--fp16-no-flatten-grads"):
        optim.MemoryEfficientFP16Optimizer.build_optimizer(half_precision(), parameters)
    others = list(torch.nn.Linear(2, 2).to(dtype).parameters())
    optimizer = optim.MemoryEfficientFP16Optimizer.build_optimizer(half_precision(), others)
    assert type(optimizer.wrapped_optimizer.optimizer) is Adam  # torch's would have its moments in half precision, too


def test_on_the_simplex_in_half_precision():
    """With accumulation and a skipped update."""

    def accumulate(model, optimizer, t, overflow=False):
        optimizer.zero_grad()
        for part in (0, 100):
            optimizer.backward(model.loss(t + part) * (float("inf") if overflow else 1))
        optimizer.multiply_grads(0.5)
        optimizer.clip_grad_norm(1.0)
        optimizer.step()

    model = Branched().half()
    options = half_precision(branch_warmup_updates=3)
    optimizer = optim.FP16Optimizer.build_optimizer(options, list(model.parameters()))
    assert model.weights.adopted
    initial = copies(model.branches())
    masters = optimizer.param_groups[1]["params"]
    for t in range(1, 21):
        if t == 7:
            before = copies(model.branches())
            with pytest.raises(OverflowError):
                accumulate(model, optimizer, t, overflow=True)
            assert all(map(torch.equal, before, model.branches()))
        accumulate(model, optimizer, t)
        assert optimizer.param_groups[1]["lr"] == pytest.approx(branch_rate(t, 3))
        assert_on_simplex(model.branches(), tolerance=4 * 2**-11)  # float16 rounds each of four to 11 bits
        assert all(vector.dtype == torch.half for vector in model.branches())
        assert_on_simplex(masters)
    assert not any(map(torch.equal, initial, model.branches()))
