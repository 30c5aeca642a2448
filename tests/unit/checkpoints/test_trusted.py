"""Options of checkpoints that may be used; those that may not are in integration/test_hostile_files.py."""

import pytest

from user_dir.checkpoints.trusted import refuse_untrusted


@pytest.mark.parametrize(
    "kind", ["cross_entropy", "label_smoothed_cross_entropy_with_alignment", "label_smoothed_cross_entropy_with_rdrop"]
)
def test_criteria_that_translate(kind):
    refuse_untrusted("checkpoint.pt", {"criterion": {"_name": kind}})
