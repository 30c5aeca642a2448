"""Our beam search against fairseq's, with the same model: the same hypotheses, scores and order."""

import argparse
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from fairseq.modules import FairseqDropout
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationTask
from fairseq.token_generation_constraints import pack_constraints

from user_dir.errors import InputError
from user_dir.search import beam as generator
from user_dir.search.beam import Hypotheses, best_of_all, best_of_groups, best_words
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask
from user_dir.transformer.architectures import FAMILIES
from user_dir.transformer.model import TransformerModel

from comparing import assert_same, randomise, words
from support import EOS, PAD

CARRIED = {
    "beams": {},
    "one beam": {"beam": 1},
    "many beams": {"beam": 20},
    "length penalty, longer, hotter": {"lenpen": 0.6, "min_len": 4, "temperature": 1.5},
    "sums of probabilities": {"unnormalized": True},
    "unknown words wanted": {"unkpen": -9.0},
    "no room": {"max_len_b": 2},
    "short": {"max_len_a": 0.5, "max_len_b": 1},
    "empty sentences allowed": {"min_len": 0},
}
# Random weights with which hypotheses of several lengths are found; `models` looks for those of other families.
SEEDS = {
    "vaswani_transformer": (33, 8, 29),
    "relative_transformer": (25, 37, 2),
    "weighted_transformer": (61, 25, 58),
    "weighted_relative_transformer": (51, 29, 24),
}
LEFT_TO_FAIRSEQ = {
    "sampling": {"sampling": True},
    "length of the source": {"match_source_len": True, "max_len_b": 0},  # which has no effect then
    "diverse beams": {"diverse_beam_groups": 4},  # in larger groups fairseq continues hypotheses after </s>
    "forced prefix": {"prefix": torch.tensor([[5, 6], [7, PAD], [8, 9], [5, 6], [PAD, PAD]])},
    "as many beams as words": {"beam": 40},
    "constraints": {"constraints": pack_constraints([[torch.tensor([7, 8])]] * 5)},
    "suppressed words": {"suppressed": [7, 9]},
}
FORMS = ("fairseq", "vaswani")  # of the length penalty


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    """Small models, too, have their best words found by groups."""
    monkeypatch.setattr(generator, "LARGE", 0)


@pytest.fixture
def models(build, search):
    """models(family, number): models of random weights, ready to generate."""

    def one(family, seed, **options):
        model = randomise(build(f"{family}_base", **options), seed)
        model.make_generation_fast_(need_attn=False)  # as fairseq-generate
        return model

    def differ(family, seed):
        return len({*map(len, words(search(TranslationTask, [one(family, seed)])))}) > 3

    def models(family="vaswani_transformer", number=1, **options):
        seeds = SEEDS.get(family) or (seed for seed in range(1, 1000) if differ(family, seed))
        return [one(family, seed, **options) for seed in itertools.islice(seeds, number)]

    return models


@pytest.fixture
def search(dictionary, batch):
    """search(task, models, …): hypotheses of the generator that the task builds, for these sources."""
    sample = {"net_input": {name: batch[name] for name in ("src_tokens", "src_lengths")}}

    def search(task, models, *, prefix=None, constraints=None, suppressed=(), form="fairseq", **options):
        args = argparse.Namespace(**{"beam": 4, "max_len_b": 12, **options})
        args.constraints = None if constraints is None else "ordered"
        more = {"tokens_to_suppress": [dictionary[word] for word in suppressed]}
        task = task(CheckedTranslationConfig(lenpen_form=form), dictionary, dictionary)
        built = task.build_generator(models, args, extra_gen_cls_kwargs=more)
        torch.manual_seed(1)
        return built.generate(models, sample, prefix_tokens=prefix, constraints=constraints)

    return search


@pytest.fixture
def both(search, monkeypatch):
    """both(models, …): our hypotheses and fairseq's; `left`: fairseq's generator is to search in both cases."""

    def both(models, left=False, **options):
        expected = search(TranslationTask, models, **options)
        calls, fairseqs = [], SequenceGenerator._generate
        with monkeypatch.context() as patch:
            patch.setattr(SequenceGenerator, "_generate", lambda *args: calls.append(1) or fairseqs(*args))
            found = search(CheckedTranslationTask, models, **options)
        assert bool(calls) == left
        return found, expected

    return both


@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram_size": 2}], ids=["ours", "fairseq's"])
def test_a_shortest_translation_longer_than_the_longest_is_refused(search, models, options):
    with pytest.raises(InputError, match="--min-len 13 is larger than .*, 12 subwords: give a smaller one"):
        search(CheckedTranslationTask, models(), min_len=13, **options)


FIRST, *OTHERS = FAMILIES
CASES = [*((FIRST, options) for options in CARRIED), *((family, "beams") for family in OTHERS)]


@pytest.mark.parametrize("family, options", CASES)
def test_hypotheses(models, both, family, options):
    found, expected = both(models(family), **CARRIED[options])
    assert_same(found, expected)
    if options == "beams":  # what makes the test worth something
        assert len({len(hypothesis) for hypothesis in words(found)}) > 3


def test_no_hypothesis_is_longer_than_the_models_positions(models, both):
    found, expected = both(models(max_target_positions=9), max_len_b=40)
    assert_same(found, expected)
    assert max(len(hypothesis) for hypothesis in words(found)) == 9


@pytest.mark.parametrize("family", FAMILIES)
def test_ensembles(models, both, family):
    found, expected = both(models(family, 3))
    assert_same(found, expected)
    assert words(found) != words(both(models(family))[0])


def test_another_first_word(models, new_task, batch):
    (model,) = models()
    task = new_task()
    ours = task.build_generator([model], argparse.Namespace(beam=4, max_len_b=12))
    found = ours.generate([model], {"net_input": batch}, bos_token=7)
    assert_same(found, SequenceGenerator._generate(ours, {"net_input": batch}, bos_token=7))
    assert words(found) != words(ours.generate([model], {"net_input": batch}))


@pytest.mark.parametrize("more", [{}, {"print_alignment": "hard"}], ids=str)
def test_diverse_beams_of_numbered_sentences(models, new_task, batch, more):
    """fairseq would take their numbers in the data, which fairseq-generate passes, for rows of the batch."""
    (model,) = models()
    options = argparse.Namespace(beam=4, max_len_b=12, diverse_beam_groups=2, **more)
    searches = new_task().build_generator([model], options)
    expected = searches.generate([model], {"net_input": batch})
    assert not any(EOS in hypothesis["tokens"][:-1] for hypotheses in expected for hypothesis in hypotheses)
    for numbers in ([9, 13, 7, 11, 8], [4, 3, 2, 1, 0]):
        assert_same(searches.generate([model], {"net_input": batch, "id": torch.tensor(numbers)}), expected)


def test_a_search_among_allowed_words_ends(models, new_task):
    """fairseq's would continue the better hypothesis, after </s>; prefix_allowed_tokens_fn is of its hub interface."""
    allowed = {"prefix_allowed_tokens_fn": lambda number, written: [7, 8, 9]}
    built = new_task().build_generator(models(), argparse.Namespace(beam=2), **allowed)
    log_probs, scores = torch.full((1, 2, built.vocab_size), -1.0), torch.tensor([[[-5.0], [-0.1]]])
    written = torch.tensor([[EOS, 7], [EOS, EOS]])
    _, _, beams = built.search.step(1, log_probs, scores, written, torch.tensor([0]))
    assert beams.tolist() == [[0, 0]]


N_GRAMS = {"no_repeat_ngram_size": 2}
SOME = [N_GRAMS, {"diverse_beam_groups": 2}, LEFT_TO_FAIRSEQ["forced prefix"]]


@pytest.mark.parametrize("options", [{}, {"min_len": 0}, *SOME, {"print_alignment": "hard"}], ids=str)
def test_length_penalty_of_the_paper(models, search, options):
    """Section 6.1: log p / ((5 + length)/6)^α, whoever searches; that orders the hypotheses and finds no others.

    With the same α fairseq's form prefers longer ones, because length^α grows faster.
    """
    ours = models()
    by_form = {form: search(CheckedTranslationTask, ours, form=form, lenpen=2.0, **options) for form in FORMS}
    assert words(by_form["vaswani"]) != words(by_form["fairseq"])
    for paper, fairseqs in zip(by_form["vaswani"], by_form["fairseq"], strict=True):
        assert len(paper[0]["tokens"]) <= len(fairseqs[0]["tokens"])
        expected = []
        for hypothesis in fairseqs:
            log_p = sum(hypothesis["positional_scores"].tolist())
            length = len(hypothesis["tokens"])
            expected.append((log_p / ((5 + length) / 6) ** 2.0, hypothesis["tokens"].tolist()))
        expected.sort(reverse=True)
        assert [h["tokens"].tolist() for h in paper] == [tokens for _, tokens in expected]
        assert [h["score"].item() for h in paper] == pytest.approx([score for score, _ in expected], rel=1e-5)


def test_sums_and_references_have_no_length_penalty(models, search, new_task):
    ours = models()
    assert_same(*(search(CheckedTranslationTask, ours, form=form, unnormalized=True) for form in FORMS))
    task = new_task(lenpen_form="vaswani")
    given = argparse.Namespace(score_reference=True)
    assert type(task.build_generator(ours, given, extra_gen_cls_kwargs={})) is SequenceScorer


@pytest.mark.parametrize("options", LEFT_TO_FAIRSEQ)
def test_left_to_fairseq(models, both, options):
    assert_same(*both(models(), left=True, **LEFT_TO_FAIRSEQ[options]))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_n_grams_are_not_repeated(models, both, size):
    """As fairseq's option says; its own generator does not find them."""
    found, expected = both(models(), left=True, min_len=12, no_repeat_ngram_size=size)

    def most(hypotheses):
        n_grams = (zip(*(tokens[place:] for place in range(size))) for tokens in words(hypotheses))
        return max(max(Counter(every).values()) for every in n_grams)

    assert most(found) == 1 < most(expected)


def test_a_prefix_may_repeat_n_grams(models, search):
    prefix = torch.tensor([[5, 6, 5, 6]] * 5)
    found = search(CheckedTranslationTask, models(), prefix=prefix, **N_GRAMS)
    assert all(tokens[:4] == [5, 6, 5, 6] for tokens in words(found))


def test_constraints_without_a_search_that_keeps_them_are_refused(models, new_task, batch):
    ours, task = models(), new_task()
    built = task.build_generator(ours, argparse.Namespace(beam=4))
    with pytest.raises(NotImplementedError):
        built.generate(ours, {"net_input": batch}, constraints=LEFT_TO_FAIRSEQ["constraints"]["constraints"])
    built = task.build_generator(ours, argparse.Namespace(beam=4, constraints="ordered"))
    with pytest.raises(InputError, match="--constraints: .*: use fairseq-interactive"):  # as fairseq-generate calls it
        built.generate(ours, {"net_input": batch})


def test_other_models_and_attention_are_left_to_fairseq(models, both, build):
    (ours,), stock = models(), build("transformer")
    stock.load_state_dict(ours.state_dict())
    assert words(both([stock], left=True)[0]) == words(both([ours])[0])
    both([ours, stock], left=True)
    unprepared = randomise(build("vaswani_transformer_base"), 33)  # keeps attention weights
    found, expected = both([unprepared], left=True)
    assert_same(found, expected)
    assert found[0][0]["attention"].numel() > 0


def test_a_decoder_that_reads_all_words_is_left_to_fairseq(models, both):
    """A variant's own, such as one that counts the words so far."""

    def counting(self, tokens, *args, **kwargs):
        logits, extra = super(type(self), self).forward(tokens, *args, **kwargs)
        return logits - torch.nn.functional.one_hot(tokens, logits.size(2)).sum(1)[:, None], extra

    (model,) = models()
    ours = type(model.decoder)
    model.decoder.__class__ = type("Counting", (ours,), {"forward": counting})
    assert_same(*both([model], left=True))
    model.decoder.__class__ = type("Normalised", (ours,), {})  # which only builds other modules
    assert_same(*both([model]))
    for call in ("extract_features", "extract_features_scriptable"):  # which may read them, too
        own = {call: lambda *args, call=call, **kwargs: getattr(ours, call)(*args, **kwargs)}
        model.decoder.__class__ = type("Own", (ours,), own)
        assert_same(*both([model], left=True))


def test_dropout_that_is_retained_is_left_to_fairseq(models, both):
    (ours,) = models()
    for module in ours.modules():
        if isinstance(module, FairseqDropout):
            module.p, module.apply_during_inference = 0.1, True
    both([ours], left=True)


def test_a_language_model_is_left_to_fairseq(models, new_task):
    ours, task = models(), new_task()
    for language_model in (None, ours[0].decoder):
        more, given = {"lm_model": language_model}, argparse.Namespace(beam=4, lm_path="lm.pt", prefix_size=2)
        built = task.build_generator(ours, given, extra_gen_cls_kwargs=more)
        assert built.is_plain_beam_search() == (language_model is None)


def test_alignments_have_fairseqs_generator(models, new_task):
    task = new_task()
    built = task.build_generator(models(), argparse.Namespace(print_alignment="hard"))
    assert type(built) is SequenceGeneratorWithAlignment


def test_equal_scores_are_ordered_as_by_fairseq(models, both):
    """Each word has a twin, so that every candidate's score is there twice, and which is taken is up to torch.topk."""
    (model,) = models()
    for table in (model.decoder.output_projection.weight.data, model.decoder.embed_tokens.weight.data):
        table[5::2] = table[4::2]
        table[PAD] = table[4]  # and is no word
    found, expected = both([model])
    assert_same(found, expected)
    assert any({4, 5} & {word} for hypothesis in words(found) for word in hypothesis)


def test_no_numbers(models, both, monkeypatch):
    """Words whose probability is no number are never taken."""
    fairseqs = TransformerModel.get_normalized_probs

    def broken(*args, **kwargs):
        log_probs = fairseqs(*args, **kwargs)
        log_probs[..., 5::2] = float("nan")
        return log_probs

    monkeypatch.setattr(TransformerModel, "get_normalized_probs", broken)
    found, expected = both(models())
    assert_same(found, expected)
    assert all(word % 2 == 0 for hypothesis in words(found) for word in hypothesis)


def test_a_model_that_gives_no_numbers(models, search, monkeypatch):
    nothing = lambda self, output, *args, **kwargs: torch.full_like(output[0], float("nan"))  # noqa: E731
    monkeypatch.setattr(TransformerModel, "get_normalized_probs", nothing)
    for task, error, said in ((TranslationTask, AssertionError, "<"), (CheckedTranslationTask, InputError, "--fp16")):
        with pytest.raises(error, match=said):
            search(task, models())


@pytest.mark.parametrize("final", [False, True])
def test_a_candidate_of_no_probability_is_not_complete(final):
    """As of </s> before --min-len, where few other words are possible."""
    hypotheses = Hypotheses(sentences=1, beam_size=2, eos=EOS)
    scores, words = np.array([[-1.0, -math.inf, -math.inf, -math.inf]]), np.array([[5, EOS, 6, 7]])
    hypotheses.extend(scores, words, np.zeros_like(words), final)
    assert hypotheses.ended == [[]] and hypotheses.unfinished.tolist() == [0]
    assert hypotheses.steps[-1].words.tolist() == [5, EOS]


def test_an_equal_score_just_behind_the_best_is_noticed():
    """fairseq may take that word: it is in one more group than there are words to take."""
    count, vocabulary = 4, 100
    log_probs = torch.full((1, 1, vocabulary), -50.0)
    log_probs[..., [3, 14, 25, 36, 47]] = torch.tensor([-1.0, -2.0, -3.0, -4.0, -4.0])  # of 60 groups, five
    _, _, doubtful = best_of_groups(log_probs, torch.zeros(1, 1), count)
    assert doubtful.all()
    log_probs[..., 47] = -5
    _, index, doubtful = best_of_groups(log_probs, torch.zeros(1, 1), count)
    assert index.tolist() == [[3, 14, 25, 36]] and not doubtful.any()


def test_sentences_with_equal_scores_or_without_numbers_are_searched_as_by_fairseq(monkeypatch):
    """And those beside them are not."""
    torch.manual_seed(1)
    log_probs, scores = torch.randn(6, 4, 1000), torch.randn(6, 4)
    log_probs[1], scores[1], log_probs[4, :, 5:50] = log_probs[1].round(), 0, math.nan
    found, searched = best_words(log_probs, scores, 8), []
    monkeypatch.setattr(generator, "best_of_all", lambda *args: searched.append(len(args[1])) or best_of_all(*args))
    best, word, beam = best_words(log_probs, scores, 8)
    assert searched == [2] and all(map(np.array_equal, found, (best, word, beam)))
    expected, places, _ = best_of_all(log_probs.nan_to_num(-math.inf), scores, 8)
    assert best.tolist() == expected.tolist() and (beam * 1000 + word).tolist() == places.tolist()


@pytest.mark.parametrize("vocabulary", [9, 10, 50, 101, 1000, 1023, 4099])
@pytest.mark.parametrize("beams, large", [(1, 0), (4, 0), (4, 10**9)])
def test_best_words(monkeypatch, vocabulary, beams, large):
    """The largest sums of all words after all hypotheses, whatever their number."""
    monkeypatch.setattr(generator, "LARGE", large)
    torch.manual_seed(vocabulary)
    log_probs, scores = torch.randn(6, beams, vocabulary), torch.randn(6, beams)
    best, word, beam = best_words(log_probs, scores, 8)
    expected, places = (scores[..., None] + log_probs).flatten(1).sort(1, descending=True)
    assert best.tolist() == expected[:, :8].tolist()
    assert (beam * vocabulary + word).tolist() == places[:, :8].tolist()
