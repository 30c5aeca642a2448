"""Everything that fairseq's generator can be asked for, with every family.

vaswani_transformer is held against fairseq's own `transformer` with the same weights, the other families against
themselves without a cache: the same search, in which each step computes all that came before anew.
"""

import argparse
import itertools
import types

import pytest
import torch
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.modules import FairseqDropout
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.token_generation_constraints import pack_constraints

from user_dir.errors import LINES
from user_dir.transformer.architectures import FAMILIES
from user_dir.transformer.model import TransformerModel
from user_dir.weighted.heads import branched_blocks

from branches import assert_on_simplex, fused_adam
from comparing import assert_same, randomise, words
from support import EOS, PAD, SMALL, TWO_FAMILIES, slow_beyond

every_family = pytest.mark.parametrize("family", FAMILIES)
two_families = pytest.mark.parametrize("family", TWO_FAMILIES)  # where fairseq's generator does the rest
# Where the search for weights with which hypotheses differ may begin, to save time; 1 for others.
SEEDS = {"weighted_transformer": 47, "weighted_relative_transformer": 3}
FOUND = {}  # by family: weights with which hypotheses differ; `pair` looks for them once
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
def pair(build, search):
    """pair(family, **options): a model of random weights, and what it is held against; `another` has other weights."""

    def differs(family, seed):
        """Only with these the tests can fail: hypotheses of several texts and lengths, not one for all sources."""
        hypotheses = search([randomise(build(f"{family}_base").double(), seed)])
        found, best = (words(part) for part in (hypotheses, [beam[:1] for beam in hypotheses]))
        return len({*map(tuple, found)}) > 10 and len({*map(len, found)}) > 2 and len({*map(tuple, best)}) > 3

    def pair(family, another=0, **options):
        if family not in FOUND:
            FOUND[family] = next(seed for seed in range(SEEDS.get(family, 1), 100) if differs(family, seed))
        model = randomise(build(f"{family}_base", **options).double(), FOUND[family] + another)
        if family != "vaswani_transformer":
            return model, Whole(model)
        stock = build("transformer", **options).double()
        stock.load_state_dict(model.state_dict())
        return model, stock

    return pair


@pytest.fixture
def language_model(dictionary):
    sizes = {name: size for name, size in SMALL.items() if name.startswith("decoder")}
    cfg = TransformerLanguageModelConfig(**{**sizes, "decoder_layers": 1})
    cfg.decoder_input_dim = cfg.decoder_output_dim = 16
    cfg.tokens_per_sample, cfg.max_target_positions, cfg.tpu = 64, None, False
    roles = ("source_dictionary", "target_dictionary", "output_dictionary")
    task = types.SimpleNamespace(**dict.fromkeys(roles, dictionary))
    torch.manual_seed(3)
    return TransformerLanguageModel.build_model(cfg, task).double()


@pytest.fixture
def search(dictionary, batch):
    """search(models, …): the hypotheses of fairseq's generator, as fairseq-generate builds it, for these sources."""

    def search(models, *, lm=None, prefix=None, seed=1, sources=(0, 1, 2, 3, 4), **options):
        inputs = {name: batch[name][list(sources)] for name in ("src_tokens", "src_lengths")}
        task = types.SimpleNamespace(target_dictionary=dictionary)
        args = argparse.Namespace(**{"beam": 4, "max_len_b": 12, **options})
        language_model = {"lm_model": lm, "lm_weight": 0.5}
        generator = FairseqTask.build_generator(task, models, args, extra_gen_cls_kwargs=language_model)
        more = {"constraints": CONSTRAINTS} if "constraints" in options else {}
        torch.manual_seed(seed)
        return generator.generate(models, {"net_input": inputs}, prefix_tokens=prefix, **more)

    return search


PHRASES = [[[7, 8], [9]], [], [[11]], [[5]], []]  # of each sentence
CONSTRAINTS = pack_constraints([[*map(torch.tensor, phrases)] for phrases in PHRASES])
SEARCHES = {
    "beams": {},
    "one beam": {"beam": 1},
    "length penalty, n-grams": {"lenpen": 0.6, "no_repeat_ngram_size": 2, "min_len": 4, "temperature": 1.5},
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


FAST = [*itertools.product(FAMILIES, ("beams", "one beam", "forced prefix", "alignment"))]
FAST += itertools.product(TWO_FAMILIES, SEARCHES)


@pytest.mark.parametrize("family, options", slow_beyond(FAST, itertools.product(FAMILIES, SEARCHES)))
def test_search(pair, search, family, options):
    model, reference = pair(family)
    search([model])  # with 4 beams: fairseq does not say when there is but one
    assert_same(*(search([either], **SEARCHES[options]) for either in (model, reference)))


IMPOSSIBLE = [{"sampling_topk": 5}, {"sampling_topp": 0.5}, {"sampling": True, "diversity_rate": 0.5}]
IMPOSSIBLE += [{"diverse_beam_groups": 3}, {"temperature": 0}, {"diverse_beam_groups": 2, "constraints": "ordered"}]
IMPOSSIBLE += [{"min_len": 13}, {"sampling": True, "sampling_topk": 51}]


@pytest.mark.parametrize("options", IMPOSSIBLE, ids=str)
def test_fairseq_refuses_impossible_searches_and_its_commands_say_so_in_one_line(pair, search, options):
    with pytest.raises((AssertionError, ValueError, RuntimeError)) as caught:
        search([pair("vaswani_transformer")[0]], **options)
    assert any(caught.type is kind and words in str(caught.value) for kind, words, _ in LINES)


@two_families
def test_constraints_are_met(pair, search, family):
    for (first, *_), phrases in zip(search([pair(family)[0]], constraints="ordered"), PHRASES):
        wanted = sum(phrases, [])
        assert [token for token in first["tokens"].tolist() if token in wanted][: len(wanted)] == wanted


@two_families
@pytest.mark.parametrize("options", [{}, {"print_alignment": "hard"}, {"beam": 1}], ids=str)
def test_ensemble(pair, search, family, options):
    both = list(zip(pair(family), pair(family, another=1)))
    assert_same(*(search(list(models), **options) for models in both))
    assert words(search(both[0][:1], **options)) != words(search(list(both[0]), **options))


@two_families
def test_language_model(pair, search, language_model, family):
    model, reference = pair(family)
    assert_same(*(search([either], lm=language_model) for either in (model, reference)))
    assert words(search([model], lm=language_model)) != words(search([model]))


@every_family
@pytest.mark.parametrize("ensemble", [1, 2])
def test_scores_of_references(pair, search, batch, dictionary, family, ensemble):
    """--score-reference: given the hypotheses of a search as references, it gives their scores, and the attention."""
    ours, references = map(list, zip(*(pair(family, another) for another in range(ensemble))))
    found = [hypotheses[0] for hypotheses in search(ours)]
    for model in ours:
        model.make_generation_fast_(need_attn=False)  # as fairseq-generate without --print-alignment
    target = torch.nn.utils.rnn.pad_sequence([h["tokens"] for h in found], batch_first=True, padding_value=PAD)
    given = torch.cat([torch.full((5, 1), EOS), target[:, :-1]], dim=1).masked_fill(target.eq(PAD), PAD)
    inputs = {**batch, "prev_output_tokens": given}
    scorer, sample = SequenceScorer(dictionary, compute_alignment=True), {"net_input": inputs, "target": target}
    scored = scorer.generate(ours, sample)
    for (score,), hypothesis in zip(scored, found, strict=True):
        both = (either["positional_scores"].double() for either in (score, hypothesis))
        torch.testing.assert_close(*both, atol=1e-5, rtol=0)
        assert score["attention"].shape == (target.size(1), 9) and score["alignment"] is not None
    if family == "vaswani_transformer":
        assert_same(scored, scorer.generate(references, sample))


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
        aligned = {**options, "print_alignment": "hard"}
        assert hub.translate(["w1 w2 w3 w4"], **options) == hub.translate(["w1 w2 w3 w4"], **aligned)
        results.append(hub.generate(sentences, **aligned))
        for sentence, hypotheses in zip(sentences, results[-1]):
            for hypothesis in hypotheses:
                inputs = torch.cat([hypothesis["tokens"][-1:], hypothesis["tokens"][:-1]])
                attention = hub.models[0](sentence[None], None, inputs[None])[1]["attn"][0][0]
                assert [pair[0] for pair in hypothesis["alignment"]] == attention[:-1, :-1].argmax(1).tolist()
    for result in results[1:]:
        assert words(result) == words(results[0])
        assert alignments(result) == alignments(results[0])


def alignments(found):
    return [h["alignment"] for hypotheses in found for h in hypotheses]


OF_LAYERS, OF_WEIGHTS = {"activation_dropout_module", "residual_dropout_module"}, {"dropout_module"}
KEPT = {  # and where branched self-attention of an encoder, and encoder–decoder attention, have such dropout
    "TransformerEncoderLayerBase": (OF_LAYERS, set()),
    "MultiheadAttention": (OF_WEIGHTS, OF_WEIGHTS),
    "TransformerDecoder": (set(), set()),
    "TransformerDecoderLayerBase": (set(), OF_LAYERS),
}


@pytest.mark.parametrize("kept", KEPT)
def test_dropout_is_retained_by_fairseqs_names(build, kept):
    """--retain-dropout-modules."""

    def retained_in(arch, **options):
        model = build(arch, dropout=0.1, **options)
        for name, module in model.named_modules():
            if isinstance(module, FairseqDropout):
                module.make_generation_fast_(name, retain_dropout=True, retain_dropout_modules=[kept])
        return retained(model)

    assert retained_in("vaswani_transformer_base") == retained_in("transformer") != []
    found = retained_in("weighted_relative_transformer_base", branched_attention="both")
    for branched, expected in zip(("encoder.layers.0.self_attn.", "decoder.layers.0.encoder_attn."), KEPT[kept]):
        assert {name.removeprefix(branched) for name in found if name.startswith(branched)} == expected


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
        if model.branch_training is not None:
            fused_adam(model, lr=[0.1], weight_decay=0.0, branch_frozen_updates=0).step()
            assert_on_simplex(w for block in branched_blocks(model).values() for w in block.kappa_alpha())
    assert len(numbers) > 1  # of four layers, not always as many
