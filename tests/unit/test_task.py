"""--task checked_translation: its options, data, checkpoints, searches and log."""

import argparse
import atexit
import math
import os
from unittest import mock

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import LanguagePairDataset
from fairseq.data.iterators import BufferedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.tasks import setup_task
from fairseq.tasks.translation import TranslationTask
from fairseq.token_generation_constraints import pack_constraints, unpack_constraints
from omegaconf import OmegaConf
from torch import distributed, multiprocessing

from user_dir.config import training_options as options_of_training
from user_dir.errors import InputError
from user_dir.task import CheckedTranslationConfig, CheckedTranslationTask, DoesNotFit
from user_dir.training.bpe_dropout import BPEDropout
from user_dir.training.data import Sample
from user_dir.training.processes import resident_memory, stop_loading

from support import OLD, SMALL, training_options


@pytest.mark.parametrize("trained, options", [("test", ["--bpe-dropout", "0.5"]), ("train", ["--valid-pairs", "5"])])
def test_only_a_training_follows_its_options(trained, options):
    """Programs that load a task with a checkpoint, such as fairseq-validate, evaluate the sentences as they are."""
    words = ["--task", "checked_translation", "--arch", "vaswani_transformer_tiny", "--train-subset", trained, *options]
    cfg = convert_namespace_to_omegaconf(training_options(str(OLD / "data-bin"), *words)).task
    loaded = []
    for of_checkpoint in (False, True):
        task = setup_task(cfg, from_checkpoint=of_checkpoint)
        task.load_dataset("test")
        loaded.append(task.dataset("test"))
    training, evaluation = loaded
    assert isinstance(training, (BPEDropout, Sample)) and type(evaluation) is LanguagePairDataset


@pytest.mark.parametrize("optimizer", ["fused_adam", "adam", "sgd"])  # the last one has no dataclass
def test_a_training_s_optimizer_is_known(optimizer):
    words = f"--task checked_translation --arch relative_transformer_tiny --optimizer {optimizer}"
    cfg = convert_namespace_to_omegaconf(training_options(str(OLD / "data-bin"), *words.split())).task
    assert options_of_training(setup_task(cfg).cfg)["optimizer"] == optimizer


def test_a_training_s_criterion_and_schedule_are_known():
    words = "--task checked_translation --arch relative_transformer_tiny --criterion label_smoothed_cross_entropy"
    words += " --label-smoothing 0.3 --lr-scheduler inverse_sqrt --warmup-updates 7"
    cfg = convert_namespace_to_omegaconf(training_options(str(OLD / "data-bin"), *words.split())).task
    found = options_of_training(setup_task(cfg).cfg)
    assert (found["label_smoothing"], found["warmup_updates"]) == (0.3, 7)


def validated(arguments="{}"):
    """The options and the task of a training with --eval-bleu, whose model has been built."""
    words = "--task checked_translation --arch relative_transformer_tiny --eval-bleu --optimizer fused_adam"
    words += " --lr 1e-3 --curriculum 2 --eval-bleu-detok moses --eval-bleu-args {}"
    words += f" --train-subset test --valid-subset test --max-tokens 4000 --eval-bleu-detok-args {arguments}"
    cfg = convert_namespace_to_omegaconf(training_options(str(OLD / "data-bin"), *words.split()))
    task = setup_task(cfg.task)
    task.build_model(cfg.model)
    return cfg, task


def test_validation_searches_with_ours():
    """--eval-bleu: the hypotheses' attention, which nobody reads, would leave the search to fairseq's generator."""
    _, task = validated()
    assert task.sequence_generator.is_plain_beam_search() and task.curriculum == 2


@pytest.mark.parametrize("given, language", [("{}", "en"), ('{"target_lang":"de"}', "de")])
def test_validation_detokenises_in_the_target_language(given, language):
    """In training, and as fairseq-validate; fairseq's would be English always."""
    cfg, task = validated(given)
    evaluation = setup_task(cfg.task, from_checkpoint=True)
    evaluation.build_model(cfg.model, from_checkpoint=True)
    for one in (task, evaluation):
        assert one.cfg.eval_bleu_detok_args == f'{{"target_lang": "{language}"}}'


def test_a_training_begins_without_another_one_s_best_value_and_batches():
    checkpoint_utils.save_checkpoint.best = 1.0
    batches = BufferedIterator(2, [1] * 9)
    assert next(batches) == 1
    validated()
    assert not batches._consumer.is_alive()
    assert not hasattr(checkpoint_utils.save_checkpoint, "best")


def test_a_training_s_processes_read_the_checkpoint_and_end_together(monkeypatch):
    """As integration/test_processes.py shows; and no thread loads batches while Python ends."""
    at_exit, with_parent = [], []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    monkeypatch.setattr("user_dir.task.end_with_parent", lambda: with_parent.append(True))
    cfg, _ = validated()
    assert cfg.checkpoint.load_checkpoint_on_all_dp_ranks and with_parent == [True]
    assert stop_loading in at_exit


@pytest.mark.parametrize(
    "given, words",
    [
        ({"beam": 0}, "beam 0: give a whole number from 1"),
        ({"nbest": 0}, "nbest 0: give a whole number from 1"),
        ({"beam": "4"}, "beam '4': give a whole number from 1"),
        ({"beam": 4, "nbest": 5}, "nbest 5 .*beam 4: give"),
        ({"lenpen": math.nan}, "lenpen nan: give a number from -10"),
        ({"sacrebleu": True}, "--sacrebleu: it has no effect: use --scoring sacrebleu"),
        ({"replace_unk": "@@ "}, "--replace-unk: fairseq would fail: omit it"),
        ({"print_step": True}, "--print-step: fairseq would fail: omit it"),
        ({"retain_iter_history": True}, "--retain-iter-history: fairseq would fail: omit it"),
        ({"lm_path": "lm.pt"}, "--lm-path: only fairseq-generate reads it: omit it"),
        ({"prefix_size": 2}, "--prefix-size: only fairseq-generate reads it: omit it"),
        ({"score_reference": True}, "--score-reference: only fairseq-generate reads it: omit it"),
    ],
)
def test_impossible_searches_are_refused(build, new_task, given, words):
    with pytest.raises(InputError, match=words):
        new_task().build_generator([build("vaswani_transformer_base")], argparse.Namespace(**given))


def test_parts_of_a_data_set_that_fairseq_would_not_make_are_refused(build):
    words = "--task checked_translation --arch vaswani_transformer_tiny --num-shards 2".split()
    cfg = convert_namespace_to_omegaconf(training_options(str(OLD / "data-bin"), *words))
    task = CheckedTranslationTask.setup_task(cfg.task)
    with pytest.raises(InputError, match="--num-shards: each part would translate all sentences: split the text"):
        task.build_generator([build("vaswani_transformer_base")], argparse.Namespace())


def test_processes_that_would_not_translate_all_sentences_are_refused(build):
    """fairseq-generate takes the number of processes for that of the parts, and translates the first."""
    words = "--task checked_translation --arch vaswani_transformer_tiny --distributed-world-size 2".split()
    cfg = convert_namespace_to_omegaconf(training_options(str(OLD / "data-bin"), *words))
    models, search = [build("vaswani_transformer_base")], argparse.Namespace()
    CheckedTranslationTask.setup_task(cfg.task).build_generator(models, search)  # as --eval-bleu of two processes
    CheckedTranslationTask.setup_task(cfg.task, from_checkpoint=True).build_generator(models, search)
    program = OmegaConf.create({"task": cfg.task, "distributed_training": {"distributed_world_size": 2}})
    CheckedTranslationTask.setup_task(program.task).build_generator(models, search)
    cfg.common_eval.path = "average.pt"
    with pytest.raises(InputError, match="--distributed-world-size: .* a part of the sentences only: omit it"):
        CheckedTranslationTask.setup_task(cfg.task).build_generator(models, search)


def test_the_other_direction_is_refused(new_task):
    """With one dictionary for both languages nothing else would say so; with two, not the data are the wrong ones."""
    state = new_task(source_lang="fr", target_lang="en").state_dict()
    for pair in (("fr", "en"), ("es", "en"), (None, None)):
        new_task(source_lang=pair[0], target_lang=pair[1]).load_state_dict(state)
    for dictionaries in (state["dictionaries"], ["of fr", "of en"]):
        with pytest.raises(InputError, match="the model translates fr to en: add -s fr -t en"):
            new_task(source_lang="en", target_lang="fr").load_state_dict({**state, "dictionaries": dictionaries})
    paraphrases = new_task(source_lang="en", target_lang="en")  # which has one direction only
    paraphrases.load_state_dict(paraphrases.state_dict())


def test_a_checkpoint_needs_no_file_of_embeddings(new_task):
    options = {**SMALL, "encoder_embed_path": "nowhere.txt", "decoder_embed_path": "nowhere.txt"}
    cfg = argparse.Namespace(arch="vaswani_transformer_tiny", **options)
    ARCH_CONFIG_REGISTRY[cfg.arch](cfg)
    assert new_task().build_model(cfg, from_checkpoint=True).cfg.encoder.embed_path is None


def test_data_sets_that_are_not_there_are_refused(new_task):
    with pytest.raises(InputError, match="has no data set tset: "):
        new_task(data="data-bin", source_lang="src", target_lang="tgt").load_dataset("tset")


def test_epochs_take_turns_with_several_folders(new_task):
    data = {"data": f"{OLD}/data-bin:nowhere", "source_lang": "fr", "target_lang": "en", "dataset_impl": "mmap"}
    task = new_task(**data, train_subset="test")
    task.load_dataset("test", epoch=1)
    with pytest.raises(InputError, match="no data set test"):
        task.load_dataset("test", epoch=2)


def test_the_side_of_bpe_dropout_needs_bpe_dropout(new_task):
    data = {"data": f"{OLD}/data-bin", "source_lang": "fr", "target_lang": "en", "dataset_impl": "mmap"}
    task = new_task(**data, train_subset="test", bpe_dropout_side="source")
    with pytest.raises(InputError, match="--bpe-dropout-side source has no effect without --bpe-dropout: omit it"):
        task.load_dataset("test")


def test_several_folders_have_the_same_words(tmp_path):
    """fairseq spells all of them with the first one's dictionaries, which may have more words at the end."""
    languages = {"source_lang": "fr", "target_lang": "en"}
    cfg = CheckedTranslationConfig(data=f"{OLD}/data-bin:{tmp_path}", **languages)
    for name in ("dict.en.txt", "dict.fr.txt"):
        words = (OLD / "data-bin" / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(f"{line.split()[0]} 1\n" for line in words[:-1]))
        CheckedTranslationTask.setup_task(cfg)
        (tmp_path / name).write_text("".join(words[::-1]))
        remedy = "prepare its data with --like .*/old_checkpoints "
        with pytest.raises(InputError, match=f"{tmp_path}/{name} has other words than .*: {remedy}"):
            CheckedTranslationTask.setup_task(cfg)
        (tmp_path / name).unlink()


def test_empty_constraints_are_left_out(new_task):
    """fairseq-interactive reads two tabs in a row as a phrase without words."""
    phrases = [[torch.tensor([7, 8]), torch.tensor([]), torch.tensor([9])], [torch.tensor([])]]
    sources = [torch.tensor([5, 2]), torch.tensor([6, 2])]
    dataset = new_task().build_dataset_for_inference(sources, [2, 2], constraints=pack_constraints(phrases))
    found = [[phrase.tolist() for phrase in unpack_constraints(row["constraints"])] for row in dataset]
    assert found == [[[7, 8], [9]], []]
    assert new_task().build_dataset_for_inference(sources, [2, 2]).constraints is None


def test_translations_in_other_scripts_than_moses_knows(new_task):
    """--tokenizer moses, for fairseq-generate's D- lines, and by the rules of the target language."""
    task = new_task(source_lang="en", target_lang="hi")
    for language, tokens, text in (("hi", "वह आता है ।", "वह आता है।"), ("fr", "l' homme", "l'homme")):
        moses = task.build_tokenizer(argparse.Namespace(tokenizer="moses", source_lang="en", target_lang=language))
        assert moses.decode(tokens) == text
    assert task.build_tokenizer(argparse.Namespace(tokenizer=None)) is None


class Criterion(torch.nn.Module):
    @staticmethod
    def reduce_metrics(logs):
        pass


FULL = torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "several, error, refused",
    [(True, FULL, DoesNotFit), (False, FULL, torch.OutOfMemoryError), (True, RuntimeError("lost"), RuntimeError)],
)
def test_a_batch_that_does_not_fit(new_task, monkeypatch, several, error, refused):
    """fairseq leaves it out; several processes would wait for each other, also to save crash.pt. Other errors stay."""
    assert issubclass(DoesNotFit, InputError) and issubclass(DoesNotFit, RuntimeError)
    monkeypatch.setattr(TranslationTask, "train_step", mock.Mock(side_effect=error))
    monkeypatch.setattr(distributed, "is_initialized", lambda: several)
    with pytest.raises(refused, match="out of memory|does not fit .*lower --max-tokens|lost") as found:
        new_task().train_step({}, None, None, None, 0)
    assert found.type is refused


@pytest.mark.parametrize("dummy, expected", [((0, 0, 1), 14), ((0, 1, 1), 7), ((1,), 0)])
def test_a_dummy_batch_leaves_the_sample_size_of_others(new_task, monkeypatch, dummy, expected):
    """fairseq's trainer adds up those of an update, and multiplies by 0 if it ends with a dummy batch."""
    monkeypatch.setattr(TranslationTask, "train_step", lambda *args, **kwargs: (None, 7, {}))
    task, size = new_task(), 0
    for ignored in dummy:
        size += task.train_step(ignore_grad=bool(ignored))[1]
    size *= 0.0
    assert float(size) == expected


@pytest.mark.parametrize("step", ["train_step", "valid_step"])
def test_batches_log_the_same_entries_with_and_without_alignments(new_task, monkeypatch, step):
    """In the same order, in which several processes add them up."""
    logs = [{"loss": 1.0, "alignment_loss": 2.0}, {"loss": 3.0}]
    monkeypatch.setattr(TranslationTask, step, lambda *args, **kwargs: (None, 7, logs.pop()))
    task = new_task(load_alignments=True)
    found = [[*getattr(task, step)(None, None, None)[2].items()] for _ in range(2)]
    assert found == [[("alignment_loss", 0.0), ("loss", 3.0)], [("alignment_loss", 2.0), ("loss", 1.0)]]


def test_memory_is_logged_in_training(new_task, monkeypatch):
    criterion = Criterion()
    for training in (True, False):
        with metrics.aggregate() as log:
            new_task().reduce_metrics([{"ntokens": 1, "nsentences": 1}], criterion.train(training))
        assert ("memory_gb" in log.get_smoothed_values()) == training
        if training:
            held = torch.ones(2**26)  # 256 MB
            before = log.get_smoothed_values()["memory_gb"]
            assert 0.2 < resident_memory() / 1e9 - before < 0.35 and held is not None
    own = resident_memory()
    workers = [argparse.Namespace(pid=pid) for pid in (os.getpid(), os.getpid(), 2**22 + 1)]  # the last one has ended
    monkeypatch.setattr(multiprocessing, "active_children", lambda: workers)
    assert resident_memory() == pytest.approx(3 * own, rel=0.1)  # with data-loader workers


def test_memory_of_the_gpu_is_logged_in_training(new_task, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * 10**9)
    with metrics.aggregate() as log:
        new_task().reduce_metrics([{"ntokens": 1, "nsentences": 1}], Criterion().train())
    assert log.get_smoothed_values()["gpu_memory_gb"] == 3
