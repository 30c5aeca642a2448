"""--bpe-dropout: the words stay, their subwords change from epoch to epoch, and from nothing but seed and epoch."""

import io
import random

import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset, ListDataset
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from user_dir.errors import InputError
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask
from user_dir.training.bpe_dropout import Segmenter, with_bpe_dropout

from support import write_preparation

LETTERS = random.Random(1)
WORDS = ["".join(LETTERS.choices("abcde", k=LETTERS.randint(1, 7))) for _ in range(60)]
TEXT = [" ".join(LETTERS.choices(WORDS, k=LETTERS.randint(1, 9))) for _ in range(80)]


@pytest.fixture
def prepared(tmp_path):
    """prepared(**options): the training set of a task with these options, and its dictionary; data-prep's folder."""
    write_preparation(tmp_path / "data-bin", ("xx", "yy"))
    with open(tmp_path / "bpe/codes", "w") as file:
        learn_bpe(io.StringIO("\n".join(TEXT)), file, 80, min_frequency=1)
    with open(tmp_path / "bpe/codes") as file:
        codes = BPE(file)
    dictionary = Dictionary()
    lines = [codes.segment(line) for line in TEXT]
    for piece in " ".join([*lines, "a@@ b@@ c@@ d@@ e@@ a b c d e"]).split():
        dictionary.add_symbol(piece)

    def prepared(**options):
        sentences = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
        side = ListDataset(sentences, [len(sentence) for sentence in sentences])
        pairs = LanguagePairDataset(side, side.sizes, dictionary, side, side.sizes, dictionary)
        given = {"data": str(tmp_path / "data-bin"), "source_lang": "xx", "target_lang": "yy", "seed": 1}
        cfg = CheckedTranslationConfig(**{**given, "bpe_dropout": 0.3, **options})
        return with_bpe_dropout(pairs, CheckedTranslationTask(cfg, dictionary, dictionary)), dictionary

    return prepared


def sentences(pairs, side="source"):
    return [pairs[number][side].tolist() for number in range(len(pairs))]


def test_each_side_has_its_own_codes_and_dictionary(tmp_path):
    write_preparation(tmp_path / "data-bin", ("xx", "yy"), separate=True)
    (tmp_path / "bpe/codes.yy").write_text("#version: 0.2\na b</w>\n")
    one, other = Dictionary(), Dictionary()
    data = f"{tmp_path}/data-bin:elsewhere/data-bin"  # what lies beside the first of several folders
    cfg = CheckedTranslationConfig(data=data, source_lang="xx", target_lang="yy", bpe_dropout=0.1)
    found = with_bpe_dropout([], CheckedTranslationTask(cfg, one, other)).segmenters
    assert found["source"].dictionary is one and found["target"].dictionary is other
    assert [("a", "b</w>") in found[side].codes.bpe_codes for side in ("source", "target")] == [False, True]


def test_words_that_cannot_be_segmented_again_stay():
    """</s>, even where the dictionary has its letters, and words of unknown letters; unknown merges are split."""
    dictionary = Dictionary()
    pieces = ["<@@", "/@@", "s@@", ">", "a@@", "b", "cd"]
    eos, (*_, a, b, cd) = dictionary.eos(), [dictionary.add_symbol(piece) for piece in pieces]
    codes = BPE(io.StringIO("#version: 0.2\na b</w>\n"))
    assert Segmenter(codes, dictionary, 0.5, 100).segment(torch.tensor([a, b, cd, eos])).tolist() == [a, b, cd, eos]
    assert Segmenter(codes, dictionary, 0, 100).segment(torch.tensor([a, b])).tolist() == [a, b]
    assert Segmenter(codes, dictionary, 0, 100).segment(torch.tensor([a, eos])).tolist() == [a, eos]  # cut in a word


def test_a_sentence_is_cut_as_by_truncate_source():
    dictionary = Dictionary()
    a, b, ab, eos = *(dictionary.add_symbol(piece) for piece in ("a@@", "b", "ab")), dictionary.eos()
    codes, tokens = BPE(io.StringIO("#version: 0.2\na b</w>\n")), torch.tensor([ab, ab, eos])
    found = [Segmenter(codes, dictionary, 1 - 1e-9, 4, cut).segment(tokens).tolist() for cut in (False, True)]
    assert found == [tokens.tolist(), [a, b, a, eos]]


def test_truncate_source_cuts_the_source(prepared):
    pairs, _ = prepared(truncate_source=True)
    assert [segmenter.cut for segmenter in pairs.segmenters.values()] == [True, False]


def test_pieces_that_the_dictionary_lacks_are_split():
    """Into those that it has: abc is none, bc is one."""
    dictionary = Dictionary()
    a, b, c, bc = [dictionary.add_symbol(piece) for piece in ("a@@", "b@@", "c", "bc")]
    codes = BPE(io.StringIO("#version: 0.2\nb c</w>\na bc</w>\n"))
    assert Segmenter(codes, dictionary, 0, 100).segment(torch.tensor([a, b, c])).tolist() == [a, bc]


def test_words_stay_and_subwords_change(prepared):
    pairs, dictionary = prepared()
    first = sentences(pairs)
    pairs.set_epoch(2)
    second = sentences(pairs)
    assert not pairs.segmenters["source"].codes.cache  # subword-nmt would fill it without ever reading it
    for found in (first, second, sentences(pairs, "target")):
        assert [dictionary.string(tokens, "@@ ") for tokens in found] == TEXT
    plain = sentences(pairs.dataset)
    assert sum(map(len, first)) > 1.1 * sum(map(len, plain)) and first != second
    assert all(tokens[-1] == dictionary.eos() and dictionary.unk() not in tokens for tokens in first + second)


def test_seed_epoch_and_sentence_decide(prepared):
    """In any order and process; and nobody else's random numbers change."""
    pairs, _ = prepared()
    random.seed(5)
    expected = random.random()
    first = sentences(pairs)
    random.seed(5)
    assert pairs[3]["source"].tolist() == first[3] and random.random() == expected
    assert sentences(prepared()[0]) == first != sentences(prepared(seed=2)[0])
    pairs.dataset.src = [max(pairs.dataset.src, key=len)] * len(pairs)  # one sentence in many places
    assert len({*map(tuple, sentences(pairs))}) > 10


def test_validation_on_the_training_set_leaves_its_epoch(prepared, new_task):
    pairs, _ = prepared()
    task = new_task()
    task.get_batch_iterator(pairs, max_tokens=100, update_epoch_batch_itr=False, epoch=3)
    assert pairs.epoch == 3
    task.get_batch_iterator(pairs, max_tokens=100, epoch=1)
    assert pairs.epoch == 3


@pytest.mark.parametrize("side, other", [("source", "target"), ("target", "source")])
def test_one_side(prepared, side, other):
    pairs, _ = prepared(bpe_dropout_side=side)
    assert sentences(pairs, other) == sentences(pairs.dataset, other)
    assert sentences(pairs, side) != sentences(pairs.dataset, side)


def test_the_more_the_longer(prepared):
    lengths = [sum(map(len, sentences(prepared(bpe_dropout=p)[0]))) for p in (0.001, 0.1, 0.5, 0.999)]
    assert lengths == sorted(lengths) and lengths[-1] == sum(len(line.replace(" ", "")) + 1 for line in TEXT)


@pytest.mark.parametrize("side", ["source", "target"])
def test_unknown_and_long_sentences_stay(prepared, side):
    pairs, dictionary = prepared(**{f"max_{side}_positions": 6})
    for tokens, plain in zip(sentences(pairs, side), sentences(pairs.dataset, side)):
        assert len(tokens) <= 6 or tokens == plain
    unknown = torch.tensor([dictionary.unk(), dictionary.eos()])
    assert pairs.segmenters[side].segment(unknown).tolist() == unknown.tolist()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"bpe_dropout": 1.0}, "--bpe-dropout 1.0: .* below 1"),
        ({"bpe_dropout": -0.1}, "--bpe-dropout -0.1"),
        ({"bpe_dropout": 0.0, "bpe_dropout_side": "source"}, "--bpe-dropout-side source has no effect without"),
        ({"load_alignments": True}, "--load-alignments"),
        ({"data": "nowhere/data-bin"}, "no manifest.json beside nowhere"),
    ],
)
def test_refusals(prepared, options, words):
    with pytest.raises(InputError, match=words):
        prepared(**options)


def test_a_side_without_codes_is_named(prepared, tmp_path):
    (tmp_path / "bpe/codes").unlink()
    with pytest.raises(InputError, match="--bpe-dropout: .*bpe/codes for the target: .*--bpe-dropout-side"):
        prepared(bpe_dropout_side="target")
