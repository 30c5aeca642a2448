"""nmt-precision: bfloat16 has to gain more than its casts cost."""

import pytest
import torch

from user_dir.tools.shared import precision


@pytest.mark.parametrize("gain, chosen", [(1.4, "bf16"), (1.2, "off"), (0.5, "off")])
def test_the_faster_one(monkeypatch, gain, chosen):
    monkeypatch.setattr(precision, "seconds", lambda dtype, *_: 1.0 if dtype == torch.float32 else 1 / gain)
    assert precision.faster_precision("cpu") == chosen
