"""Options with which fairseq-train has to refuse, and its check of the input."""

import pytest
from fairseq import tasks

from user_dir.errors import InputError
from user_dir.training import input as training_input

from support import TRAINING, training_options

PLAIN, RELATIVE, WEIGHTED = "vaswani_transformer", "relative_transformer", "weighted_transformer"
BRANCHES = "--branch-frozen-updates 0"
TASK = "--task checked_translation"
TRAINED = " ".join(TRAINING).replace(BRANCHES, "").replace("--share-all-embeddings", "")


def check_input(data, words="", **given):
    """fairseq-train's check of its input, before it builds a model."""
    args = training_options(*f"{data} --arch {PLAIN}_tiny {TRAINED} {words}".split())
    vars(args).update(given)
    training_input.refuse_input(args, tasks.setup_task(args), args)


def assert_refused(said, data, words="", **given):
    with pytest.raises(InputError, match=said):
        check_input(data, words, **given)
