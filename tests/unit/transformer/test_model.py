"""Every architecture: no leaks, live gradients, activation checkpointing, precision."""

import argparse
import copy

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.ema import EMA
from fairseq.models.transformer import base_architecture

from user_dir.attention.multihead import MultiheadAttention
from user_dir.errors import InputError
from user_dir.transformer.architectures import FAMILIES
from user_dir.transformer.layers import LAYER_VARIANTS

from comparing import assert_decodes_word_by_word
from support import EOS, PAD, PRE_NORM, SMALL, build_model

ARCHITECTURES = [
    pytest.param(f"{family}_base", norm, id=f"{family}_base-{'pre' if norm else 'post'}")
    for family in FAMILIES
    for norm in ({}, PRE_NORM)
]
every_architecture = pytest.mark.parametrize("arch, norm", ARCHITECTURES)

# Other forms of computation than the families' defaults, and the tables that the heads of big models share.
FORMS = {"shared": {"branch_residual": "shared"}, "none": {"branch_residual": "none"}}
FORMS |= {where: {"branched_attention": where} for where in ("encoder_decoder", "both", "both_halves")}
FORMS |= {"softmax": {"branch_weights": "softmax"}, "heads": {"attention_key_dim": 3, "attention_value_dim": 6}}
FORMS |= {"scalars": {"relative_positions": "scalars"}, "everywhere": {"relative_attention": "all"}}
FORMS |= {"restricted": {"restricted_attention": "both", "neighbourhood": 5}}
FORMS = [pytest.param("weighted_relative_transformer_base", options, id=name) for name, options in FORMS.items()]
FORMS += [pytest.param(f"{family}_big", {}, id=f"{family}_big") for family in FAMILIES if FAMILIES[family].big]
every_form = pytest.mark.parametrize("arch, norm", [*ARCHITECTURES, *FORMS])


@every_form
def test_padding_and_batch_mates_change_nothing(build, batch, arch, norm):
    model = build(arch, **norm).double()
    together, _ = model(**batch)
    for i, (source, target) in enumerate(zip(batch["src_tokens"], batch["prev_output_tokens"])):
        source, target = source[source.ne(PAD)][None], target[target.ne(PAD)][None]
        alone, _ = model(source, torch.tensor([source.size(1)]), target)
        torch.testing.assert_close(together[i, : target.size(1)], alone[0])


@every_architecture
def test_source_padding_on_the_left_target_padding_on_the_left(new_task, batch, arch, norm):
    """fairseq can pad either side (--left-pad-target): nothing may become NaN or leak."""
    model = build_model(new_task(left_pad_target=True), arch, **norm).double()
    target = torch.tensor([[PAD, PAD, EOS, 5, 6], [EOS, 7, 8, 9, 10]])
    logits, _ = model(batch["src_tokens"][:2], None, target)
    assert torch.isfinite(logits).all()
    alone, _ = model(batch["src_tokens"][:1], None, target[:1, 2:])
    torch.testing.assert_close(logits[0, 2:], alone[0])


@every_form
def test_cached_decoding_equals_full(build, batch, arch, norm):
    """Far beyond the length of the batch, and beyond the distances that have a vector."""
    model = build(arch, **norm).double()
    assert_decodes_word_by_word(model, model.encoder(batch["src_tokens"], batch["src_lengths"]), 24)


@every_architecture
def test_gradients_through_cached_decoding(build, batch, arch, norm):
    """Those of decoding all positions at once, as in training with sequences that the model has found."""
    results, tokens = [], torch.arange(4, 24).unflatten(0, (5, 4))
    for cached in (False, True):
        model = build(arch, **norm).double()
        encoder_out, state = model.encoder(batch["src_tokens"], batch["src_lengths"]), {}
        prefixes = [tokens[:, : length + 1] for length in range(4)] if cached else [tokens]
        options = {"encoder_out": encoder_out, "incremental_state": state if cached else None}
        logits = torch.cat([model.decoder(prefix, **options)[0] for prefix in prefixes], dim=1)
        logits.square().sum().backward()
        results.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*results)


@every_form
def test_every_parameter_gets_a_gradient(build, batch, arch, norm):
    model = build(arch, **norm).train()
    torch.nn.functional.cross_entropy(model(**batch)[0].flatten(0, 1), batch["prev_output_tokens"].flatten()).backward()
    for name, parameter in model.named_parameters():
        # Adding one vector to all keys moves no softmax: the derivative by k_proj's bias is 0 by mathematics.
        if not name.endswith("k_proj.bias"):
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@every_form
@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
@pytest.mark.parametrize("autocast", ["off", "bf16"])
def test_activation_checkpointing_changes_nothing(build, batch, arch, norm, autocast, attention_dropout):
    batch["src_tokens"] = batch["src_tokens"].repeat(1, 4)  # from 16 keys on torch's kernels differ
    results = []
    for checkpointing in (False, True):
        options = {"dropout": 0.3, "attention_dropout": attention_dropout, "autocast": autocast}
        model, calls = build(arch, **norm, **options, checkpoint_activations=checkpointing), []
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(5)
        logits, _ = model.train()(**batch)
        logits.square().sum().backward()
        assert len(calls) == 4 * (1 + checkpointing)  # layers are computed again for the derivative
        results.append([logits, *(p.grad for p in model.parameters())])
    for plain, checkpointed in zip(*results, strict=True):
        assert torch.equal(plain, checkpointed)


def test_checkpointed_layers_are_offloaded_and_sharded_as_asked(build, monkeypatch):
    """A checkpointed one is always a separate FSDP unit."""
    seen = []
    for wrapper in ("checkpoint_wrapper", "fsdp_wrap"):
        monkeypatch.setattr(f"user_dir.transformer.model.{wrapper}", lambda layer, **how: seen.append(how) or layer)
    build("vaswani_transformer_base", checkpoint_activations=True, offload_activations=True)
    build("vaswani_transformer_base", min_params_to_wrap=7)
    assert seen == [{"offload_to_cpu": True}, {"min_num_params": 0}] * 4 + [{"min_num_params": 7}] * 4


@every_architecture
def test_autocast_stays_close_and_keeps_parameters_float32(build, batch, arch, norm):
    expected = build(arch, **norm)(**batch)[0]
    model = build(arch, **norm, autocast="bf16")
    logits, _ = model(**batch)
    assert logits.dtype == torch.bfloat16
    assert 0 < (logits - expected).norm() / expected.norm() < 0.02
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 and torch.isfinite(p.grad).all() for p in model.parameters())


@every_form
def test_half_precision_is_finite(build, batch, arch, norm):
    """As with fairseq's --fp16: every parameter is in half precision."""
    model = build(arch, **norm).half().train()
    logits, _ = model(**batch)
    assert torch.isfinite(logits).all()
    logits.float().logsumexp(-1).mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


def test_attention_weights_are_returned_only_where_they_are_read(build, batch):
    model = build("vaswani_transformer_base")
    assert model(**batch)[1]["attn"][0] is not None
    assert model.train()(**batch)[1]["attn"][0] is None
    assert model(**batch, alignment_layer=0)[1]["attn"][0] is not None

    def step_by_step(model):
        encoder_out = model.encoder(batch["src_tokens"], batch["src_lengths"])
        first = batch["prev_output_tokens"][:, :1]
        return model.decoder(first, encoder_out=encoder_out, incremental_state={})[1]["attn"][0]

    assert step_by_step(model.eval()) is not None
    model.make_generation_fast_(need_attn=False)
    assert step_by_step(model) is None
    assert model(**batch)[1]["attn"][0] is not None  # of a whole hypothesis: fairseq's alignments and scores have them


@every_architecture
def test_trains_after_a_call_under_inference_mode(build, batch, arch, norm):
    """The decoder keeps the mask of the future."""
    batch["prev_output_tokens"] = batch["prev_output_tokens"].clamp_min(4)  # without padding
    model = build(arch, **norm)
    with torch.inference_mode():
        model(**batch)
    model.train()(**batch)[0].sum().backward()


@every_architecture
@pytest.mark.parametrize("residual", ["per_branch", "shared", "none"])
def test_autocast_of_targets_of_one_word(build, batch, arch, norm, residual):
    """In batches of several sentences and of one: for so few tokens branches do not multiply their matrices first."""
    batch["prev_output_tokens"] = batch["prev_output_tokens"][:, :1]
    model = build(arch, **norm, autocast="bf16", branch_residual=residual).train()
    for sentences in (5, 1):
        model.zero_grad()
        logits, _ = model(**{name: values[:sentences] for name, values in batch.items()})
        logits.float().logsumexp(-1).sum().backward()
        assert torch.isfinite(model.decoder.embed_tokens.weight.grad).all()


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("older", [True, False])
def test_a_loss_that_reads_alignments_gets_attention_weights(new_task, batch, wanted, older):
    """label_smoothed_cross_entropy_with_alignment, for which --load-alignments loads them."""
    task = new_task(load_alignments=wanted)
    if older:  # such as translation_multi_simple_epoch
        task.args, task.cfg = task.cfg, None
    model = build_model(task, "vaswani_transformer_base").train()
    assert (model(**batch)[1]["attn"][0] is not None) == wanted


@pytest.mark.parametrize("typed", [{}, {"relative_distance": 4}], ids=str)
def test_an_architecture_that_is_not_made_of_a_familys(new_task, typed):
    """With fairseq's function alone it would be the plain Transformer."""
    args = argparse.Namespace(arch="mine", **SMALL, **typed)
    base_architecture(args)
    with pytest.raises(InputError, match="this --arch does not set our options: let its function end"):
        ARCH_MODEL_REGISTRY["weighted_relative_transformer_base"].build_model(args, new_task())


@every_architecture
def test_a_moving_average_computes_as_the_model(build, batch, arch, norm):
    """--store-ema, of weights that do not change; also as fairseq's load_ema_from_checkpoint has it."""
    model, loaded = build(arch, **norm).eval(), build(arch, **norm).eval()
    average = EMA(model, EMAConfig())
    average.step(model)
    loaded.load_state_dict(average.get_model().state_dict())
    for other in (average.get_model(), loaded):
        torch.testing.assert_close(other(**batch)[0], model(**batch)[0])


@pytest.mark.parametrize("precise", [False, True])
def test_a_moving_average_takes_shared_embeddings_once(build, precise):
    model = build("vaswani_transformer_base", share_all_embeddings=True)
    average = EMA(model, EMAConfig(ema_decay=0.5, ema_fp32=precise))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data += 1
    average.step(model)
    for first, mean in zip(before, average.get_model().parameters()):
        torch.testing.assert_close(mean, first + 0.5)


def test_modules_hear_the_number_of_the_update(build):
    """As fairseq's do, such as an attention of your own with a schedule."""
    model, heard = build("vaswani_transformer_base"), []
    model.decoder.layers[0].self_attn.set_num_updates = heard.append
    model.set_num_updates(7)
    assert heard == [7]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_traced(build, batch, family):
    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build(f"{family}_base")

        def forward(self, *args):
            return self.model(*args)[0]

    with torch.no_grad():
        traced = torch.jit.trace(Logits(), (*batch.values(),), check_trace=False)
        alone = [values[:1] for values in batch.values()]
        torch.testing.assert_close(traced(*alone), Logits()(*alone))


@pytest.mark.parametrize("arch", [f"{family}_tiny" for family in FAMILIES])
def test_torchscript_is_refused_by_name(build, arch):
    with pytest.raises(InputError, match="--export .*nmt-translate"):
        build(arch, export=True)
    with pytest.raises(InputError, match="nmt-translate"):
        torch.jit.script(build(arch))


class Scaled:
    """A variant of layers, for the option --encoder-layers 3: x ← LayerNorm(3 x + Sublayer(x))."""

    @staticmethod
    def selected(cfg):
        return cfg.encoder.layers == 3

    def residual_connection(self, x, residual):
        return 3 * residual + x


@every_architecture
def test_a_variant_of_layers(build, batch, monkeypatch, arch, norm):
    """In both sides and with branches, also in a copy; where it is not selected all is as before."""
    expected = [build(arch, encoder_layers=layers, **norm)(**batch)[0] for layers in (2, 3)]
    monkeypatch.setattr("user_dir.transformer.layers.LAYER_VARIANTS", [*LAYER_VARIANTS, Scaled])
    models = [build(arch, encoder_layers=layers, **norm) for layers in (2, 3)]
    models.append(copy.deepcopy(models[1]))
    same, *others = (model(**batch)[0] for model in models)
    assert torch.equal(same, expected[0]) and torch.equal(*others)
    assert not torch.isclose(others[0], expected[1]).all()
    assert all(isinstance(layer, Scaled) for side in (models[1].encoder, models[1].decoder) for layer in side.layers)


@every_architecture
def test_weights_that_nobody_reads(build, batch, monkeypatch, arch, norm):
    """In evaluation, and for --print-alignment, only the last layer's encoder–decoder attention returns its weights."""
    model, needed = build(arch, decoder_layers=3, **norm), []
    attend = MultiheadAttention.compute_heads
    monkeypatch.setattr(MultiheadAttention, "compute_heads", lambda *args: needed.append(args[-1]) or attend(*args))
    model(**batch)
    assert needed == [False] * (len(needed) - 1) + [True]
    needed.clear()
    model.train()(**batch)
    assert not any(needed)
    needed.clear()
    model.eval().make_generation_fast_(need_attn=True)
    model(**batch)
    assert needed == [False] * (len(needed) - 1) + [True]
