"""--bpe-dropout through the commands: a resumed training, with a worker, ends with the model of a whole one without."""

import random
import re

import pytest
import torch

from support import PROJECT, assert_two_processes_equal_one, train


@pytest.fixture(scope="module")
def data(command, tmp_path_factory):
    """A data-bin of 400 sentences of made-up words; the targets are the sources backwards."""
    folder, letters = tmp_path_factory.mktemp("text"), random.Random(1)
    words = ["".join(letters.choices("abcdefgh", k=letters.randint(2, 8))) for _ in range(300)]
    lines = [letters.choices(words, k=letters.randint(2, 8)) for _ in range(400)]
    for name, order in (("text.xx", 1), ("text.yy", -1)):
        (folder / name).write_text("".join(" ".join(line[::order]) + "\n" for line in lines))
    options = "--source-lang xx --target-lang yy --bpe-operations 100 --workers 1 --held-out 20 --pretokenised".split()
    prepare = ["python", PROJECT / "data-prep/prepare.py", "--output", folder / "data"]
    command(*prepare, "--train", folder / "text.xx", folder / "text.yy", *options)
    return folder / "data/data-bin"


def test_two_processes_see_the_same_subwords(command, data, tmp_path):
    options = "--bpe-dropout 0.3 --update-epoch-batch-itr True".split()
    assert_two_processes_equal_one(command, data, "vaswani_transformer", tmp_path, *options)


def test_a_resumed_training_sees_the_same_subwords(command, data, tmp_path):
    def trained(folder, *more):
        options = ["--bpe-dropout", "0.3", "--update-epoch-batch-itr", "True", "--dropout", "0.1"]
        options += ["--disable-validation", "--log-interval", "1", *more]
        done = train(command, data, "vaswani_transformer", tmp_path / folder, *options)
        return done.stdout, torch.load(tmp_path / folder / "checkpoint_last.pt")["model"]

    whole, expected = trained("whole", "--max-update", "24")
    assert re.search(r"epoch 002: .* num_updates=18,", whole)  # where the resumed one begins
    trained("parts", "--max-update", "18", "--num-workers", "1")
    log, resumed = trained("parts", "--max-update", "24", "--num-workers", "1")
    assert "@ 18 updates" in log
    without, _ = trained("without", "--max-update", "1", "--bpe-dropout", "0")
    for name, tensor in expected.items():
        assert torch.equal(resumed[name], tensor), name
    losses = [re.search(r" loss=([\d.]+)", log)[1] for log in (whole, without)]
    assert losses[0] != losses[1]
