"""Everything that fairseq's generator can be asked for, with every family.

vaswani_transformer is held against fairseq's own `transformer` with the same weights, the other families against
themselves without a cache: the same search, in which each step computes all that came before anew.
"""

import argparse
import types

import pytest
import torch
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.modules import FairseqDropout
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.token_generation_constraints import pack_constraints

from user_dir.architectures import FAMILIES
from user_dir.branch_log import branched_blocks
from user_dir.model import TransformerModel
from user_dir.optimizer import FusedAdam, FusedAdamConfig

from support import EOS, PAD

every_family = pytest.mark.parametrize("family", FAMILIES)
# Of random weights with which hypotheses differ, in length too; test_hypotheses_differ says when others are needed.
SEEDS = {"weighted_transformer": 47, "weighted_relative_transformer": 3}
DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}


class WholeDecoder(torch.nn.Module):
    """Not one of fairseq's incremental decoders: the generator gives it all tokens at every step, and no cache."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens, encoder_out):
        return self.decoder(tokens, encoder_out=encoder_out)


class Whole(torch.nn.Module):
    """`model` without a cache."""

    def __init__(self, model):
        super().__init__()
        self.encoder, self.decoder = model.encoder, WholeDecoder(model.decoder)
        self.get_normalized_probs = model.get_normalized_probs


@pytest.fixture
def pair(build):
    """pair(family, **options): a model with random weights, and what it is held against; `another` has other weights."""

    def pair(family, another=0, **options):
        model = build(f"{family}_base", **options).double()
        torch.manual_seed(SEEDS.get(family, 1) + another)
        for name, parameter in model.named_parameters():
            # No bias is zero then, which nothing would notice missing. κ and α stay on the simplex.
            if "output_projection" not in name and not hasattr(parameter, "param_group"):
                parameter.data += 0.2 * torch.randn_like(parameter)
        model.decoder.output_projection.weight.data[EOS] *= 2  # some end early
        if family != "vaswani_transformer":
            return model, Whole(model)
        stock = build("transformer", **options).double()
        stock.load_state_dict(model.state_dict())
        return model, stock

    return pair


@pytest.fixture
def language_model(dictionary):
    cfg = TransformerLanguageModelConfig(decoder_layers=1, decoder_embed_dim=16, decoder_ffn_embed_dim=32, decoder_attention_heads=4)
    cfg.decoder_input_dim = cfg.decoder_output_dim = 16
    cfg.tokens_per_sample, cfg.max_target_positions, cfg.tpu = 64, None, False
    task = types.SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary, output_dictionary=dictionary)
    torch.manual_seed(3)
    return TransformerLanguageModel.build_model(cfg, task).double()


@pytest.fixture
def search(dictionary, batch):
    """search(models, …): the hypotheses of fairseq's generator for the batch, as fairseq-generate builds it from options."""
    sample = {"id": torch.arange(5), "net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}}

    def search(models, *, lm=None, prefix=None, seed=1, sources=None, **options):
        inputs = sample if sources is None else {
            "net_input": {name: values[sources] for name, values in sample["net_input"].items()}
        }  # fmt: skip
        task = types.SimpleNamespace(target_dictionary=dictionary)
        args = argparse.Namespace(**{"beam": 4, "max_len_b": 12, **options})
        generator = FairseqTask.build_generator(task, models, args, extra_gen_cls_kwargs={"lm_model": lm, "lm_weight": 0.5})
        more = {"constraints": CONSTRAINTS} if "constraints" in options else {}
        torch.manual_seed(seed)
        return generator.generate(models, inputs, prefix_tokens=prefix, **more)

    return search


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        for a, b in zip(ours, theirs, strict=True):
            for what in ("score", "positional_scores", "attention"):
                torch.testing.assert_close(a[what], b[what], atol=1e-5, rtol=1e-5, check_dtype=False)
            # pairs of positions, or each position's attention in six decimals
            alignments = (torch.tensor([[float(value) for value in pair] for pair in h["alignment"]]) for h in (a, b))
            torch.testing.assert_close(*alignments, atol=2e-6, rtol=0)


def words(found):
    return [h["tokens"].tolist() for hypotheses in found for h in hypotheses]


CONSTRAINTS = pack_constraints([[torch.tensor([7, 8]), torch.tensor([9])], [], [torch.tensor([11])], [torch.tensor([5])], []])
SEARCHES = {
    "beams": {},
    "one beam": {"beam": 1},
    "length penalty, n-grams, shortest length, temperature": {"lenpen": 0.6, "no_repeat_ngram_size": 2, "min_len": 4, "temperature": 1.5},
    "length of the source": {"match_source_len": True},
    "forced prefix": {"prefix": torch.tensor([[5, 6], [7, PAD], [8, 9], [5, EOS], [PAD, PAD]])},
    "sampling": {"sampling": True},
    "sampling one of a sentence repeated": {"sampling": True, "beam": 1, "sources": [0, 0, 0, 0, 2, 2, 2, 2]},
    "sampling from the best 5": {"sampling": True, "sampling_topk": 5},
    "sampling from 0.7 of the mass": {"sampling": True, "sampling_topp": 0.7},
    "diverse beams": {"diverse_beam_groups": 2, "diverse_beam_strength": 0.7},
    "diverse siblings": {"diversity_rate": 0.5},
    "ordered constraints": {"constraints": "ordered"},
    "unordered constraints": {"constraints": "unordered"},
    "alignment": {"print_alignment": "hard"},
    "soft alignment": {"print_alignment": "soft"},
}


@every_family
@pytest.mark.parametrize("options", SEARCHES)
def test_search(pair, search, family, options):
    model, reference = pair(family)
    search([model])  # with 4 beams: fairseq does not say when there is but one
    assert_same(*(search([either], **SEARCHES[options]) for either in (model, reference)))


@every_family
def test_hypotheses_differ(pair, search, family):
    """What makes the other tests worth something."""
    model, _ = pair(family)
    found = words(search([model]))
    assert len(set(map(tuple, found))) > 10 and len(set(map(len, found))) > 2


@every_family
def test_constraints_are_met(pair, search, family):
    for (first, *_), wanted in zip(search([pair(family)[0]], constraints="ordered"), ([7, 8, 9], [], [11], [5], [])):
        assert [token for token in first["tokens"].tolist() if token in wanted][: len(wanted)] == wanted


@every_family
@pytest.mark.parametrize("options", [{}, {"print_alignment": "hard"}, {"beam": 1}], ids=str)
def test_ensemble(pair, search, family, options):
    both = list(zip(pair(family), pair(family, another=1)))
    assert_same(*(search(list(models), **options) for models in both))
    assert words(search(both[0][:1], **options)) != words(search(list(both[0]), **options))


@every_family
def test_language_model(pair, search, language_model, family):
    model, reference = pair(family)
    assert_same(*(search([either], lm=language_model) for either in (model, reference)))
    assert words(search([model], lm=language_model)) != words(search([model]))


@every_family
@pytest.mark.parametrize("ensemble", [1, 2])
def test_scores_of_references(pair, search, batch, dictionary, family, ensemble):
    """--score-reference: given the hypotheses of a search as references, it gives their scores, and the attention."""
    both = list(zip(*(pair(family, another) for another in range(ensemble))))
    found = [hypotheses[0] for hypotheses in search(list(both[0]))]
    for model in both[0]:
        model.make_generation_fast_(need_attn=False)  # as fairseq-generate without --print-alignment
    target = torch.nn.utils.rnn.pad_sequence([h["tokens"] for h in found], batch_first=True, padding_value=PAD)
    given = torch.cat([torch.full((5, 1), EOS), target[:, :-1]], dim=1).masked_fill(target.eq(PAD), PAD)
    inputs = {**batch, "prev_output_tokens": given}
    scorer, sample = SequenceScorer(dictionary, compute_alignment=True), {"net_input": inputs, "target": target}
    scored = scorer.generate(list(both[0]), sample)
    for (ours,), hypothesis in zip(scored, found, strict=True):
        torch.testing.assert_close(ours["positional_scores"], hypothesis["positional_scores"], atol=1e-5, rtol=0, check_dtype=False)
        assert ours["attention"].shape == (target.size(1), 9) and ours["alignment"] is not None
    if family == "vaswani_transformer":
        assert_same(scored, scorer.generate(list(both[1]), sample))


@every_family
def test_alignments_by_the_hub_interface(saved, tmp_path, family):
    """It makes models ready for generating without alignments, and is asked for them later."""
    results = []
    for arch in (f"{family}_base", "transformer") if family == "vaswani_transformer" else (f"{family}_base",):
        _, path, data = saved(arch)
        state = torch.load(path, weights_only=False)
        state["cfg"] |= {"tokenizer": None, "bpe": None, "dataset": {"max_tokens": None, "batch_size": None}}
        torch.save(state, path)
        hub = TransformerModel.from_pretrained(str(tmp_path), path.name, str(data))
        sentences = [hub.encode(sentence) for sentence in ("w1 w2 w3 w4", "w5")]
        options = {"beam": 3, "max_len_b": 9, "min_len": 4}
        assert hub.translate(["w1 w2 w3 w4"], **options) == hub.translate(["w1 w2 w3 w4"], print_alignment="hard", **options)
        results.append(hub.generate(sentences, print_alignment="hard", **options))
        for sentence, hypotheses in zip(sentences, results[-1]):
            for hypothesis in hypotheses:
                inputs = torch.cat([hypothesis["tokens"][-1:], hypothesis["tokens"][:-1]])
                attention = hub.models[0](sentence[None], None, inputs[None])[1]["attn"][0][0]
                assert [pair[0] for pair in hypothesis["alignment"]] == attention[:-1, :-1].argmax(1).tolist()
    for result in results[1:]:
        assert words(result) == words(results[0])
        assert [h["alignment"] for hypotheses in result for h in hypotheses] == [h["alignment"] for hypotheses in results[0] for h in hypotheses]


@every_family
def test_retained_dropout(pair, search, batch, family):
    """--retain-dropout: the model generates as it trains."""
    model, reference = pair(family, **DROPOUT)
    torch.manual_seed(5)
    trained = model.train()(**batch)[0]
    without = search([model.eval()])
    for either in (model, reference):
        if hasattr(either, "make_generation_fast_"):
            either.make_generation_fast_(retain_dropout=True, need_attn=False)
    torch.manual_seed(5)
    assert torch.equal(model(**batch, alignment_layer=-1)[0], trained)  # in training no layer gives its weights away
    first, again, other = (search([model], seed=seed) for seed in (1, 1, 2))
    assert_same(first, again)
    assert words(first) != words(other) and words(first) != words(without)
    if family == "vaswani_transformer":
        assert retained(model) == retained(reference) != []


def retained(model):
    return [name for name, m in model.named_modules() if isinstance(m, FairseqDropout) and m.apply_during_inference]


@every_family
def test_layerdrop(pair, build, search, batch, family):
    """--encoder-layerdrop, --decoder-layerdrop: all layers when generating; in training the others get no gradient."""
    model, reference = pair(family, encoder_layerdrop=0.5, decoder_layerdrop=0.5, dropout=0.0)
    complete = build(f"{family}_base", dropout=0.0).double()
    complete.load_state_dict(model.state_dict())
    assert torch.equal(model(**batch)[0], complete(**batch)[0])
    assert_same(search([model]), search([reference]))
    cfg = FusedAdamConfig(lr=[0.1], adam_betas="(0.9, 0.98)", branch_frozen_updates=0, max_update=9, use_bmuf=False, ddp_backend="legacy_ddp")
    numbers = set()
    for seed in range(6):
        outputs = []
        for either in (model, reference) if family == "vaswani_transformer" else (model,):
            torch.manual_seed(seed)
            outputs.append(either.train()(**batch)[0])
            torch.testing.assert_close(outputs[0], outputs[-1], atol=1e-5, rtol=0)
        model.zero_grad()
        outputs[0].square().sum().backward()
        layers = [*model.encoder.layers.children(), *model.decoder.layers.children()]
        numbers.add(sum(any(p.grad is not None for p in layer.parameters()) for layer in layers))
        if family.startswith("weighted"):
            FusedAdam(cfg, model.parameters()).step()
            for block in branched_blocks(model).values():
                for weights in (block.kappa, block.alpha):
                    torch.testing.assert_close(weights.sum().item(), 1.0)
    assert len(numbers) > 1  # of four layers, not always as many
