"""fused_label_smoothed_cross_entropy is fairseq's label_smoothed_cross_entropy: loss, gradients, log; its limits."""

import types

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_rdrop import RdropLabelSmoothedCrossEntropyCriterion
from fairseq.distributed import ModuleProxyWrapper

from user_dir.training import criterion
from user_dir.training.criterion import FusedLabelSmoothedCrossEntropy, ProjectedLoss

from support import PAD


@pytest.fixture
def both(dictionary):
    """both(**options): ours and fairseq's criterion."""
    task = types.SimpleNamespace(target_dictionary=dictionary)
    defaults = {"sentence_avg": False, "label_smoothing": 0.1}
    kinds = FusedLabelSmoothedCrossEntropy, LabelSmoothedCrossEntropyCriterion
    return lambda **options: [kind(task, **{**defaults, **options}) for kind in kinds]


@pytest.fixture
def sample(batch):
    """Targets with padding in two of five sentences."""
    target = torch.cat([batch["prev_output_tokens"][:, 1:], torch.full((5, 1), PAD)], dim=1)
    tokens = target.ne(PAD).sum().item()
    assert 0 < (target[:, :-1] == PAD).sum()
    return {"net_input": batch, "target": target, "ntokens": tokens}


def outcome(loss_of, model, sample, scale=1.0):
    model.zero_grad()
    loss, size, log = loss_of(model, sample)
    (loss * scale).backward()
    return loss, size, log, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same(ours, theirs, tolerance):
    for one, other in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=0)
    assert ours[2].keys() == theirs[2].keys() and ours[3].keys() == theirs[3].keys()
    for name, value in theirs[2].items():
        torch.testing.assert_close(ours[2][name], value, rtol=tolerance, atol=0)
    largest = max(gradient.abs().max() for gradient in theirs[3].values())
    for name, gradient in theirs[3].items():
        torch.testing.assert_close(ours[3][name], gradient, rtol=tolerance, atol=tolerance * largest.item(), msg=name)


@pytest.mark.parametrize("most", [{"LOGITS": 1}, {"ROWS": 2}, {"ROWS": 1000}], ids=["a row", "two rows", "all rows"])
@pytest.mark.parametrize("shared", [False, True], ids=["three matrices", "one matrix"])
def test_loss_and_gradients_are_fairseqs(build, both, sample, monkeypatch, shared, most):
    for name, value in most.items():
        monkeypatch.setattr(criterion, name, value)
    model = build("vaswani_transformer_base", **({"share_all_embeddings": True} if shared else {}))
    assert_same(*(outcome(loss_of, model, sample) for loss_of in both()), 1e-5)


@pytest.mark.parametrize("scale", [1.0, 128.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("sentence_avg", [False, True])
def test_options(build, both, sample, smoothing, sentence_avg, scale):
    """Gradients of the criterion, and of a loss that is scaled before its derivative is taken; a frozen projection."""
    model = build("vaswani_transformer_base")
    options = {"label_smoothing": smoothing, "sentence_avg": sentence_avg}
    for learns in (True, False):
        model.decoder.output_projection.weight.requires_grad_(learns)
        assert_same(*(outcome(loss_of, model, sample, scale) for loss_of in both(**options)), 1e-5)


def test_accuracy(build, both, sample):
    model = build("vaswani_transformer_base")
    with torch.no_grad():
        guesses = model(**sample["net_input"])[0].argmax(-1)
        sample["target"][0, :3] = guesses[0, :3]  # three that are right
    ours, theirs = (loss_of(model, sample)[2] for loss_of in both(report_accuracy=True))
    assert ours["n_correct"] == theirs["n_correct"] >= 3 and ours["total"] == theirs["total"]
    with torch.no_grad():
        model.decoder.output_projection.weight.zero_()  # all words are equally probable, and the first one counts
        sample["target"][0, 0] = 0
    ours, theirs = (loss_of(model, sample)[2] for loss_of in both(report_accuracy=True))
    assert ours["n_correct"] == theirs["n_correct"] == 1


def test_precision_of_the_products_is_the_models(build, both, sample):
    """In bfloat16 both round logits, and so the loss."""
    full, reduced = (build("vaswani_transformer_base", autocast=precision) for precision in ("off", "bf16"))
    ours, theirs = (outcome(loss_of, reduced, sample) for loss_of in both())
    assert_same(ours, theirs, 0.03)
    features = reduced(**sample["net_input"], features_only=True)[0]
    full.forward = lambda **_: (features, None)  # but for the products
    assert both()[0](full, sample)[0] != ours[0]


def test_without_gradients_none_are_made(build, both, sample, monkeypatch):
    model = build("vaswani_transformer_base")
    made = []
    scatter_add = torch.Tensor.scatter_add_  # only the gradient of the logits needs it
    monkeypatch.setattr(torch.Tensor, "scatter_add_", lambda *args: made.append(args) or scatter_add(*args))
    ours, theirs = both()
    ours(model, sample)
    assert made
    made.clear()
    with torch.no_grad():
        ours, theirs = (loss_of(model, sample) for loss_of in (ours, theirs))
    torch.testing.assert_close(ours[0], theirs[0])
    assert not ours[0].requires_grad and not made


def test_a_model_wrapped_for_several_processes(build, both, sample, monkeypatch):
    """Twice, as by fairseq, whose criterion would compute the same in more time and memory."""

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            self.forward = module.forward

    model = ModuleProxyWrapper(Wrapper(build("vaswani_transformer_base")))
    monkeypatch.setattr(LabelSmoothedCrossEntropyCriterion, "forward", None)
    _, _, log = both()[0](model, sample)
    assert not log["loss"].requires_grad and not log["nll_loss"].requires_grad


def test_the_loss_can_be_changed_in_place(build, both, sample):
    """As fairseq does with the batch of a process that has none of its own: `loss *= 0`."""
    loss, _, _ = both()[0](build("vaswani_transformer_base"), sample)
    loss *= 0
    loss.backward()


def test_nothing_but_padding_costs_nothing(build, both, sample):
    sample["target"].fill_(PAD)
    for loss_of in both():
        loss, _, _, gradients = outcome(loss_of, build("vaswani_transformer_base"), sample)
        assert loss == 0 and all(not gradient.any() for gradient in gradients.values())


def test_the_loss_of_bfloat16_products_is_computed_in_float32():
    """Logits are rounded, as the layer before rounds, and nothing after that."""
    torch.manual_seed(1)
    x, weight, target = torch.randn(40, 16), torch.randn(50, 16), torch.randint(50, (40,))
    logits = (x.bfloat16() @ weight.bfloat16().T).float()
    loss, nll_loss, _ = ProjectedLoss.apply(x, weight, target, 0.0, torch.bfloat16, False, False)
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(nll_loss, expected, rtol=1e-5, atol=0)


def test_chunks_of_bfloat16_parameters_are_added_up_in_float32(monkeypatch):
    torch.manual_seed(1)
    x, weight, target = torch.randn(400, 16), torch.randn(50, 16, requires_grad=True), torch.randint(50, (400,))
    products = x.bfloat16().float() @ weight.bfloat16().float().T
    torch.nn.functional.cross_entropy(products, target, reduction="sum").backward()
    for rows, numbers in (1000, 48), (1, 2000):  # a slice has 3 of the words, or all of them
        monkeypatch.setattr(criterion, "ROWS", rows)
        monkeypatch.setattr(criterion, "SLICE", numbers)
        half = weight.detach().bfloat16().requires_grad_()
        ProjectedLoss.apply(x.bfloat16(), half, target, 0.0, torch.bfloat16, True, False)[0].backward()
        assert (half.grad - weight.grad).norm() < 0.005 * weight.grad.norm()  # added up in bfloat16: 0.012


LIMITS = [{"reduce": False}, {"ignore_prefix_size": 1}, {"half": True}, {"bias": True}, {"find_unused": True}]
LIMITS += [{"own_output_layer": True}, {"own_call": True}, {"arch": "transformer_align"}, {"amp": True}]
LIMITS += [{"own_probabilities": part} for part in ("model", "decoder")] + [{"own_projection": True}]


@pytest.mark.parametrize("call", LIMITS, ids=str)
def test_what_it_does_not_carry_is_fairseqs(build, both, sample, monkeypatch, call):
    monkeypatch.setattr(ProjectedLoss, "apply", None)  # the fused one
    model = build(call.get("arch", "vaswani_transformer_base"))
    if "half" in call:
        model = model.half()
    if "amp" in call:
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device=None: device == "cuda")
    if "bias" in call:
        model.decoder.output_projection = torch.nn.Linear(16, 50)
    if "own_projection" in call:
        own = type("Own", (torch.nn.Linear,), {"forward": lambda self, x: torch.nn.Linear.forward(self, x).tanh()})
        model.decoder.output_projection.__class__ = own
    if "own_output_layer" in call:
        own = type("Own", (type(model.decoder),), {"output_layer": lambda self, x: self.output_projection(x).tanh()})
        model.decoder.__class__ = own
    if "own_call" in call:

        def without_the_first_word(self, *args, features_only=False, **kwargs):
            x, extra = super(type(self), self).forward(*args, features_only=features_only, **kwargs)
            return x if features_only else x.index_fill(2, torch.tensor([4]), -9.0), extra

        model.decoder.__class__ = type("Own", (type(model.decoder),), {"forward": without_the_first_word})
    if where := call.get("own_probabilities"):
        part = model if where == "model" else model.decoder

        def tempered(self, net_output, log_probs, sample=None):
            return super(part.__class__, self).get_normalized_probs((net_output[0] / 2, {}), log_probs, sample)

        part.__class__ = type("Own", (type(part),), {"get_normalized_probs": tempered})
    model.find_unused_parameters = "find_unused" in call  # as DistributedDataParallel has it
    options = {name: value for name, value in call.items() if name == "ignore_prefix_size"}
    ours, theirs = (loss_of(model, sample, call.get("reduce", True))[0] for loss_of in both(**options))
    assert torch.equal(ours, theirs)


def test_r_drop_validates_each_sentence_once(build, new_task, sample):
    """fairseq's doubles the batch and the loss, and --eval-bleu finds no reference for the second half."""
    model, task = build("vaswani_transformer_base"), new_task()
    plain = LabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1)
    r_drop = RdropLabelSmoothedCrossEntropyCriterion(task, sentence_avg=False, label_smoothing=0.1, rdrop_alpha=1.0)
    expected, found = (task.valid_step(sample, model, criterion) for criterion in (plain, r_drop))
    assert found[:2] == expected[:2] and found[2]["nll_loss"] == expected[2]["nll_loss"]
    assert r_drop.rdrop_alpha == 1.0 and r_drop(model, sample)[0] > 1.9 * expected[0]
