"""Options of checkpoints that may be used; those that may not are in integration/test_hostile_files.py."""

import argparse

import pytest

from user_dir.checkpoints.trusted import refuse_untrusted


@pytest.mark.parametrize(
    "kind", ["cross_entropy", "label_smoothed_cross_entropy_with_alignment", "label_smoothed_cross_entropy_with_rdrop"]
)
def test_criteria_that_translate(kind):
    refuse_untrusted("checkpoint.pt", {"criterion": {"_name": kind}})


def test_the_search_of_a_program():
    """fairseq writes from_pretrained(…, generation_args={…}) among the model's options, too."""
    options = argparse.Namespace(arch="vaswani_transformer_tiny", generation_args={"beam": 1})
    refuse_untrusted("checkpoint.pt", {"model": options})
