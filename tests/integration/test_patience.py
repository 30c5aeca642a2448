"""--patience over restarts, for the loss and for BLEU; BLEU and samples in validation."""

import re

import pytest

from support import slow_beyond, train

# The rate is so small that nothing improves after the first validation, which is after two updates.
STEADY = "--lr 1e-12 --patience 3 --save-interval-updates 2 --log-interval 1 --update-epoch-batch-itr True".split()
BLEU = "--best-checkpoint-metric bleu --maximize-best-checkpoint-metric --valid-pairs 20 --eval-bleu".split()
METRICS = {"loss": [], "bleu": [*BLEU, "--eval-bleu-args", '{"beam": 3, "max_len_b": 10}']}


def last_update(log):
    return max([0, *map(int, re.findall(r"num_updates=(\d+)", log))])


@pytest.fixture(scope="module")
def started(command, copies, tmp_path_factory):
    """started(metric, updates): the log of a training, which continues where the last one of this metric ended."""
    folders = {metric: tmp_path_factory.mktemp(metric) for metric in METRICS}

    def started(metric, updates, folder="parts"):
        options = [*STEADY, *METRICS[metric], "--max-update", updates]
        done = train(command, copies, "vaswani_transformer", folders[metric] / folder, *options)
        return done.stdout + done.stderr

    return started


@pytest.fixture(scope="module")
def whole(started):
    """The logs of trainings that nobody interrupted."""
    return {metric: started(metric, "30", "whole") for metric in METRICS}


@pytest.mark.parametrize("metric", slow_beyond(["loss"], METRICS))
def test_a_restarted_training_stops_where_it_would_have(started, whole, metric):
    assert last_update(whole[metric]) == 8 and "early stop" in whole[metric]
    assert last_update(started(metric, "6")) == 6
    log = started(metric, "30")
    assert last_update(log) == 8 and "early stop" in log
    again = started(metric, "30")  # as if it had been killed just before it ended
    assert last_update(again) == 0 and "--patience 3 has stopped" in again


def test_a_sample_and_its_bleu(whole):
    """A sample of the validation set has another loss than the set."""
    valid = [re.search(r"\| loss ([\d.]+) ", log)[1] for log in whole.values()]
    assert valid[0] != valid[1] and "| bleu " in whole["bleu"] and "| bleu " not in whole["loss"]


def test_the_last_epoch_is_validated_and_saved(command, copies, tmp_path):
    """fairseq saves nothing after the last epoch where --save-interval does not divide --max-epoch."""
    options = "--max-epoch 1 --save-interval 7 --validate-interval 7".split()
    done = train(command, copies, "vaswani_transformer", tmp_path, *options)
    assert "valid on 'valid' subset" in done.stdout + done.stderr
    assert {"checkpoint_best.pt", "checkpoint_last.pt"} <= {path.name for path in tmp_path.iterdir()}
