"""The batches of a training's epochs, from one iterator, and those of its validations."""

import gc
import weakref

import pytest
import torch
from fairseq.data import LanguagePairDataset, ListDataset
from fairseq.tasks.translation import TranslationTask

from user_dir.task import CheckedTranslationConfig
from user_dir.training.data import Sample


@pytest.fixture
def dataset(dictionary):
    """200 pairs of the lengths 2 to 6: the batches of an epoch depend on the order of those that are equally long."""
    sentences = [torch.randint(4, 50, (2 + number % 5,)) for number in range(200)]
    sides = ListDataset(sentences, [len(sentence) for sentence in sentences])
    return lambda: LanguagePairDataset(sides, sides.sizes, dictionary, sides, sides.sizes, dictionary)


def epochs(task, dataset, count=3, number=1, seed=lambda epoch: 1, anew=True, **more):
    """The batches of some epochs, as fairseq's trainer asks for them: the numbers of the pairs in each."""
    found = []
    for _ in range(count):
        options = {"max_tokens": 40, "seed": seed(number), "epoch": number, "update_epoch_batch_itr": anew, **more}
        iterator = task.get_batch_iterator(dataset, **options)
        found.append([batch["id"].tolist() for batch in iterator.next_epoch_itr()])
        number = iterator.next_epoch_idx
    return found, iterator


@pytest.mark.parametrize("anew", [True, False])
def test_batches_are_fairseqs_in_one_iterator(new_task, dictionary, dataset, anew):
    """Made anew in each epoch, or once, and shuffled."""
    stock = TranslationTask(CheckedTranslationConfig(), dictionary, dictionary)
    stock.dataset_to_epoch_iter = {}  # fairseq keeps one for each dataset here
    expected, _ = epochs(stock, dataset(), anew=anew)
    task, data = new_task(), dataset()
    first = task.get_batch_iterator(data, max_tokens=40, seed=1, epoch=1, update_epoch_batch_itr=anew)
    found, last = epochs(task, data, anew=anew)
    assert found == expected and last is first and found[0] != found[1]
    assert (sorted(map(sorted, found[0])) == sorted(map(sorted, found[1]))) != anew


def test_a_resumed_training_meets_the_same_batches(new_task, dataset):
    data = dataset()
    (_, *expected), _ = epochs(new_task(), data)
    task = new_task()
    iterator = task.get_batch_iterator(data, max_tokens=40, seed=1, epoch=2, update_epoch_batch_itr=True)
    iterator.load_state_dict({"version": 2, "epoch": 2, "iterations_in_epoch": 3, "shuffle": True})
    rest = [batch["id"].tolist() for batch in iterator.next_epoch_itr()]
    again = task.get_batch_iterator(data, max_tokens=40, seed=1, epoch=3, update_epoch_batch_itr=True)
    assert rest == expected[0][3:] and [batch["id"].tolist() for batch in again.next_epoch_itr()] == expected[1]


def test_a_seed_for_each_epoch(new_task, dataset):
    """--update-ordered-indices-seed: a training that is resumed in its second epoch meets the same batches."""
    data, seed = dataset(), lambda epoch: 7 + epoch
    expected, _ = epochs(new_task(), data, seed=seed)
    task = new_task()
    assert epochs(task, data, 2, number=2, seed=seed)[0] == expected[1:]


def test_the_iterator_over_a_folder_ends_with_it(new_task, dataset, monkeypatch):
    """It is part of a reference cycle; for a worker that is alive when it is collected torch may wait five seconds."""
    task = new_task()
    before = weakref.ref(epochs(task, dataset(), 1, num_workers=1)[1])
    assert before() is not None
    (worker,) = before().dataloader._iterator._workers
    alive, collect = [], gc.collect
    monkeypatch.setattr(gc, "collect", lambda: alive.append(worker.is_alive()) or collect())
    epochs(task, dataset(), 1)
    assert before() is None and alive == [False]


@pytest.mark.parametrize("anew", [True, False])
def test_other_data_have_an_iterator_of_their_own(new_task, dataset, anew):
    """A validation set, also where it is what is trained on; and the next part of a training set in several folders."""
    task, data = new_task(), dataset()
    task.dataset_to_epoch_iter = {}  # fairseq keeps an iterator for each
    options = {"max_tokens": 40, "seed": 1, "epoch": 1, "disable_iterator_cache": False}  # as fairseq's trainer
    training = task.get_batch_iterator(data, update_epoch_batch_itr=anew, **options)
    validation = task.get_batch_iterator(data, **options)
    assert validation is not training and task.get_batch_iterator(data, **options) is validation
    assert task.get_batch_iterator(data, update_epoch_batch_itr=anew, **options) is training
    assert task.get_batch_iterator(dataset(), update_epoch_batch_itr=anew, **options) is not training
    task.get_batch_iterator(text := dataset(), max_tokens=40)  # as fairseq-interactive for each text that it reads
    assert text not in task.dataset_to_epoch_iter


@pytest.mark.parametrize("anew", [True, False])
def test_epochs_after_the_curriculum_are_shuffled(new_task, dataset, anew):
    """fairseq keeps the order of the first epoch; and a training that is resumed meets another one."""
    data, options = dataset(), {"max_tokens": 40, "seed": 1, "update_epoch_batch_itr": anew}

    def orders(first: int) -> list:
        task = new_task()
        task.curriculum = 2
        found = []
        for number in range(first, 5):
            iterator = task.get_batch_iterator(data, epoch=number, **options)
            batches = iterator.next_epoch_itr(shuffle=number > task.curriculum)  # as fairseq-train calls it
            found.append([{*batch["id"].tolist()} for batch in batches])
            assert (found[-1] == [{*batch} for batch in iterator.frozen_batches]) == (number <= task.curriculum)
        return found

    found = orders(1)
    assert found[2] != found[3]
    if anew:
        assert [orders(first)[0] for first in (2, 3, 4)] == found[1:]


def test_all_pairs_are_evaluated_and_batches_of_training_are_multiples(new_task, dataset):
    """fairseq leaves out the last pairs of a set that is not divisible by 8, and fails where nothing is left."""
    task = new_task(train_subset="train")
    task.datasets = {"train": Sample(dataset(), 197), "valid": Sample(dataset(), 5)}

    def sizes(split, **more):
        pairs, options = task.datasets[split], {"max_tokens": 100, "seed": 1, "epoch": 1}
        batches = task.get_batch_iterator(pairs, required_batch_size_multiple=8, **options, **more).frozen_batches
        return [len(batch) for batch in batches]

    assert sum(sizes("valid")) == 5 and sum(sizes("train")) == 197  # as fairseq-generate --gen-subset train does
    assert not [size for size in sizes("train", update_epoch_batch_itr=False) if size % 8]
