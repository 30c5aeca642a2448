"""Options of checkpoints that may be used, or not; more of the latter are in integration/test_hostile_files.py."""

import argparse

import pytest

from user_dir.checkpoints.trusted import refuse_untrusted
from user_dir.errors import InputError


@pytest.mark.parametrize(
    "kind", ["cross_entropy", "label_smoothed_cross_entropy_with_alignment", "label_smoothed_cross_entropy_with_rdrop"]
)
def test_criteria_that_translate(kind):
    refuse_untrusted("checkpoint.pt", {"criterion": {"_name": kind}})


def test_the_search_of_a_program():
    """fairseq writes from_pretrained(…, generation_args={…}) among the model's options, too."""
    options = argparse.Namespace(arch="vaswani_transformer_tiny", generation_args={"beam": 1})
    refuse_untrusted("checkpoint.pt", {"model": options})


@pytest.mark.parametrize(
    "model, words",
    [
        ({"fconv": {"encoder_layers": "code"}}, "unknown model None"),  # fairseq takes the only key for the name
        ({"arch": "vaswani_transformer_tiny", "encoder_layers": 3}, "encoder_layers 3, .*: do not use it"),
        ({"arch": "vaswani_transformer_tiny", "encoder_embed_dim": 21}, "encoder_embed_dim 21, .*: do not use it"),
    ],
)
def test_what_may_not_be_built(model, words):
    """Among others more layers than there are parameters, or a width beyond all their numbers."""
    with pytest.raises(InputError, match=words):
        refuse_untrusted("checkpoint.pt", {"model": model}, sizes=[10, 10])
